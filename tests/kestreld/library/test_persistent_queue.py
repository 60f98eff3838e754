"""A durable queue within a process: what Kestrel's own specification of PersistentQueue asserts, threads, and ends."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kestreld.disk_threads import THREADS
from kestreld.errors import BadQueueName, QueueNotOpen, SpoolLocked
from kestreld.files import FileLayer
from kestreld.journal.verify import verify_spool
from kestreld.library import PersistentQueue, QItem, QueueConfig
from kestreld.library.persistent_queue import PersistentQueue as Queue

LONG_MS = 60_000  # no test waits so long


def at_ms(ms_from_now: int) -> int:
    return time.time_ns() // 1_000_000 + ms_from_now


@contextmanager
def opened(spool: Path, name: str = "work", **settings: object) -> Iterator[Queue]:
    queue = PersistentQueue(str(spool), name, QueueConfig(**settings))  # type: ignore[arg-type]
    queue.setup()
    try:
        yield queue
    finally:
        queue.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with opened(tmp_path / "spool") as queue:
        yield queue


def data_of(item: QItem | None) -> bytes | None:
    return None if item is None else item.data


def drained(queue: Queue) -> list[bytes]:
    return [item.data for item in queue.remove_all(1_000_000)]


# One item


def test_an_item_is_added_and_removed(queue: Queue) -> None:
    before_ms = at_ms(0)
    assert queue.add(b"hello kitty")
    assert len(queue) == 1
    item = queue.remove()
    assert item is not None
    assert (item.data, item.expiry, item.xid) == (b"hello kitty", 0, 0)
    assert before_ms <= item.add_time <= at_ms(0)
    assert queue.remove() is None


def test_a_peek_leaves_the_item(queue: Queue) -> None:
    queue.add(b"one")
    assert data_of(queue.peek()) == data_of(queue.peek()) == b"one"
    assert drained(queue) == [b"one"]


def test_an_item_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, max_item_size_bytes=128) as queue:
        assert not queue.add(b"x" * 129)
        assert queue.add(b"x" * 128)


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    with opened(tmp_path, max_items=1) as queue:
        assert queue.add(b"first")
        assert not queue.add(b"second")
        assert drained(queue) == [b"first"]


def test_a_queue_with_too_many_bytes_refuses(tmp_path: Path) -> None:
    with opened(tmp_path, max_size_bytes=5) as queue:
        assert queue.add(b"123456")
        assert not queue.add(b"7")


def test_a_full_queue_discards_the_oldest_where_that_is_configured(tmp_path: Path) -> None:
    with opened(tmp_path, max_items=2, discard_old_when_full=True) as queue:
        assert [queue.add(data) for data in (b"1", b"2", b"3")] == [True] * 3
        assert drained(queue) == [b"2", b"3"]


def test_an_expired_item_is_never_removed(queue: Queue) -> None:
    queue.add(b"stale", at_ms(-1))
    queue.add(b"fresh", at_ms(LONG_MS))
    assert drained(queue) == [b"fresh"]


def test_an_expired_item_moves_to_another_queue(tmp_path: Path) -> None:
    with opened(tmp_path, move_expired_to="late") as queue, opened(tmp_path, "late") as late:
        queue.add(b"stale", at_ms(-1))
        assert queue.remove() is None
        assert drained(late) == [b"stale"]


def test_items_are_added_and_removed_many_in_one_write(tmp_path: Path) -> None:
    with opened(tmp_path, max_items=3) as queue:
        assert queue.add_all([b"1", b"2", b"3", b"4"]) == 3
        assert [item.data for item in queue.remove_all(2)] == [b"1", b"2"]
        assert drained(queue) == [b"3"]


def test_a_flush_drops_what_waits_and_not_what_is_set_aside(queue: Queue) -> None:
    queue.add_all([b"1", b"2", b"3"])
    first = queue.remove(transaction=True)
    assert first is not None
    assert queue.flush() == 2
    queue.unremove(first.xid)
    assert drained(queue) == [b"1"]


def test_items_that_have_come_of_age_are_never_removed(tmp_path: Path) -> None:
    with opened(tmp_path, max_age_ms=1) as queue:
        queue.add(b"1", at_ms(LONG_MS))
        threading.Event().wait(0.005)
        assert queue.remove() is None


def test_more_items_than_may_be_in_memory_come_back_in_order(tmp_path: Path) -> None:
    added = [b"%d" % number * 20 for number in range(100)]
    with opened(tmp_path, max_memory_size_bytes=300, max_journal_size_bytes=2000) as queue:
        for data in added:
            queue.add(data)
        assert [item.data for item in queue.remove_all(40)] == added[:40]
    with opened(tmp_path, max_memory_size_bytes=300) as queue:
        assert drained(queue) == added[40:]


def test_a_journal_that_has_been_read_does_not_grow(tmp_path: Path) -> None:
    with opened(tmp_path, max_journal_size_bytes=2000) as queue:
        for _ in range(10):
            queue.add_all([b"x" * 100] * 10)
            drained(queue)
        while len(list((tmp_path / "work.journal").glob("*.seg"))) > 2:  # they go once the next is on disk
            queue._spool.worker.soon(queue._spool._look_after)
            threading.Event().wait(0.01)


# Transactions


def test_an_item_that_is_unremoved_is_the_head_again(queue: Queue) -> None:
    queue.add_all([b"house", b"cat"])
    house = queue.remove(transaction=True)
    assert house is not None
    assert house.xid
    assert data_of(queue.peek()) == b"cat"
    queue.unremove(house.xid)
    assert drained(queue) == [b"house", b"cat"]


def test_an_item_that_is_confirmed_does_not_come_back(queue: Queue) -> None:
    queue.add(b"house")
    house = queue.remove(transaction=True)
    assert house is not None
    queue.confirm_remove(house.xid)
    queue.unremove(house.xid)
    assert queue.remove() is None


def test_interleaved_transactions_each_have_their_own_end(queue: Queue) -> None:
    queue.add_all([b"house", b"cat", b"dog"])
    xids = [item.xid for _ in range(3) if (item := queue.remove(transaction=True)) is not None]
    queue.unremove(xids[1])
    queue.confirm_remove(xids[0])
    queue.unremove(xids[2])
    assert drained(queue) == [b"dog", b"cat"]


# Restarts


def test_items_are_there_after_a_restart_without_those_that_were_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.add_all([b"1", b"2", b"3"])
        queue.remove()
    with opened(tmp_path) as queue:
        assert drained(queue) == [b"2", b"3"]


def test_open_transactions_return_at_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.add_all([b"1", b"2", b"3"])
        first, second = queue.remove(transaction=True), queue.remove(transaction=True)
        assert first is not None
        assert second is not None
        queue.confirm_remove(second.xid)
    with opened(tmp_path) as queue:
        assert drained(queue) == [b"1", b"3"]


def test_a_queue_without_a_journal_leaves_no_file_and_forgets(tmp_path: Path) -> None:
    with opened(tmp_path, journal=False) as queue:
        queue.add(b"1")
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with opened(tmp_path, journal=False) as queue:
        assert queue.remove() is None


def test_a_queue_that_is_synced_before_every_answer_takes_and_gives(tmp_path: Path) -> None:
    with opened(tmp_path, sync_journal_ms=0) as queue:
        assert [queue.add(data) for data in (b"1", b"2", b"3")] == [True] * 3
        assert data_of(queue.remove()) == b"1"
        assert data_of(asyncio.run(queue.remove_async(at_ms(LONG_MS)))) == b"2"
    with opened(tmp_path) as queue:
        assert drained(queue) == [b"3"]


def test_what_add_has_answered_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys; from kestreld.library import PersistentQueue\n"
        "q = PersistentQueue(sys.argv[1], 'work'); q.setup()\n"
        "for number in range(1000000): q.add(b'%d' % number); print(number, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        with pytest.raises(SpoolLocked, match=f"in use by pid {process.pid}"):
            PersistentQueue(str(tmp_path), "work").setup()
        process.send_signal(signal.SIGKILL)
        answered = [0, *map(int, process.stdout.read().split("\n")[:-1])]
    with opened(tmp_path) as queue:
        found = [int(data) for data in drained(queue)]
    assert found[: len(answered)] == answered
    assert len(found) <= len(answered) + 1


# Waiting


def test_a_timed_remove_gets_what_is_added_meanwhile(queue: Queue) -> None:
    adding = threading.Timer(0.01, queue.add, [b"hello"])
    adding.start()
    assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"hello"
    adding.join()


def test_a_timed_remove_ends_with_nothing_at_its_deadline(queue: Queue) -> None:
    started_at_ms = time.monotonic_ns() // 1_000_000
    assert queue.remove_receive(at_ms(20)) is None
    assert time.monotonic_ns() // 1_000_000 - started_at_ms >= 18
    assert queue.remove_receive(at_ms(-20)) is None
    queue.add(b"nobody takes this one")
    assert len(queue) == 1


def test_a_timed_peek_leaves_the_item_to_whoever_waits_for_it(queue: Queue) -> None:
    seen: list[bytes | None] = []
    peeking = threading.Thread(target=lambda: seen.append(data_of(queue.peek_receive(at_ms(LONG_MS)))))
    peeking.start()
    queue.add(b"hello")
    peeking.join()
    assert seen == [b"hello"]
    assert drained(queue) == [b"hello"]


def reaction(start: Callable[[Callable[[QItem | None], None]], None], add: Callable[[], object]) -> QItem | None:
    """What a callback is called with, which is on the queue's own thread."""
    outcome: list[tuple[QItem | None, str]] = []
    called = threading.Event()

    def react(item: QItem | None) -> None:
        outcome.append((item, threading.current_thread().name))
        called.set()

    start(react)
    add()
    assert called.wait(LONG_MS / 1000)
    ((item, thread),) = outcome
    assert thread.startswith("queues in ")
    return item


