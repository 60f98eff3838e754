"""Queues in memory: what libkestrel's specification of ConcurrentBlockingQueue asserts, of both kinds."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError

import pytest

from kestreld.library import Answer, BlockingQueue, ConcurrentBlockingQueue, FullPolicy, SimpleBlockingQueue

LONG_S = 60  # no test waits so long
Kind = type[SimpleBlockingQueue[str]] | type[ConcurrentBlockingQueue[str]]


@pytest.fixture(params=[SimpleBlockingQueue, ConcurrentBlockingQueue])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def queue(kind: Kind) -> BlockingQueue[str]:
    return kind()


def at_ms(ms_from_now: int) -> int:
    return time.time_ns() // 1_000_000 + ms_from_now


def got(answer: Answer[str | None]) -> str | None:
    """What an answer is that is there already."""
    assert answer.done()
    return answer.result()


def test_items_are_added_and_removed(queue: BlockingQueue[str]) -> None:
    assert len(queue) == 0
    assert queue.put("first")
    assert len(queue) == 1
    assert queue.put("second")
    assert len(queue) == 2
    assert got(queue.get()) == "first"
    assert len(queue) == 1
    assert got(queue.get()) == "second"
    assert len(queue) == 0


def test_items_are_polled(queue: BlockingQueue[str]) -> None:
    assert queue.poll() is None
    queue.put("first")
    assert len(queue) == 1
    assert queue.poll() == "first"
    assert queue.poll() is None


def test_items_are_polled_on_condition(queue: BlockingQueue[str]) -> None:
    for item in ("first", "second", "third"):
        queue.put(item)
    wanted = ["t", "t", "c", "t", "t"]
    polled = [queue.poll_if(lambda item, letter=letter: letter in item) for letter in wanted]  # type: ignore[misc]
    assert polled == ["first", None, "second", "third", None]


def test_the_limit_is_kept_by_refusing_puts(kind: Kind) -> None:
    queue = kind(5, FullPolicy.REFUSE_PUTS)
    assert [queue.put(str(number)) for number in range(6)] == [True] * 5 + [False]
    assert len(queue) == 5
    assert [queue.poll() for _ in range(6)] == ["0", "1", "2", "3", "4", None]
    assert queue.put("room again")


def test_the_limit_is_kept_by_dropping_the_oldest(kind: Kind) -> None:
    queue = kind(5, FullPolicy.DROP_OLDEST)
    assert [queue.put(str(number)) for number in range(7)] == [True] * 7
    assert len(queue) == 5
    assert [got(queue.get()) for _ in range(5)] == ["2", "3", "4", "5", "6"]


def test_a_limit_of_nothing_is_refused(kind: Kind) -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        kind(0)


def test_what_is_handed_on_at_once_takes_no_room(kind: Kind) -> None:
    queue = kind(1)
    answers = [queue.get() for _ in range(3)]
    assert [queue.put(item) for item in "abcde"] == [True] * 4 + [False]
    assert [got(answer) for answer in answers] == ["a", "b", "c"]


def test_those_who_wait_are_served_in_the_order_they_came(queue: BlockingQueue[str]) -> None:
    answers = [queue.get() for _ in range(10)]
    assert not any(answer.done() for answer in answers)
    assert queue.waiters == 10
    for number in range(10):
        queue.put(str(number))
    assert [got(answer) for answer in answers] == [str(number) for number in range(10)]
    assert (queue.waiters, len(queue)) == (0, 0)


def test_a_get_ends_with_nothing_at_its_deadline(queue: BlockingQueue[str]) -> None:
    started_s = time.monotonic()
    assert queue.get(at_ms(20)).result(LONG_S) is None
    assert time.monotonic() - started_s >= 0.018
    assert got(queue.get(at_ms(-1))) is None
    queue.put("nobody takes this one")
    assert len(queue) == 1


def test_a_get_is_fulfilled_before_its_deadline(queue: BlockingQueue[str]) -> None:
    first, second = queue.get(at_ms(LONG_S * 1000)), queue.get(at_ms(50))
    queue.put("surprise!")
    assert got(first) == "surprise!"
    assert second.result(LONG_S) is None


def test_a_get_has_an_item_or_nothing_but_not_both(queue: BlockingQueue[str]) -> None:
    for number in range(50):
        answer = queue.get(at_ms(1))
        time.sleep(number * 0.00004)  # sooner and later than the deadline
        queue.put("ahoy!")
        left = queue.poll()
        assert (answer.result(LONG_S), left) in {("ahoy!", None), (None, "ahoy!")}


def test_a_storm_of_puts_serves_everybody(queue: BlockingQueue[str]) -> None:
    answers = [queue.get() for _ in range(100)]
    threads = [threading.Thread(target=queue.put, args=(str(number),)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.result(LONG_S) for answer in answers} == {str(number) for number in range(100)}


def test_a_flood_is_taken_once_each_and_in_each_writers_order(queue: BlockingQueue[str]) -> None:
    writers, each = 3, 300
    taken: list[list[str]] = [[] for _ in range(3)]

    def write(writer: int) -> None:
        for number in range(each):
            queue.put(f"{writer} {number}")

    def read(mine: list[str]) -> None:
        while (item := queue.get().result(LONG_S)) is not None:
            mine.append(item)

    reading = [threading.Thread(target=read, args=(mine,)) for mine in taken]
    writing = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in reading + writing:
        thread.start()
    for thread in writing:
        thread.join()
    queue.close()  # what is there is still taken
    for thread in reading:
        thread.join()
    expected = [f"{writer} {number}" for writer in range(writers) for number in range(each)]
    assert sorted(item for mine in taken for item in mine) == sorted(expected)
    for mine in taken:
        for writer in range(writers):
            numbers = [int(item.split()[1]) for item in mine if item.startswith(f"{writer} ")]
            assert numbers == sorted(numbers)


def test_what_another_thread_is_about_to_hand_out_is_taken_although_the_queue_is_closed_meanwhile() -> None:
    queue = ConcurrentBlockingQueue[str]()
    with queue._bringing_together:
        before = queue.get()
        assert queue.put("first")
        assert queue.put("second")
        queue.close()
        after = [queue.get(), queue.get()]
        assert not before.done()
    queue._bring_together()
    assert [got(answer) for answer in (before, *after)] == ["first", "second", None]


def cancelled_when_served(queue: BlockingQueue[str], *, waits: bool) -> None:
    """A coroutine that is cancelled when its item is there and it has not learnt of it. With `waits` it comes last."""

    async def receive() -> None:
        async def get() -> str | None:
            return await queue.get()

        if not waits:
            assert queue.put("first")
        waiting = asyncio.create_task(get())
        await asyncio.sleep(0)
        if waits:
            assert queue.put("first")
        assert queue.put("second")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(receive())


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_cancelled_coroutine_was_served_is_the_head_again(kind: Kind, waits: bool) -> None:
    queue = kind()
    cancelled_when_served(queue, waits=waits)
    assert (len(queue), queue.poll(), queue.poll(), queue.poll()) == (2, "first", "second", None)


def test_what_a_cancelled_coroutine_was_served_goes_to_who_waits(kind: Kind) -> None:
    queue = kind()

    async def receive() -> str | None:
        async def get() -> str | None:
            return await queue.get()

        first, second = asyncio.create_task(get()), asyncio.create_task(get())
        await asyncio.sleep(0)
        queue.put("item")
        first.cancel()
        return await asyncio.wait_for(second, LONG_S)

    assert asyncio.run(receive()) == "item"


@pytest.mark.parametrize("policy", FullPolicy)
def test_what_is_given_back_to_a_full_queue_is_there_and_the_limit_stays(kind: Kind, policy: FullPolicy) -> None:
    queue = kind(max_items=1, full_policy=policy)
    cancelled_when_served(queue, waits=True)
    assert len(queue) == 2
    assert queue.put("third") == (policy is FullPolicy.DROP_OLDEST)
    if policy is FullPolicy.REFUSE_PUTS:
        assert (queue.poll(), queue.put("fourth"), queue.poll()) == ("first", False, "second")
    assert queue.flush() <= 2
    assert queue.put("fifth")
    assert queue.put("sixth") == (policy is FullPolicy.DROP_OLDEST)
    assert len(queue) == 1


def test_one_that_is_cancelled_gets_nothing_and_the_next_is_served(queue: BlockingQueue[str]) -> None:
    first, second = queue.get(), queue.get()
    assert first.cancel()
    queue.put("item")
    assert got(second) == "item"
    assert not second.cancel()
    with pytest.raises(CancelledError):
        first.result()


def test_a_coroutine_can_await_an_item(queue: BlockingQueue[str]) -> None:
    async def receive() -> str | None:
        answer = queue.get(at_ms(LONG_S * 1000))
        queue.put("item")
        return await answer

    assert asyncio.run(receive()) == "item"


def test_those_who_gave_up_do_not_gather_behind_one_who_waits(queue: BlockingQueue[str]) -> None:
    patient = queue.get()
    for _ in range(1000):
        queue.get().cancel()
    assert queue.waiters == 1
    assert len(queue._line) < 200  # type: ignore[attr-defined]
    queue.put("item")
    assert got(patient) == "item"


def test_a_flush_drops_what_is_there(kind: Kind) -> None:
    queue = kind(2)
    queue.put("1")
    queue.put("2")
    assert queue.flush() == 2
    assert len(queue) == 0
    assert [queue.put(item) for item in "345"] == [True, True, False]


def test_those_who_wait_can_be_evicted(queue: BlockingQueue[str]) -> None:
    answers = [queue.get() for _ in range(3)]
    queue.evict_waiters()
    assert [got(answer) for answer in answers] == [None] * 3
    queue.put("item")
    assert queue.poll() == "item"


def test_a_closed_queue_takes_nothing_and_keeps_nobody_waiting(queue: BlockingQueue[str]) -> None:
    waiting = queue.get()
    queue.close()
    assert got(waiting) is None
    assert not queue.put("item")
    assert got(queue.get()) is None


def test_a_callback_may_use_the_queue_that_calls_it(queue: BlockingQueue[str]) -> None:
    answer = queue.get()
    answer.add_done_callback(lambda _: queue.put("from the callback"))
    queue.put("item")
    assert got(answer) == "item"
    assert got(queue.get()) == "from the callback"
