"""Leases by token: what each token is good for, and when it no longer is."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.journal.records import item_data
from kestreld.queues import leases
from kestreld.queues.leases import confirm, extend, fail, give_back, lease
from kestreld.queues.reader import Reader
from kestreld.queues.rebuild import renew
from kestreld.queues.reports import LEASES_AT_ONCE, leases_report
from kestreld.queues.waiters import OPEN, Waiter
from tests.simulation import planted
from tests.support.clock import FakeClock
from tests.support.compiled import interpreted_only
from tests.support.engine import Engine, QuickFiles

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    return lambda **settings: Engine(tmp_path / "spool", QuickFiles(), **settings)


def pass_time(engine: Engine, ms: int) -> None:
    engine.clock.advance(ms)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)


def take_lease(engine: Engine, name: str = "work", ms: int = 1000) -> int:
    leased = lease(engine.reader(name), engine.clock.wall_ms, ms, "127.0.0.1:1")
    assert leased is not None
    return leased[0]


def left(reader: Reader) -> list[bytes]:
    found = []
    while (record := reader.take(reader.queue.clock.wall_ms)) is not None:
        found.append(item_data(record))
    return found


@pytest.fixture(params=[{}, {"journal": False}, {"sync_journal_ms": 0}, {"max_memory_size_bytes": 1}])
def engine(make_engine: MakeEngine, request: pytest.FixtureRequest) -> Engine:
    running = make_engine(max_retries=9, **request.param)
    for data in (b"a", b"b", b"c"):
        running.put("work", data)
    running.end_turn()
    return running


def test_a_confirmed_item_is_done_once(engine: Engine) -> None:
    token = take_lease(engine)
    assert 1 <= token < 1 << 63
    assert confirm(engine.reader("work"), token)
    assert not confirm(engine.reader("work"), token)
    engine.end_turn()
    assert left(engine.reader("work")) == [b"b", b"c"]


def test_what_is_given_back_is_the_head_again_and_not_counted(engine: Engine) -> None:
    reader = engine.reader("work")
    assert give_back(reader, take_lease(engine), engine.clock.wall_ms)
    assert reader.retries == {}
    assert left(reader) == [b"a", b"b", b"c"]


def test_what_is_given_back_for_later_comes_later(engine: Engine) -> None:
    reader = engine.reader("work")
    assert give_back(reader, take_lease(engine), engine.clock.wall_ms, 50)
    assert left(reader) == [b"b", b"c"]
    pass_time(engine, 49)
    assert left(reader) == []
    pass_time(engine, 1)
    assert left(reader) == [b"a"]


@pytest.mark.parametrize("delay_ms", [0, 50])
def test_the_token_of_a_lease_that_is_taken_away_is_good_for_nothing(make_engine: MakeEngine, delay_ms: int) -> None:
    engine = make_engine()
    engine.put("work", b"a")
    token = take_lease(engine)
    engine.end_turn()
    engine.crash()
    engine.reader("work").take_away(1, engine.clock.wall_ms, delay_ms)

    def is_refused() -> bool:
        reader = engine.reader("work")
        acts = (confirm, lambda *a: extend(*a, 1), lambda *a: fail(*a, 0), lambda *a: give_back(*a, 0))
        return not any(act(reader, token) for act in acts)

    assert is_refused()
    for go_on in (engine.end_turn, engine.end_turn, engine.crash, engine.restart):
        go_on()
        assert is_refused()
    pass_time(engine, delay_ms)
    later = take_lease(engine)
    assert later != token
    assert is_refused()
    assert extend(engine.reader("work"), later, 1000)
    assert confirm(engine.reader("work"), later)


def test_a_lease_that_runs_out_counts_as_a_failure_and_the_item_comes_first_by_id(engine: Engine) -> None:
    reader = engine.reader("work")
    first, second = take_lease(engine, ms=20), take_lease(engine, ms=10)
    pass_time(engine, 10)
    pass_time(engine, 10)
    assert reader.retries == {1: 1, 2: 1}
    assert [first >> 29, second >> 29] == [1, 2]
    assert left(reader) == [b"a", b"b", b"c"]


def test_what_begins_within_a_millisecond_is_not_over_before_its_time(make_engine: MakeEngine) -> None:
    """A turn's reading of the clock is rounded down, and from before what the turn does."""

    class FineClock(FakeClock):
        def monotonic_up_ms(self) -> int:
            return self.monotonic_ms + 1

    engine = make_engine(clock=FineClock(), retry_delays_ms=(5,), open_transaction_timeout_ms=5)
    engine.put("work", b"leased", b"extended", b"limited", b"failed")
    reader, now_ms = engine.reader("work"), engine.clock.wall_ms
    take_lease(engine, ms=5)
    assert extend(reader, take_lease(engine, ms=50), 5)
    opened = reader.open_read(now_ms)
    assert opened is not None
    reader.limit_open(opened[0], 5, "127.0.0.1:1", lambda: None)
    assert fail(reader, take_lease(engine, ms=5), now_ms)
    reader.queue.put_later(b"delayed", 0, 0, None, 5)
    pass_time(engine, 5)
    assert (len(reader.open), left(reader)) == (3, [])
    pass_time(engine, 1)
    assert (len(reader.open), left(reader)) == (0, [b"failed", b"delayed"])


