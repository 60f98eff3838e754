"""A durable queue between processes: the kestreld of its spool is joined, started where none runs, killed at times."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kestreld.daemon import ExitCode
from kestreld.errors import BadQueueName, ConnectionLost, SpoolLocked, SpoolUnusable
from kestreld.library import PersistentQueue, QItem
from kestreld.library.shared_queue import SharedQueue, open_shared
from kestreld.library.shared_spool import EXIT_SPOOL_LOCKED
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shared_spools import end_server, new_spool, server_pid

LONG_MS = 60_000  # no test waits so long
BEFORE_A_KILL = 40  # of the items of each writer


def at_ms(ms_from_now: int) -> int:
    return time.time_ns() // 1_000_000 + ms_from_now


@pytest.fixture
def spool() -> Iterator[Path]:
    with new_spool() as spool:
        yield spool


@pytest.fixture(scope="module")
def common_spool() -> Iterator[Path]:
    with new_spool() as spool:
        yield spool


@contextmanager
def opened(spool: Path, name: str = "work") -> Iterator[SharedQueue]:
    queue = open_shared(str(spool), name)
    try:
        yield queue
    finally:
        queue.close()


@pytest.fixture
def queue(common_spool: Path, request: pytest.FixtureRequest) -> Iterator[SharedQueue]:
    with opened(common_spool, re.sub(r"\W", "_", request.node.name)) as queue:
        yield queue


def data_of(item: QItem | None) -> bytes | None:
    return None if item is None else item.data


def drained(queue: SharedQueue) -> list[bytes]:
    return [item.data for item in queue.remove_all(1_000_000)]


def program(body: str, spool: Path, *arguments: str) -> "subprocess.Popen[str]":
    """A process of its own with the queue `work` of the spool as `queue`."""
    text = (
        "import sys, time; from kestreld.library.shared_queue import open_shared\n"
        "from kestreld.errors import ConnectionLost\n"
        f"queue = open_shared(sys.argv[1], 'work')\n{body}"
    )
    return subprocess.Popen([sys.executable, "-c", text, str(spool), *arguments], stdout=subprocess.PIPE, text=True)


# As a PersistentQueue


def test_items_are_added_seen_and_removed(queue: SharedQueue) -> None:
    assert [queue.add(data) for data in (b"1", b"2", b"3")] == [True] * 3
    assert len(queue) == 3
    assert data_of(queue.peek()) == b"1"
    assert queue.remove() == QItem(0, 0, b"1", 0)
    assert drained(queue) == [b"2", b"3"]
    assert queue.remove() is None
    assert queue.add_all([b"4", b"5"]) == 2
    assert data_of(queue.remove_all(1)[0]) == b"4"


def test_an_item_expires(queue: SharedQueue) -> None:
    queue.add(b"stale", at_ms(-1))
    queue.add(b"fresh", at_ms(LONG_MS))
    assert drained(queue) == [b"fresh"]


def test_transactions_each_have_their_own_end(queue: SharedQueue) -> None:
    queue.add_all([b"house", b"cat", b"dog"])
    xids = [item.xid for _ in range(3) if (item := queue.remove(transaction=True)) is not None]
    assert queue.remove() is None
    queue.unremove(xids[1])
    queue.confirm_remove(xids[0])
    queue.confirm_remove(xids[0])
    queue.unremove(xids[2])
    assert sorted(drained(queue)) == [b"cat", b"dog"]


def test_a_flush_drops_what_waits_and_not_what_is_set_aside(queue: SharedQueue) -> None:
    queue.add_all([b"1", b"2"])
    item = queue.remove(transaction=True)
    assert item is not None
    queue.flush()
    assert len(queue) == 0
    queue.unremove(item.xid)
    assert drained(queue) == [b"1"]


@pytest.mark.parametrize(("value", "expiry"), [("text", 0), (None, 0), (b"1", 1e12)])
def test_what_is_no_item_is_an_error_and_changes_nothing(queue: SharedQueue, value: Any, expiry: Any) -> None:
    with pytest.raises(TypeError, match=r"item must be bytes, not|expiry must be an int"):
        queue.add(value, expiry)
    assert queue.add(bytearray(b"1"))
    assert drained(queue) == [b"1"]


def test_a_timed_remove_gets_what_is_added_meanwhile(queue: SharedQueue) -> None:
    adding = threading.Timer(0.05, queue.add, [b"hello"])
    adding.start()
    assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"hello"
    adding.join()
    assert queue.remove_receive(at_ms(20)) is None
    assert queue.peek_receive(at_ms(-20)) is None


def reaction(start: Callable[[Callable[[QItem | None], None]], None], then: Callable[[], object]) -> QItem | None:
    """What a callback is called with, which is on the queue's own thread."""
    outcome: list[tuple[QItem | None, str]] = []
    called = threading.Event()

    def react(item: QItem | None) -> None:
        outcome.append((item, threading.current_thread().name))
        called.set()

    start(react)
    then()
    assert called.wait(LONG_MS / 1000)
    ((item, thread),) = outcome
    assert thread.startswith("queues in ")
    return item


