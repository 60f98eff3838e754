"""Kestrel's files in a spool: they become journals, once, and are never deleted."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kestreld.errors import JournalCorrupt
from kestreld.journal.kestrel.importing import files_imported
from kestreld.journal.kestrel.ops import ADD, ADDX, REMOVE, REMOVE_TENTATIVE_XID, Op, encode
from kestreld.journal.records import item_optional_fields, item_times_ms
from tests.support.clock import START_WALL_MS
from tests.support.engine import Engine, QuickFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.mortal_files import Killed, MortalFiles


def items(*datas: bytes) -> bytes:
    """A Kestrel file that holds these items."""
    return b"".join([encode(Op(ADDX, 0, START_WALL_MS - 1000, 0, data)) for data in datas])


def spool_of(folder: Path, **files: bytes) -> Path:
    """A spool with these files; `__` in a name stands for `+`, `_` for `.`."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("__", "+").replace("_", ".")).write_bytes(content)
    return folder


def engine_on(spool: Path, **defaults: object) -> Engine:
    return Engine(spool, QuickFiles(), **defaults)


def imported(spool: Path) -> dict[str, bytes]:
    """The files in .imported, whenever they came there."""
    return {path.name: path.read_bytes() for path in spool.glob(".imported/*/*")}


def left(spool: Path) -> set[str]:
    """What lies in the spool itself."""
    return {path.name for path in spool.iterdir() if not path.name.startswith(".")}


# --- families ------------------------------------------------------------------------------------------------------


