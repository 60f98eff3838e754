"""The file of the nodes that a node knows: damaged, refused by the disk, and of another node."""

import errno
from pathlib import Path

import pytest

from kestreld.cluster.nodes import Flag, Node, NodeAddress, NodeTable
from kestreld.files import FileLayer
from kestreld.server.disque.nodes_file import NodesFile, parsed, written
from tests.support.faulty_files import FaultyFiles

A, B, C = b"a" * 40, b"b" * 40, b"c" * 40


class RefusingFiles(FaultyFiles):
    """Refuses one kind of call, once told to, until it is mended."""

    def __init__(self, kind: str) -> None:
        super().__init__(errno.ENOSPC, (kind,), stays=True)

    in_background = FileLayer.in_background


def node(node_id: bytes, host: str = "10.0.0.1", flags: Flag = Flag(0)) -> Node:  # noqa: B008
    return Node(node_id, NodeAddress(host, 7711, 17_711), flags, 0)


def table(*others: Node, myself: bytes = A) -> NodeTable:
    made = NodeTable(node(myself, "", Flag.MYSELF))
    for one in others:
        made.add(one)
    return made


def seen(nodes: list[Node]) -> list[tuple[bytes, NodeAddress, Flag]]:
    return [(one.id, one.address, one.flags) for one in nodes]


NODES = [
    node(A, "", Flag.MYSELF | Flag.LEAVING),
    node(B, "fe80::1", Flag.FAILED),
    node(C, "n1.example", Flag.LEAVING | Flag.NO_ADDRESS),
]


def test_what_is_written_is_read_again() -> None:
    nodes, is_sound = parsed(written(NODES))
    assert is_sound
    assert seen(nodes) == seen(NODES)


def test_what_is_not_for_the_next_start_is_not_written() -> None:
    suspected = node(B, flags=Flag.SUSPECT | Flag.LOADING | Flag.MEET)
    assert seen(parsed(written([suspected]))[0]) == seen([node(B)])


def test_a_changed_byte_is_told_and_the_lines_that_are_left_are_read() -> None:
    content = written(NODES)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        nodes, is_sound = parsed(bytes(damaged))
        assert not is_sound, place
        assert len(nodes) >= len(NODES) - 2, place  # a flipped line end costs two
        cut, is_sound = parsed(content[:place])
        assert not is_sound
        assert seen(cut)[: len(cut) - 1] == seen(NODES)[: max(len(cut) - 1, 0)]


def file_in(folder: Path, known: NodeTable, log: list[str], files: FileLayer | None = None) -> NodesFile:
    return NodesFile(files or FileLayer(), str(folder), known, log.append)


def test_a_node_finds_its_others_again(tmp_path: Path) -> None:
    log: list[str] = []
    told: list[str] = []
    file_in(tmp_path, table(node(B), node(C)), log).save(told.append)
    assert seen(file_in(tmp_path, table(), log).read()) == seen([node(A, "", Flag.MYSELF), node(B), node(C)])
    assert (told, log) == ([""], [])


def test_nodes_in_handshake_are_not_kept(tmp_path: Path) -> None:
    file = file_in(tmp_path, table(node(B), node(C, flags=Flag.HANDSHAKE)), [])
    file.changed()
    assert [one.id for one in file_in(tmp_path, table(), []).read()] == [A, B]


def test_a_damaged_file_is_told_and_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log: list[str] = []
    file_in(tmp_path, table(node(B), node(C)), log).changed()
    path = tmp_path / ".jobs.nodes"
    path.write_bytes(path.read_bytes().replace(b" 7711 17711 -\n" + C, b" 7711 x -\n" + C))
    assert [one.id for one in file_in(tmp_path, table(), log).read()] == [A, C]
    assert "damaged: the readable entries are used" in log[0]


def test_a_file_of_another_node_is_told_and_not_used(tmp_path: Path) -> None:
    log: list[str] = []
    file_in(tmp_path, table(node(B)), log).changed()
    assert file_in(tmp_path, table(myself=C), log).read() == []
    assert "written by a node with another id" in log[0]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    log: list[str] = []
    (tmp_path / ".jobs.nodes").mkdir()
    assert file_in(tmp_path, table(), log).read() == []
    assert "the node knows no other node" in log[0]


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_dir"])
def test_a_disk_that_refuses_is_told_once_and_tried_again(tmp_path: Path, kind: str) -> None:
    log: list[str] = []
    told: list[str] = []
    files, known = RefusingFiles(kind), table(node(B))
    file = file_in(tmp_path, known, log, files)
    files.fail_from(1)
    file.save(told.append)
    file.look_after()
    assert told == ["No space left on device"]
    assert len(log) == 1
    assert "No space left on device; will be retried" in log[0]
    files.mend()
    file.look_after()
    assert [one.id for one in file_in(tmp_path, table(), log).read()] == [A, B]


def test_what_changes_during_a_write_is_written_after_it(tmp_path: Path) -> None:
    files = FaultyFiles()  # its background is late
    known = table(node(B))
    file = file_in(tmp_path, known, [], files)
    told: list[str] = []
    file.changed()
    known.add(node(C))
    file.save(told.append)
    assert told == []
    files.finish_background()
    assert [one.id for one in file_in(tmp_path, table(), []).read()] == [A, B]
    files.finish_background()
    assert told == [""]
    assert [one.id for one in file_in(tmp_path, table(), []).read()] == [A, B, C]


def test_a_reset_is_on_disk_before_it_is_told_and_stays_there(tmp_path: Path) -> None:
    files = FaultyFiles()
    known = table(node(B))
    file = file_in(tmp_path, known, [], files)
    file.changed()  # under way

    def reset(problem: str) -> None:
        assert problem == ""
        assert [one.id for one in file_in(tmp_path, table(), []).read()] == [A]
        known.remove(known.members()[0])

    file.save_alone(reset)
    for _ in range(3):
        files.finish_background()
    assert len(known) == 1
    assert [one.id for one in file_in(tmp_path, table(), []).read()] == [A]
