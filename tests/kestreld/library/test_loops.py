"""`with`, loops and blocks of durable queues: what is done when, what returns, and warnings of what is not closed."""

import asyncio
import gc
import queue as standard
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kestreld.errors import QueueClosed
from kestreld.library import PersistentQueue, QueueConfig
from tests.support.library import LONG_S, at_ms, journaled

FIRST = [b"1", b"2", b"3"]


class Durable:
    """One of several kinds with the three items, and how its items are looked at."""

    def __init__(self, queue: Any, close: Callable[[], None], data: Callable[[Any], bytes]) -> None:
        self.queue = queue
        self.close = close
        self.data = data


@pytest.fixture(params=["persistent", "reader", "blocking"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Durable]:
    if request.param == "persistent":
        with PersistentQueue(str(tmp_path), "work") as queue:
            queue.add_all(FIRST)
            yield Durable(queue, queue.close, lambda item: item.data)
        return
    with journaled(tmp_path) as family:
        family.put_all(FIRST)
        if request.param == "reader":
            yield Durable(family.reader(), family.close, lambda item: item.data)
        else:
            yield Durable(family.to_blocking_queue(), family.close, bytes)


def test_an_item_of_a_loop_is_done_when_the_next_is_asked_for(durable: Durable) -> None:
    seen = []
    for item in durable.queue:
        seen.append(durable.data(item))
        assert durable.queue.figures.open_items == 1
        if len(seen) == 3:
            durable.close()
    assert seen == FIRST


def test_leaving_a_loop_gives_the_item_back_at_once(durable: Durable) -> None:
    for item in durable.queue:
        if durable.data(item) == b"2":
            break
    assert len(durable.queue) == 2
    assert durable.queue.figures.open_items == 0
    assert durable.data(durable.queue.get_nowait()) == b"2"


def test_an_exception_in_a_loop_gives_the_item_back_and_counts_no_error(durable: Durable) -> None:
    def work() -> None:
        for _ in durable.queue:
            raise OSError("not today")

    with pytest.raises(OSError, match="not today"):
        work()
    item = durable.queue.get_nowait()
    assert durable.data(item) == b"1"
    assert getattr(item, "error_count", 0) == 0


def test_what_a_loop_has_left_comes_to_who_waits_already(tmp_path: Path) -> None:
    with PersistentQueue(str(tmp_path), "work") as queue:
        queue.add(b"one")
        loop = iter(queue)
        assert next(loop).data == b"one"
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(queue.remove_receive(timeout=LONG_S)), daemon=True)
        waiting.start()
        while queue.figures.waiters == 0:
            pass
        del loop
        waiting.join(LONG_S)
        assert found[0].data == b"one"


def test_a_loop_that_is_garbage_in_the_middle_of_the_engines_work_gives_its_item_back(tmp_path: Path) -> None:
    with PersistentQueue(str(tmp_path), "work") as queue:
        queue.add(b"one")
        cycle: list[Any] = [iter(queue)]
        assert next(cycle[0]).data == b"one"
        cycle.append(cycle)
        with queue._spool.lock:
            del cycle
            gc.collect()
        assert queue.remove_receive(timeout=LONG_S) is not None


def test_an_item_that_the_body_gave_back_and_another_has_opened_is_not_done_with_the_loop(tmp_path: Path) -> None:
    with journaled(tmp_path) as family:
        family.put_all(FIRST[:2])
        reader = family.reader()
        loop = iter(reader)
        first = next(loop)
        reader.unget(first)
        again = reader.get()
        assert again is not None
        assert again.xid == first.xid
        assert next(loop).data == b"2"
        reader.unget(again)
        assert reader.peek() is not None


def test_a_coroutine_loops_over_items_that_are_done_one_by_one(durable: Durable) -> None:
    seen = []

    async def main() -> None:
        async for item in durable.queue:
            seen.append(durable.data(item))
            if len(seen) == 2:
                break
        assert len(durable.queue) == 2
        async for item in durable.queue:
            seen.append(durable.data(item))
            if len(seen) == 4:
                durable.close()

    asyncio.run(main())
    assert seen == [b"1", b"2", b"2", b"3"]


def test_an_item_for_a_block_is_done_when_it_succeeds_and_the_head_when_it_raises(tmp_path: Path) -> None:
    with journaled(tmp_path) as family, PersistentQueue(str(tmp_path), "work") as persistent:
        family.put_all(FIRST[:2])
        persistent.add_all(FIRST[:2])
        for queue, errors in ((family.reader(), 1), (persistent, 0)):
            with pytest.raises(OSError), queue.read() as item:
                raise OSError
            with queue.read(timeout=1) as item:
                assert item is not None
                assert (item.data, item.error_count) == (b"1", errors)
            with queue.read(at_ms(1000)) as item:
                assert item is not None
                assert item.data == b"2"
            with queue.read() as item:
                assert item is None
            assert queue.figures.open_items == 0


