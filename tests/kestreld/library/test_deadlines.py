"""Deadlines that nobody lives to see, what is no deadline, and threads that die."""

import asyncio
import inspect
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kestreld.errors import ThreadDied
from kestreld.library import Answer, ConcurrentBlockingQueue, PersistentQueue, QueueConfig, SimpleBlockingQueue
from tests.support.forking import in_child
from tests.support.library import LONG_MS, at_ms, data_of, journaled

SOON_S = 60  # a limit: it is there at once
OFTEN = 10  # the thread that waits is now asleep, now about to be
FAR: Any = [sys.maxsize, 2**70, 1e300, math.inf]
MEMORY = pytest.mark.parametrize("kind", [SimpleBlockingQueue, ConcurrentBlockingQueue])
Memory = type[SimpleBlockingQueue[str]] | type[ConcurrentBlockingQueue[str]]


def opened(spool: Path, **settings: Any) -> PersistentQueue:
    queue = PersistentQueue(str(spool), "work", QueueConfig(**settings))
    queue.setup()
    return queue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PersistentQueue]:
    queue = opened(tmp_path)
    yield queue
    queue.close()


@MEMORY
@pytest.mark.parametrize("deadline_at_ms", FAR)
def test_a_far_deadline_leaves_the_others_theirs_in_memory(kind: Memory, deadline_at_ms: int) -> None:
    def wait() -> tuple[list[str | None], str | None]:
        patient, hasty = kind(), kind()
        answer = patient.get(deadline_at_ms)
        ended = [hasty.get(at_ms(5)).result(SOON_S) for _ in range(OFTEN)]
        patient.put("item")
        return ended, answer.result(SOON_S)

    assert in_child(wait) == ([None] * OFTEN, "item")  # in a process of its own, as all queues have one thread for this


@pytest.mark.parametrize("deadline_at_ms", FAR)
def test_a_far_deadline_leaves_the_others_theirs_in_a_spool(queue: PersistentQueue, deadline_at_ms: int) -> None:
    reacted = threading.Event()
    queue.remove_react(deadline_at_ms, False, lambda item: reacted.set())
    found: list[object] = []

    def wait() -> None:
        found.extend(queue.remove_receive(at_ms(5)) for _ in range(OFTEN))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(SOON_S)
    assert found == [None] * OFTEN
    queue.add(b"one")
    assert reacted.wait(SOON_S)

    async def receive() -> bytes | None:
        waiting = asyncio.create_task(queue.remove_async(deadline_at_ms))
        await asyncio.sleep(0)
        queue.add(b"two")
        return data_of(await asyncio.wait_for(waiting, SOON_S))

    assert asyncio.run(receive()) == b"two"


@pytest.mark.parametrize("deadline_at_ms", [-math.inf, -1, 0, -(2**70)])
def test_a_deadline_that_is_past_does_not_wait(queue: PersistentQueue, deadline_at_ms: Any) -> None:
    assert queue.remove_receive(deadline_at_ms) is None
    assert SimpleBlockingQueue[str]().get(deadline_at_ms).result(SOON_S) is None


@MEMORY
@pytest.mark.parametrize("deadline_at_ms", ["soon", True, b"1", math.nan])
def test_what_is_no_deadline_is_an_error_and_nobody_waits(kind: Memory, deadline_at_ms: Any, tmp_path: Path) -> None:
    memory = kind()
    with journaled(tmp_path) as family:
        reader = family.reader()
        blocking = family.to_blocking_queue()
        gets: list[Callable[[Any], object]] = [memory.get, reader.get, reader.peek, reader.get_later, blocking.get]
        for get in gets:
            with pytest.raises((TypeError, ValueError), match=r"deadline_at_ms must be .*ms since the epoch, not"):
                get(deadline_at_ms)
        assert memory.waiters == reader.waiters == 0


# Seconds from now in the place of an instant