def test_a_lease_that_begins_when_its_item_falls_due_ends_in_time(make_engine: MakeEngine) -> None:
    """Who waits for it is served at once, and other items are due later than the lease ends."""
    engine = make_engine(max_retries=9)
    reader = engine.reader("work")
    reader.queue.put_later(b"a", 0, 0, None, 10)
    reader.queue.put_later(b"b", 0, 0, None, 1000)

    class Worker:
        def served(self, waiter: Waiter, record: bytes | None) -> None:
            assert record is not None
            take_lease(engine, ms=1)

        def refused(self, waiter: Waiter, reason: str) -> None:
            pytest.fail(reason)

    reader.wait_queue.add(Waiter(Worker(), reader, OPEN, engine.clock.monotonic_ms + 5000))
    pass_time(engine, 10)
    assert reader.is_leased(1)
    pass_time(engine, 1)
    assert not reader.is_leased(1)
    assert left(reader) == [b"a"]


def test_an_extended_lease_lasts_from_then_on(engine: Engine) -> None:
    reader = engine.reader("work")
    token = take_lease(engine, ms=20)
    pass_time(engine, 15)
    assert extend(reader, token, 20)
    pass_time(engine, 19)
    assert left(reader) == [b"b", b"c"]
    pass_time(engine, 1)
    assert left(reader) == [b"a"]


def test_a_token_is_good_after_its_time_as_long_as_nobody_else_has_the_item(engine: Engine) -> None:
    reader = engine.reader("work")
    token = take_lease(engine, ms=1)
    pass_time(engine, 1)
    assert extend(reader, token, 1000)
    pass_time(engine, 999)
    assert confirm(reader, token)
    assert left(reader) == [b"b", b"c"]


@pytest.mark.parametrize(
    "act", [confirm, lambda *a: extend(*a, 1), lambda *a: fail(*a, 0), lambda *a: give_back(*a, 0)]
)
def test_a_late_token_does_nothing_to_whoever_has_the_item_next(
    engine: Engine, act: Callable[[Reader, int], bool]
) -> None:
    reader = engine.reader("work")
    token = take_lease(engine, ms=1)
    pass_time(engine, 1)
    other = take_lease(engine, ms=1000)
    assert other >> 29 == token >> 29
    assert not act(reader, token)
    assert confirm(reader, other)


def test_a_plain_open_read_is_no_lease(engine: Engine) -> None:
    reader = engine.reader("work")
    token = take_lease(engine, ms=1)
    pass_time(engine, 1)
    opened = reader.open_read(engine.clock.wall_ms)
    assert opened is not None
    assert not confirm(reader, token)
    assert list(reader.open) == [opened[0]]


def test_a_token_of_a_child_of_another_family_or_of_a_queue_made_again_fits_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.reader("work+a")
    engine.put("work", b"x")
    engine.put("other", b"x")
    tokens = [take_lease(engine, name) for name in ("work", "work+a", "other")]
    for name in ("work", "work+a", "other"):
        assert sum(confirm(engine.reader(name), token) for token in tokens) == 1
    engine.put("work", b"y")
    token = take_lease(engine)
    engine.end_turn()
    for name in ("work", "work+a"):
        engine.collection.delete(name)
    engine.clock.advance(1)
    engine.put("work", b"x")
    engine.put("work", b"y")
    assert not confirm(engine.reader("work"), token)
    assert left(engine.reader("work")) == [b"x", b"y"]


