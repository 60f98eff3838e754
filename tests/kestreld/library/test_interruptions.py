"""What becomes of a queue when an exception that is not its own comes in the middle of an operation: a signal
handler's, Ctrl-C's. The operation is done or undone as a whole, and the queue goes on.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.files import FileLayer
from kestreld.journal.verify import verify_spool
from kestreld.library import Lease, PersistentQueue, QueueConfig
from tests.support.interrupting import Interrupted, interrupted_at
from tests.support.library import LONG_MS, LONG_S, at_ms

FIRST: Final = [b"a", b"b", b"c"]
QUICK: Final = 5  # every so many places are tried by the quick tests
EVERY: Final = int(os.environ.get("EVERY_PLACE", "6"))  # one in so many, of the long tests' places


@dataclass(frozen=True)
class Operation:
    """A call on a queue that holds a, b and c, of which the first `opened` are open; what it leaves when it is done.

    What is open then counts as well, as it is back when the queue is closed. Without a journal, several items may be
    done in part, each as a whole.
    """

    name: str
    call: Callable[[PersistentQueue, list[int]], object]
    left: list[bytes]
    opened: int = 0
    partly: tuple[list[bytes], ...] = ()


OPERATIONS: Final = [
    Operation("add", lambda queue, _: queue.add(b"x"), [*FIRST, b"x"]),
    Operation("add with an expiry", lambda queue, _: queue.add(b"x", at_ms(LONG_MS)), [*FIRST, b"x"]),
    Operation("add_all", lambda queue, _: queue.add_all([b"x", b"y"]), [*FIRST, b"x", b"y"], 0, ([*FIRST, b"x"],)),
    Operation("remove", lambda queue, _: queue.remove(), [b"b", b"c"]),
    Operation("remove_all", lambda queue, _: queue.remove_all(2), [b"c"], 0, ([b"b", b"c"],)),
    Operation("remove_receive", lambda queue, _: queue.remove_receive(at_ms(LONG_MS)), [b"b", b"c"]),
    Operation("open", lambda queue, _: queue.remove(True), FIRST),
    Operation("open, waiting", lambda queue, _: queue.remove_receive(at_ms(LONG_MS), True), FIRST),
    Operation("read for a block", lambda queue, _: queue.read().__enter__(), FIRST),
    Operation("read for a block, waiting", lambda queue, _: queue.read(timeout=LONG_S).__enter__(), FIRST),
    Operation("loop", lambda queue, _: next(iter(queue)), FIRST),
    Operation("loop, next item", lambda queue, _: list(islice(queue, 2)), [b"b", b"c"]),
    Operation("confirm", lambda queue, xids: queue.confirm_remove(xids[0]), [b"b", b"c"], 1),
    Operation("confirm one of two", lambda queue, xids: queue.confirm_remove(xids[0]), [b"b", b"c"], 2),
    Operation("unremove", lambda queue, xids: queue.unremove(xids[0]), FIRST, 2),
    Operation("peek", lambda queue, _: queue.peek(), FIRST, 1),
    Operation("flush", lambda queue, _: queue.flush(), [b"a"], 1),
    Operation("len", lambda queue, _: len(queue), FIRST, 1),
    Operation("discard_expired", lambda queue, _: queue._reading.discard_expired(-1), FIRST, 1),
]


def then(end: Callable[[Lease], object]) -> Callable[[PersistentQueue, list[Lease]], object]:
    """Lease an item, and do something with that."""

    def call(queue: PersistentQueue, leases: list[Lease]) -> object:
        lease = queue.lease(LONG_S)
        assert lease is not None
        leases.append(lease)
        return end(lease)

    return call


def failed_in_block(lease: Lease) -> None:
    with suppress(ZeroDivisionError), lease:
        raise ZeroDivisionError


@dataclass(frozen=True)
class Timed:
    """As Operation, of items with a time of their own: what it leaves when everything has fallen due."""

    name: str
    call: Callable[[PersistentQueue, list[Lease]], object]
    left: list[bytes]


SOON_S: Final = 0.01
TIMED: Final = [
    Timed("add with a delay", lambda queue, _: queue.add(b"x", delay=SOON_S), [*FIRST, b"x"]),
    Timed("add with a key", lambda queue, _: queue.add(b"x", key=b"x"), [*FIRST, b"x"]),
    Timed("add with both", lambda queue, _: queue.add(b"x", delay=SOON_S, key=b"x"), [*FIRST, b"x"]),
    Timed("cancel", lambda queue, _: queue.cancel(b"later"), FIRST[:2]),
    Timed("lease", lambda queue, _: queue.lease(SOON_S), FIRST),
    Timed("lease, waiting", lambda queue, _: queue.lease(SOON_S, LONG_S), FIRST),
    Timed("confirm", then(Lease.confirm), FIRST[1:]),
    Timed("extend", then(lambda lease: lease.extend(SOON_S)), FIRST),
    Timed("give back", then(Lease.give_back), FIRST),
    Timed("give back later", then(lambda lease: lease.give_back(SOON_S)), FIRST),
    Timed("fail", then(Lease.fail), FIRST),
    Timed("fail in a block", then(failed_in_block), FIRST),
    Timed("flush", then(lambda lease: lease._reading.flush()), FIRST[:1]),
]
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "synced": {"sync_journal_ms": 0},
    "synced later": {"sync_journal_ms": 5},
    "in memory": {"journal": False},
    "small segments": {"max_journal_size_bytes": 1},
    "small memory": {"max_memory_size_bytes": 1},
}


def opened(folder: Path, **settings: Any) -> PersistentQueue:
    queue = PersistentQueue(str(folder), "work", QueueConfig(**settings))
    queue.setup()
    return queue


def drained(queue: PersistentQueue) -> list[bytes]:
    return [item.data for item in queue.remove_all(1_000_000)]


def len_elsewhere(queue: PersistentQueue) -> int:
    """How many items wait, asked by another thread: nobody has kept the lock."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(len, queue).result(LONG_S)


