"""Journals written as Kestrel 2.x files: what is waiting, with its times, in order; the spool is not touched."""

from pathlib import Path

import pytest

from kestreld.journal.kestrel.exporting import ExportedQueue, export_spool
from kestreld.journal.kestrel.ops import ADDX, Op, decode
from kestreld.journal.records import item_data, item_times_ms
from tests.support.clock import START_WALL_MS, FakeClock
from tests.support.engine import Engine, QuickFiles


def engine_on(spool: Path, **defaults: object) -> Engine:
    return Engine(spool, QuickFiles(), **defaults)


def stop(engine: Engine) -> None:
    engine.end_turn()
    engine.collection.close()


def export(spool: Path, to: Path, queue: str | None = None) -> dict[str, ExportedQueue]:
    return {one.name: one for one in export_spool(QuickFiles(), FakeClock(), str(spool), queue, str(to))}


def ops(path: Path) -> list[Op]:
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        op, at = decode(content, at)
        found.append(op)
    return found


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_item_is_an_op_with_its_times(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool")
    engine.put("q", b"1", expire_at_ms=START_WALL_MS + 500)
    engine.clock.advance(7)
    engine.put("q", b"", b"\x02\x00data")
    stop(engine)
    assert export(tmp_path / "spool", tmp_path / "out") == {"q": ExportedQueue("q", 3, 7)}
    assert ops(tmp_path / "out" / "q") == [
        Op(ADDX, 0, START_WALL_MS, START_WALL_MS + 500, b"1"),
        Op(ADDX, 0, START_WALL_MS + 7, 0, b""),
        Op(ADDX, 0, START_WALL_MS + 7, 0, b"\x02\x00data"),
    ]


def test_each_child_has_a_file_of_what_is_waiting_for_it(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool")
    engine.put("q", b"before")
    for name in ("q", "q+a", "q+b"):
        engine.reader(name)
    engine.put("q", b"1", b"2", b"3")
    engine.put("q+b", b"own")
    engine.take("q")
    engine.take("q+a")
    engine.end_turn()
    first = engine.reader("q+a").take(0)
    assert first is not None
    stop(engine)
    export(tmp_path / "spool", tmp_path / "out")
    assert [op.data for op in ops(tmp_path / "out" / "q")] == [b"1", b"2", b"3"]
    assert [op.data for op in ops(tmp_path / "out" / "q+a")] == [b"3"]
    assert [op.data for op in ops(tmp_path / "out" / "q+b")] == [b"1", b"2", b"3", b"own"]


def test_open_reads_are_waiting_items_in_their_places_and_what_was_done_out_of_order_is_gone(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool")
    engine.put("q", *[b"%d" % number for number in range(6)])
    reader = engine.reader("q")
    for _ in range(4):
        reader.open_read(0)
    reader.close(2)
    reader.close(4)
    engine.end_turn()
    engine.abandon()
    export(tmp_path / "spool", tmp_path / "out")
    assert [op.data for op in ops(tmp_path / "out" / "q")] == [b"0", b"2", b"4", b"5"]


def test_ten_thousand_items_come_back_the_same_from_an_import(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool", max_journal_size_bytes=1 << 16)
    engine.reader("q")
    engine.reader("q+a")
    for number in range(10_000):
        expire_at_ms = START_WALL_MS + 10**7 + number if number % 3 == 0 else 0
        engine.put("q", b"item %d" % number, expire_at_ms=expire_at_ms, flags=number % 2)
        engine.clock.advance(1)
        if number % 100 == 0:
            engine.end_turn()
    for _ in range(2_000):
        engine.take("q")
    for _ in range(3):
        engine.reader("q").open_read(0)
    engine.end_turn()
    engine.abandon()
    exported = export(tmp_path / "spool", tmp_path / "out")
    assert (exported["q"].items, exported["q"].flags_lost, exported["q+a"].items) == (8_000, 4_000, 10_000)

    original = engine_on(tmp_path / "spool", max_journal_size_bytes=1 << 16)
    copy = engine_on(tmp_path / "out")
    for name in ("q", "q+a"):
        assert copy.items(name) == original.items(name) > 0
        while (record := original.reader(name).take(0)) is not None:
            other = copy.reader(name).take(0) or b""
            assert (item_data(other), item_times_ms(other)) == (item_data(record), item_times_ms(record))
        assert copy.take(name) is None


def test_the_spool_is_only_read(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool")
    engine.put("q", b"1", b"2")
    stop(engine)
    (segment,) = engine.segments("q")
    with segment.open("ab") as file:
        file.write(b"\x40\0\0\0torn")
    (segment.parent / "0000000002-00000000000000000003.seg.new").write_bytes(b"half")
    before = everything_in(tmp_path / "spool")
    export(tmp_path / "spool", tmp_path / "out")
    assert everything_in(tmp_path / "spool") == before
    assert [op.data for op in ops(tmp_path / "out" / "q")] == [b"1", b"2"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool")
    engine.put("q", b"1")
    stop(engine)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "q.100").write_bytes(b"older")
    with pytest.raises(FileExistsError, match=r"q\.100"):
        export(tmp_path / "spool", tmp_path / "out")
    assert everything_in(tmp_path / "out") == {"q.100": b"older"}


def test_one_queue_with_its_children_or_one_child_is_exported_alone(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool")
    for name in ("q", "q+a", "other"):
        engine.put(name, b"1")
    stop(engine)
    assert set(export(tmp_path / "spool", tmp_path / "family", "q")) == {"q", "q+a"}
    assert set(export(tmp_path / "spool", tmp_path / "child", "q+a")) == {"q+a"}
    for missing in ("nope", "q+nope"):
        with pytest.raises(FileNotFoundError, match="nope"):
            export(tmp_path / "spool", tmp_path / "nothing", missing)


def test_a_damaged_journal_has_no_file_and_the_others_have(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "spool", max_journal_size_bytes=1 << 12)
    for name in ("bad", "good"):
        for number in range(20):
            engine.put(name, b"%d" % number + bytes(1000))
            engine.end_turn()
    stop(engine)
    segment = engine.segments("bad")[1]
    content = bytearray(segment.read_bytes())
    content[-500] ^= 1
    segment.write_bytes(content)
    exported = export(tmp_path / "spool", tmp_path / "out")
    assert str(segment) in str(exported["bad"].problem)
    assert exported["good"].problem is None
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"good"}
