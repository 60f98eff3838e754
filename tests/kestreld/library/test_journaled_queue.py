"""A queue with readers: what libkestrel's specifications of JournaledQueue and its journal's readers assert."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestreld.errors import BadQueueName, ReaderUnknown, SpoolLocked, SpoolUnusable
from kestreld.files import FileLayer
from kestreld.journal.verify import verify_spool
from kestreld.library import JournaledQueue, JournalReader, PersistentQueue, QItem, QueueConfig
from tests.support.library import LONG_MS, LONG_S, at_ms, data_of, journaled, read_all


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JournaledQueue]:
    with journaled(tmp_path) as queue:
        yield queue


def opened(reader: JournalReader) -> QItem:
    item = reader.get()
    assert item is not None
    return item


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# Creating


def test_it_can_be_created(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        assert queue.readers == ("",)
        assert (queue.reader().name, queue.reader().full_name) == ("", "test")
        assert list((tmp_path / "test.journal").iterdir())
        assert queue.journal_bytes > 0


@pytest.mark.parametrize("name", ["evil/queue", "evilqueue ", "evil.queue", "", "a+b"])
def test_it_disallows_bad_characters(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadQueueName):
        JournaledQueue(str(tmp_path), name)
    with journaled(tmp_path, "this_is-okay") as queue:
        assert queue.put(b"1")


def test_a_reader_cannot_have_a_bad_name_either(queue: JournaledQueue) -> None:
    with pytest.raises(BadQueueName):
        queue.reader("a/b")
    assert queue.readers == ("",)


def test_the_default_reader_is_not_made_again_once_there_are_named_ones(queue: JournaledQueue) -> None:
    queue.reader("client1")
    with pytest.raises(ReaderUnknown, match="test no longer has a default reader; its readers are client1"):
        queue.reader("")


def test_a_reader_can_be_destroyed(queue: JournaledQueue) -> None:
    queue.reader("client1")
    second = queue.reader("client2")
    assert queue.drop_reader("client2")
    assert queue.readers == ("client1",)
    assert not queue.drop_reader("client2")
    queue.put(b"1")
    assert second.get() is None
    assert queue.drop_reader("client1")
    assert queue.readers == ("",), "there is always one"
    queue.put(b"2")
    assert read_all(queue.reader()) == [b"2"]


def test_a_reader_that_is_destroyed_takes_its_open_reads_and_waiters_with_it(queue: JournaledQueue) -> None:
    first, _ = queue.reader("first"), queue.reader("second")
    queue.put(b"1")
    item = opened(first)
    waiting = first.get_later(at_ms(LONG_MS))
    queue.drop_reader("first")
    assert waiting.result(LONG_S) is None
    first.commit(item)
    first.unget(item)
    assert len(queue.reader("first")) == 0, "a new one"


def test_the_first_named_reader_takes_over_from_the_default_one(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all(numbers(1, 4))
        default = queue.reader()
        default.commit(opened(default))
        item = opened(default)
        named = queue.reader("client1")
        assert named is default
        assert named.name == "client1"
        named.unget(item)
        assert queue.readers == ("client1",)
    with journaled(tmp_path) as queue:
        assert queue.readers == ("client1",)
        assert read_all(queue.reader("client1")) == numbers(2, 4)


def test_the_first_named_reader_takes_over_in_read_behind_too(tmp_path: Path) -> None:
    with journaled(tmp_path, max_memory_size_bytes=1000) as queue:
        queue.put_all([bytes([number]) * 400 for number in range(10)])
        assert [data[0] for data in read_all(queue.reader("client1"))] == list(range(10))


def test_without_a_journal_the_first_named_reader_takes_over_too(tmp_path: Path) -> None:
    with journaled(tmp_path, journal=False) as queue:
        queue.put(b"1")
        assert read_all(queue.reader("client1")) == [b"1"]


def test_synced_before_every_answer_the_first_named_reader_takes_over_too(tmp_path: Path) -> None:
    with journaled(tmp_path, sync_journal_ms=0) as queue:
        queue.put(b"1")
        assert read_all(queue.reader("client1")) == [b"1"]
        assert read_all(queue.reader("client2")) == []


def test_new_readers_start_at_the_end_of_the_queue(queue: JournaledQueue) -> None:
    queue.reader("first")
    queue.put_all(numbers(1, 8))
    later = queue.reader("later")
    assert (later.figures.items, later.figures.data_bytes, later.figures.memory_items) == (0, 0, 0)
    queue.put(b"9")
    assert read_all(later) == [b"9"]
    assert read_all(queue.reader("first")) == numbers(1, 9)


def test_each_reader_gets_every_item_and_each_of_its_consumers_others(queue: JournaledQueue) -> None:
    first, second = queue.reader("first"), queue.reader("second")
    queue.put_all(numbers(1, 4))
    assert [data_of(first.get()), data_of(first.get()), data_of(second.get())] == [b"1", b"2", b"1"]


# Reading what is there


def test_an_existing_journal_is_read_where_the_reader_was(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all([b"x" * 1024] * 8)
        for _ in range(3):
            queue.reader().commit(opened(queue.reader()))
    with journaled(tmp_path) as queue:
        reader = queue.reader()
        assert (reader.figures.items, reader.figures.data_bytes) == (5, 5 * 1024)
        assert opened(reader).xid == 4


@pytest.mark.parametrize("done", range(5))
def test_an_existing_journal_is_read_in_read_behind(tmp_path: Path, done: int) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all([bytes([number]) * 1024 for number in range(8)])
        for _ in range(done):
            queue.reader().commit(opened(queue.reader()))
    with journaled(tmp_path, max_memory_size_bytes=4096) as queue:
        reader = queue.reader()
        assert (reader.figures.items, reader.figures.data_bytes) == (8 - done, (8 - done) * 1024)
        reader.peek()
        assert reader.figures.memory_bytes <= 4096
        assert [data[0] for data in read_all(reader)] == list(range(done, 8))


def test_a_reader_that_had_caught_up_finds_nothing(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all(numbers(1, 8))
        read_all(queue.reader())
    with journaled(tmp_path) as queue:
        assert queue.reader().get() is None
        assert queue.reader().figures.items == 0


def test_read_behind_is_filled_as_items_are_removed(tmp_path: Path) -> None:
    with journaled(tmp_path, max_memory_size_bytes=4096) as queue:
        queue.put_all([bytes([number]) * 1024 for number in range(8)])
        reader = queue.reader()
        for number in range(8):
            assert (reader.figures.items, reader.figures.data_bytes) == (8 - number, (8 - number) * 1024)
            assert reader.figures.memory_bytes <= 4096
            item = opened(reader)
            assert item.data[0] == number
            reader.commit(item)
        assert reader.get() is None
        assert (reader.figures.items, reader.figures.memory_items, reader.figures.memory_bytes) == (0, 0, 0)


def test_a_reader_in_read_behind_catches_up_across_segments(tmp_path: Path) -> None:
    with journaled(tmp_path, max_memory_size_bytes=300, max_journal_size_bytes=1000) as queue:
        written = [b"%d" % number * 50 for number in range(40)]
        for data in written:
            queue.put(data)
        assert len(list((tmp_path / "test.journal").glob("*.seg"))) > 3
        assert read_all(queue.reader()) == written
        queue.put(b"after that")
        assert read_all(queue.reader()) == [b"after that"]


# Open reads


def test_open_reads_are_tracked(queue: JournaledQueue) -> None:
    queue.put(b"x" * 1024)
    reader = queue.reader()
    item = opened(reader)
    assert reader.get() is None
    assert (reader.figures.open_items, reader.figures.open_bytes) == (1, 1024)
    reader.unget(item)
    assert (reader.figures.items, reader.figures.open_items, reader.figures.open_bytes) == (1, 0, 0)


def test_returned_items_are_given_to_the_next_who_waits(queue: JournaledQueue) -> None:
    queue.put(b"1")
    reader = queue.reader()
    item = opened(reader)
    waiting = reader.get_later(at_ms(LONG_MS))
    reader.unget(item)
    found = waiting.result(LONG_S)
    assert found is not None
    assert found.xid == item.xid


def test_items_can_be_committed_out_of_order(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all(numbers(1, 2))
        reader = queue.reader()
        first, second = opened(reader), opened(reader)
        reader.commit(second)
        reader.commit(first)
        assert len(reader) == 0
    with journaled(tmp_path) as queue:
        assert len(queue.reader()) == 0


def test_what_was_committed_out_of_order_is_not_read_again_after_a_restart(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all(numbers(1, 8))
        items = [opened(queue.reader()) for _ in range(5)]
        for item in (items[0], items[2], items[4]):
            queue.reader().commit(item)
    with journaled(tmp_path) as queue:
        assert read_all(queue.reader()) == [b"2", b"4", b"6", b"7", b"8"]


def test_aborted_reads_are_delivered_again_and_before_others(queue: JournaledQueue) -> None:
    queue.put_all(numbers(1, 2))
    reader = queue.reader()
    item = opened(reader)
    assert (item.xid, item.data, item.error_count) == (1, b"1", 0)
    reader.unget(item)
    item = opened(reader)
    assert (item.xid, item.data, item.error_count) == (1, b"1", 1)
    reader.unget(item)
    assert [opened(reader).data, opened(reader).data] == numbers(1, 2)


def test_the_errors_of_an_item_are_still_counted_after_a_restart(tmp_path: Path) -> None:
    for errors in range(3):
        with journaled(tmp_path) as queue:
            queue.put(b"1")
            item = opened(queue.reader())
            assert (item.xid, item.error_count) == (1, errors)
            queue.reader().unget(item)


def test_an_error_handler_may_swallow_an_item(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes, int]] = []

    def handle(reader: JournalReader, item: QItem) -> bool:
        seen.append((reader.name, item.data, item.error_count))
        return item.error_count >= 3

    with journaled(tmp_path) as queue:
        reader = queue.reader("client1", error_handler=handle)
        other = queue.reader("client2")
        queue.put_all(numbers(1, 2))
        for _ in range(3):
            reader.unget(opened(reader))
        assert seen == [("client1", b"1", 1), ("client1", b"1", 2), ("client1", b"1", 3)]
        assert read_all(reader) == [b"2"]
        assert read_all(other) == numbers(1, 2), "it is swallowed for one reader only"
    with journaled(tmp_path) as queue:
        assert read_all(queue.reader("client1")) == []


def test_an_error_handler_that_fails_has_not_swallowed_the_item(queue: JournaledQueue) -> None:
    def handle(reader: JournalReader, item: QItem) -> bool:
        raise ValueError("handler")

    reader = queue.reader(error_handler=handle)
    queue.put(b"1")
    with pytest.raises(ValueError, match="handler"):
        reader.unget(opened(reader))
    assert opened(reader).error_count == 1


def test_what_is_not_open_can_neither_be_committed_nor_returned(queue: JournaledQueue) -> None:
    asked: list[QItem] = []
    reader = queue.reader(error_handler=lambda _, item: bool(asked.append(item)))
    queue.put_all(numbers(1, 2))
    item = opened(reader)
    reader.commit(item)
    reader.commit(item)
    reader.unget(item)
    assert asked == []
    assert read_all(reader) == [b"2"]


def test_a_peek_leaves_the_item(queue: JournaledQueue) -> None:
    queue.put_all(numbers(1, 4))
    reader = queue.reader()
    peeked = reader.peek()
    assert peeked is not None
    assert (peeked.data, peeked.xid) == (b"1", 0)
    assert opened(reader).xid == 1


def test_after_a_kill_a_reader_goes_on_where_it_had_committed(tmp_path: Path) -> None:
    program = (
        "import sys; from kestreld.library import JournaledQueue\n"
        "q = JournaledQueue(sys.argv[1], 'test'); q.put_all([b'%d' % n for n in range(1, 8)])\n"
        "a, b = q.reader('a'), q.reader('b'); q.put(b'8')\n"
        "for n in range(3): a.commit(a.get())\n"
        "a.get(); b.get(); print('done', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        with pytest.raises(SpoolLocked):
            JournaledQueue(str(tmp_path), "test")
        process.send_signal(signal.SIGKILL)
    with journaled(tmp_path) as queue:
        assert read_all(queue.reader("a")) == numbers(4, 8)
        assert read_all(queue.reader("b")) == [b"8"]


# Expiry


def test_old_items_expire(queue: JournaledQueue) -> None:
    reader = queue.reader()
    queue.put(b"1", at_ms(-5000))
    assert reader.figures.expired_items == 0
    queue.put(b"2")
    assert opened(reader).xid == 2
    assert reader.figures.expired_items == 1


def test_expired_items_are_sent_to_the_callback(queue: JournaledQueue, caplog: pytest.LogCaptureFixture) -> None:
    received: list[tuple[str, bytes]] = []
    come = threading.Event()

    def expired(reader: JournalReader, item: QItem) -> None:
        received.append((reader.name, item.data))
        come.set()
        raise ValueError("callback")

    reader = queue.reader(on_expired=expired)
    for data in (b"dead!", b"dead too"):
        come.clear()
        queue.put(data, at_ms(-1))
        assert reader.get() is None
        assert come.wait(LONG_S)
    assert received == [("", b"dead!"), ("", b"dead too")]
    queue.close()
    assert "ValueError: callback" in caplog.text


def test_the_number_of_expirations_in_a_sweep_is_limited(queue: JournaledQueue) -> None:
    queue.put_all(numbers(1, 10))
    reader = queue.reader("", QueueConfig(max_age_ms=1))
    threading.Event().wait(0.005)
    assert reader.discard_expired(3) == 3
    assert len(reader) == 7
    assert queue.discard_expired() == 7
    assert len(reader) == 0


def test_the_readers_own_expiration_is_honoured(queue: JournaledQueue) -> None:
    patient = queue.reader("patient")
    hasty = queue.reader("hasty", QueueConfig(max_age_ms=1))
    queue.put(b"hi")
    threading.Event().wait(0.01)
    assert hasty.get() is None
    assert read_all(patient) == [b"hi"]


# Journals


def test_journals_are_archived(tmp_path: Path) -> None:
    spool, archive = tmp_path / "spool", tmp_path / "archive"
    with journaled(spool, archive_path=str(archive), max_journal_size_bytes=1000) as queue:
        for number in range(40):
            queue.put(b"%d" % number * 50)
        read_all(queue.reader())
        while len(list((spool / "test.journal").glob("*.seg"))) > 2:  # they go once the next is on disk
            queue._spool.worker.at(0, queue._spool._look_after)
            threading.Event().wait(0.01)
        with pytest.raises(SpoolUnusable, match=r"already archives to .*archive, not to /elsewhere"):
            JournaledQueue(str(spool), "other", archive_path="/elsewhere")
    reports = list(verify_spool(FileLayer(), str(archive)))
    assert len(reports) > 3
    assert [report.reason for report in reports if report.bad_offset is not None] == []


def test_journals_are_erased_when_asked(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.reader("a"), queue.reader("b")
        queue.put(b"1")
        queue.erase()
        assert queue.is_closed
        assert not queue.put(b"2")
        assert not (tmp_path / "test.journal").exists()
    with journaled(tmp_path) as queue:
        assert (queue.readers, queue.reader().get()) == (("",), None)


def test_it_exists_without_a_journal(tmp_path: Path) -> None:
    with journaled(tmp_path, journal=False) as queue:
        queue.put_all([b"first post", b"laggy"])
        assert data_of(queue.reader().get()) == b"first post"
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with journaled(tmp_path, journal=False) as queue:
        assert queue.reader().get() is None


def test_what_it_wrote_is_a_journal_of_the_servers(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put_all(numbers(1, 10))
        queue.reader("a").commit(opened(queue.reader("a")))
        queue.reader("b").unget(opened(queue.reader("a")))
    assert [report.reason for report in verify_spool(FileLayer(), str(tmp_path)) if report.bad_offset is not None] == []
    child = PersistentQueue(str(tmp_path), "test+a")
    child.setup()
    assert [item.data for item in child.remove_all(100)] == numbers(2, 10)
    child.close()


# Putting


def test_it_can_put_and_get(queue: JournaledQueue) -> None:
    assert queue.put(b"hi")
    assert opened(queue.reader()).data == b"hi"
    assert queue.reader().figures.put_items == 1


def test_it_discards_old_entries(tmp_path: Path) -> None:
    with journaled(tmp_path, max_items=1, discard_old_when_full=True) as queue:
        reader = queue.reader()
        assert [queue.put(data) for data in (b"hi", b"scoot over")] == [True, True]
        assert len(reader) == 1
        assert opened(reader).data == b"scoot over"
        assert (reader.figures.put_items, reader.figures.discarded_items) == (2, 1)


def test_it_enters_read_behind(tmp_path: Path) -> None:
    with journaled(tmp_path, max_memory_size_bytes=4096) as queue:
        for number in range(1, 9):
            queue.put(b"x" * 1024)
            figures = queue.reader().figures
            assert (figures.items, figures.data_bytes) == (number, 1024 * number)
            assert (figures.memory_items, figures.memory_bytes) == (min(4, number), min(4, number) * 1024)


def test_items_that_are_too_large_are_refused(tmp_path: Path) -> None:
    with journaled(tmp_path, max_item_size_bytes=1024) as queue:
        assert not queue.put(b"x" * 1025)
        assert queue.put(b"x" * 1024)


@pytest.mark.parametrize("limit", [{"max_items": 3}, {"max_size_bytes": 3 * 1024}])
def test_limits_are_honoured(tmp_path: Path, limit: dict[str, int]) -> None:
    with journaled(tmp_path, discard_old_when_full=True, **limit) as queue:
        for number in range(1, 6):
            queue.put(bytes([number]) * 1024)
        assert [data[0] for data in read_all(queue.reader())] == [3, 4, 5]


def test_two_readers_can_be_configured_differently(queue: JournaledQueue) -> None:
    big, small = queue.reader("big"), queue.reader("small", QueueConfig(max_memory_size_bytes=1024))
    queue.put_all([b"x" * 512] * 5)
    assert (big.figures.memory_items, small.figures.memory_items) == (5, 2)
    assert (len(big), len(small)) == (5, 5)


def test_a_full_reader_refuses_for_all_and_one_that_discards_does_not(queue: JournaledQueue) -> None:
    plain = queue.reader("plain")
    queue.reader("last", QueueConfig(max_items=1, discard_old_when_full=True))
    assert [queue.put(data) for data in numbers(1, 3)] == [True] * 3
    queue.reader("full", QueueConfig(max_items=1))
    assert [queue.put(data) for data in numbers(4, 5)] == [True, False]
    assert read_all(plain) == numbers(1, 4)
    assert read_all(queue.reader("last")) == [b"4"]


def test_items_are_flushed(queue: JournaledQueue) -> None:
    first, second = queue.reader("first"), queue.reader("second")
    queue.put_all(numbers(1, 4))
    item = opened(first)
    assert first.flush() == 3
    assert first.get() is None
    first.unget(item)
    assert read_all(first) == [b"1"], "an open read stays"
    assert read_all(second) == numbers(1, 4)


def test_items_are_flushed_from_read_behind(tmp_path: Path) -> None:
    with journaled(tmp_path, max_memory_size_bytes=1024) as queue:
        reader = queue.reader()
        queue.put_all([b"x" * 512] * 5)
        assert reader.figures.memory_items < len(reader)
        assert reader.flush() == 5
        assert (len(reader), reader.get()) == (0, None)
        queue.put(b"1")
        assert read_all(reader) == [b"1"]


def test_age_is_tracked(queue: JournaledQueue) -> None:
    reader = queue.reader()
    queue.put_all([b"commie", b"spooky"])
    threading.Event().wait(0.015)
    assert reader.figures.age_ms == 0
    reader.commit(opened(reader))
    assert reader.figures.age_ms >= 15
    reader.commit(opened(reader))
    assert reader.figures.age_ms == 0


# Waiting


def test_a_get_waits_for_an_item_until_its_deadline(queue: JournaledQueue) -> None:
    reader = queue.reader()
    assert reader.get(at_ms(5)) is None
    assert reader.peek(at_ms(5)) is None
    putting = threading.Timer(0.01, queue.put, [b"1"])
    putting.start()
    assert data_of(reader.get(at_ms(LONG_MS))) == b"1"
    putting.join()


def test_an_answer_comes_at_once_or_later_or_never(queue: JournaledQueue) -> None:
    reader = queue.reader()
    never, later, cancelled = reader.get_later(at_ms(1)), reader.get_later(), reader.get_later()
    assert never.result(LONG_S) is None
    assert cancelled.cancel()
    assert reader.waiters == 1
    called: list[bytes | None] = []
    told = threading.Event()
    later.add_done_callback(lambda answer: (called.append(data_of(answer.result())), told.set()))
    queue.put_all(numbers(1, 2))
    assert told.wait(LONG_S)
    assert called == [b"1"]
    now = reader.get_later()
    assert now.done()
    assert data_of(now.result()) == b"2"


def test_a_callback_may_use_the_queue(queue: JournaledQueue) -> None:
    reader, done = queue.reader(), threading.Event()

    def react(item: QItem | None) -> None:
        assert item is not None
        reader.commit(item)
        queue.put(b"2")
        done.set()

    reader.get_later().add_done_callback(lambda answer: react(answer.result()))
    queue.put(b"1")
    assert done.wait(LONG_S)
    assert read_all(reader) == [b"2"]


def test_a_coroutine_that_is_cancelled_when_its_answer_is_there_leaves_the_item(queue: JournaledQueue) -> None:
    reader = queue.reader("audit")

    async def receive() -> None:
        waiting = asyncio.ensure_future(reader.get_later())
        await asyncio.sleep(0)
        queue.put(b"1")
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(receive())
    assert data_of(reader.get(at_ms(LONG_MS))) == b"1"


def test_a_coroutine_waits_for_an_item_and_one_that_is_cancelled_takes_nothing(queue: JournaledQueue) -> None:
    reader = queue.reader()

    async def receive() -> QItem | None:
        cancelled = asyncio.create_task(reader.get_async())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        waiting = asyncio.create_task(reader.get_async(at_ms(LONG_MS)))
        await asyncio.sleep(0)
        queue.put(b"1")
        return await waiting

    assert data_of(asyncio.run(receive())) == b"1"


def test_closing_sends_those_who_wait_away_and_returns_open_reads(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        reader = queue.reader()
        queue.put(b"1")
        item, waiting = opened(reader), reader.get_later()
        queue.close()
        assert waiting.result(LONG_S) is None
        reader.commit(item)
        assert (reader.get(), queue.put(b"2"), queue.drop_reader("")) == (None, False, False)
        with pytest.raises(ReaderUnknown, match="test is closed"):
            queue.reader()
    with journaled(tmp_path) as queue:
        assert read_all(queue.reader()) == [b"1"]


def test_many_threads_put_while_readers_come_and_go(tmp_path: Path) -> None:
    with journaled(tmp_path, sync_journal_ms=0) as queue:

        def put(writer: int) -> None:
            for number in range(20):
                assert queue.put(b"%d %d" % (writer, number))

        putting = [threading.Thread(target=put, args=(writer,)) for writer in range(3)]
        for thread in putting:
            thread.start()
        first = queue.reader("first")
        queue.reader("second")
        queue.drop_reader("second")
        for thread in putting:
            thread.join()
        assert sorted(read_all(first)) == sorted(b"%d %d" % (w, n) for w in range(3) for n in range(20))
