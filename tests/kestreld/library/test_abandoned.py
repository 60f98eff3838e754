"""Answers that nobody asks for any more: they take nothing, and what has come for them is there again."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kestreld.library import ConcurrentBlockingQueue, JournaledQueue, SimpleBlockingQueue
from kestreld.library.cleanup import cleanup
from kestreld.library.shared_queue import open_shared
from tests.support.library import LONG_MS, LONG_S, at_ms, journaled
from tests.support.shared_spools import new_spool

SOON_S = 0.01


class Queue:
    """One of several kinds. Items are text; `taken` is what a worker's get gives."""

    def __init__(self, queue: Any, journal: JournaledQueue | None = None, received: Callable[[Any], str] = str) -> None:
        self.queue = queue
        self.journal = journal
        self.received = received

    def get(self, deadline_at_ms: int | None = None) -> Any:
        if isinstance(self.queue, JournaledQueue):
            return self.queue.reader().get_later(deadline_at_ms)
        return self.queue.get(deadline_at_ms)

    def put(self, item: str) -> None:
        assert self.queue.put(item if self.journal is None else item.encode())

    def next(self) -> str:
        """The item that is there, or will be once it is given back."""
        found = self.get(at_ms(LONG_MS)).result(LONG_S)
        assert found is not None
        return self.received(found)

    @property
    def waiters(self) -> int:
        return int((self.journal.reader() if self.journal is not None else self.queue).waiters)

    def open_items(self) -> int:
        return self.journal.reader().figures.open_items if self.journal is not None else 0