def must_be_sound(folder: Path) -> None:
    found = [one for one in verify_spool(FileLayer(), str(folder)) if one.bad_offset is not None or one.missing]
    assert not found


def interrupt_everywhere(
    folder: Path, operation: Operation, settings: dict[str, Any], step: int, error: type[BaseException] = Interrupted
) -> int:
    """Have an exception at each place of an operation in turn, and look at the queue each time; how many places."""
    queue, at = opened(folder, **settings), 1
    try:
        while True:
            assert queue.add_all(FIRST) == len(FIRST)
            xids = [item.xid for _ in range(operation.opened) if (item := queue.remove(True)) is not None]
            found = interrupted_at(at, lambda queue=queue, xids=xids: operation.call(queue, xids), error)  # type: ignore[misc]
            if found is None:
                queue.close()
                must_be_sound(folder)
                return at
            result, where = found
            assert result is None, f"{where}: the exception did not reach the caller"
            waiting = len_elsewhere(queue)
            open_reads = queue._reading.figures().open_items
            assert open_reads == sum(queue._reading.is_open(xid) for xid in xids), f"{where}: an open read is left"
            if operation.name not in ("confirm", "confirm one of two", "unremove"):
                assert open_reads == operation.opened, f"{where}: an open read that is held has gone"
            if settings.get("journal", True):
                queue.close()
                queue = opened(folder, **settings)
            else:
                for xid in xids:
                    queue.unremove(xid)
            left = drained(queue)
            allowed = [operation.left, *(operation.partly if "journal" in settings else [])]
            assert left in allowed or sorted(left) == FIRST, f"{where}: {left}"
            assert len(left) == waiting + open_reads, f"{where}: {left}, of which {waiting} waited, {open_reads} open"
            at += step
    finally:
        queue.close()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_an_exception_at_some_places_leaves_an_operation_done_or_undone(tmp_path: Path, operation: Operation) -> None:
    assert interrupt_everywhere(tmp_path, operation, {}, QUICK) > QUICK


@pytest.mark.long
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_an_exception_at_any_place_leaves_an_operation_done_or_undone(
    tmp_path: Path, operation: Operation, settings: dict[str, Any]
) -> None:
    # Each takes its time.
    step = EVERY * (3 if "max_journal_size_bytes" in settings or "sync_journal_ms" in settings else 1)
    assert interrupt_everywhere(tmp_path, operation, settings, step) > 10 // EVERY


@pytest.mark.exhaustive("plain", "open")
@pytest.mark.parametrize("operation", [OPERATIONS[0], OPERATIONS[3], OPERATIONS[6]], ids=lambda one: one.name)
@pytest.mark.parametrize("settings", [SETTINGS["plain"], SETTINGS["small segments"]], ids=["plain", "small segments"])
def test_a_timeout_error_of_a_handler_is_no_error_of_the_disk(
    tmp_path: Path, operation: Operation, settings: dict[str, Any]
) -> None:
    interrupt_everywhere(tmp_path, operation, settings, 1, TimeoutError)


def drained_in_time(queue: PersistentQueue) -> list[bytes]:
    """Everything, as it falls due."""
    left = drained(queue)
    while any(((figures := queue.figures).items, figures.delayed_items, figures.retrying_items, figures.open_items)):
        item = queue.remove_receive(timeout=LONG_S)
        assert item is not None, figures
        left.append(item.data)
    return left