def waits(tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Every operation that waits for an item, as one that returns once its wait is over."""

    def finished(get: Callable[..., Any]) -> Callable[..., object]:
        def waited(*given: Any, **named: Any) -> object:
            async def awaited() -> object:
                return await found

            found = get(*given, **named)
            if isinstance(found, Answer):
                return found.result(SOON_S)
            return asyncio.run(awaited()) if inspect.iscoroutine(found) else found

        return waited

    durable = opened(tmp_path)
    with journaled(tmp_path, "family") as family:
        reader, blocking = family.reader(), family.to_blocking_queue()
        gets: list[Callable[..., object]] = [
            *[kind().get for kind in (SimpleBlockingQueue[str], ConcurrentBlockingQueue[str])],
            *[durable.remove_receive, durable.peek_receive, durable.remove_async, durable.peek_async],
            *[reader.get, reader.peek, reader.get_later, reader.get_async],
            *[blocking.get, family.to_transactional_blocking_queue().get],
        ]
        yield from map(finished, gets)
    durable.close()


def test_a_timeout_is_in_seconds_from_now(tmp_path: Path) -> None:
    for wait in waits(tmp_path):
        started_s = time.monotonic()
        assert wait(timeout=0.02) is None
        assert time.monotonic() - started_s > 0.018
        assert wait(timeout=0) is None


def test_a_timeout_beside_a_deadline_is_an_error(tmp_path: Path) -> None:
    for wait in waits(tmp_path):
        for timeout in (0, 1.5):
            with pytest.raises(ValueError, match="timeout must be None where there is a deadline_at_ms, not"):
                wait(at_ms(LONG_MS), timeout=timeout)


@MEMORY
def test_a_timeout_without_an_end_waits_for_an_item(kind: Memory) -> None:
    queue = kind()
    answer = queue.get(timeout=math.inf)
    queue.put("item")
    assert answer.result(SOON_S) == "item"


# Threads that die


def leave(_: object) -> None:
    raise SystemExit("a callback that ends its thread")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_death_of_a_spools_thread_is_an_error_to_everybody_until_it_is_closed(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    queue.add(b"kept")
    with journaled(tmp_path, "other") as other:
        waiting: list[Answer[Any]] = [other.to_blocking_queue().get(), other.reader().get_later(at_ms(LONG_MS))]
        told = threading.Event()
        waiting[1].add_done_callback(lambda _: told.set())
        queue.peek_react(at_ms(-1), leave)
        for answer in waiting:
            with pytest.raises(ThreadDied, match=r"its thread died: SystemExit"):
                answer.result(SOON_S)
        assert told.wait(SOON_S)
        for use in (lambda: queue.add(b"x"), queue.peek, lambda: len(queue), lambda: other.put(b"x")):
            with pytest.raises(ThreadDied, match=r"queues in .*; close and reopen it$"):
                use()
    queue.close()
    queue = opened(tmp_path)
    assert data_of(queue.remove()) == b"kept"
    queue.close()


@MEMORY
def test_the_death_of_the_thread_for_deadlines_is_an_error_to_who_has_one(kind: Memory) -> None:
    def wait() -> list[str]:
        queue = kind()
        waiting = queue.get(at_ms(LONG_MS))
        queue.get(at_ms(20)).add_done_callback(leave)
        raised = []
        for answer in (lambda: waiting, lambda: queue.get(at_ms(LONG_MS))):
            try:
                raised.append(repr(answer().result(SOON_S)))
            except ThreadDied as died:
                raised.append(str(died))
        queue.put("still")
        return [*raised, str(queue.poll())]

    said = "deadlines of queues: its thread died: SystemExit('a callback that ends its thread')"
    assert in_child(wait) == [f"{said}; close and reopen it"] * 2 + ["still"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_is_on_the_way_to_the_disk_raises_when_its_thread_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened(tmp_path, sync_journal_ms=0)
    queue.add(b"one")

    def die(*_: object) -> None:
        raise SystemExit("a disk that ends its thread")

    monkeypatch.setattr(queue._spool.files, "sync", die)
    with pytest.raises(ThreadDied, match=r"disk of .*: its thread died: SystemExit"):
        queue.add(b"two")
    with pytest.raises(ThreadDied):
        queue.add(b"three")
    monkeypatch.undo()
    queue.close()
