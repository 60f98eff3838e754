"""The node's id on a disk that refuses it."""

import errno
from pathlib import Path

import pytest

from kestreld.files import FileLayer
from kestreld.server.disque.node_id import NodeIdFile
from tests.support.disque_here import DisqueHere
from tests.support.faulty_files import FaultyFiles


class RefusingFiles(FaultyFiles):
    """Refuses one kind of call, once told to, until it is mended."""

    def __init__(self, kind: str) -> None:
        super().__init__(errno.ENOSPC, (kind,), stays=True)

    in_background = FileLayer.in_background


def node_with_file(files: FileLayer, spool: Path, log: list[str]) -> tuple[DisqueHere, NodeIdFile]:
    here = DisqueHere()
    file = NodeIdFile(files, str(spool), here.jobs, log.append)
    file.begin()
    file.look_after()
    here.node.change_id = file.change
    return here, file


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_dir"])
def test_a_reset_that_the_disk_refuses_says_why_and_the_node_stays_the_one_that_it_was(
    tmp_path: Path, kind: str
) -> None:
    log: list[str] = []
    files = RefusingFiles(kind)
    here, file = node_with_file(files, tmp_path, log)
    old_id, client = here.jobs.node_id, here.session()
    client.send(b"ADDJOB q body 0\r\n")
    files.fail_from(1)
    told = client.send(b"CLUSTER RESET HARD\r\n")
    assert told.startswith(b"-ERR the new node id could not be recorded")
    assert b"No space left on device" in told
    assert old_id in client.send(b"CLUSTER MYID\r\n")
    assert here.jobs.table.count == 1
    file.look_after()
    file.look_after()
    assert len(log) == 1
    assert "No space left on device" in log[0]
    files.mend()
    file.look_after()
    assert node_with_file(files, tmp_path, log)[0].jobs.node_id == old_id


def test_an_id_that_a_reset_has_told_is_there_after_a_restart(tmp_path: Path) -> None:
    log: list[str] = []
    here, _ = node_with_file(FileLayer(), tmp_path, log)
    old_id, client = here.jobs.node_id, here.session()
    client.send(b"ADDJOB q body 0\r\n")
    assert client.send(b"CLUSTER RESET HARD\r\n") == b"+OK\r\n"
    new_id = here.jobs.node_id
    assert here.jobs.table.count == 0
    assert client.send(b"ADDJOB q body 0\r\n").startswith(b"+D-" + new_id[:8])
    assert old_id != new_id == node_with_file(FileLayer(), tmp_path, log)[0].jobs.node_id
    assert log == []


def test_a_file_that_names_no_node_is_told_and_replaced(tmp_path: Path) -> None:
    log: list[str] = []
    (tmp_path / ".jobs.node").write_bytes(b"0123\n")
    here, _ = node_with_file(FileLayer(), tmp_path, log)
    assert "expected 40 hexadecimal digits" in log[0]
    assert (tmp_path / ".jobs.node").read_bytes() == here.jobs.node_id + b"\n"


def test_two_resets_at_once_are_carried_out_one_after_the_other(tmp_path: Path) -> None:
    files = FaultyFiles()  # its background is late
    here = DisqueHere()
    file = NodeIdFile(files, str(tmp_path), here.jobs, lambda line: None)
    told: list[str] = []
    file.change(b"a" * 40, told.append)
    file.change(b"b" * 40, told.append)
    files.finish_background()
    assert (told, here.jobs.node_id) == ([""], b"a" * 40)
    files.finish_background()
    assert (told, here.jobs.node_id) == (["", ""], b"b" * 40)
    assert (tmp_path / ".jobs.node").read_bytes() == b"b" * 40 + b"\n"