def test_a_callback_gets_the_item_on_the_queues_own_thread(queue: SharedQueue) -> None:
    item = reaction(lambda react: queue.remove_react(at_ms(LONG_MS), True, react), lambda: queue.add(b"1"))
    assert item is not None
    queue.unremove(item.xid)
    assert data_of(reaction(lambda react: queue.peek_react(0, react), lambda: None)) == b"1"
    assert data_of(reaction(lambda react: queue.remove_react(0, False, react), lambda: None)) == b"1"
    assert reaction(lambda react: queue.remove_react(at_ms(5), True, react), lambda: None) is None


def test_coroutines_wait_side_by_side(queue: SharedQueue) -> None:
    async def receive() -> list[bytes | None]:
        waiting = [asyncio.create_task(queue.remove_async(at_ms(LONG_MS))) for _ in range(2)]
        await asyncio.sleep(0)
        queue.add_all([b"1", b"2"])
        got = sorted([data_of(item) or b"" for item in await asyncio.gather(*waiting)])
        queue.add(b"3")
        return [*got, data_of(await queue.peek_async(at_ms(LONG_MS)))]

    assert asyncio.run(receive()) == [b"1", b"2", b"3"]
    assert drained(queue) == [b"3"]


def test_a_coroutine_that_is_cancelled_takes_nothing(common_spool: Path, queue: SharedQueue) -> None:
    async def cancel() -> None:
        waiting = asyncio.create_task(queue.remove_async(at_ms(100 * LONG_MS)))
        with QueueClient(f"unix:{common_spool}/.socket") as client:
            while client.queue_stats(queue.name).get("waiters") != "1":
                await asyncio.sleep(0)
            waiting.cancel()
            while client.queue_stats(queue.name)["waiters"] != "0":
                await asyncio.sleep(0)
        await asyncio.gather(waiting, return_exceptions=True)
        queue.add(b"1")
        # Served, and cancelled before it learns of it.
        waiting = asyncio.create_task(queue.remove_async(at_ms(LONG_MS)))
        await asyncio.sleep(0)
        while len(queue):
            pass
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(cancel())
    assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"1"


def test_closing_sends_those_who_wait_away_and_returns_open_reads(common_spool: Path, queue: SharedQueue) -> None:
    with opened(common_spool, queue.name) as other:
        other.add(b"1")
        other.remove(transaction=True)
        assert reaction(lambda react: other.remove_react(at_ms(LONG_MS), False, react), other.close) is None
        assert other.is_closed
        assert not other.add(b"2")
        assert other.remove() is None
        assert other.remove_receive(at_ms(LONG_MS)) is None
    assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"1"


# The server


def test_the_kestreld_that_serves_the_spool_is_joined(short_path: Path) -> None:
    with running_daemon(short_path, listen=f"unix:{short_path}/k.sock") as daemon:
        with opened(daemon.spool) as queue, QueueClient(daemon.address) as client:
            queue.add(b"1")
            assert client.get("work") == b"1"
        assert server_pid(daemon.spool) == daemon.pid
        assert daemon.stop() == 0


