"""Items with a time and an owner of their own: leases, delays, retries and keys of durable queues."""

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.errors import InvalidArgument, JournalFailed, LeaseLost, QueueClosed
from kestreld.library import Lease, PersistentQueue, QItem, QueueConfig
from tests.support.interrupting import interrupted_at
from tests.support.library import LONG_S, data_of, journaled, read_all
from tests.support.waiting import until

SHORT_S: Final = 0.05
HEARTBEAT_S: Final = 1.5  # it is extended in time also on a busy machine
Opened = Callable[..., PersistentQueue]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    queues: list[PersistentQueue] = []

    def opened(name: str = "work", **settings: Any) -> PersistentQueue:
        queue = PersistentQueue(str(tmp_path), name, QueueConfig(**settings))
        queue.setup()
        queues.append(queue)
        return queue

    yield opened
    for queue in queues:
        queue.close()


@pytest.fixture
def queue(opened: Opened) -> PersistentQueue:
    return opened()


def lease_of(queue: PersistentQueue, seconds: float = LONG_S) -> Lease:
    lease = queue.lease(seconds)
    assert lease is not None
    return lease


def next_in_time(queue: PersistentQueue) -> bytes | None:
    return data_of(queue.remove_receive(timeout=LONG_S))


def await_item(queue: PersistentQueue) -> None:
    assert queue.peek_receive(timeout=LONG_S) is not None, "waited for an item that is due"


# Leases


def test_a_leased_item_is_nobody_elses_until_it_is_confirmed(queue: PersistentQueue) -> None:
    queue.add_all([b"1", b"2"])
    lease = lease_of(queue)
    assert (lease.item.data, len(queue), queue.figures.leased_items) == (b"1", 1, 1)
    with ThreadPoolExecutor(1) as thread:  # nor bound to a thread
        assert thread.submit(lease.confirm).result(LONG_S)
    assert not lease.confirm()
    assert (data_of(queue.remove()), queue.remove(), queue.figures.leased_items) == (b"2", None, 0)


def test_a_lease_that_is_over_comes_to_whoever_waits_without_anybodys_call(queue: PersistentQueue) -> None:
    queue.add(b"1")
    started = time.monotonic()
    lease = lease_of(queue, SHORT_S)
    item = queue.remove_receive(timeout=LONG_S, transaction=True)
    assert item is not None
    assert time.monotonic() - started >= SHORT_S
    assert (item.data, item.error_count) == (b"1", 1)
    assert [lease.confirm(), lease.extend(1), lease.give_back(), lease.fail()] == [False] * 4
    assert queue.figures.expired_leases == 1
    queue.confirm_remove(item.xid)


def test_a_lease_that_is_over_is_good_as_long_as_its_item_waits(queue: PersistentQueue) -> None:
    queue.add(b"1")
    lease = lease_of(queue, 0.001)
    while queue.figures.leased_items:
        await_item(queue)
    assert lease.confirm()
    assert queue.remove() is None


def test_an_extended_lease_lasts_from_then_on(queue: PersistentQueue) -> None:
    queue.add(b"1")
    while not (lease := lease_of(queue, SHORT_S)).extend(LONG_S):  # on a busy machine it was over before
        await_item(queue)
    assert queue.remove_receive(timeout=2 * SHORT_S) is None
    assert lease.extend(0.001)
    assert next_in_time(queue) == b"1"


def test_an_item_that_is_given_back_comes_before_others_now_or_later(queue: PersistentQueue) -> None:
    queue.add_all([b"1", b"2"])
    assert lease_of(queue).give_back()
    lease = lease_of(queue)
    assert (lease.item.data, lease.item.error_count) == (b"1", 0)
    assert lease.give_back(LONG_S)
    assert queue.figures.delayed_items == 1
    assert data_of(queue.remove()) == b"2"
    queue.add(b"3")
    assert lease_of(queue).give_back(SHORT_S)
    assert next_in_time(queue) == b"3"


def test_a_failed_item_waits_as_the_delays_say_the_last_of_which_repeats(opened: Opened) -> None:
    queue = opened(retry_delays_ms=[1, 60])
    queue.add(b"1")
    for count in range(3):
        lease = queue.lease(LONG_S, LONG_S)
        assert lease is not None
        assert lease.item.error_count == count
        started = time.monotonic()
        assert lease.fail()
    assert next_in_time(queue) == b"1"
    assert time.monotonic() - started >= 0.06


