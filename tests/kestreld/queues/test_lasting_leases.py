"""What is left of a lease, and of what it has come to, after whatever can happen to the server: the table."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from kestreld.errors import JournalCorrupt
from kestreld.journal.reader_states import ReaderStates
from kestreld.journal.records import Done, Due, Why, item_data, item_id
from kestreld.queues import leases, trash, trash_note
from kestreld.queues import reader_due_items as due_items
from kestreld.queues.held import Held, Lease
from kestreld.queues.reader import Reader
from kestreld.queues.rebuild import renew
from kestreld.queues.repairing import Repairer
from tests.support.compiled import interpreted_only
from tests.support.engine import Engine, LateFiles, QuickFiles

LEASE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
GRACE_MS: Final = 30_000
DELAY_MS: Final = 1000
WHO: Final = "worker-7"
# What the item has come to; then what it is after each MOMENT. A lease whose time is over when the server starts goes
# on, for its grace: its end was not written.
TABLE: Final = """
                  kill      restart   rolls     compaction  set back  set forward  away     power cut
leased            leased    leased    leased    leased      leased    leased       leased   waiting
extended          leased    leased    leased    leased      leased    leased       leased   waiting
leased by child   leased    leased    leased    leased      leased    leased       leased   waiting
leased again      leased    leased    leased    leased      leased    leased       leased   waiting
leased when due   leased    leased    leased    leased      leased    leased       leased   waiting
extended late     leased    leased    leased    leased      leased    leased       leased   waiting
over              retrying  retrying  retrying  retrying    retrying  waiting      waiting  waiting
given back        waiting   waiting   waiting   waiting     waiting   waiting      waiting  waiting
put off           delayed   delayed   delayed   delayed     delayed   waiting      waiting  waiting
failed            retrying  retrying  retrying  retrying    retrying  waiting      waiting  waiting
confirmed         gone      gone      gone      gone        gone      gone         gone     waiting
flushed           leased    leased    leased    leased      leased    leased       leased   waiting
"""
HEADS, *LINES = [line.split("  ") for line in TABLE.strip("\n").splitlines()]
MOMENTS: Final = [one.strip() for one in HEADS if one.strip()]
ROWS: Final = [
    (words[0], moment, after)
    for words in ([word.strip() for word in line if word.strip()] for line in LINES)
    for moment, after in zip(MOMENTS, words[1:], strict=True)
]
FAILURES: Final = {"over": 1, "failed": 1, "extended late": 1}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass
class Life:
    """One item that was leased, and the queue it is on."""

    engine: Engine
    name: str = "work"
    one: int = 0
    token: int = 0
    since_ms: int = 0
    ends_at_ms: int = 0  # by the monotonic clock, while it is leased
    tokens: list[int] = field(default_factory=list)
    on_disk: dict[Path, bytes] = field(default_factory=dict)  # what a power cut leaves

    @property
    def reader(self) -> Reader:
        return self.engine.reader(self.name)

    @property
    def now_ms(self) -> int:
        return self.engine.clock.monotonic_ms

    def end_turn(self, turns: int = 1) -> None:
        for _ in range(turns):
            assert not self.engine.end_turn()

    def pass_time(self, ms: int) -> None:
        self.engine.clock.advance(ms)
        self.engine.collection.agenda.fall_due(self.now_ms)

    def lease(self) -> None:
        leased = leases.lease(self.reader, self.engine.clock.wall_ms, LEASE_MS, WHO)
        assert leased is not None
        self.one, self.token, self.ends_at_ms = item_id(leased[1]), leased[0], self.now_ms + LEASE_MS
        self.since_ms = self.now_ms
        assert self.token not in self.tokens, "a token is given once"
        self.tokens.append(self.token)

    def extend(self) -> None:
        self.pass_time(LEASE_MS // 2)
        self.end_turn()
        assert leases.extend(self.reader, self.token, LEASE_MS)
        self.ends_at_ms = self.now_ms + LEASE_MS

    def run_out(self) -> None:
        self.pass_time(LEASE_MS)
        self.end_turn()

    def lease_again(self) -> None:
        assert leases.give_back(self.reader, self.token, self.engine.clock.wall_ms)
        self.lease()

    def come_to(self, what: str) -> None:
        delay_ms = DELAY_MS if what == "leased when due" else 0
        if what == "leased by child":
            self.name = "work+audit"
        self.engine.reader(self.name)
        queue = self.engine.queue("work")
        assert queue.put_later(b"job", 0, 0, None, delay_ms) if delay_ms else queue.put(b"job")
        self.end_turn(2)
        self.pass_time(delay_ms)
        self.on_disk = contents(self.engine.spool)
        self.lease()
        self.end_turn()
        self.act(what)
        self.end_turn(2)

    def act(self, what: str) -> None:
        reader, token, wall_ms = self.reader, self.token, self.engine.clock.wall_ms
        if what == "extended":
            self.extend()
        elif what == "leased again":
            self.lease_again()
        elif what == "extended late":
            self.run_out()
            assert leases.extend(reader, token, LEASE_MS)
            self.ends_at_ms = self.now_ms + LEASE_MS
        elif what == "over":
            self.run_out()
        elif what == "given back":
            assert leases.give_back(reader, token, wall_ms)
        elif what == "put off":
            assert leases.give_back(reader, token, wall_ms, LEASE_MS)
        elif what == "failed":
            assert leases.fail(reader, token, wall_ms)
        elif what == "confirmed":
            assert leases.confirm(reader, token)
        elif what == "flushed":
            self.engine.collection.flush(self.name)

    def let(self, moment: str) -> None:
        if moment == "rolls":
            for _ in range(2):
                self.engine.queue("work").go_on()
                self.end_turn()
        elif moment == "compaction":
            self.compact()
        elif moment == "set back":
            self.engine.clock.wall_ms -= HOUR_MS
        elif moment == "set forward":
            self.engine.clock.wall_ms += HOUR_MS
        if moment == "restart":
            self.engine.restart()
        elif moment == "away":
            self.engine.abandon()
            self.engine.clock.advance(HOUR_MS)
            self.engine.start()
        elif moment == "power cut":
            self.engine.clock.advance(7)  # no record is left that says which tokens were given
            self.engine.abandon()
            shutil.rmtree(self.engine.spool)
            for path, content in self.on_disk.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self.engine.start()
        else:
            self.engine.crash()

    def compact(self) -> None:
        journal = self.engine.queue("work").journal
        assert journal is not None
        for _ in range(200):
            if any(segment.compacted for segment in journal.segments):
                return
            self.engine.put("work", b"c" * 50)
            self.end_turn()
            self.engine.work(20)
            for name in list(self.engine.queue("work").readers):
                reader = self.engine.queue("work").readers[name]
                for record in list(reader.window):
                    if item_data(record) != b"job":
                        reader.pull_out(item_id(record))
                        reader.close(item_id(record))
            self.end_turn()

    def state(self) -> str:
        reader, held = self.reader, self.reader.held
        if self.one in reader.open:
            return "leased" if reader.is_leased(self.one) else "open"
        if held is not None and self.one in held.later:
            return "retrying" if self.one in held.failed else "delayed"
        return "waiting" if reader.waits(self.one) else "gone"

    def lease_of(self) -> Lease:
        return self.reader.held_items().leases[self.one]


def check(folder: Path, what: str, moment: str, after: str) -> None:
    """A row of the table, and what the item and its token are good for then."""
    settings = {"retry_delays_ms": (DELAY_MS,), "max_journal_size_bytes": 300, "max_journal_overflow": 2}
    life = Life(Engine(folder / "spool", QuickFiles(), **settings))
    life.come_to(what)
    before = life.state()
    life.let(moment)
    assert life.engine.log == []
    assert life.state() == after
    failures = 0 if moment == "power cut" else FAILURES.get(what, 0)
    assert after == "gone" or life.reader.retries.get(life.one, 0) == failures
    if after == "leased":
        assert before == "leased"
        if moment in ("set forward", "away"):
            life.ends_at_ms = life.now_ms + GRACE_MS
        assert life.lease_of().ends_at_ms == life.ends_at_ms, "no longer than was left, and no shorter"
        is_since_then = moment not in ("compaction", "set back", "set forward") and what != "extended late"
        assert not is_since_then or life.lease_of().since_ms == life.since_ms
        assert life.lease_of().holder == ("" if what == "extended late" else WHO)
        assert leases.token_of(life.reader, life.one) == life.token
        must_end(life, what, failures)
    elif after != "gone":
        while life.state() != "waiting":
            life.pass_time(DELAY_MS)
    if after != "gone":
        life.lease()  # with a token of its own
        life.end_turn(2)
        assert leases.confirm(life.reader, life.token)
        life.end_turn()
    life.engine.crash()
    assert life.state() == "gone"


def must_end(life: Life, what: str, failures: int) -> None:
    """It ends as it would have without a crash, which counts once, and so it is after another crash."""
    life.pass_time(life.ends_at_ms - life.now_ms - 1)
    assert life.state() == "leased"
    life.pass_time(1)
    assert life.state() == "retrying"
    failures += what != "extended late"
    for _ in range(2):
        assert life.reader.retries.get(life.one, 0) == failures
        life.end_turn(2)
        life.engine.clock.wall_ms -= HOUR_MS
        life.engine.crash()
        assert life.state() == "retrying"
    life.pass_time(DELAY_MS)
    assert life.state() == "waiting"


@pytest.mark.parametrize(("what", "moment", "after"), ROWS, ids=[f"{row[0]}, {row[1]}" for row in ROWS])
def test_a_row(tmp_path: Path, what: str, moment: str, after: str) -> None:
    check(tmp_path, what, moment, after)


CHANGES: dict[str, Callable[[Reader, int, int], bool]] = {
    "confirm": lambda reader, token, now_ms: leases.confirm(reader, token),
    "extend": lambda reader, token, now_ms: leases.extend(reader, token, LEASE_MS),
    "give back": leases.give_back,
    "fail": leases.fail,
}
AFTER = {"confirm": "gone", "extend": "leased", "give back": "waiting", "fail": "retrying"}


@pytest.mark.parametrize("moment", ["kill", "restart", "rolls", "compaction", "set back"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_token_does_after_a_start_what_it_did_before(tmp_path: Path, change: str, moment: str) -> None:
    settings = {"retry_delays_ms": (DELAY_MS,), "max_journal_size_bytes": 300, "max_journal_overflow": 2}
    life = Life(Engine(tmp_path, QuickFiles(), **settings))
    life.come_to("leased")
    life.let(moment)
    assert not any(act(life.reader, life.token ^ 1 << 12, life.engine.clock.wall_ms) for act in CHANGES.values()), (
        "one that was made up"
    )
    assert CHANGES[change](life.reader, life.token, life.engine.clock.wall_ms)
    assert life.state() == AFTER[change]
    life.end_turn(2)
    life.engine.crash()
    assert life.state() == AFTER[change]


@pytest.mark.parametrize("settings", [{}, {"lease_grace_ms": 2000}, {"lease_grace_ms": HOUR_MS}])
@pytest.mark.parametrize("is_clean", [False, True], ids=["kill", "stop"])
def test_a_lease_lasts_its_grace_at_least_after_every_start(
    tmp_path: Path, settings: dict[str, int], *, is_clean: bool
) -> None:
    life, grace_ms = Life(Engine(tmp_path, QuickFiles(), **settings)), settings.get("lease_grace_ms", GRACE_MS)
    life.come_to("leased")
    life.pass_time(LEASE_MS - 1)
    for _ in range(3):
        if is_clean:
            life.engine.restart()
        else:
            life.engine.crash()
        assert life.lease_of().ends_at_ms == life.now_ms + grace_ms
        life.pass_time(grace_ms - 1)
        life.end_turn()
    assert life.state() == "leased"
    life.pass_time(1)
    assert life.state() == "waiting"


@pytest.mark.parametrize("change", [*CHANGES, "none"])
def test_the_grace_counts_from_when_clients_are_served(tmp_path: Path, change: str) -> None:
    """However long it takes to recover all queues; a lease that goes on for longer stays as it is."""
    life = Life(Engine(tmp_path, QuickFiles(), retry_delays_ms=(DELAY_MS,)))
    life.come_to("leased")
    life.engine.put("work", b"another")
    longer = leases.lease(life.reader, life.engine.clock.wall_ms, HOUR_MS, WHO)
    assert longer is not None
    life.end_turn()
    until_ms = life.now_ms + HOUR_MS
    life.engine.crash()
    life.engine.clock.advance(LEASE_MS)
    life.engine.collection.serve()
    assert life.lease_of().ends_at_ms == life.now_ms + GRACE_MS
    assert life.reader.held_items().leases[item_id(longer[1])].ends_at_ms == until_ms
    if change in CHANGES:
        assert CHANGES[change](life.reader, life.token, life.engine.clock.wall_ms)
        assert life.state() == AFTER[change]
        return
    life.end_turn()
    life.pass_time(GRACE_MS - 1)
    assert life.state() == "leased"
    life.pass_time(1)
    assert life.state() == "retrying"
    life.end_turn()
    life.engine.crash()
    assert life.state() == "retrying", "it has ended, once and for all"
    assert life.reader.retries == {life.one: 1}


def test_a_lease_whose_token_was_presented_is_not_prolonged_by_the_grace(tmp_path: Path) -> None:
    life = Life(Engine(tmp_path, QuickFiles()))
    life.come_to("leased")
    life.engine.crash()
    assert leases.extend(life.reader, life.token, 1)
    life.engine.collection.serve()
    assert life.lease_of().ends_at_ms == life.now_ms + 1


def test_the_grace_is_for_a_start_and_not_for_a_turn_that_an_exception_ends(tmp_path: Path) -> None:
    """What the process knows to be over stays so."""
    life = Life(Engine(tmp_path, QuickFiles()))
    life.come_to("leased")
    life.pass_time(LEASE_MS)
    assert life.state() == "waiting"
    renew(life.engine.collection, life.engine.queue("work"), lambda reader: set(reader.open))
    assert life.state() == "waiting"


@pytest.mark.parametrize("moment", ["kill", "restart", "rolls", "compaction"])
@pytest.mark.parametrize("what", ["leased", "extended", "leased by child", "leased when due"])
def test_what_the_journal_says_of_leases_counts_also_when_no_more_are_written(
    tmp_path: Path, what: str, moment: str
) -> None:
    settings = {"max_journal_size_bytes": 300, "max_journal_overflow": 2}
    life = Life(Engine(tmp_path / "spool", QuickFiles(), **settings))
    life.come_to(what)
    life.engine.configure(journal_leases=False, **settings)
    life.let(moment)
    assert life.state() == "leased"
    assert leases.confirm(life.reader, life.token)
    life.end_turn()
    life.engine.crash()
    assert life.state() == "gone"


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "in memory"])
@pytest.mark.parametrize("what", ["leased", "extended", "leased when due"])
def test_a_turn_that_an_exception_ends_leaves_leases_alone(tmp_path: Path, what: str, *, is_written: bool) -> None:
    life = Life(Engine(tmp_path / "spool", QuickFiles(), journal_leases=is_written))
    life.come_to(what)
    lease = life.lease_of()
    renew(life.engine.collection, life.engine.queue("work"), lambda reader: set(reader.open))
    assert life.lease_of() is lease
    life.end_turn()
    assert leases.confirm(life.reader, life.token)


def test_a_lease_whose_time_was_over_while_the_server_was_down_fails_when_its_grace_is(tmp_path: Path) -> None:
    life = Life(Engine(tmp_path, QuickFiles(), retry_delays_ms=(DELAY_MS,)))
    life.come_to("leased")
    life.let("away")
    assert life.state() == "leased"
    assert life.reader.retries == {}
    life.pass_time(GRACE_MS)
    assert life.state() == "retrying"
    assert life.reader.retries == {life.one: 1}
    assert leases.confirm(life.reader, life.token), "nobody has had it since"


def test_a_token_that_a_power_cut_has_forgotten_is_not_given_again(tmp_path: Path) -> None:
    """Whoever has it may still be at work. Which attempt it was for is not known, but that of the lease before is."""
    life = Life(Engine(tmp_path / "spool", QuickFiles()))
    life.come_to("leased")
    assert leases.give_back(life.reader, life.token, life.engine.clock.wall_ms)
    life.end_turn(2)
    life.on_disk = contents(life.engine.spool)
    for _ in range(3):
        life.lease()
        life.end_turn()
        assert leases.give_back(life.reader, life.token, life.engine.clock.wall_ms)
    life.let("power cut")
    life.lease()


@pytest.mark.parametrize("change", ["put off", "failed", "extended"])
@pytest.mark.parametrize("moment", ["kill", "power cut"])
def test_an_old_token_that_ends_its_attempt_has_none_of_the_later_ones_given_again(
    tmp_path: Path, moment: str, change: str
) -> None:
    """It tells of an attempt that nothing on disk does, which need not have been the last one."""
    life = Life(Engine(tmp_path / "spool", QuickFiles(), journal_leases=moment == "power cut", max_retries=9))
    life.come_to("leased")
    first = life.token
    for _ in range(3):
        life.lease_again()
    life.pass_time(7)  # no start is in the millisecond of the one before
    life.let(moment)
    assert life.state() == "waiting"
    life.token = first
    life.act("put off" if change == "extended" else change)
    if change == "extended":
        life.pass_time(LEASE_MS)
        assert leases.extend(life.reader, first, LEASE_MS)
        assert leases.give_back(life.reader, first, life.engine.clock.wall_ms)
    life.pass_time(LEASE_MS)
    life.lease()


def test_the_first_lease_behind_a_sync_that_a_segment_follows_is_written_before_its_reply(tmp_path: Path) -> None:
    """Also where another was given up before, in the turn that granted it."""
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0, max_journal_size_bytes=100)
    engine.put("work", b"x" * 100)
    engine.end_turn()
    reader = engine.reader("work")
    assert leases.lease(reader, engine.clock.wall_ms, LEASE_MS, WHO)
    reader.give_back(1, engine.clock.wall_ms, was_delivered=False)
    engine.end_turn()
    assert leases.lease(reader, engine.clock.wall_ms, LEASE_MS, WHO)
    engine.end_turn()
    assert engine.queue("work").pending_commit is not None, "its reply waits"
    files.finish_background()
    engine.crash()
    assert engine.reader("work").is_leased(1)


def test_how_often_an_item_was_delivered_is_known_where_a_lease_was_over_before_it_could_be_written(
    tmp_path: Path,
) -> None:
    """A lease waits for a sync that a new segment follows; its reply may have been sent right after that."""
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0, max_journal_size_bytes=100)
    engine.put("work", b"x")
    engine.end_turn()
    while files.under_way:
        files.finish_background()
        engine.end_turn()
    for at_ms in (1, 20):  # the first begins a segment that has leases
        engine.put("work", b"y" * 100)
        engine.end_turn()
        assert leases.lease(engine.reader("work"), engine.clock.wall_ms, at_ms, WHO)
        engine.end_turn()
        engine.clock.advance(at_ms)
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
        engine.end_turn()
        while files.under_way:
            files.finish_background()
            engine.end_turn()
    engine.crash()
    reader = engine.reader("work")
    assert leases.lease(reader, engine.clock.wall_ms, LEASE_MS, WHO)
    assert reader.deliveries_before(1) == 2


@pytest.mark.parametrize(("segment_bytes", "count"), [(1, 1), (300, 30), (1024, 100)])
def test_leases_that_are_more_than_a_segment_are_not_written_again_and_again(
    tmp_path: Path, segment_bytes: int, count: int
) -> None:
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0, max_journal_size_bytes=segment_bytes)
    engine.reader("work")
    engine.put("work", *[b"x"] * count)

    def rounds() -> int:
        for done in range(20):
            if not files.under_way:
                return done
            files.finish_background()
            engine.end_turn()
        return 20

    engine.end_turn()
    assert rounds() < 20
    tokens = [leases.lease(engine.reader("work"), engine.clock.wall_ms, LEASE_MS, WHO) for _ in range(count)]
    engine.end_turn()
    assert rounds() < 20
    begun = len(engine.segments("work"))
    for _ in range(60):
        for found in tokens:
            assert found is not None
            assert leases.extend(engine.reader("work"), found[0], LEASE_MS)
        engine.end_turn()
        assert rounds() < 20
    assert len(engine.segments("work")) > begun, "extensions fill a segment"
    engine.crash()
    assert len(engine.reader("work").open) == count


def test_an_undone_flush_brings_back_what_waited_and_not_what_was_leased(tmp_path: Path) -> None:
    undo_a_flush(tmp_path)


def undo_a_flush(folder: Path) -> None:
    life = Life(Engine(folder / "spool", QuickFiles(), trash_ms=HOUR_MS, max_journal_size_bytes=300))
    life.come_to("leased")
    life.engine.put("work", b"waits")
    life.end_turn()
    life.compact()  # what is said of the lease stands beside the item
    life.engine.drain("work")
    life.engine.put("work", b"waits too")
    life.end_turn()
    assert life.engine.collection.flush("work") == 1
    life.end_turn(2)
    engine = life.engine
    answers: list[object] = []
    Repairer(engine.collection, engine.maintenance, engine.slices).undo("work", answers.append)
    while not answers:
        engine.slices.run(engine.clock.stopwatch_us())
        life.end_turn()
    assert life.state() == "leased"
    life.engine.crash()
    assert engine.drain("work") == [b"waits too"]
    assert life.state() == "leased"


def row(what: str, moment: str, after: str) -> Callable[[Path], None]:
    assert (what, moment, after) in ROWS
    return lambda folder: check(folder, what, moment, after)


# Bugs, each planted for a row that has to see it


def leases_forgotten_by_a_compaction() -> AbstractContextManager[Any]:
    noted_due = Held.noted_due
    return patch.object(Held, "noted_due", lambda self, one: None if self.is_leased(one) else noted_due(self, one))


def leases_forgotten_by_held_from() -> AbstractContextManager[Any]:
    return patch.object(Held, "lowest", lambda self: self._lowest.first() or 0)


def extensions_not_written() -> AbstractContextManager[Any]:
    def extend(self: Held, one: int, ends_at_ms: int) -> None:
        self.leases[one].ends_at_ms = ends_at_ms
        self._plan(ends_at_ms, one)

    return patch.object(Held, "extend", extend)


def ends_by_time_not_written() -> AbstractContextManager[Any]:
    end_lease = Reader.end_lease

    def silent(self: Reader, one: int, now_ms: int) -> None:
        with patch.object(Reader, "_note", lambda *given, **words: None):
            end_lease(self, one, now_ms)

    return patch.object(Reader, "end_lease", silent)


def ends_by_the_wall_clock() -> AbstractContextManager[Any]:
    return patch.object(Due, "left_ms", lambda self, wall_ms: max(self.due_at_ms - wall_ms, 0))


def leases_that_end_twice() -> AbstractContextManager[Any]:
    return patch.object(due_items, "_IS_COUNTED", 0)


def confirmed_items_leased_again() -> AbstractContextManager[Any]:
    end = ReaderStates.end

    def deaf(self: ReaderStates, done: Done) -> None:
        known = self.due.get(done.reader, {})
        leased = {one: due for one, due in known.items() if due.why == Why.LEASED}
        end(self, done)
        known.update(leased)

    return patch.object(ReaderStates, "end", deaf)


def attempts_used_twice() -> AbstractContextManager[Any]:
    return patch.object(Held, "go_on_from", lambda self, one, attempt, deliveries, *, is_over: None)


def flushes_of_leased_items() -> AbstractContextManager[Any]:
    note_of = trash.note_of

    def careless(reader: Reader, *given: Any) -> trash_note.Note:
        opened, reader.open = reader.open, {}
        try:
            return note_of(reader, *given)
        finally:
            reader.open = opened

    return patch.object(trash, "note_of", careless)


PLANTED: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Path], None]]] = {
    "forgotten by a compaction": (leases_forgotten_by_a_compaction, row("leased", "compaction", "leased")),
    "forgotten by held_from": (leases_forgotten_by_held_from, row("leased", "rolls", "leased")),
    "extension not written": (extensions_not_written, row("extended", "kill", "leased")),
    "end by time not written": (ends_by_time_not_written, row("over", "set back", "retrying")),
    "end by the wrong clock": (ends_by_the_wall_clock, row("leased", "set back", "leased")),
    "ends twice": (leases_that_end_twice, row("extended late", "kill", "leased")),
    "confirmed, and leased again": (confirmed_items_leased_again, row("confirmed", "kill", "gone")),
    "attempt used twice": (attempts_used_twice, row("given back", "kill", "waiting")),
    "brought back by an undone flush": (flushes_of_leased_items, undo_a_flush),
}


@interpreted_only
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_seen(tmp_path: Path, bug: str) -> None:
    plant, seen_by = PLANTED[bug]
    seen_by(tmp_path / "without")
    with plant(), pytest.raises((AssertionError, JournalCorrupt)):
        seen_by(tmp_path / "with")
