"""A journaled queue as a blocking queue: what libkestrel's specification of JournaledBlockingQueue asserts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestreld.errors import ReaderUnknown
from kestreld.library import BlockingQueue, JournaledQueue, Transaction
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


def test_what_cannot_be_decoded_is_the_consumers_error(queue: JournaledQueue) -> None:
    blocking = queue.to_blocking_queue(lambda number: b"%d" % number, int)
    waiting = blocking.get()
    queue.put(b"no number")
    with pytest.raises(ValueError, match="no number"):
        waiting.result(LONG_S)


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
