"""What a compaction keeps: it gives way often while it looks for that."""

from collections import defaultdict
from pathlib import Path

import pytest

from kestreld.journal.compaction import Compaction
from kestreld.journal.records import FRAME_BYTES, ID_OFFSET, Type, item_id, read_due, whole_records
from kestreld.journal.segment import decode_header
from kestreld.queues import live
from kestreld.queues.live import key_records, live_parts
from tests.support.engine import Engine, QuickFiles

HOUR_MS = 3_600_000


@pytest.mark.parametrize(("items", "size"), [(40, 65_536), (3000, 16)], ids=["large", "small"])
def test_a_compaction_gives_way_often_whatever_it_passes_over(tmp_path: Path, items: int, size: int) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.reader("work")
    queue = engine.queue("work")
    queue.put_later(b"first", 0, 0, None, HOUR_MS)
    for _ in range(items):
        engine.put("work", b"d" * size)
        assert engine.take("work") is not None
    queue.put_later(b"last", 0, 0, None, HOUR_MS)
    engine.end_turn()
    steps = list(live_parts(queue, queue.next_id))
    assert sum(part.items for part in steps if part is not None) == 2
    passed_bytes = items * (size + live.PASSED_COST_BYTES)
    assert steps.count(None) >= passed_bytes // (live.PAUSE_BYTES + size + live.PASSED_COST_BYTES) > 5


def test_what_is_held_back_is_kept_where_a_reader_that_is_behind_passes_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two others of one reader: the pauses of its search bear the ids of what another one holds."""
    monkeypatch.setattr(live, "PAUSE_BYTES", 1)
    engine = Engine(tmp_path, QuickFiles(), max_memory_size_bytes=1000)
    behind, holder = engine.reader("work"), engine.reader("work+b")
    queue = engine.queue("work")
    for _ in range(5):
        assert queue.put_with(b"d" * 400, 0, 0, behind)
    for number in range(10):
        assert queue.put_later(b"%d" % number, 0, 0, holder, HOUR_MS)
    engine.end_turn()
    assert not behind.attached
    kept = [part.first_id for part in live_parts(queue, queue.next_id) if part is not None and part.items]
    assert kept == list(range(1, 16))


def test_a_compaction_says_what_keys_there_are_some_at_a_time(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    reader = engine.reader("work")
    engine.end_turn()
    for number in range(20_000):
        reader.remember_key(b"%d" % number, number + 1, 0)
    parts = [len(known) for known in key_records(engine.queue("work"))]
    assert sum(parts) == 20_000
    assert max(parts) <= 256


def test_a_compaction_gives_way_often_while_it_copies_small_items(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.reader("work")
    queue = engine.queue("work")
    for number in range(2000):
        queue.put_later(b"%d" % number, 0, 0, None, HOUR_MS)
    engine.end_turn()
    assert queue.journal is not None
    queue.want_segment(wanted=True)
    engine.maintenance.begin_segment(queue, queue.journal)
    assert queue.journal.begun_with is not None
    compaction = Compaction(queue.journal, queue.journal.begun_with)
    pauses = 0
    for part in live_parts(queue, queue.next_id):
        if part is not None:
            compaction.add(*part)
            pauses += compaction.wants_a_pause
    compaction.abandon()
    assert pauses >= 20


def compacted(engine: Engine) -> bytes:
    """The segment that the next compaction makes."""
    journal = engine.queue("work").journal
    assert journal is not None
    before = journal.segments[0].number
    while not (journal.segments[0].compacted and journal.segments[0].number > before):
        engine.put("work", b"flows" * 10)
        engine.take("work")
        engine.end_turn()
        engine.work(5)
    return engine.segments("work")[0].read_bytes()


def described(segment: bytes) -> dict[int, bytes]:
    """PUT and DUE records of each item."""
    _, at = decode_header(segment, "")
    there: dict[int, bytes] = defaultdict(bytes)
    for record_type, start, end in whole_records(segment, at, ""):
        if record_type == Type.PUT:
            there[item_id(segment[start:end])] += segment[start:end]
        elif record_type == Type.DUE:
            there[read_due(segment[start + FRAME_BYTES : end]).item_id] += segment[start:end]
    return there


def test_a_compaction_copies_what_has_not_changed_since_the_last_and_describes_the_rest_anew(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "max_journal_size_bytes": 2000,
        "max_journal_overflow": 4,
        "retry_delays_ms": (90_000,),
    }
    engine = Engine(tmp_path, QuickFiles(), **settings)
    reader = engine.reader("work")
    queue = reader.queue
    for number in range(1, 31):
        queue.put_later(b"%d" % number, 0, 0, None, HOUR_MS if number % 2 or number > 18 else 1000)
    engine.end_turn()
    before = described(compacted(engine))
    assert sorted(before) == list(range(1, 31))
    engine.clock.advance(1000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    taken = [engine.take("work") for _ in range(5)]
    assert taken == [b"2", b"4", b"6", b"8", b"10"]
    for _ in range(3):  # 12, 14 and 16
        opened = reader.open_read(engine.clock.wall_ms)
        assert opened is not None
        reader.abort(opened[0], engine.clock.wall_ms)
    kept_open = reader.open_read(engine.clock.wall_ms)
    assert kept_open is not None
    assert kept_open[0] == 18
    engine.end_turn()
    after = described(compacted(engine))
    assert sorted(after) == [one for one in range(1, 31) if one % 2 or one > 10]
    changed = {12, 14, 16}
    assert {one for one in after if after[one] != before[one]} == {*changed, 18}
    engine.crash()
    held = engine.reader("work").held
    assert held is not None
    assert set(held.failed) == changed
    assert engine.drain("work") == [b"18"]
    engine.clock.advance(90_000)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain("work") == [b"12", b"14", b"16"]
    engine.clock.advance(HOUR_MS)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.drain("work") == [b"%d" % one for one in after if one not in {*changed, 18}]


def test_a_compaction_finds_damage_among_what_it_copies(tmp_path: Path) -> None:
    """An id that is another by now is looked at: its item would be missing."""
    engine = Engine(tmp_path, QuickFiles(), max_journal_size_bytes=2000, max_journal_overflow=4)
    queue = engine.reader("work").queue
    for number in range(1, 31):
        queue.put_later(b"%d" % number, 0, 0, None, HOUR_MS)
    engine.end_turn()
    segment = bytearray(compacted(engine))
    _, at = decode_header(bytes(segment), "")
    puts = [start for record_type, start, _ in whole_records(bytes(segment), at, "") if record_type == Type.PUT]
    segment[puts[9] + ID_OFFSET + 3] ^= 1
    engine.segments("work")[0].write_bytes(segment)
    while queue.stopped is None:
        engine.put("work", b"flows" * 10)
        if queue.stopped is None:
            engine.take("work")
            engine.end_turn()
            engine.work(5)
    assert f"byte {puts[9]}" in str(queue.stopped)