def test_a_server_without_a_unix_socket_cannot_be_joined(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, pytest.raises(SpoolUnusable, match=f"pid {daemon.pid}.*listen.memcache"):
        open_shared(str(daemon.spool), "work")


def test_a_program_that_has_the_spool_to_itself_is_named(spool: Path) -> None:
    alone = PersistentQueue(str(spool), "work")
    alone.setup()
    with pytest.raises(SpoolLocked, match=f"in use by pid {os.getpid()}"):
        open_shared(str(spool), "work", patience_ms=0)
    alone.add(b"1")
    alone.close()
    with opened(spool) as queue:
        assert drained(queue) == [b"1"]


def test_a_server_that_cannot_start_says_why(spool: Path, tmp_path: Path) -> None:
    config = tmp_path / "kestreld.yaml"
    config.write_text("queue: {}\n")
    with pytest.raises(SpoolUnusable, match=r"kestreld exited with code 78: .*kestreld.yaml:1"):
        open_shared(str(spool), "work", config_path=str(config))
    config.write_text("queues: {work: {max_items: 1}}\n")
    queue = open_shared(str(spool), "work", config_path=str(config))
    assert [queue.add(b"1"), queue.add(b"2")] == [True, False]
    queue.close()
    assert ExitCode.SPOOL_LOCKED == EXIT_SPOOL_LOCKED


def test_a_path_that_no_socket_can_have_and_a_name_that_no_queue_can_have(tmp_path: Path) -> None:
    with pytest.raises(SpoolUnusable, match="too long for a Unix socket, by"):
        open_shared(f"{tmp_path}/{'x' * 100}", "work")
    with pytest.raises(BadQueueName):
        open_shared(str(tmp_path), "a/b")


def test_of_processes_that_race_to_start_the_server_one_does(spool: Path) -> None:
    racing = [program("print(queue.add(b'x'))", spool) for _ in range(4)]
    assert [process.communicate()[0] for process in racing] == ["True\n"] * 4
    log = (spool / ".kestreld.log").read_text()
    assert (log.count("ready"), log.count("\n")) == (1, 1)
    with opened(spool) as queue:  # it serves although who started it is gone
        assert drained(queue) == [b"x"] * 4
    end_server(spool, signal.SIGTERM)
    assert (spool / ".kestreld.log").read_text().endswith("kestreld: stopped\n")


def test_a_process_that_dies_gives_its_open_reads_back(spool: Path) -> None:
    with opened(spool) as queue:
        queue.add(b"1")
        body = "print(queue.remove(True).data, flush=True); time.sleep(60)"
        with program(body, spool) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "b'1'\n"
            process.kill()
        assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"1"


def test_what_a_dead_server_has_not_confirmed_is_an_error_and_comes_again(spool: Path) -> None:
    with opened(spool) as queue:
        queue.add_all([b"1", b"2"])
        first = queue.remove(transaction=True)
        assert first is not None
        end_server(spool)
        with pytest.raises(ConnectionLost):
            queue.confirm_remove(first.xid)
        assert drained(queue) == [b"1", b"2"]
        waiting = threading.Timer(0.05, lambda: (end_server(spool), queue.add(b"3")))
        waiting.start()
        assert data_of(queue.remove_receive(at_ms(LONG_MS))) == b"3"
        waiting.join()


WRITER = """
for number in range(int(sys.argv[3])):
    try:
        queue.add(b'%s %d' % (sys.argv[2].encode(), number))
        print('answered', sys.argv[2], number, flush=True)
    except ConnectionLost:
        print('unknown', sys.argv[2], number, flush=True)
"""
READER = """
while (item := queue.remove_receive(int(time.time() * 1000) + 60000, True)).data != b'end':
    print('came', item.data.decode(), flush=True)
    try:
        queue.confirm_remove(item.xid)
        print('done', item.data.decode(), flush=True)
    except ConnectionLost:
        pass
queue.confirm_remove(item.xid)
"""


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_four_processes_lose_nothing_while_their_server_is_killed(spool: Path, kills: int) -> None:
    each = 2 * BEFORE_A_KILL * (kills + 1)
    writers = [program(WRITER, spool, name, str(each)) for name in ("a", "b")]
    readers = [program(READER, spool) for _ in range(2)]
    first_lines = []
    for _ in range(kills):
        for process in writers:
            assert process.stdout is not None
            first_lines += [process.stdout.readline() for _ in range(BEFORE_A_KILL)]
        end_server(spool)
    written = "".join(first_lines + [process.communicate()[0] for process in writers]).splitlines()
    with opened(spool) as queue:
        for _ in readers:
            queue.add(b"end")
    read = [process.communicate()[0].splitlines() for process in readers]
    answered = {line.removeprefix("answered ") for line in written if line.startswith("answered ")}
    unknown = {line.removeprefix("unknown ") for line in written if line.startswith("unknown ")}
    assert len(answered) + len(unknown) == 2 * each
    came = [line.removeprefix("came ") for lines in read for line in lines if line.startswith("came ")]
    done = [line.removeprefix("done ") for lines in read for line in lines if line.startswith("done ")]
    assert answered <= set(came) <= answered | unknown
    assert len(done) == len(set(done))
    assert len(came) - len(set(came)) <= 2 * kills  # what was open when the server died
    for lines in read:
        for name in ("a", "b"):
            numbers = [int(line.split()[2]) for line in lines if line.startswith(f"done {name} ")]
            assert sum(later < earlier for earlier, later in pairwise(numbers)) <= kills