def test_a_failed_item_says_why(opened: Opened) -> None:
    queue = opened(max_retries=1, move_failed_to="dead")
    queue.add(b"job")
    assert lease_of(queue).fail(reason="no room")
    family = queue._reading.reader.queue
    assert family.failures == {(1, 1): "no room"}
    lease = lease_of(queue)
    for wrong in ("", "two\nlines", 201 * "x", 101 * "ä", b"bytes"):
        with pytest.raises(InvalidArgument, match="reason"):
            lease.fail(reason=wrong)  # type: ignore[arg-type]
    assert lease.confirm()


def test_a_failed_item_is_nobodys_until_its_delay_is_over(opened: Opened) -> None:
    queue = opened(retry_delays_ms=[60_000])
    queue.add(b"1")
    assert lease_of(queue).fail()
    assert queue.figures.retrying_items == 1
    assert queue.remove() is None


def test_a_failed_item_goes_elsewhere_after_so_many_retries(opened: Opened) -> None:
    queue, dead = opened(max_retries=1, move_failed_to="dead"), opened("dead")
    queue.add(b"1")
    assert lease_of(queue).fail()
    assert len(dead) == 0
    assert lease_of(queue).fail()
    assert (queue.remove(), data_of(dead.remove())) == (None, b"1")


def test_a_lease_goes_on_when_its_queue_is_opened_again(opened: Opened) -> None:
    queue = opened()
    queue.add_all([b"1", b"2"])
    token = lease_of(queue).token
    queue.close()
    again = opened()
    assert (len(again), again.figures.leased_items) == (1, 1)
    assert again.confirm_lease(token)
    assert not again.confirm_lease(token)
    assert (data_of(again.remove()), again.remove()) == (b"2", None)


def test_after_its_queue_was_closed_a_lease_does_nothing(queue: PersistentQueue) -> None:
    queue.add(b"1")
    lease = lease_of(queue)
    queue.close()
    assert [lease.confirm(), lease.extend(1), lease.give_back(), lease.fail()] == [False] * 4
    assert queue.lease(1) is None
    assert queue.lease(1, 0.001) is None


# Its block


def test_a_block_confirms_its_item_or_has_failed_with_it(queue: PersistentQueue) -> None:
    queue.add(b"1")
    with pytest.raises(ZeroDivisionError), lease_of(queue):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), lease_of(queue):
        raise KeyboardInterrupt  # which is not the item's fault
    with lease_of(queue) as lease:
        assert lease.item.error_count == 1
    assert queue.remove() is None


def test_a_block_that_raises_when_its_lease_is_over_has_failed_once(opened: Opened) -> None:
    queue, dead = opened(max_retries=1, move_failed_to="dead"), opened("dead")
    queue.add(b"1")
    lease = lease_of(queue, 0.001)
    await_item(queue)
    with pytest.raises(ZeroDivisionError), lease:
        raise ZeroDivisionError
    assert lease.fail()
    lease = lease_of(queue)
    assert (lease.item.error_count, len(dead)) == (1, 0)


def test_what_a_block_has_done_with_its_lease_is_not_done_again(queue: PersistentQueue) -> None:
    queue.add(b"1")
    with lease_of(queue) as lease:
        lease.give_back()
    assert data_of(queue.peek()) == b"1"


def test_a_block_that_is_done_too_late_says_so(queue: PersistentQueue) -> None:
    queue.add(b"1")
    with pytest.raises(LeaseLost, match="work: the lease expired"), lease_of(queue, 0.001):
        assert next_in_time(queue) == b"1"


def test_with_a_heartbeat_a_block_may_take_longer_than_its_lease(queue: PersistentQueue) -> None:
    queue.add(b"1")
    lease = queue.lease(HEARTBEAT_S, heartbeat=True)
    assert lease is not None
    with lease:
        assert queue.remove_receive(timeout=2 * HEARTBEAT_S) is None
    assert (queue.remove(), queue.figures.expired_leases) == (None, 0)


@pytest.mark.parametrize("sync_journal_ms", [None, 0])
def test_a_heartbeat_goes_on_while_the_disk_takes_nothing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, sync_journal_ms: int | None
) -> None:
    queue = opened(sync_journal_ms=sync_journal_ms)
    queue.add(b"1")
    lease = queue.lease(HEARTBEAT_S, heartbeat=True)
    assert lease is not None
    with lease:
        monkeypatch.setattr(queue._spool.files, "write", refused)
        with pytest.raises(JournalFailed):
            queue.add(b"2")
        assert queue.remove_receive(timeout=2 * HEARTBEAT_S) is None
    assert (queue.remove(), queue.figures.expired_leases) == (None, 0)


