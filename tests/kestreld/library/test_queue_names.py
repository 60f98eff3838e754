"""What somebody who knows queue.Queue finds on the queues in memory: its names, `with`, loops, figures."""

import asyncio
import queue as standard
import threading

import pytest

from kestreld.errors import QueueClosed, QueueInUse, TaskUnknown
from kestreld.library import ConcurrentBlockingQueue, FullPolicy, SimpleBlockingQueue

LONG_S = 60
Kind = type[SimpleBlockingQueue[str]] | type[ConcurrentBlockingQueue[str]]
Memory = SimpleBlockingQueue[str] | ConcurrentBlockingQueue[str]


@pytest.fixture(params=[SimpleBlockingQueue, ConcurrentBlockingQueue])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def queue(kind: Kind) -> Memory:
    return kind()


def test_put_nowait_and_get_nowait_raise_full_and_empty(kind: Kind) -> None:
    queue = kind(2)
    assert (queue.qsize(), queue.empty(), queue.full()) == (0, True, False)
    with pytest.raises(standard.Empty):
        queue.get_nowait()
    queue.put_nowait("first")
    queue.put_nowait("second")
    assert (queue.qsize(), queue.empty(), queue.full()) == (2, False, True)
    with pytest.raises(standard.Full):
        queue.put_nowait("third")
    assert queue.get_nowait() == "first"


def test_put_nowait_on_a_closed_queue_says_that_it_is_closed(queue: Memory) -> None:
    queue.put("kept")
    queue.close()
    with pytest.raises(QueueClosed, match="closed; no more items can be put"):
        queue.put_nowait("late")
    assert queue.get_nowait() == "kept"
    with pytest.raises(standard.Empty):
        queue.get_nowait()


def test_join_waits_until_every_item_is_done(queue: Memory) -> None:
    assert queue.join()
    for item in ("first", "second"):
        queue.put(item)
    assert not queue.join(timeout=0.01)

    def work() -> None:
        for _ in queue:
            queue.task_done()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    assert queue.join(timeout=LONG_S)
    assert queue.figures.unfinished_tasks == 0
    queue.close()
    worker.join(LONG_S)
    with pytest.raises(TaskUnknown, match="more often than items were put"):
        queue.task_done()


def test_join_does_not_wait_for_items_that_nobody_gets(kind: Kind) -> None:
    queue = kind(2, FullPolicy.DROP_OLDEST)
    for number in range(5):
        queue.put(str(number))
    assert queue.figures.dropped_items == 3
    assert queue.figures.unfinished_tasks == 2
    assert queue.flush() == 2
    assert queue.join(timeout=0)


def test_an_answer_that_nobody_asks_for_leaves_its_task_to_be_done(queue: Memory) -> None:
    queue.get()
    queue.put("item")
    assert not queue.join(timeout=0)
    assert queue.get().result(LONG_S) == "item"
    queue.task_done()
    assert queue.join(timeout=0)


def test_put_head_makes_an_item_the_head_whatever_the_limit(kind: Kind) -> None:
    queue = kind(1)
    queue.put("second")
    queue.put_head("first")
    assert not queue.put("third")
    assert [queue.poll(), queue.poll(), queue.poll()] == ["first", "second", None]
    queue.close()
    queue.put_head("given back")
    assert queue.poll() == "given back"


def test_put_head_serves_who_has_waited_longest(queue: Memory) -> None:
    first, second = queue.get(), queue.get()
    queue.put_head("item")
    assert first.result(LONG_S) == "item"
    assert not second.done()


def test_a_loop_takes_items_until_the_queue_is_closed_and_empty(queue: Memory) -> None:
    with queue:
        for item in ("first", "second"):
            queue.put(item)
        assert next(iter(queue)) == "first"
    assert queue.is_closed
    assert list(queue) == ["second"]
    assert list(queue) == []


def test_a_loop_that_is_left_keeps_what_it_has_not_taken(queue: Memory) -> None:
    for item in ("first", "second"):
        queue.put(item)
    for item in queue:
        assert item == "first"
        break
    assert len(queue) == 1


def test_a_coroutine_loops_until_another_closes_the_queue(queue: Memory) -> None:
    seen: list[str] = []

    async def consume() -> None:
        async for item in queue:
            seen.append(item)

    async def main() -> None:
        consumer = asyncio.create_task(consume())
        async with queue:
            queue.put("first")
            await asyncio.sleep(0)
            queue.put("second")
            while len(seen) < 2:
                await asyncio.sleep(0)
        await asyncio.wait_for(consumer, LONG_S)

    asyncio.run(main())
    assert seen == ["first", "second"]


def test_hits_and_misses_are_counted(queue: Memory) -> None:
    waiting = queue.get(timeout=0)
    assert waiting.result(LONG_S) is None
    assert queue.poll() is None
    assert queue.poll_if(bool) is None
    queue.put("first")
    queue.put("second")
    assert queue.poll_if(lambda item: item == "another") is None
    assert queue.poll() == "first"
    figures = queue.figures
    assert (figures.put_items, figures.hits, figures.misses, figures.items) == (2, 1, 4, 1)
    evicted = queue.get(), queue.get()
    queue.evict_waiters()
    assert [answer.result(LONG_S) for answer in evicted] == ["second", None]
    assert (queue.figures.hits, queue.figures.misses) == (2, 5)


def test_its_repr_says_what_is_in_it_and_whether_it_is_closed(kind: Kind) -> None:
    queue = kind(5)
    queue.put("item")
    assert repr(queue) == f"<{kind.__name__}: 1 of 5 items, 0 waiters>"
    queue.close()
    assert repr(kind()).endswith(": 0 items, 0 waiters>")
    assert repr(queue).endswith(", closed>")


def test_a_predicate_that_uses_its_queue_gets_an_error_in_place_of_a_deadlock() -> None:
    queue: SimpleBlockingQueue[str] = SimpleBlockingQueue()
    queue.put("item")
    uses = [
        lambda: queue.put("x"), queue.poll, queue.get, queue.flush, queue.close, queue.evict_waiters,
        lambda: queue.poll_if(bool), lambda: queue.put_head("x"),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(QueueInUse, match="used by the predicate of its own poll_if"):
            queue.poll_if(lambda _, use=use: bool(use()))  # type: ignore[misc]
    assert queue.poll_if(lambda item: len(queue) == 1 and item == "item") == "item"
    assert queue.join(timeout=0) is False
    assert not queue.is_closed


def test_another_thread_waits_for_a_predicate_and_gets_no_error() -> None:
    queue: SimpleBlockingQueue[str] = SimpleBlockingQueue()
    queue.put("first")
    asked, answered = threading.Event(), threading.Event()

    def slow(_: str) -> bool:
        asked.set()
        return answered.wait(LONG_S)

    polled: list[str | None] = []
    threads = [threading.Thread(target=lambda: polled.append(queue.poll_if(slow)), daemon=True)]
    threads[0].start()
    assert asked.wait(LONG_S)
    threads.append(threading.Thread(target=lambda: queue.put("second"), daemon=True))
    threads[1].start()
    answered.set()
    for thread in threads:
        thread.join(LONG_S)
    assert (polled, queue.poll()) == (["first"], "second")