def test_a_callback_gets_the_item_on_the_queues_own_thread(queue: Queue) -> None:
    item = reaction(lambda react: queue.remove_react(at_ms(LONG_MS), True, react), lambda: queue.add(b"1"))
    assert item is not None
    queue.unremove(item.xid)
    assert data_of(reaction(lambda react: queue.remove_react(0, False, react), lambda: None)) == b"1"
    assert data_of(reaction(lambda react: queue.peek_react(at_ms(LONG_MS), react), lambda: queue.add(b"2"))) == b"2"
    assert drained(queue) == [b"2"]


def test_a_callback_gets_nothing_at_its_deadline(queue: Queue) -> None:
    assert reaction(lambda react: queue.remove_react(at_ms(5), True, react), lambda: None) is None


def test_a_callback_that_fails_does_not_stop_the_next(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def fail(item: QItem | None) -> None:
        raise ValueError("callback")

    queue.remove_react(0, False, fail)
    assert reaction(lambda react: queue.remove_react(0, False, react), lambda: None) is None
    assert "ValueError: callback" in caplog.text


def test_those_who_wait_are_served_in_the_order_they_came(queue: Queue) -> None:
    got: list[tuple[int, bytes | None]] = []
    for number in range(5):
        queue.remove_react(at_ms(LONG_MS), False, lambda item, number=number: got.append((number, data_of(item))))  # type: ignore[misc]
    queue.add_all([b"a", b"b", b"c", b"d", b"e"])
    reaction(lambda react: queue.remove_react(0, False, react), lambda: None)
    assert got == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d"), (4, b"e")]


def test_a_coroutine_waits_for_an_item_while_others_run(queue: Queue) -> None:
    async def receive() -> list[bytes | None]:
        waiting = [asyncio.create_task(queue.remove_async(at_ms(LONG_MS))) for _ in range(2)]
        peeking = asyncio.create_task(queue.peek_async(at_ms(LONG_MS)))
        await asyncio.sleep(0)
        queue.add_all([b"1", b"2"])
        return [data_of(item) for item in await asyncio.gather(*waiting, peeking)]

    assert asyncio.run(receive()) == [b"1", b"2", b"1"]
    assert queue.remove() is None


def test_a_coroutine_that_is_cancelled_takes_nothing(queue: Queue) -> None:
    async def cancel() -> None:
        waiting = asyncio.create_task(queue.remove_async(at_ms(LONG_MS)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        queue.add(b"1")
        # Served, and cancelled before it learns of it.
        waiting = asyncio.create_task(queue.remove_async(at_ms(LONG_MS)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(cancel())
    assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"1"


def test_a_coroutine_that_is_cancelled_while_its_take_goes_to_the_disk_leaves_the_item_last(tmp_path: Path) -> None:
    disk_is_free = threading.Event()

    def keep_busy() -> None:
        disk_is_free.wait()

    async def cancel(queue: Queue) -> None:
        waiting = asyncio.create_task(queue.remove_async(at_ms(LONG_MS)))
        while queue._reader.queue.is_idle:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with opened(tmp_path, sync_journal_ms=0) as queue:
        expire_at_ms = at_ms(LONG_MS)
        queue.add(b"1", expire_at_ms)
        queue.add(b"2")
        with queue._spool.lock:
            for _ in range(THREADS):
                queue._spool.files.in_background(keep_busy, lambda error: None)
        asyncio.run(cancel(queue))
        disk_is_free.set()
    with opened(tmp_path) as queue:
        assert [(item.data, item.expiry) for item in queue.remove_all(3)] == [(b"2", 0), (b"1", expire_at_ms)]


def test_a_callback_may_confirm_while_the_journal_has_to_be_compacted_first(queue: Queue) -> None:
    queue.add(b"1")
    with queue._spool.lock:
        queue._spool.collection.crowded[queue._reader.queue] = []

    def react(item: QItem | None) -> None:
        assert item is not None
        queue.confirm_remove(item.xid)
        confirmed.set()

    confirmed = threading.Event()
    queue.remove_react(0, True, react)
    assert confirmed.wait(LONG_MS / 1000), "the queue's own thread, which is to compact the journal, waits for that"
    with queue._spool.lock:
        del queue._spool.collection.crowded[queue._reader.queue]


# Threads


def test_many_threads_get_each_item_once_and_each_writers_in_order(queue: Queue) -> None:
    writers, each = 4, 150
    got: list[list[bytes]] = [[] for _ in range(4)]

    def write(writer: int) -> None:
        for number in range(each):
            assert queue.add(b"%d %d" % (writer, number))

    def read(mine: list[bytes]) -> None:
        while (item := queue.remove_receive(at_ms(LONG_MS), transaction=True)) is not None and item.data != b"end":
            mine.append(item.data)
            queue.confirm_remove(item.xid)

    reading = [threading.Thread(target=read, args=(mine,)) for mine in got]
    writing = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in reading + writing:
        thread.start()
    for thread in writing:
        thread.join()
    queue.add_all([b"end"] * len(reading))
    for thread in reading:
        thread.join()
    assert sorted(data for mine in got for data in mine) == sorted(
        b"%d %d" % (writer, number) for writer in range(writers) for number in range(each)
    )
    for mine in got:
        for writer in range(writers):
            numbers = [int(data.split()[1]) for data in mine if int(data.split()[0]) == writer]
            assert numbers == sorted(numbers)


# Mistakes


@pytest.mark.parametrize(
    ("value", "expiry", "problem"),
    [
        ("text", 0, "item must be bytes, not .text.$"),
        (None, 0, "item must be bytes, not None$"),
        (b"1", 1e12, "expiry must be an int in ms since the epoch, or 0 for never, not 1000000000000.0"),
        (b"1", -5, "expiry must be an int in ms since the epoch, or 0 for never, not -5"),
        (b"1", 1 << 64, "expiry must be an int in ms since the epoch"),
    ],
)
def test_what_is_no_item_is_an_error_and_changes_nothing(tmp_path: Path, value: Any, expiry: Any, problem: str) -> None:
    with opened(tmp_path) as queue:
        for add in (lambda: queue.add(value, expiry), lambda: queue.add_all([b"before", value], expiry)):
            with pytest.raises((TypeError, ValueError), match=problem):
                add()
        assert len(queue) == 0
        queue.add(b"1")
    (report,) = verify_spool(FileLayer(), str(tmp_path))
    assert (report.reason, report.put_items) == (None, 1)
    with opened(tmp_path) as queue:
        assert drained(queue) == [b"1"]


# The beginning and the end


def test_before_it_is_set_up_a_queue_says_so(tmp_path: Path) -> None:
    queue = PersistentQueue(str(tmp_path), "work")
    for use in (lambda: queue.add(b"1"), queue.remove, queue.peek, lambda: queue.remove_receive(0), lambda: len(queue)):
        with pytest.raises(QueueNotOpen, match=r"work: not open yet; call setup\(\) first"):
            use()
    queue.close()
    assert not queue.is_closed
    assert list(tmp_path.iterdir()) == []


def test_setting_up_twice_is_setting_up_once(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.setup()
        queue.add(b"1")
    with opened(tmp_path) as queue:
        assert drained(queue) == [b"1"]


def test_who_waits_when_a_queue_closes_is_not_given_what_returns(queue: Queue) -> None:
    queue.add(b"1")
    queue.remove(transaction=True)
    assert reaction(lambda react: queue.remove_react(at_ms(LONG_MS), True, react), queue.close) is None


def test_a_closed_queue_takes_and_gives_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.add(b"1")
        assert not queue.is_closed
        queue.close()
        assert queue.is_closed
        assert not queue.add(b"2")
        assert queue.remove() is None
        assert queue.remove_receive(at_ms(LONG_MS)) is None


def test_a_put_that_a_close_has_overtaken_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.add(b"1")
        spool, reader = queue._spool, queue._reader
        queue.close()
        assert not spool.put(reader.queue, b"2", 0, None)
        assert spool.put_all(reader.queue, [b"3"], 0, None) == 0
    with opened(tmp_path) as queue:
        assert drained(queue) == [b"1"]


def test_closing_sends_those_who_wait_away(queue: Queue) -> None:
    assert reaction(lambda react: queue.remove_react(at_ms(LONG_MS), False, react), queue.close) is None


def test_two_queues_of_a_process_share_a_spool_until_the_last_is_closed(tmp_path: Path) -> None:
    with opened(tmp_path, "one") as one, opened(tmp_path, "two") as two:
        one.add(b"1")
        two.add(b"2")
        one.close()
        assert drained(two) == [b"2"]
    with opened(tmp_path, "one") as one:
        assert drained(one) == [b"1"]


def test_a_name_that_no_queue_can_have_leaves_the_spool_free(tmp_path: Path) -> None:
    with pytest.raises(BadQueueName):
        PersistentQueue(str(tmp_path), "a/b").setup()
    with opened(tmp_path) as queue:
        assert queue.add(b"1")


def test_what_it_wrote_is_a_sound_journal_of_the_servers(tmp_path: Path) -> None:
    with opened(tmp_path) as queue:
        queue.add_all([b"%d" % number for number in range(100)])
        queue.remove_all(30)
    reports = list(verify_spool(FileLayer(), str(tmp_path)))
    assert [(report.reason, report.put_items, report.live_items) for report in reports] == [(None, 100, 70)]


@pytest.mark.parametrize("stays_open", [True, False], ids=["the spool stays open", "the spool is closed"])
def test_a_close_gives_back_what_was_open_in_its_place(tmp_path: Path, stays_open: bool) -> None:
    with ExitStack() as others:
        if stays_open:
            others.enter_context(opened(tmp_path, "other"))
        with opened(tmp_path) as queue:
            queue.add_all([b"1", b"2", b"3", b"4"])
            opens = [queue.remove(transaction=True) for _ in range(3)]
            assert opens[1] is not None
            queue.confirm_remove(opens[1].xid)
        with opened(tmp_path) as queue:
            assert len(queue) == 3
            assert drained(queue) == [b"1", b"3", b"4"]


def test_nobody_but_its_user_may_look_into_a_spool(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path / "spool", max_journal_size_bytes=1024) as queue:
            for _ in range(100):
                queue.add(b"x" * 100)
                queue.remove()
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


@pytest.mark.parametrize("what", ["add", "remove"])
def test_what_is_synced_before_an_answer_is_not_answered_before_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    held, syncing, sync = threading.Event(), threading.Event(), FileLayer.sync

    def slow_sync(files: FileLayer, fd: int) -> None:
        syncing.set()
        assert held.wait(60)
        sync(files, fd)

    with opened(tmp_path, sync_journal_ms=0) as queue:
        queue.add(b"1")
        monkeypatch.setattr(FileLayer, "sync", slow_sync)
        answered = threading.Event()

        def use() -> None:
            queue.add(b"2") if what == "add" else queue.remove()
            answered.set()

        user = threading.Thread(target=use)
        user.start()
        assert syncing.wait(60)
        assert not answered.wait(0.1)
        held.set()
        user.join()
        assert answered.is_set()


def test_neither_the_server_nor_aiohttp_is_loaded() -> None:
    program = (
        "import sys, kestreld.library; print([m for m in sys.modules if m.startswith(('kestreld.server', 'aiohttp'))])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