def refused(fd: int, data: bytes) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_heartbeat_survives_a_turn_whose_commit_fails(queue: PersistentQueue) -> None:
    queue.add(b"1")
    lease = queue.lease(HEARTBEAT_S, heartbeat=True)
    assert lease is not None
    with lease:
        with queue._spool.lock:
            queue._spool.failed[queue._reading.reader.queue] = JournalFailed("work.journal", "write failed")
        until(lambda: not queue._spool.failed, "the beat that learns it")
        assert queue.remove_receive(timeout=2 * HEARTBEAT_S) is None
    assert (queue.remove(), queue.figures.expired_leases) == (None, 0)


def test_a_heartbeat_ends_with_its_block(queue: PersistentQueue) -> None:
    queue.add(b"1")
    lease = queue.lease(SHORT_S, heartbeat=True)
    assert lease is not None
    with lease:
        lease.give_back()
    other = lease_of(queue, SHORT_S)
    assert next_in_time(queue) == b"1"
    assert not other.confirm()


def test_who_is_interrupted_as_a_heartbeat_begins_gives_the_item_back(queue: PersistentQueue) -> None:
    at, found = 0, (None, "")
    while found is not None:
        at += 1
        queue.add(b"1")
        lease = queue.lease(LONG_S, heartbeat=True)
        assert lease is not None
        found = interrupted_at(at, lease.__enter__)  # type: ignore[assignment]
        if at == 1 or found is None:  # before it has begun, or behind its end
            lease.give_back()
        assert data_of(queue.remove()) == b"1", found
        assert not lease._is_beating
    assert at > 5


# Waiting, also of coroutines


def test_a_lease_waits_for_an_item_until_its_timeout(queue: PersistentQueue) -> None:
    assert queue.lease(LONG_S, 0.001) is None
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(queue.lease, LONG_S, LONG_S)
        queue.add(b"1", delay=SHORT_S)
        lease = waiting.result(LONG_S)
    assert lease is not None
    assert lease.confirm()
    assert queue.figures.open_items == 0


def test_a_coroutine_leases_and_confirms(opened: Opened) -> None:
    queue = opened(sync_journal_ms=0)

    async def work() -> list[bytes]:
        done = []
        while (lease := await queue.lease_async(LONG_S, SHORT_S)) is not None:
            async with lease:
                done.append(lease.item.data)
        return done

    queue.add_all([b"1", b"2"])
    assert asyncio.run(work()) == [b"1", b"2"]
    assert (queue.remove(), queue.figures.open_items) == (None, 0)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_coroutine_that_is_cancelled_leaves_its_item(queue: PersistentQueue, is_served: bool) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(queue.lease_async(LONG_S))
        await asyncio.sleep(0)
        if is_served:
            queue.add(b"1")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    if not is_served:
        queue.add(b"1")
    item = queue.remove_receive(timeout=LONG_S)
    assert item is not None
    assert (item.data, item.error_count) == (b"1", 0)


def test_threads_share_leases_and_no_item_is_done_twice(queue: PersistentQueue) -> None:
    items = [b"%d" % number for number in range(200)]
    done: list[bytes] = []
    lock = threading.Lock()

    def work(failing: int) -> None:
        count = 0
        while len(done) < len(items):
            if (lease := queue.lease(LONG_S, SHORT_S)) is None:
                continue
            count += 1
            if count % failing == 0:
                lease.fail()
                continue
            with lease, lock:
                done.append(lease.item.data)

    threads = [threading.Thread(target=work, args=(failing,)) for failing in (2, 3, 5)]
    for thread in threads:
        thread.start()
    queue.add_all(items)
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), f"{len(done)} of {len(items)} items are done"
    assert sorted(done) == sorted(items)
    assert (len(queue), queue.figures.open_items) == (0, 0)


# Readers


def test_each_reader_leases_on_its_own_and_its_error_handler_is_asked(tmp_path: Path) -> None:
    asked: list[QItem] = []

    def give_up(reader: object, item: QItem) -> bool:
        asked.append(item)
        return item.error_count == 2

    with journaled(tmp_path, "orders") as queue:
        billing, audit = queue.reader("billing", error_handler=give_up), queue.reader("audit")
        queue.put(b"1")
        for _ in range(2):
            lease = billing.lease(LONG_S)
            assert lease is not None
            assert lease.fail()
        assert [item.error_count for item in asked] == [1, 2]
        assert billing.lease(LONG_S) is None
        lease = audit.lease(LONG_S)
        assert lease is not None
        assert not billing.confirm_lease(lease.token)
        assert audit.confirm_lease(lease.token)


# Delays


def test_a_delayed_item_does_not_come_before_its_time_and_then_first(opened: Opened) -> None:
    queue = opened()
    assert queue.add(b"much later", delay=LONG_S)
    started = time.monotonic()
    assert queue.add(b"later", delay=SHORT_S)
    queue.put_nowait(b"now", delay=0.0)
    queue.close()
    queue = opened()  # also over a restart
    while queue.figures.delayed_items > 1:
        assert time.monotonic() - started < LONG_S, "waited for the item to be due"
        time.sleep(0.001)
    assert time.monotonic() - started >= SHORT_S
    assert [data_of(queue.remove()) for _ in range(3)] == [b"later", b"now", None]
    assert queue.figures.delayed_items == 1