@pytest.fixture(params=["simple", "concurrent", "blocking", "transactional", "reader"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    if request.param == "simple":
        yield Queue(SimpleBlockingQueue[str]())
    elif request.param == "concurrent":
        yield Queue(ConcurrentBlockingQueue[str]())
    else:
        with journaled(tmp_path) as journal:
            yield {
                "blocking": lambda: Queue(journal.to_blocking_queue(), journal, bytes.decode),
                "transactional": lambda: Queue(
                    journal.to_transactional_blocking_queue(), journal, lambda transaction: transaction.item.decode()
                ),
                "reader": lambda: Queue(journal, journal, lambda item: item.data.decode()),
            }[request.param]()


def await_true(holds: Callable[[], bool], what: str) -> None:
    """Of what comes true soon."""
    ends_s = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < ends_s, f"waited for {what}"
        time.sleep(0.001)


def test_one_that_is_dropped_while_it_waits_takes_nothing(queue: Queue) -> None:
    with pytest.raises(TimeoutError):
        queue.get().result(SOON_S)
    with pytest.raises(TimeoutError):
        queue.get(at_ms(LONG_MS)).result(SOON_S)
    assert queue.waiters == 0
    queue.put("1")
    assert queue.next() == "1"


def test_one_that_is_held_is_asked_again(queue: Queue) -> None:
    answer = queue.get()
    with pytest.raises(TimeoutError):
        answer.result(SOON_S)
    gc.collect()
    queue.put("1")
    assert queue.received(answer.result(LONG_S)) == "1"
    assert answer.result() is not None


def test_what_was_there_and_is_not_asked_for_is_the_head_again(queue: Queue) -> None:
    queue.put("1")
    queue.put("2")
    answer = queue.get()
    assert answer.done()
    del answer
    await_true(lambda: queue.open_items() == 0, "the item to be given back")
    assert [queue.next(), queue.next()] == ["1", "2"]


def test_what_has_come_and_is_not_asked_for_is_the_head_again(queue: Queue) -> None:
    answer = queue.get()
    queue.put("1")
    queue.put("2")
    await_true(answer.done, "the answer")
    del answer
    await_true(lambda: queue.open_items() == 0, "the item to be given back")
    assert [queue.next(), queue.next()] == ["1", "2"]


def test_what_is_not_asked_for_goes_to_who_waits(queue: Queue) -> None:
    queue.put("1")
    first, second = queue.get(), queue.get()
    del first
    assert queue.received(second.result(LONG_S)) == "1"


def test_the_next_in_line_is_served_in_the_place_of_one_that_was_dropped(queue: Queue) -> None:
    first, second = queue.get(), queue.get()
    del first
    queue.put("1")
    assert queue.received(second.result(LONG_S)) == "1"


def test_one_that_has_a_callback_need_not_be_held(queue: Queue) -> None:
    told, found = threading.Event(), list[str]()

    def tell(answer: Any) -> None:
        found.append(queue.received(answer.result()))
        told.set()

    queue.get().add_done_callback(tell)
    gc.collect()
    queue.put("1")
    assert told.wait(LONG_S)
    assert found == ["1"]


def test_a_task_that_nobody_holds_waits_on(queue: Queue) -> None:
    async def work() -> list[str]:
        found = list[str]()

        async def receive() -> None:
            found.append(queue.received(await queue.get()))

        asyncio.get_running_loop().create_task(receive())
        await asyncio.sleep(0)
        gc.collect()
        queue.put("1")
        while not found:
            await asyncio.sleep(0.001)
        return found

    assert asyncio.run(work()) == ["1"]


def left_behind(queue: Queue, *, is_served: bool) -> Any:
    """A task that waits for an item on a loop that has been closed; with `is_served` it came before that."""

    async def receive() -> str:
        return queue.received(await queue.get())

    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(receive())
    task._log_destroy_pending = False  # that is what is tested
    loop.run_until_complete(asyncio.sleep(0))
    if is_served:
        queue.put("1")
        await_true(lambda: queue.waiters == 0, "the task to be served")
    loop.close()
    return task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_held", [True, False])
def test_one_whose_event_loop_is_closed_takes_nothing(queue: Queue, is_held: bool) -> None:
    task = left_behind(queue, is_served=False)
    if not is_held:
        del task
        gc.collect()
    queue.put("1")
    queue.put("2")
    assert [queue.next(), queue.next()] == ["1", "2"]


def test_what_came_for_one_whose_event_loop_was_closed_then_is_the_head_again(queue: Queue) -> None:
    task = left_behind(queue, is_served=True)
    queue.put("2")
    assert not task.done()
    del task
    gc.collect()
    await_true(lambda: queue.open_items() == 0, "the item to be given back")
    assert sorted([queue.next(), queue.next()]) == ["1", "2"]


def test_an_item_comes_back_once_where_its_answer_is_finalized_before_the_coroutine(queue: Queue) -> None:
    """The collector finalizes what is garbage together in any order."""

    async def leave() -> None:
        answer = queue.get()
        waiting = answer.__await__()
        next(waiting)
        queue.put("1")
        await_true(answer.done, "the answer")
        answer.__del__()
        waiting.close()

    asyncio.run(leave())
    done = threading.Event()
    cleanup.do(done.set)
    assert done.wait(LONG_S)
    queue.put("2")
    await_true(lambda: queue.open_items() == 0, "the item to be given back")
    assert sorted([queue.next(), queue.next()]) == ["1", "2"]


def test_those_that_were_dropped_do_not_gather(queue: Queue) -> None:
    for _ in range(1000):
        queue.get(at_ms(LONG_MS))
    assert queue.waiters == 0
    if queue.journal is not None:
        reader = queue.journal.reader()
        await_true(lambda: reader.figures.waiters == 0, "the waiters to leave")
    else:
        queue.get()
        assert len(queue.queue._line) < 200
    queue.put("1")
    assert queue.next() == "1"


def test_a_coroutine_of_a_shared_queue_whose_event_loop_is_closed_leaves_the_item() -> None:
    with new_spool() as spool:
        shared = open_shared(str(spool), "work")
        loop = asyncio.new_event_loop()
        task: Any = loop.create_task(shared.remove_async(at_ms(LONG_MS)))
        task._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        shared.add(b"1")
        found = shared.remove_receive(at_ms(LONG_MS))
        assert found is not None
        assert found.data == b"1"
        assert not task.done()
        shared.close()
