"""What becomes of an item by whatever can happen to it: the table, a test for each row."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kestreld.journal.records import item_id
from kestreld.queues import leases
from kestreld.queues.reader import Reader
from tests.support.engine import Engine, QuickFiles

# An item that is here -> and that happens -> is there; "+" where that counts as an attempt
TABLE = """
waiting     take              gone
waiting     open              open
waiting     lease             leased
waiting     confirm late      gone
waiting     extend late       leased
waiting     flush             gone
waiting     stop              waiting
waiting     crash             waiting
delayed     its time          waiting
delayed     take              delayed
delayed     lease             delayed
delayed     cancel            gone
delayed     run now           waiting
delayed     flush             gone
delayed     stop              delayed
delayed     crash             delayed
retrying    its time          waiting
retrying    take              retrying
retrying    confirm late      gone
retrying    extend late       leased
retrying    run now           waiting
retrying    cancel            gone
retrying    flush             gone
retrying    stop              retrying
retrying    crash             retrying
open        close             gone
open        abort             retrying +
open        flush             open
open        stop              waiting
open        crash             waiting
limited     close             gone
limited     abort             retrying +
limited     its time          retrying +
limited     flush             limited
limited     stop              waiting
limited     crash             waiting
leased      confirm           gone
leased      extend            leased
leased      give back         waiting
leased      give back later   delayed
leased      take away         waiting
leased      take away later   delayed
leased      fail              retrying +
leased      fail because      retrying +
leased      its time          retrying +
leased      take              leased
leased      flush             leased
leased      cancel            leased
leased      stop              leased
leased      crash             leased
"""
ROWS = [(line[:12].strip(), line[12:30].strip(), line[30:].strip()) for line in TABLE.strip().splitlines()]
LEASE_MS = 1000
DELAY_MS = 1000
WHO = "127.0.0.1:1"
WHY = "no room"
RULES = {"retry_delays_ms": (DELAY_MS,), "lease_grace_ms": 2000}


class Life:
    """One item with a key, on its way through states."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.engine = Engine(folder / "spool", QuickFiles(), **{**RULES, **settings})
        self.one = self.token = 0
        self.opened: list[int] = []

    @property
    def reader(self) -> Reader:
        return self.engine.reader("work")

    @property
    def now_ms(self) -> int:
        return self.engine.clock.wall_ms

    def put(self, delay_ms: int = 0) -> None:
        queue = self.reader.queue
        queue.use_version(2)
        self.one = queue.next_id
        assert queue.put_later(b"job", 0, 0, None, delay_ms) if delay_ms else queue.put(b"job")
        self.reader.remember_key(b"key", self.one, delay_ms)
        self.engine.end_turn()

    def lease(self) -> None:
        found = leases.lease(self.reader, self.now_ms, LEASE_MS, WHO)
        if found is not None:
            self.token = found[0]

    def open(self, limit_ms: int = 0) -> None:
        found = self.reader.open_read(self.now_ms)
        assert found is not None
        self.opened.append(found[0])
        if limit_ms:
            self.reader.limit_open(found[0], limit_ms, WHO, self.opened.clear)

    def bring_to(self, state: str) -> None:
        """An item that is there, and of which a token is known that is not good any more or is."""
        if state == "delayed":
            self.put(DELAY_MS)
            return
        self.put()
        if state in ("open", "limited"):
            self.open(LEASE_MS if state == "limited" else 0)
            return
        self.lease()
        if state == "waiting":
            assert leases.give_back(self.reader, self.token, self.now_ms)
        elif state == "retrying":
            assert leases.fail(self.reader, self.token, self.now_ms, WHY)
        self.engine.end_turn()

    def state(self) -> str:
        reader, held, one = self.reader, self.reader.held, self.one
        reader.queue.flush_counters()
        if one in reader.open:
            lease = held.leases.get(one) if held is not None else None
            return "open" if lease is None else "leased" if lease.attempt >= 0 else "limited"
        if held is not None and one in held.later:
            return "retrying" if one in held.failed else "delayed"
        record = reader.peek(self.now_ms)
        return "waiting" if record is not None and item_id(record) == one else "gone"

    def why(self) -> str:
        """Why the item failed last."""
        return self.reader.queue.failure_of(self.reader.number, self.one)

    def let_pass(self) -> None:
        self.engine.clock.advance(DELAY_MS)
        self.engine.collection.agenda.fall_due(self.engine.clock.monotonic_ms)

    def stop(self) -> None:
        """What sessions hold open is given back first."""
        self.reader.abort_all(self.opened, self.now_ms, is_counted=False)
        self.engine.restart()

    def cancel(self) -> None:
        before = self.state()
        assert self.reader.cancel(b"key") == (before in ("delayed", "retrying"))