def interrupt_timed(folder: Path, operation: Timed, settings: dict[str, Any], step: int) -> int:
    """`interrupt_everywhere` of an operation on a queue with three items, of which one is due later."""
    settings = {"retry_delays_ms": (10,), **settings}
    queue, at = opened(folder, **settings), 1
    try:
        while True:
            assert queue.add_all(FIRST[:2]) == 2
            assert queue.add(FIRST[2], delay=LONG_S if operation.name == "cancel" else SOON_S, key=b"later")
            leases: list[Lease] = []
            found = interrupted_at(at, lambda queue=queue, leases=leases: operation.call(queue, leases))  # type: ignore[misc]
            if found is None:
                queue.close()
                must_be_sound(folder)
                return at
            where = found[1]
            len_elsewhere(queue)
            if operation.name in ("add with a key", "add with both") and queue._reading.reader.find_key(b"x"):
                assert queue.add(b"x", key=b"x"), where
            if operation.name == "cancel" and queue._reading.reader.find_key(b"later"):
                assert queue.cancel(b"later"), where
            if settings.get("journal", True) and at % 2:
                queue.close()
                queue = opened(folder, **settings)
            for lease in leases:
                Lease(queue._reading, lease.item, lease.token, 1, heartbeat=False, failed=None).give_back()
            left = drained_in_time(queue)
            first = leases[0].item.data if leases else FIRST[0]  # the later one, where that fell due before
            swapped = {FIRST[0]: first, first: FIRST[0]}
            expected = sorted(swapped.get(data, data) for data in operation.left)
            assert sorted(left) in (expected, FIRST), f"{where}: {left}"
            reader = queue._reading.reader
            figures = queue.figures
            assert (figures.items, figures.data_bytes, figures.memory_bytes, figures.open_bytes) == (0, 0, 0, 0), where
            if reader.held is not None:
                assert (reader.held.data_bytes, reader.held.ready_bytes, reader.held.memory_bytes) == (0, 0, 0), where
                assert not reader.held.leases, where
            queue.flush()  # which forgets the keys
            if not settings.get("journal", True):  # else it counts ever more failures of items that are done
                queue.close()
                queue = opened(folder, **settings)
            at += step
    finally:
        queue.close()


@pytest.mark.parametrize("operation", TIMED, ids=lambda one: one.name)
def test_an_exception_at_some_places_leaves_what_has_a_time_done_or_undone(tmp_path: Path, operation: Timed) -> None:
    assert interrupt_timed(tmp_path, operation, {}, 2 * QUICK + 1) > QUICK


@pytest.mark.long
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("operation", TIMED, ids=lambda one: one.name)
def test_an_exception_at_any_place_leaves_what_has_a_time_done_or_undone(
    tmp_path: Path, operation: Timed, settings: dict[str, Any]
) -> None:
    step = EVERY * (3 if "max_journal_size_bytes" in settings or "sync_journal_ms" in settings else 1)
    assert interrupt_timed(tmp_path, operation, settings, step) > 10 // EVERY


def flow(queue: PersistentQueue, rounds: int) -> None:
    for _ in range(rounds):
        queue.add(b"x")
        queue.remove()


def interrupt_compaction(folder: Path, at: int) -> str | None:
    """Have an exception at a place of operations with which a compaction begins; which that was, if there is one.

    The queue must go on: it is compacted again as it falls due, and no descriptor stays in use.
    """
    queue = opened(folder, **SETTINGS["small segments"])
    spool, family = queue._spool, queue._reading.reader.queue
    with ThreadPoolExecutor(1) as thread:
        while spool.maintenance.is_compacting(family):
            thread.submit(flow, queue, 0).result(LONG_S)
        found = interrupted_at(at, lambda: flow(queue, 2))
        thread.submit(flow, queue, 20).result(LONG_S)
        spool.files.stop()
        journal = family.journal
        assert journal is not None
        with spool.lock:
            assert set(journal._borrowed) == set(journal.filled), found
    queue.close()
    must_be_sound(folder)
    return None if found is None else found[1]


@pytest.mark.long
def test_a_compaction_that_is_cut_short_as_it_begins_holds_nobody_up(tmp_path: Path) -> None:
    places: list[str | None] = [""]
    while places[-1] is not None:
        places.append(interrupt_compaction(tmp_path / f"{len(places)}", 9 * len(places)))  # some: each takes its time
    assert any("Compactor" in str(place) for place in places)


# Real signals


def must_weather(folder: Path, seconds: float, raised: str, settings: dict[str, Any]) -> None:
    pairs = [f"{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "tests.support.alarms", str(folder / "spool"), str(seconds), raised, *pairs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive("alarm")
@pytest.mark.parametrize("raised", ["alarm", "interrupt"])
def test_a_queue_weathers_signals_whose_handler_raises(tmp_path: Path, raised: str) -> None:
    must_weather(tmp_path, 0.5, raised, {"max_journal_size_bytes": 20_000})


@pytest.mark.long
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("raised", ["alarm", "interrupt", "timeout"])
def test_every_kind_of_queue_weathers_signals_whose_handler_raises(
    tmp_path: Path, raised: str, settings: dict[str, Any]
) -> None:
    must_weather(tmp_path, 3, raised, settings)