def test_a_transaction_for_a_block_is_committed_or_rolled_back(tmp_path: Path) -> None:
    with journaled(tmp_path) as family:
        mails = family.to_transactional_blocking_queue()
        mails.put(b"one")
        with pytest.raises(OSError), mails.get_nowait():
            raise OSError
        with mails.get_nowait() as item:
            assert item == b"one"
        assert (len(mails), mails.figures.open_items) == (0, 0)


def test_the_names_of_queue_queue(tmp_path: Path) -> None:
    with PersistentQueue(str(tmp_path), "work", QueueConfig(max_items=1)) as queue:
        assert (queue.qsize(), queue.empty()) == (0, True)
        with pytest.raises(standard.Empty):
            queue.get_nowait()
        queue.put_nowait(b"one")
        with pytest.raises(standard.Full, match="full, or the item is too large"):
            queue.put_nowait(b"two")
        assert queue.get_nowait().data == b"one"
    with pytest.raises(QueueClosed):
        queue.put_nowait(b"three")


def test_figures_have_hits_misses_and_ages(tmp_path: Path) -> None:
    with PersistentQueue(str(tmp_path), "work") as queue:
        assert queue.remove() is None
        assert queue.remove(True) is None
        assert queue.remove_receive(timeout=0.001) is None
        assert queue.peek() is None
        queue.add_all(FIRST)
        queue.remove()
        queue.remove(True)
        assert (queue.figures.hits, queue.figures.misses, queue.figures.items) == (2, 3, 1)
        threading.Event().wait(0.003)
        assert queue.figures.oldest_ms >= 2
        queue.flush()
        queue.add(b"late", at_ms(1))
        threading.Event().wait(0.003)
        assert queue.discard_expired() == 1
        assert queue.figures.expired_items == 1


def test_a_repr_says_which_queue_it_is_and_what_is_in_it(tmp_path: Path) -> None:
    queue = PersistentQueue(str(tmp_path), "work")
    assert repr(queue) == f"<PersistentQueue 'work' in {str(tmp_path)!r}, not set up>"
    with queue:
        queue.add_all(FIRST)
        queue.remove(True)
        assert repr(queue).endswith(": 2 items, 1 open, 0 waiters>")
    assert repr(queue).endswith(", closed>")
    with journaled(tmp_path) as family:
        reader = family.reader("audit")
        assert repr(family) == f"<JournaledQueue 'test' in {str(tmp_path)!r}: readers 'audit'>"
        assert repr(reader) == "<JournalReader 'test+audit': 0 items, 0 open, 0 waiters>"
    assert repr(family).endswith(", closed>")


def warned(tmp_path: Path, program: str) -> str:
    """What a program with these lines says on stderr."""
    head = "import sys\nfrom kestreld.library import *\n"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", head + program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_queue_that_is_not_closed_is_warned_of(tmp_path: Path) -> None:
    at_end = "queue = PersistentQueue(sys.argv[1], 'work')\nqueue.setup()\n"
    assert "ResourceWarning: unclosed PersistentQueue 'work' in " in warned(tmp_path, at_end)
    dropped = "import time\nJournaledQueue(sys.argv[1], 'work')\ntime.sleep(0.2)\nprint('on', file=sys.stderr)"
    said = warned(tmp_path, dropped)
    assert 0 <= said.find("ResourceWarning: unclosed JournaledQueue 'work' in ") < said.find("on\n")


def test_a_queue_that_is_closed_or_was_never_open_is_not(tmp_path: Path) -> None:
    program = """
PersistentQueue(sys.argv[1], 'never')
with PersistentQueue(sys.argv[1], 'work') as queue:
    for item in queue if queue.add(b'one') else ():
        break
with JournaledQueue(sys.argv[1], 'family') as family:
    family.put(b'one')
    family.to_blocking_queue().get()
memory = SimpleBlockingQueue()
memory.put(1)
"""
    assert warned(tmp_path, program) == ""


def test_a_reader_keeps_its_queue(tmp_path: Path) -> None:
    program = """
import gc, time
reader = JournaledQueue(sys.argv[1], 'work').reader('audit')
gc.collect()
time.sleep(0.1)
print(len(reader), file=sys.stderr)
"""
    said = warned(tmp_path, program)
    assert said.startswith("0\n")
    assert "ResourceWarning: unclosed JournaledQueue" in said
