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
leased      fail              retrying +
leased      its time          retrying +
leased      take              leased
leased      flush             leased
leased      cancel            leased
leased      stop              leased
leased      crash             waiting
"""
ROWS = [(line[:12].strip(), line[12:30].strip(), line[30:].strip()) for line in TABLE.strip().splitlines()]
LEASE_MS = 1000
DELAY_MS = 1000
WHO = "127.0.0.1:1"


class Life:
    """One item with a key, on its way through states."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.engine = Engine(folder / "spool", QuickFiles(), retry_delays_ms=(DELAY_MS,), **settings)
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
        queue.use_version_2()
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
            assert leases.fail(self.reader, self.token, self.now_ms)
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
    "fail": lambda life: leases.fail(life.reader, life.token, life.now_ms),
    "cancel": Life.cancel,
    "run now": lambda life: life.reader.run_now(life.one, life.now_ms),
    "flush": lambda life: life.reader.flush(life.now_ms),
    "stop": Life.stop,
    "crash": lambda life: life.engine.crash(),
}
# What a state is after a kill of the server, but for what the journal says of the item from before
AFTER_CRASH = {"open": "waiting", "limited": "waiting", "leased": "waiting"}
SAID_BEFORE = {("leased", "stop"): "leased", ("retrying", "extend late"): "retrying"}


@pytest.mark.parametrize("max_memory_size_bytes", [1 << 20, 1], ids=["in memory", "on disk"])
@pytest.mark.parametrize(("state", "event", "expected"), ROWS, ids=[" ".join(row[:2]) for row in ROWS])
def test_a_row(tmp_path: Path, state: str, event: str, expected: str, max_memory_size_bytes: int) -> None:
    life = Life(tmp_path, max_memory_size_bytes=max_memory_size_bytes)
    life.bring_to(state)
    life.engine.end_turn()
    assert life.state() == state
    attempts = life.reader.retries.get(life.one, 0)
    EVENTS[event](life)
    wanted, _, counts = expected.partition(" ")
    assert life.state() == wanted
    if wanted != "gone":
        assert life.reader.retries.get(life.one, 0) - attempts == (counts == "+")
    for _ in range(2):  # the first time of a journal waits for a segment that has due times
        life.engine.end_turn()
    assert life.state() == wanted
    life.engine.crash()
    assert life.state() == SAID_BEFORE.get((state, event), AFTER_CRASH.get(wanted, wanted))
    if wanted in ("delayed", "retrying", "waiting"):
        life.let_pass()
        assert life.state() == "waiting"