@pytest.mark.parametrize("seen", ["in memory", "on disk", "come back"])
def test_after_a_kill_a_token_is_good_for_the_item_that_waits_again(make_engine: MakeEngine, seen: str) -> None:
    engine = make_engine(journal_leases=False, max_memory_size_bytes=1 if seen == "on disk" else 1 << 20)
    for data in (b"a", b"b", b"c", b"d"):
        engine.put("work", data)
    tokens = [take_lease(engine) for _ in range(3)]
    engine.end_turn()
    engine.crash()
    reader = engine.reader("work")
    if seen == "come back":
        found = reader.open_read(engine.clock.wall_ms)
        assert found is not None
        reader.abort(found[0], engine.clock.wall_ms)
    else:
        reader.peek(engine.clock.wall_ms)
    assert confirm(reader, tokens[1])
    assert not confirm(reader, tokens[1])
    engine.end_turn()
    assert give_back(reader, tokens[2], engine.clock.wall_ms, 5)
    engine.end_turn()
    engine.end_turn()  # the first delay of a journal waits for a segment that has delays
    engine.crash()
    assert left(engine.reader("work")) == [b"a", b"d"]
    pass_time(engine, 5)
    assert left(engine.reader("work")) == [b"c"]


def test_a_token_of_an_item_that_a_power_cut_took_is_not_good_for_the_next_with_its_id(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.put("work", b"a")
    engine.end_turn()
    [segment] = engine.segments("work")
    on_disk = segment.read_bytes()
    engine.put("work", b"b")
    first, lost = take_lease(engine), take_lease(engine)
    engine.end_turn()
    engine.abandon()
    for later in engine.segments("work"):
        later.unlink()
    segment.write_bytes(on_disk)
    engine.clock.advance(1)
    engine.start()
    engine.put("work", b"c")
    engine.end_turn()
    for _ in range(3):
        reader = engine.reader("work")
        assert [act(reader, lost) for act in (confirm, lambda *a: extend(*a, 1), lambda *a: fail(*a, 0))] == [False] * 3
        assert give_back(reader, first, engine.clock.wall_ms)
        engine.crash()
    assert left(engine.reader("work")) == [b"a", b"c"]


@interpreted_only
def test_that_is_seen_where_tokens_know_nothing_of_the_item(make_engine: MakeEngine) -> None:
    with planted.BUGS["lost-item-token-good"](), pytest.raises(AssertionError):
        test_a_token_of_an_item_that_a_power_cut_took_is_not_good_for_the_next_with_its_id(make_engine)


def test_made_up_tokens_of_items_on_disk_are_refused_without_reading_these(tmp_path: Path) -> None:
    """Else a client that sends thousands holds up the others."""

    class CountingFiles(QuickFiles):
        reads = 0

        def read_at(self, fd: int, size: int, offset: int) -> bytes:
            self.reads += 1
            return super().read_at(fd, size, offset)

    files = CountingFiles()
    engine = Engine(tmp_path / "spool", files, max_memory_size_bytes=1)
    engine.put("work", *[b"x" * 100] * 6000)
    engine.end_turn()
    reader = engine.reader("work")
    take_lease(engine)
    files.reads = 0
    good = [one for one in range(1000, 6000) if confirm(reader, (one << 17 | 12345) << 12 | 7)]
    assert (good, files.reads <= 4) == ([], True)


def test_leases_go_on_over_a_stop_and_are_as_long_as_they_were(make_engine: MakeEngine) -> None:
    engine = make_engine(max_retries=9, lease_grace_ms=2000)
    for data in (b"a", b"b", b"c"):
        engine.put("work", data)
    tokens = [take_lease(engine, ms=100), take_lease(engine, ms=1000)]
    engine.restart()
    assert left(engine.reader("work")) == [b"c"]
    assert confirm(engine.reader("work"), tokens[1])
    engine.restart()
    pass_time(engine, 1999)  # longer than was left: a client's back-off takes as long
    assert left(engine.reader("work")) == []
    pass_time(engine, 1)
    assert left(engine.reader("work")) == [b"a"]
    assert engine.reader("work").retries[1] == 1


@pytest.mark.parametrize("covers_attempt", [False, True])
def test_a_token_of_an_earlier_kestreld_is_good_for_a_lease_that_its_stop_noted(
    make_engine: MakeEngine, covers_attempt: bool
) -> None:
    engine = make_engine()
    engine.put("work", b"a")
    token = take_lease(engine)
    journal = engine.queue("work").journal
    assert journal is not None
    owner, attempt = struct.pack("<QI", journal.journal_id, engine.reader("work").number), token & 0xFFF
    digest = xxh3_64_intdigest(owner, (1 << 16) << 12 | attempt if covers_attempt else 0) & 0x1FFFF
    engine.restart()
    reader = engine.reader("work")
    assert not confirm(reader, (1 << 17 | digest ^ 1) << 12 | attempt)
    assert confirm(reader, (1 << 17 | digest) << 12 | attempt)


def test_a_compaction_keeps_what_a_stop_said_of_leases(make_engine: MakeEngine) -> None:
    """For a kill may come before they are over: the token is good then, and the item does not wait for their ends."""
    engine = make_engine(max_journal_size_bytes=1, max_journal_overflow=4)
    for data in (b"a", b"b"):
        engine.put("work", data)
    tokens = [take_lease(engine, ms=1000), take_lease(engine, ms=1000)]
    engine.restart()
    journal = engine.queue("work").journal
    assert journal is not None
    while not any(segment.compacted for segment in journal.segments):
        engine.put("work", b"c")
        engine.end_turn()
        engine.work(20)
        assert left(engine.reader("work")) == [b"c"]
        engine.end_turn()
        engine.work(20)
    assert give_back(engine.reader("work"), tokens[1], engine.clock.wall_ms)
    engine.end_turn()
    engine.crash()
    assert left(engine.reader("work")) == [b"b"]
    assert engine.reader("work").is_leased(1)
    assert confirm(engine.reader("work"), tokens[0])


def test_the_number_that_an_item_ends_in_is_the_newest_item_with_it() -> None:
    assert leases._newest(5, 7) == 5
    assert leases._newest(7, 7) == 7
    assert leases._newest(9, 7) < 1
    assert leases._newest(5, (1 << 34) + 6) == (1 << 34) + 5


def test_a_queue_that_is_made_anew_after_a_turn_was_cut_short_goes_on_counting_its_leases(engine: Engine) -> None:
    reader = engine.reader("work")
    take_lease(engine, ms=1)
    pass_time(engine, 1)
    assert not confirm(reader, 1)
    engine.end_turn()
    renew(engine.collection, reader.queue, lambda reader: ())
    held = engine.reader("work").held
    assert held is not None
    assert (held.expired_leases, held.late_confirms) == (1, 1)


def test_what_a_holder_has_is_listed_a_few_leases_at_a_time(make_engine: MakeEngine) -> None:
    """However many there are: other clients are served in between."""
    engine, count = make_engine(), 3 * LEASES_AT_ONCE + 5
    holders = ("me/a:1", "me/b:2", "me2/a:1", "a:1")
    readers, tokens = [engine.reader(name) for name in ("work", "work+audit", "empty")], []
    engine.put("work", *[b"x"] * count)
    for reader in readers:
        for number in range(count):
            leased = leases.lease(reader, engine.clock.wall_ms, 1000, holders[number % 4])
            if leased is not None and number % 4 < 2:
                tokens.append(leased[0])
    pieces = list(leases_report(engine.clock, readers, "me", None))
    text = b"".join(piece for piece in pieces if piece is not None).decode()
    assert [int(line.split()[3]) for line in text.splitlines()[:-1]] == tokens
    assert text.endswith("\r\nEND\r\n")
    assert max(piece.count(b"\r\n") for piece in pieces if piece is not None) <= 2 * LEASES_AT_ONCE
    assert len(pieces) >= len(readers) + 2 * count // LEASES_AT_ONCE
    assert list(leases_report(engine.clock, readers, "me", lambda name: name == "empty")) == [None] * 3 + [b"END\r\n"]


def test_a_lease_of_a_deleted_queue_is_not_listed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.put("work", b"a")
    assert lease(engine.reader("work"), engine.clock.wall_ms, 1000, "me/a:1") is not None
    report = leases_report(engine.clock, [engine.reader("work")], "me", None)
    engine.collection.delete("work")
    assert [piece for piece in report if piece] == [b"END\r\n"]