EVENTS: dict[str, Callable[[Life], object]] = {
    "its time": Life.let_pass,
    "take": lambda life: life.reader.take(life.now_ms),
    "open": Life.open,
    "lease": Life.lease,
    "close": lambda life: life.reader.close(life.one),
    "abort": lambda life: life.reader.abort(life.one, life.now_ms),
    "confirm": lambda life: leases.confirm(life.reader, life.token),
    "confirm late": lambda life: leases.confirm(life.reader, life.token),
    "extend": lambda life: leases.extend(life.reader, life.token, LEASE_MS),
    "extend late": lambda life: leases.extend(life.reader, life.token, LEASE_MS),
    "give back": lambda life: leases.give_back(life.reader, life.token, life.now_ms),
    "give back later": lambda life: leases.give_back(life.reader, life.token, life.now_ms, DELAY_MS),
    "take away": lambda life: life.reader.take_away(life.one, life.now_ms),
    "take away later": lambda life: life.reader.take_away(life.one, life.now_ms, DELAY_MS),
    "fail": lambda life: leases.fail(life.reader, life.token, life.now_ms),
    "fail because": lambda life: leases.fail(life.reader, life.token, life.now_ms, WHY),
    "cancel": Life.cancel,
    "run now": lambda life: life.reader.run_now(life.one, life.now_ms),
    "flush": lambda life: life.reader.flush(life.now_ms),
    "stop": Life.stop,
    "crash": lambda life: life.engine.crash(),
}
# What a state is after a kill of the server, but for what the journal says of the item from before
AFTER_CRASH = {"open": "waiting", "limited": "waiting"}


@pytest.mark.parametrize("max_memory_size_bytes", [1 << 20, 1], ids=["in memory", "on disk"])
@pytest.mark.parametrize(("state", "event", "expected"), ROWS, ids=[" ".join(row[:2]) for row in ROWS])
def test_a_row(tmp_path: Path, state: str, event: str, expected: str, max_memory_size_bytes: int) -> None:
    life = Life(tmp_path, max_memory_size_bytes=max_memory_size_bytes)
    life.bring_to(state)
    life.engine.end_turn()
    assert life.state() == state
    attempts, why = life.reader.retries.get(life.one, 0), WHY if state == "retrying" or event == "fail because" else ""
    EVENTS[event](life)
    wanted, _, counts = expected.partition(" ")
    assert life.state() == wanted
    if wanted != "gone":
        assert life.reader.retries.get(life.one, 0) - attempts == (counts == "+")
        assert life.why() == why
    for _ in range(2):  # the first time of a journal waits for a segment that has due times
        life.engine.end_turn()
    assert life.state() == wanted
    life.engine.crash()
    assert life.state() == AFTER_CRASH.get(wanted, wanted)
    assert wanted == "gone" or life.why() == why
    if wanted in ("delayed", "retrying", "waiting"):
        life.let_pass()
        assert life.state() == "waiting"


# The same where a token comes when its attempt is over: what has happened before, what it is shown for, what becomes of
# the item, and whether the token was good. An attempt has one end: nothing is counted, and no time is set, once more.
LATE = """
lease over         fail late          as it was   good
lease over         give back late     as it was   good
lease over         put off late       as it was   good
lease over         extend late        leased      good
lease over         confirm late       gone        good
failed             fail twice         as it was   good
failed             give back late     as it was   good
failed             put off late       as it was   good
failed             extend late        leased      good
failed             confirm late       gone        good
put off            fail late          as it was   good
put off            give back late     as it was   good
put off            put off late       as it was   good
given back         fail late          as it was   good
given back         put off late       as it was   good
extended late      over again         as before   good
over twice         fail late          as it was   good
over twice         extend late        leased      good
over twice         confirm late       gone        good
leased by another  old fail           as it was   bad
leased by another  old give back      as it was   bad
leased by another  old extend         as it was   bad
leased by another  old confirm        as it was   bad
had by another     old fail           as it was   bad
had by another     old put off        as it was   bad
had by another     old extend         as it was   bad
had by another     old confirm        as it was   bad
opened by another  old fail           as it was   bad
opened by another  old confirm        as it was   bad
moved away         fail twice         gone        good
never leased       made up            as it was   bad
put off            made up            as it was   bad
lease over         made up            as it was   bad
leased by another  made up            as it was   bad
"""
MOMENTS = ["at once", "restart", "kill", "compaction"]
# What nothing is written of: after a start a token that was given is good while the item waits, and may end an attempt.
FORGOTTEN = {
    *(("given back", event, moment) for event in ("fail late", "put off late") for moment in ("restart", "kill")),
    *(("opened by another", event, moment) for event in ("old fail", "old confirm") for moment in ("restart", "kill")),
    ("moved away", "fail twice", "restart"),
    ("moved away", "fail twice", "kill"),
}
LATE_ROWS = [
    (before, event, line[38:50].strip(), line[50:].strip() == "good", moment)
    for line in LATE.strip().splitlines()
    for moment in MOMENTS
    if ((before := line[:19].strip()), (event := line[19:38].strip()), moment) not in FORGOTTEN
]
SETTINGS = {
    "retry_delays": {"retry_delays_ms": (DELAY_MS,)},
    "max_retries": {"max_retries": 5, "retry_delays_ms": ()},
    "both": {"retry_delays_ms": (DELAY_MS, 3 * DELAY_MS), "max_retries": 5},
}