def test_a_queue_and_its_children_become_one_journal(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1", b"2"), q__b=items(b"B"), q__a=items(b"2", b"A"))
    engine = engine_on(spool)
    assert {label: reader.number for label, reader in engine.queue("q").readers.items()} == {"": 1, "a": 2, "b": 3}
    assert (engine.items("q"), engine.items("q+a"), engine.items("q+b")) == (2, 2, 1)
    engine.put("q", b"new")
    assert engine.drain("q") == [b"1", b"2", b"new"]
    assert engine.drain("q+a") == [b"2", b"A", b"new"]
    assert engine.drain("q+b") == [b"B", b"new"]
    assert left(spool) == {"q.journal"}
    assert imported(spool) == {"q": items(b"1", b"2"), "q+a": items(b"2", b"A"), "q+b": items(b"B")}


def test_a_child_alone_makes_the_journal_and_its_own_reader_only(tmp_path: Path) -> None:
    engine = engine_on(spool_of(tmp_path / "spool", q__a=items(b"A")))
    assert list(engine.collection.readers) == ["q+a"]
    engine.reader("q")
    assert (engine.drain("q+a"), engine.drain("q")) == ([b"A"], [])


def test_ids_start_at_1_and_only_families_with_children_have_items_for_one_reader(tmp_path: Path) -> None:
    engine = engine_on(spool_of(tmp_path / "spool", q=items(b"1", b"2"), p=items(b"1"), p__a=items(b"A")))
    assert engine.queue("q").next_id == 3
    assert item_optional_fields(engine.reader("q").peek(0) or b"")[2] == 0
    assert item_optional_fields(engine.reader("p").peek(0) or b"")[2] == 1
    assert item_optional_fields(engine.reader("p+a").peek(0) or b"")[2] == 2


def test_times_are_kept_and_those_before_1970_have_expired(tmp_path: Path) -> None:
    expire_at_ms = START_WALL_MS + 5000
    ops = [
        Op(ADDX, 0, START_WALL_MS - 1, expire_at_ms, b"kept"),
        Op(ADD, 0, 0, expire_at_ms // 1000 * 1000, b"undated"),
        Op(ADDX, 0, -5, 0, b"ancient"),
        Op(ADDX, 0, START_WALL_MS - 1, -(2**40), b"expired"),
    ]
    engine = engine_on(spool_of(tmp_path / "spool", q=b"".join(map(encode, ops))))
    records = [engine.reader("q").take(0) for _ in ops[:3]]
    assert [item_times_ms(record or b"") for record in records] == [
        (START_WALL_MS - 1, expire_at_ms),
        (START_WALL_MS, expire_at_ms),
        (0, 0),
    ]
    assert engine.drain("q") == []


def test_open_reads_are_back_and_a_rotated_file_and_leftovers_go_along(tmp_path: Path) -> None:
    opened = items(b"1", b"2", b"3") + encode(Op(REMOVE)) + encode(Op(REMOVE_TENTATIVE_XID, 7))
    spool = spool_of(tmp_path / "spool", q_100=opened, q=items(b"4"))
    (spool / "q~~123").write_bytes(b"unfinished")
    engine = engine_on(spool)
    assert engine.drain("q") == [b"2", b"3", b"4"]
    assert set(imported(spool)) == {"q", "q.100", "q~~123"}


def test_a_large_queue_fills_several_segments_and_survives_restarts(tmp_path: Path) -> None:
    datas = [b"%06d" % number + bytes(1000) for number in range(4000)]
    spool = spool_of(tmp_path / "spool", q=items(*datas), q__a=items(*datas[::2]))
    engine = engine_on(spool, max_journal_size_bytes=1 << 20, max_memory_size_bytes=1 << 20)
    assert len(engine.segments("q")) > 4
    assert [engine.take("q") for _ in range(1500)] == datas[:1500]
    engine.end_turn()
    engine.crash()
    assert engine.drain("q+a") == datas[::2]
    assert engine.drain("q") == datas[1500:]


# --- what cannot be imported ---------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_reported_and_the_rest_is_there(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1", b"2") + b"\x0a" + items(b"3"))
    engine = engine_on(spool)
    assert engine.drain("q") == [b"1", b"2", b"3"]
    assert f"q: {spool}/q: byte 44: unknown opcode 10; unread_bytes=1" in engine.log


@pytest.mark.parametrize("name", ["a~b", "my.queue", "q.backup", "two words", "+child", "parent+", "x" * 201])
def test_a_file_that_cannot_be_a_queues_is_reported_and_left_alone(tmp_path: Path, name: str) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1"))
    (spool / name).write_bytes(items(b"2"))
    for _ in range(2):
        engine = engine_on(spool)
        assert list(engine.collection.readers) == ["q"]
        assert [line for line in engine.log if line.startswith(f"{spool}/{name}: ") and "left alone" in line]
        assert left(spool) == {"q.journal", name}
        engine.abandon()


def test_files_of_other_programs_are_left_alone_and_keep_no_queue_from_its_name(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", notes=b"this is a text, not a journal\n")
    (spool / "folder").mkdir()
    engine = engine_on(spool)
    assert engine.put("notes", b"1") == [True]
    engine.end_turn()
    engine.restart()
    assert engine.drain("notes") == [b"1"]
    assert (spool / "notes").read_bytes().startswith(b"this is")
    for _ in range(2):
        assert engine.log.count(f"{spool}/notes: not a Kestrel journal: nothing in it is readable; left alone") == 2
        assert engine.log.count(f"{spool}/folder: not a kestreld journal; left alone") == 2


def test_another_file_beside_the_journal_stops_that_queue_and_names_both(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1"), other=items(b"x"))
    engine = engine_on(spool)
    engine.abandon()
    (spool / "q").write_bytes(items(b"2"))
    engine = engine_on(spool)
    with pytest.raises(JournalCorrupt) as stopped:
        engine.reader("q")
    assert f"{spool}/q: " in str(stopped.value)
    assert f"{spool}/q.journal" in str(stopped.value)
    assert engine.drain("other") == [b"x"]
    assert (spool / "q").read_bytes() == items(b"2")
    engine.abandon()
    (spool / "q").unlink()
    assert engine_on(spool).drain("q") == [b"1"]


def test_a_child_that_turns_up_beside_the_journal_stops_the_family(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1"))
    engine_on(spool).abandon()
    (spool / "q+late").write_bytes(items(b"2"))
    engine = engine_on(spool)
    with pytest.raises(JournalCorrupt, match=r"q\+late"):
        engine.reader("q")


def test_a_file_that_cannot_be_opened_stops_its_queue(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", other=items(b"x"))
    (tmp_path / "elsewhere").write_bytes(items(b"1"))
    (spool / "q").symlink_to(tmp_path / "elsewhere")
    engine = engine_on(spool)
    with pytest.raises(JournalCorrupt, match="cannot be imported"):
        engine.reader("q")
    assert engine.drain("other") == [b"x"]


def test_a_queue_without_a_journal_gets_nothing_and_keeps_its_files(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1"), q__a=items(b"2"))
    engine = engine_on(spool, journal=False)
    assert engine.drain("q") == []
    assert left(spool) == {"q", "q+a"}
    assert [line for line in engine.log if "journal is off" in line]


# --- again, and after a crash --------------------------------------------------------------------------------------


def test_a_second_start_imports_nothing(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1", b"2"))
    engine = engine_on(spool)
    assert engine.take("q") == b"1"
    engine.end_turn()
    engine.restart()
    assert engine.drain("q") == [b"2"]
    assert len(imported(spool)) == 1


def test_files_that_the_journal_was_made_from_are_moved_at_the_next_start(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"2"), q_100=items(b"1"))
    engine_on(spool).abandon()
    (spool / "q").write_bytes(items(b"2"))
    engine = engine_on(spool)
    assert engine.drain("q") == [b"1", b"2"]
    assert left(spool) == {"q.journal"}
    assert len(list(spool.glob(".imported/*/q"))) == 2


def test_the_journal_says_which_files_it_was_made_from(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1"), q__a=b"", q_100=items(b"0"))
    engine_on(spool)
    found = files_imported(QuickFiles(), str(spool / "q.journal"))
    assert [(file.name, file.size_bytes) for file in found] == [("q", 22), ("q.100", 22), ("q+a", 0)]


def test_what_a_crash_left_of_a_journal_being_built_is_removed(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "spool", q=items(b"1"))
    (spool / ".tmp" / "q.journal").mkdir(parents=True)
    (spool / ".tmp" / "q.journal" / "0000000001-00000000000000000001.seg").write_bytes(b"half")
    (spool / ".tmp" / "file").write_bytes(b"")
    assert engine_on(spool).drain("q") == [b"1"]
    assert list((spool / ".tmp").iterdir()) == []


def kestrels_files(spool: Path) -> dict[str, bytes]:
    """Those not imported yet and those that are."""
    waiting = {path.name: path.read_bytes() for path in spool.iterdir() if path.is_file()}
    done = imported(spool)
    assert not set(waiting) & set(done)
    return waiting | done


def deaths(folder: Path) -> Iterator[Path]:
    """A spool for every change of an import, killed there; the last one was imported whole."""
    for dies_at in count(1):
        spool = spool_of(
            folder / str(dies_at), q_100=items(b"1"), q=items(b"2"), q__a=items(b"A"), p=items(b"P"), q__b=b""
        )
        (spool / "q~~7").write_bytes(b"x")
        files = MortalFiles(dies_at)
        try:
            Engine(spool, files).abandon()
        except Killed:
            yield spool
        else:
            yield spool
            return


def test_an_import_killed_at_any_step_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    steps = 0
    for spool in deaths(tmp_path):
        steps += 1
        before = kestrels_files(spool)
        assert before == {
            "q.100": items(b"1"),
            "q": items(b"2"),
            "q+a": items(b"A"),
            "q+b": b"",
            "p": items(b"P"),
            "q~~7": b"x",
        }
        engine = engine_on(spool)
        assert imported(spool) == before
        assert engine.drain("q") == [b"1", b"2"]
        assert engine.drain("q+a") == [b"A"]
        assert engine.drain("p") == [b"P"]
        engine.restart()
        assert [engine.drain(name) for name in ("q", "q+a", "q+b", "p")] == [[], [], [], []]
        assert engine.collection.broken == {}
        engine.abandon()
    assert steps > 30


def test_a_disk_that_refuses_at_any_step_stops_the_queue_and_the_next_start_imports(tmp_path: Path) -> None:
    for fail_at in count(2):  # the first is the making of the spool
        spool = spool_of(tmp_path / str(fail_at), q_100=items(b"1"), q=items(b"2"), q__a=items(b"A"))
        files = FaultyFiles()
        files.fail_from(fail_at)
        engine = Engine(spool, files)
        engine.abandon()
        if not files.failed:
            break
        assert list(engine.collection.broken) == ["q"]
        engine = engine_on(spool)
        assert (engine.drain("q"), engine.drain("q+a")) == ([b"1", b"2"], [b"A"])
        assert set(imported(spool)) == {"q", "q.100", "q+a"}
        engine.abandon()
    assert fail_at > 20
