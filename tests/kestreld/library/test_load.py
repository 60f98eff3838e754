"""The load tests of Kestrel and libkestrel on the library's queues, in threads, and on a server: flood, put, timeout,
many-clients. Every item has to arrive once and intact, and each writer's in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from kestreld.client import ClusterQueue, KestrelCluster
from kestreld.library import BlockingQueue, ConcurrentBlockingQueue, PersistentQueue, SimpleBlockingQueue
from tests.support.daemon import running_daemon
from tests.support.thread_load import LoadQueue, ThreadLoad

GOOD = "each once and intact"


def at_ms(ms_from_now: int) -> int:
    return time.time_ns() // 1_000_000 + ms_from_now


class InMemory:
    def __init__(self, queue: BlockingQueue[bytes]) -> None:
        self._queue = queue
        self.put = queue.put

    def get(self, wait_ms: int) -> bytes | None:
        return self._queue.get(at_ms(wait_ms)).result() if wait_ms else self._queue.poll()


class Journaled:
    def __init__(self, queue: PersistentQueue) -> None:
        self._queue = queue
        self.put = queue.add

    def get(self, wait_ms: int) -> bytes | None:
        item = self._queue.remove_receive(at_ms(wait_ms)) if wait_ms else self._queue.remove()
        return None if item is None else item.data


class Reliable(Journaled):
    def get(self, wait_ms: int) -> bytes | None:
        item = self._queue.remove_receive(at_ms(wait_ms), transaction=True)
        if item is None:
            return None
        self._queue.confirm_remove(item.xid)
        return item.data


class OnServer:
    def __init__(self, queue: ClusterQueue) -> None:
        self.put = queue.put
        self.get = queue.get


@contextmanager
def in_memory(kind: Callable[[], BlockingQueue[bytes]]) -> Iterator[LoadQueue]:
    yield InMemory(kind())


@contextmanager
def journaled(folder: Path, kind: type[Journaled]) -> Iterator[LoadQueue]:
    queue = PersistentQueue(str(folder), "work")
    queue.setup()
    try:
        yield kind(queue)
    finally:
        queue.close()


@contextmanager
def on_server(folder: Path) -> Iterator[LoadQueue]:
    with running_daemon(folder) as daemon, KestrelCluster([daemon.address]) as cluster:
        yield OnServer(cluster.queue("work"))


KINDS: dict[str, Callable[[Path], AbstractContextManager[LoadQueue]]] = {
    "simple": lambda folder: in_memory(SimpleBlockingQueue[bytes]),
    "concurrent": lambda folder: in_memory(ConcurrentBlockingQueue[bytes]),
    "journaled": lambda folder: journaled(folder, Journaled),
    "journaled, with transactions": lambda folder: journaled(folder, Reliable),
    "server": on_server,
}


@pytest.fixture(params=KINDS)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoadQueue]:
    with KINDS[request.param](tmp_path) as queue:
        yield queue


def test_flood(queue: LoadQueue) -> None:
    verdict = ThreadLoad(queue, 100).flood(writers=3, readers=3, items=500)
    assert GOOD in verdict.words()
    assert verdict.stored == 1500


def test_flood_of_a_queue_that_stays_short(queue: LoadQueue) -> None:
    verdict = ThreadLoad(queue, 0).flood(writers=2, readers=4, items=50, poll_percent=0, target=3)
    assert GOOD in verdict.words()
    assert verdict.stored == 100


def test_put(queue: LoadQueue) -> None:
    verdict = ThreadLoad(queue, 64).put(threads=8, items=50, cycles=2)
    assert GOOD in verdict.words()
    assert verdict.stored == 800


def test_timeout(queue: LoadQueue) -> None:
    load = ThreadLoad(queue, 0)
    assert GOOD in load.timeout(writers=1, readers=30, run_ms=200, delay_ms=10, low_ms=5, high_ms=15).words()


def test_many_clients(queue: LoadQueue) -> None:
    verdict = ThreadLoad(queue, 1000).many_clients(clients=30, items=50, sleep_ms=2, wait_ms=200)
    assert GOOD in verdict.words()
    assert verdict.stored == 50


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(900)
def test_a_long_flood(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](tmp_path) as queue:
        verdict = ThreadLoad(queue, 1024).flood(writers=4, readers=4, items=20_000)
    print(f"{kind}: {verdict.words()}")
    assert GOOD in verdict.words()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_put_timeout_and_many_clients_of_the_originals_size(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](tmp_path) as queue:
        for verdict in (
            ThreadLoad(queue, 1024, seed=1).put(threads=100, items=100, cycles=3),
            ThreadLoad(queue, 0, seed=2).timeout(
                writers=1, readers=100, run_ms=10_000, delay_ms=10, low_ms=5, high_ms=15
            ),
            ThreadLoad(queue, 0, seed=3).many_clients(clients=100, items=100, sleep_ms=100),
        ):
            print(f"{kind}: {verdict.words()}")
            assert GOOD in verdict.words()


def test_the_account_sees_what_is_lost_doubled_damaged_and_out_of_order() -> None:
    class Bad(InMemory):
        def __init__(self) -> None:
            super().__init__(SimpleBlockingQueue())
            self._count = 0
            self.put = self.spoil

        def spoil(self, item: bytes) -> bool:
            self._count += 1
            if self._count == 7:
                return True
            if self._count == 9:
                self._queue.put(item)
            return self._queue.put(item[:-1] + b"!" if self._count == 11 else item)

    verdict = ThreadLoad(Bad(), 64, quiet_s=0).put(threads=1, items=20, cycles=1)
    assert (verdict.lost, verdict.doubled, verdict.damaged) == (2, 1, 1)


WORK = """
import os, sys, threading
from kestreld.library import PersistentQueue
queue = PersistentQueue(sys.argv[1], "work")
queue.setup()
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def write(writer):
    number = 0
    while True:
        assert queue.add(b"%d %d" % (writer, number))
        say("answered", writer, number)
        number += 1
def read():
    while True:
        item = queue.remove_receive(1 << 42, True)
        queue.confirm_remove(item.xid)
        say("done", item.data.decode())
for work in (*[lambda writer=writer: write(writer) for writer in range(4)], read, read):
    threading.Thread(target=work).start()
"""


def test_what_threads_were_answered_before_a_kill_is_there_for_the_next_process(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(500)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
    said = [line.split() for line in lines if line.endswith("\n")]
    answered = {(int(writer), int(number)) for what, writer, number in said if what == "answered"}
    done = {(int(writer), int(number)) for what, writer, number in said if what == "done"}
    queue = PersistentQueue(str(tmp_path), "work")
    queue.setup()
    found = [(int(writer), int(number)) for writer, number in (item.data.split() for item in queue.remove_all(1 << 30))]
    queue.close()
    assert len(found) == len(set(found))
    assert not done & set(found)
    assert len(answered - done - set(found)) <= 2  # confirmed, and the reader had not said so yet
    assert len(set(found) - answered) <= 4  # written, and not answered yet
    for writer in range(4):
        numbers = [number for of, number in found if of == writer]
        assert all(number < later for number, later in pairwise(numbers))