class Late(Life):
    """A life whose token is shown late. `old` is the token that is shown, `token` that of whoever has it now."""

    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder, **settings)
        self.old = 0
        self.due_at_ms: int | None = None

    def run_out(self, ms: int = LEASE_MS) -> None:
        self.engine.clock.advance(ms)
        self.engine.collection.agenda.fall_due(self.engine.clock.monotonic_ms)

    def await_item(self) -> None:
        while self.state() != "waiting":
            self.run_out(DELAY_MS)

    def come_to(self, what: str) -> None:
        self.put()
        if what == "never leased":
            return
        self.lease()
        self.old = self.token
        if what == "failed":
            assert leases.fail(self.reader, self.token, self.now_ms)
        elif what == "given back":
            assert leases.give_back(self.reader, self.token, self.now_ms)
        elif what == "put off":
            assert leases.give_back(self.reader, self.token, self.now_ms, DELAY_MS)
        elif what == "moved away":
            assert leases.fail(self.reader, self.token, self.now_ms)
            self.engine.configure(max_retries=1, move_failed_to="dead")
            self.await_item()
            self.lease()
            self.old = self.token
            assert leases.fail(self.reader, self.token, self.now_ms)
        else:
            self.run_out()
        if what in ("extended late", "over twice"):
            assert leases.extend(self.reader, self.token, LEASE_MS)
            if what == "over twice":
                self.run_out()
        elif what in ("leased by another", "had by another"):
            self.await_item()
            self.lease()
            if what == "had by another":
                self.run_out()
        elif what == "opened by another":
            self.await_item()
            self.open()
            self.reader.abort(self.one, self.now_ms)

    def let_be(self, moment: str) -> None:
        for _ in range(3):
            self.engine.end_turn()
        if moment == "restart":
            self.engine.restart()
        elif moment == "kill":
            self.engine.crash()
        elif moment == "compaction":
            journal = self.engine.queue("work").journal
            assert journal is not None
            for _ in range(200):
                if any(segment.compacted for segment in journal.segments):
                    return
                self.engine.put("work", b"c" * 50)
                self.engine.end_turn()
                self.engine.work(20)
                for record in list(self.reader.window):
                    if item_id(record) != self.one:
                        self.reader.pull_out(item_id(record))
                        self.reader.close(item_id(record))
                self.engine.end_turn()
            assert self.state() == "gone", "compacted"

    def due(self) -> int | None:
        """When the item is due by the monotonic clock; None when it is not held back."""
        held = self.reader.held
        value = None if held is None else held.later.get(self.one)
        return None if held is None or value is None else held.due_of(value)

    def show(self, event: str, token: int) -> bool:
        word = event.removeprefix("old ").removesuffix(" late").removesuffix(" twice")
        now_ms = self.now_ms
        if word == "fail":
            return leases.fail(self.reader, token, now_ms)
        if word == "extend":
            return leases.extend(self.reader, token, LEASE_MS)
        if word == "confirm":
            return leases.confirm(self.reader, token)
        return leases.give_back(self.reader, token, now_ms, 5 * DELAY_MS if word == "put off" else 0)

    def make_up(self) -> list[int]:
        """Tokens like those that are given, of other attempts or with other digests."""
        token = self.old or (self.one << leases._LOW_BITS | 12345 << 12 | 77)
        return [token ^ change for change in (1, 0x800, 1 << 12, 1 << 20, 0xABC << 12 | 0x123)]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    ("before", "event", "expected", "is_good", "moment"),
    LATE_ROWS,
    ids=[f"{row[0]}, {row[4]}, {row[1]}" for row in LATE_ROWS],
)
def test_a_row_of_late_tokens(
    tmp_path: Path, before: str, event: str, expected: str, is_good: bool, moment: str, settings: str
) -> None:
    life = Late(tmp_path, max_journal_size_bytes=300, max_journal_overflow=2, **SETTINGS[settings])
    life.come_to(before)
    life.let_be(moment)
    state, due, attempts = life.state(), life.due(), life.reader.retries.get(life.one, 0)
    assert attempts == EVER_FAILED.get(before, 0) or state == "gone"
    if event == "over again":
        life.run_out(2 * LEASE_MS)  # after a start it lasts so long at least
    elif event == "made up":
        for token in life.make_up():
            for word in ("fail", "give back", "put off", "extend", "confirm"):
                assert not life.show(word, token)
    else:
        assert life.show(event, life.old) == is_good
    if expected in ("leased", "gone"):
        assert life.state() == expected
    else:
        after_failure = "waiting" if settings == "max_retries" else "retrying"
        assert life.state() == (after_failure if expected == "as before" else state)
        assert expected == "as before" or life.due() == due
    if expected != "gone":
        assert life.reader.retries.get(life.one, 0) == attempts
    for _ in range(2):
        life.engine.end_turn()
    life.engine.crash()
    if expected == "gone":
        assert life.state() == "gone"
    elif expected == "as it was":
        assert life.reader.retries.get(life.one, 0) == attempts
        assert life.due() == due or life.due() is None


EVER_FAILED = {
    "lease over": 1,
    "failed": 1,
    "extended late": 1,
    "over twice": 1,
    "leased by another": 1,
    "had by another": 2,
    "opened by another": 2,
}