def test_items_that_are_due_are_served_beside_those_put_and_taken_at_once(queue: PersistentQueue) -> None:
    """However busy the thread is that puts and takes, the one that sees to due times comes to its turn."""
    assert queue.add(b"later", delay=0.001)
    taken: list[bytes | None] = []
    numbers, give_up_at = itertools.count(), time.monotonic() + LONG_S
    while b"later" not in taken[-1:]:
        assert time.monotonic() < give_up_at, "waited for the item that is due"
        assert queue.add(b"%d" % next(numbers))
        taken.append(data_of(queue.remove()))
    while len(queue):
        taken.append(data_of(queue.remove()))
    assert b"later" in taken
    assert [one for one in taken if one != b"later"] == [b"%d" % number for number in range(next(numbers))]


def test_every_reader_gets_a_delayed_item_when_it_is_due(tmp_path: Path) -> None:
    with journaled(tmp_path, "orders") as queue:
        billing, audit = queue.reader("billing"), queue.reader("audit")
        assert queue.put(b"1", delay=SHORT_S)
        assert queue.put(b"2", delay=LONG_S)
        for reader in (billing, audit):
            item = reader.get(timeout=LONG_S)
            assert item is not None
            assert item.data == b"1"
            reader.commit(item)
            assert reader.get() is None


# Keys


def test_a_key_is_added_once_for_its_time(opened: Opened) -> None:
    queue = opened(key_time_ms=60_000)
    assert queue.add(b"1", key="order-17")
    assert queue.add(b"2", key=b"order-17")
    assert (data_of(queue.remove()), queue.remove()) == (b"1", None)
    queue.close()
    queue = opened(key_time_ms=60_000)
    assert queue.add(b"3", key="order-17")
    assert queue.remove() is None
    brief = opened("brief", key_time_ms=50)
    assert brief.add(b"1", key="order-17")
    assert data_of(brief.remove()) == b"1"
    assert brief.remove_receive(timeout=0.06) is None
    assert brief.add(b"2", key="order-17")
    assert data_of(brief.remove()) == b"2"


def test_a_full_queue_refuses_and_remembers_no_key(opened: Opened) -> None:
    queue = opened(max_items=1)
    assert queue.add(b"1", delay=LONG_S)
    assert not queue.add(b"2", key="x")
    queue.flush()
    assert queue.add(b"3", key="x")
    assert data_of(queue.remove()) == b"3"
    queue.close()
    assert not queue.add(b"4", key="x")
    assert not queue.add(b"4", delay=1)
    with pytest.raises(QueueClosed):
        queue.put_nowait(b"4", delay=1)


def test_what_is_not_due_yet_can_be_cancelled_and_its_key_is_free(opened: Opened) -> None:
    queue = opened()
    assert queue.add(b"1", key="x", delay=LONG_S)
    assert queue.cancel("x")
    assert not queue.cancel("x")
    assert queue.add(b"2", key="x")
    assert not queue.cancel("x")
    queue.close()
    again = opened()
    assert not again.cancel("x")
    assert (data_of(again.remove()), again.remove(), again.figures.delayed_items) == (b"2", None, 0)


def test_a_cancelled_item_comes_to_no_reader(tmp_path: Path) -> None:
    with journaled(tmp_path, "orders") as queue:
        readers = [queue.reader("billing"), queue.reader("audit")]
        assert queue.put(b"1", key="x", delay=LONG_S)
        assert queue.put(b"1", key="x", delay=LONG_S)
        assert [reader.figures.delayed_items for reader in readers] == [1, 1]
        assert queue.cancel("x")
        assert [reader.figures.delayed_items for reader in readers] == [0, 0]
        queue.put(b"2", delay=SHORT_S)
        for reader in readers:
            item = reader.peek(timeout=LONG_S)
            assert item is not None
            assert read_all(reader) == [b"2"]


# Open reads


def test_an_open_read_ends_by_itself_where_that_is_configured(opened: Opened) -> None:
    queue = opened(open_transaction_timeout_ms=30)
    queue.add(b"1")
    item = queue.remove(True)
    assert item is not None
    again = queue.remove_receive(timeout=LONG_S, transaction=True)
    assert again is not None
    assert again.error_count == 1
    queue.confirm_remove(again.xid)
    assert (queue.remove(), queue.figures.open_items) == (None, 0)
