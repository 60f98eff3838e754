"""A journaled queue as a blocking queue: what libkestrel's specification of JournaledBlockingQueue asserts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kestreld.errors import ReaderUnknown
from kestreld.library import Answer, BlockingQueue, JournaledQueue, Transaction
from tests.support.library import LONG_MS, LONG_S, at_ms, journaled


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JournaledQueue]:
    with journaled(tmp_path) as queue:
        yield queue


def plain(queue: JournaledQueue) -> BlockingQueue[str]:
    found: BlockingQueue[str] = queue.to_blocking_queue(str.encode, bytes.decode)
    for item in ("first", "second", "third"):
        assert found.put(item)
    return found


def some(transaction: Transaction[str] | None) -> Transaction[str]:
    assert transaction is not None
    return transaction


def counts(queue: JournaledQueue) -> tuple[int, int]:
    """Items that wait, and open ones."""
    figures = queue.reader().figures
    return figures.items, figures.open_items


def test_it_commits_on_get(queue: JournaledQueue) -> None:
    blocking = plain(queue)
    assert counts(queue) == (3, 0)
    assert blocking.get(at_ms(LONG_MS)).result(LONG_S) == "first"
    assert blocking.get().result(LONG_S) == "second"
    assert counts(queue) == (1, 0)


def test_it_commits_on_poll(queue: JournaledQueue) -> None:
    blocking = plain(queue)
    assert blocking.poll() == "first"
    assert counts(queue) == (2, 0)


def test_it_polls_on_condition(queue: JournaledQueue) -> None:
    blocking = plain(queue)
    wanted = ["t", "t", "c", "t", "t"]
    polled = [blocking.poll_if(lambda item, letter=letter: letter in item) for letter in wanted]  # type: ignore[misc]
    assert polled == ["first", None, "second", "third", None]
    assert len(blocking) == 0


def test_a_condition_may_use_the_queue(queue: JournaledQueue) -> None:
    blocking = plain(queue)
    assert blocking.poll_if(lambda item: blocking.poll() == "first" and item == "first") is None, "it is gone by then"
    assert blocking.poll() == "third"


def test_those_who_wait_are_served_evicted_or_cancelled(queue: JournaledQueue) -> None:
    blocking = queue.to_blocking_queue()
    served, cancelled, evicted = blocking.get(), blocking.get(), blocking.get()
    assert blocking.waiters == 3
    assert cancelled.cancel()
    assert blocking.put(b"1")
    assert served.result(LONG_S) == b"1"
    blocking.evict_waiters()
    assert evicted.result(LONG_S) is None
    assert blocking.get(at_ms(1)).result(LONG_S) is None
    assert (blocking.waiters, len(blocking)) == (0, 0)


def test_a_coroutine_can_await_an_item(queue: JournaledQueue) -> None:
    blocking = queue.to_blocking_queue(str.encode, bytes.decode)

    async def receive() -> str | None:
        answer = blocking.get()
        blocking.put("item")
        return await answer

    assert asyncio.run(receive()) == "item"


async def cancelled_when_served(
    get: Callable[[], Awaitable[object]], put: Callable[[], object], *, waits: bool
) -> None:
    """A coroutine that is cancelled when its item is there and it has not learnt of it. With `waits` it comes last."""

    async def receive() -> object:
        return await get()

    if not waits:
        put()
    waiting = asyncio.create_task(receive())
    await asyncio.sleep(0)
    if waits:
        put()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_cancelled_coroutine_was_served_is_the_head_again(queue: JournaledQueue, waits: bool) -> None:
    blocking = queue.to_blocking_queue()
    asyncio.run(cancelled_when_served(blocking.get, lambda: queue.put_all([b"1", b"2"]), waits=waits))
    assert [blocking.get(at_ms(LONG_MS)).result(LONG_S) for _ in range(2)] == [b"1", b"2"]
    assert counts(queue) == (0, 0)


@pytest.mark.parametrize("waits", [False, True])
def test_the_transaction_of_a_cancelled_coroutine_is_rolled_back(queue: JournaledQueue, waits: bool) -> None:
    blocking = queue.to_transactional_blocking_queue()
    asyncio.run(cancelled_when_served(blocking.get, lambda: queue.put(b"1"), waits=waits))
    again = queue.reader().get(at_ms(LONG_MS))
    assert again is not None
    assert (again.data, again.error_count) == (b"1", 0), "nobody has had it, so that nobody has failed with it"


def test_what_comes_for_a_coroutine_just_after_it_was_cancelled_is_the_head_again(queue: JournaledQueue) -> None:
    blocking = queue.to_blocking_queue()

    async def receive() -> None:
        waiting = asyncio.ensure_future(blocking.get())
        await asyncio.sleep(0)
        waiting.cancel()
        queue.put(b"1")
        await asyncio.wait([waiting])

    asyncio.run(receive())
    assert blocking.get(at_ms(LONG_MS)).result(LONG_S) == b"1"


def test_an_item_is_done_when_somebody_has_it_and_not_before(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        blocking = queue.to_blocking_queue()
        queue.put_all([b"1", b"2"])
        asked, unasked = blocking.get(), blocking.get()
        assert counts(queue) == (0, 2)
        assert (asked.result(LONG_S), asked.result(LONG_S)) == (b"1", b"1")
        assert counts(queue) == (0, 1)
    assert unasked.result(LONG_S) is None, "the queue has been closed, and has it still"
    assert asked.result(LONG_S) == b"1"
    with journaled(tmp_path) as queue:
        assert queue.to_blocking_queue().poll() == b"2"


def test_a_callback_has_its_item_for_good(queue: JournaledQueue) -> None:
    blocking, told = queue.to_blocking_queue(), Answer[bytes | None]()
    blocking.get().add_done_callback(lambda answer: told.set_result(answer.result()))
    queue.put(b"1")
    assert told.result(LONG_S) == b"1"
    assert counts(queue) == (0, 0)


def test_those_who_are_cancelled_while_they_are_served_leave_the_next_ones_theirs(queue: JournaledQueue) -> None:
    blocking = queue.to_blocking_queue()
    for number in range(100):
        cancelled, waiting = blocking.get(), blocking.get()
        assert cancelled.cancel()
        blocking.put(b"%d" % number)
        assert waiting.result(LONG_S) == b"%d" % number


def test_what_cannot_be_decoded_is_the_consumers_error(queue: JournaledQueue) -> None:
    blocking = queue.to_blocking_queue(lambda number: b"%d" % number, int)
    waiting = blocking.get()
    queue.put(b"no number")
    with pytest.raises(ValueError, match="no number"):
        waiting.result(LONG_S)


@pytest.mark.parametrize("polls", [False, True])
def test_what_cannot_be_decoded_is_rolled_back_with_one_error_more(queue: JournaledQueue, polls: bool) -> None:
    blocking = queue.to_transactional_blocking_queue(lambda number: b"%d" % number, int)
    queue.put(b"no number")
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            _ = blocking.poll() if polls else blocking.get().result(LONG_S)
    assert counts(queue) == (1, 0)
    again = queue.reader().get()
    assert again is not None
    assert again.error_count == 2


def test_it_is_flushed_and_closed_and_there_again(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        blocking = plain(queue)
        assert blocking.flush() == 3
        blocking.put("fourth")
        waiting = queue.to_transactional_blocking_queue().get()
        waiting.result(LONG_S)
        blocking.close()
        assert queue.is_closed
        assert (blocking.put("fifth"), blocking.poll()) == (False, None)
    with journaled(tmp_path) as queue:
        assert queue.to_blocking_queue().poll() == b"fourth"


def test_a_queue_whose_readers_have_names_has_no_reader_for_it(queue: JournaledQueue) -> None:
    queue.reader("client1")
    with pytest.raises(ReaderUnknown):
        queue.to_blocking_queue()


@pytest.mark.parametrize("polls", [False, True])
def test_open_transactions_can_be_committed(queue: JournaledQueue, polls: bool) -> None:
    plain(queue)
    blocking = queue.to_transactional_blocking_queue(str.encode, bytes.decode)
    first = some(blocking.poll() if polls else blocking.get(at_ms(LONG_MS)).result(LONG_S))
    second = some(blocking.poll() if polls else blocking.get().result(LONG_S))
    assert (first.item, second.item) == ("first", "second")
    assert counts(queue) == (1, 2)
    first.commit()
    assert counts(queue) == (1, 1)
    second.commit()
    second.rollback()
    assert counts(queue) == (1, 0)


@pytest.mark.parametrize("polls", [False, True])
def test_open_transactions_can_be_rolled_back(queue: JournaledQueue, polls: bool) -> None:
    plain(queue)
    blocking = queue.to_transactional_blocking_queue(str.encode, bytes.decode)
    first = some(blocking.poll() if polls else blocking.get(at_ms(LONG_MS)).result(LONG_S))
    second = some(blocking.poll() if polls else blocking.get().result(LONG_S))
    first.rollback()
    assert counts(queue) == (2, 1)
    second.commit()
    assert counts(queue) == (2, 0)
    again = some(blocking.get().result(LONG_S))
    assert again.item == "first"
    again.commit()
