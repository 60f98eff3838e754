"""Why an item failed, in the words of whoever had it: known as long as the count of its failures is."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kestreld.journal.records import FRAME_BYTES, PUT_HEADER_BYTES, Reason, Type, item_data, item_id, whole_records
from kestreld.journal.repair import repair
from kestreld.journal.segment import decode_header
from kestreld.queues import family
from kestreld.queues.leases import fail, lease
from tests.support.compiled import interpreted_only
from tests.support.engine import Engine, QuickFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.repairs import undone

WHY = "no room for größe / 100 %"
MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    def make(files: QuickFiles | None = None, **settings: object) -> Engine:
        engine = Engine(tmp_path / "spool", files or QuickFiles(), **{"max_retries": 1, **settings})
        engine.configure({"work": {"move_failed_to": "dead"}}, **{"max_retries": 1, **settings})
        return engine

    return make


def fail_with(engine: Engine, reason: str, name: str = "work") -> int:
    """The head item fails; its id."""
    leased = lease(engine.reader(name), engine.clock.wall_ms, 1000, "")
    assert leased is not None
    assert fail(engine.reader(name), leased[0], engine.clock.wall_ms, reason)
    for _ in range(2):
        engine.end_turn()
    return item_id(leased[1])


def reason_of(engine: Engine, one: int, name: str = "work") -> str:
    reader = engine.reader(name)
    return reader.queue.failure_of(reader.number, one)


def versions(engine: Engine, name: str = "work") -> list[int]:
    folder = engine.spool / f"{name}.journal"
    return [decode_header(path.read_bytes(), str(path))[0].version for path in sorted(folder.glob("*.seg"))]


def records_of(path: Path) -> list[tuple[int, int, int]]:
    content = path.read_bytes()
    return list(whole_records(content, decode_header(content, str(path))[1], str(path)))


@pytest.mark.parametrize("settings", [{}, {"retry_delays_ms": (60_000,)}], ids=["it waits again", "it is held back"])
@pytest.mark.parametrize("end", ["", "restart", "crash", "roll", "two rolls", "compaction"])
def test_it_is_known_as_long_as_the_item_waits(make_engine: MakeEngine, end: str, settings: dict[str, object]) -> None:
    engine = make_engine(**settings, **({"max_journal_size_bytes": 300} if end == "compaction" else {}))
    engine.put("work", b"x", b"y")
    one = fail_with(engine, WHY)
    for _ in range({"roll": 1, "two rolls": 2}.get(end, 0)):
        engine.queue("work").go_on()
        engine.end_turn()
    if end == "compaction":
        for _ in range(200):
            engine.put("work", b"z" * 50)
            engine.end_turn()
            pulled = engine.queue("work").next_id - 1
            engine.reader("work").pull_out(pulled)
            engine.reader("work").close(pulled)
            engine.end_turn()
            engine.work(20)
        assert any(segment.compacted for segment in engine.queue("work").journal.segments)
    if end == "restart":
        engine.restart()
    elif end:
        engine.crash()
    assert reason_of(engine, one) == WHY
    assert reason_of(engine, one + 1) == ""


def test_the_last_one_that_was_given_counts(make_engine: MakeEngine) -> None:
    engine = make_engine(max_retries=9)
    engine.put("work", b"x")
    for reason in ("first", WHY, ""):
        one = fail_with(engine, reason)
    engine.crash()
    assert reason_of(engine, one) == WHY


@pytest.mark.parametrize("end", ["", "restart", "crash", "compaction"])
def test_a_dead_letter_has_it_with_its_origin(make_engine: MakeEngine, end: str) -> None:
    engine = make_engine(**({"max_journal_size_bytes": 300} if end == "compaction" else {}))
    engine.put("work", b"x")
    fail_with(engine, "first")
    fail_with(engine, WHY)
    found = engine.reader("dead").open_read(engine.clock.wall_ms)
    assert found is not None
    for _ in range(200 if end == "compaction" else 0):
        engine.put("dead", b"y" * 50)
        engine.end_turn()
        engine.take("dead")
        engine.end_turn()
        engine.work(20)
    if end in ("restart", "crash"):
        getattr(engine, end)()
    if end == "compaction":
        engine.crash()
    assert reason_of(engine, 1, "dead") == WHY
    assert engine.queue("dead").origins[1].failure == WHY
    assert engine.queue("dead").origins[1].attempts == 2


def test_a_kill_before_the_move_keeps_it_for_the_dead_letter(make_engine: MakeEngine) -> None:
    engine = make_engine(max_retries=1)
    engine.configure(max_retries=1)  # nowhere to move it
    engine.put("work", b"x")
    fail_with(engine, "first")
    fail_with(engine, WHY)
    engine.crash()
    engine.configure({"work": {"move_failed_to": "dead"}}, max_retries=1)
    engine.reader("work").move_failed()
    for _ in range(2):
        engine.end_turn()
    assert reason_of(engine, 1, "dead") == WHY


def test_without_one_the_journal_is_as_it_was(make_engine: MakeEngine) -> None:
    engine = make_engine(max_retries=9, journal_leases=False)
    engine.put("work", b"x")
    for _ in range(3):
        fail_with(engine, "")
    assert versions(engine) == [1]
    fail_with(engine, WHY)
    assert versions(engine) == [1, 3]
    (newest,) = sorted((engine.spool / "work.journal").glob("*2-*.seg"))
    assert [kind for kind, _, _ in records_of(newest)] == [Type.CHECKPOINT, Type.FAILURE, Type.ABORT]


def test_where_failures_are_not_counted_it_is_not_kept(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.configure(journal_leases=False)
    engine.put("work", b"x")
    one = fail_with(engine, WHY)
    assert reason_of(engine, one) == ""
    assert versions(engine) == [1]


@interpreted_only
def test_so_many_are_remembered_and_those_of_items_that_are_done_give_way_first(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "FAILURES_MAX", 8)
    monkeypatch.setattr("kestreld.queues.queue.FAILURES_MAX", 8)
    engine = make_engine(retry_delays_ms=(60_000,))
    engine.put("work", *[b"%d" % number for number in range(30)])
    engine.end_turn()
    waiting = [fail_with(engine, f"reason {number}") for number in range(6)]
    for _ in range(10):
        one = fail_with(engine, "soon done")
        engine.reader("work").withdraw(one, Reason.DISCARDED)
        engine.end_turn()
    assert [reason_of(engine, one) for one in waiting] == [f"reason {number}" for number in range(6)]
    for _ in range(10):
        last = fail_with(engine, "the last")
    assert len(engine.queue("work").failures) <= 8
    engine.crash()
    assert reason_of(engine, last) == "the last"
    assert reason_of(engine, waiting[0]) == ""


@interpreted_only
def test_of_so_many_dead_letters_it_is_remembered(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "LETTERS_MAX", 3)
    engine = make_engine()
    for number in range(5):
        engine.put("work", b"x")
        fail_with(engine, "first")
        fail_with(engine, f"reason {number}")
    for _ in range(2):
        assert [reason_of(engine, one, "dead") for one in range(1, 6)] == ["", "", "reason 2", "reason 3", "reason 4"]
        assert {origin.queue for origin in engine.queue("dead").origins.values()} == {"work"}
        engine.crash()


def test_a_disk_that_refused_it_has_it_in_the_next_segment(make_engine: MakeEngine) -> None:
    files = FaultyFiles(errno.EIO, ("write",))
    engine = make_engine(files, max_retries=9)
    engine.put("work", b"x")
    fail_with(engine, "first")
    files.fail_from(1)
    one = fail_with(engine, WHY)
    assert files.failed
    files.mend()
    engine.queue("work").go_on()
    engine.end_turn()
    engine.crash()
    assert reason_of(engine, one) == WHY


def test_a_disk_that_refuses_the_first_ones_segment_is_tried_once_and_has_it_in_the_next(
    make_engine: MakeEngine,
) -> None:
    files = FaultyFiles(errno.ENOSPC, ("create",), stays=True)
    engine = make_engine(files, max_retries=9, journal_leases=False)
    engine.put("work", b"x")
    engine.end_turn()
    files.fail_from(1)
    for reason in ("first", "second", WHY):
        one = fail_with(engine, reason)
    assert sum("creation failed" in line for line in engine.log) == 1
    files.mend()
    engine.queue("work").go_on()
    engine.end_turn()
    engine.crash()
    assert reason_of(engine, one) == WHY
    assert versions(engine) == [1, 3]


def test_an_item_that_a_torn_tail_took_leaves_none_to_the_next_of_its_id(make_engine: MakeEngine) -> None:
    engine = make_engine(max_retries=9)
    engine.put("work", b"x")
    fail_with(engine, "first")
    engine.put("work", b"y")
    engine.reader("work").take(engine.clock.wall_ms)
    leased = lease(engine.reader("work"), engine.clock.wall_ms, 1000, "")
    assert leased is not None
    assert fail(engine.reader("work"), leased[0], engine.clock.wall_ms, WHY)
    engine.end_turn()
    newest = max((engine.spool / "work.journal").glob("*.seg"))
    engine.abandon()
    end = [at for kind, at, _ in records_of(newest) if kind == Type.PUT][-1]
    newest.write_bytes(newest.read_bytes()[:end])
    engine.crash()
    engine.put("work", b"z")
    assert engine.queue("work").next_id == 3
    assert reason_of(engine, 2) == ""


@pytest.mark.parametrize("bad", ["a put", "the last checkpoint", "the header"])
def test_a_repair_keeps_it(make_engine: MakeEngine, bad: str) -> None:
    engine = make_engine(retry_delays_ms=(60_000,))
    engine.put("work", b"lost", b"x")
    engine.put("dead", b"other")
    engine.end_turn()
    engine.take("work")
    one = fail_with(engine, WHY)
    engine.queue("work").go_on()
    engine.put("work", b"more")
    engine.end_turn()
    engine.abandon()
    segments = sorted((engine.spool / "work.journal").glob("*.seg"))
    path = segments[-1] if bad != "a put" else segments[0]
    content = bytearray(path.read_bytes())
    kind, at, end = next(found for found in records_of(path) if found[0] == (Type.PUT if bad == "a put" else 7))
    content[8 if bad == "the header" else at + FRAME_BYTES + (PUT_HEADER_BYTES if kind == Type.PUT else 4)] ^= 0xFF
    for byte in range(at + 20, end - 1) if bad == "the last checkpoint" else ():
        content[byte] ^= 0xFF
    path.write_bytes(content)
    report = repair(QuickFiles(), engine.clock, str(engine.spool / "work.journal"))
    assert report.kept_at
    engine.crash()
    assert reason_of(engine, one) == WHY


@pytest.mark.parametrize("how", ["flush", "delete"])
def test_undo_keeps_it_and_what_a_dead_letter_says(make_engine: MakeEngine, how: str) -> None:
    engine = make_engine(trash_ms=60_000)
    engine.put("work", b"x", b"y")
    fail_with(engine, "first")
    fail_with(engine, WHY)  # x is a dead letter
    fail_with(engine, "y failed")
    for name in ("work", "dead"):
        getattr(engine.collection, how)(name)
        engine.end_turn()
        assert undone(engine, name) == (1, 0)
    for _ in range(2):
        for name, data, reason in (("work", b"y", "y failed"), ("dead", b"x", WHY)):
            record = engine.reader(name).peek(engine.clock.wall_ms)
            assert record is not None
            assert item_data(record) == data
            assert reason_of(engine, item_id(record), name) == reason
        assert [origin.queue for origin in engine.queue("dead").origins.values()][-1:] == ["work"]
        engine.crash()
