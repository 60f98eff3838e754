"""How recipes are used: types, threads, forks, logins, and what is told of a server that is away."""

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kestreld.recipes import CacheAway, ConnectionLost, LockingQueue, LogQueue, RingQueue, Servers
from tests.support.cache_server import CacheProcess
from tests.support.forking import Child
from tests.support.process import stop

WAIT_S = 60

PROGRAM = """
from kestreld.recipes import LockingQueue, LogQueue, LogReader, MessagesMissed, Position, RingQueue, Servers, Sweeper


def told(missed: MessagesMissed) -> None:
    print(missed.count, missed.reason, missed.is_exact, missed.position)


with Servers(["127.0.0.1:11211", "unix:/run/memcached"], timeout=1.5) as servers:
    log = LogQueue(servers, "events", hole_timeout=0.5)
    position: Position = log.put(b"a")
    with log.claim(2) as claim, log.batch() as batch:
        claim.write(b"b")
        batch.put(b"c")
    reader: LogReader = log.reader(str(position), on_missed=told)
    for message in reader:
        plain: bytes = message
    maybe: bytes | None = RingQueue(servers, "ring", 8).reader().get(timeout=1.0)
    with LockingQueue(servers, "jobs").writing(timeout=1) as writer:
        writer.put(b"d")
    with Sweeper(log, "127.0.0.1:22133") as sweeper:
        moved: int = sweeper.sweep()
"""


@pytest.mark.long
def test_a_users_program_has_all_its_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    right = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    assert subprocess.run(right, capture_output=True, text=True, cwd=tmp_path).stdout.startswith("Success")
    program.write_text(PROGRAM.replace('"ring", 8', '"ring", "8"').replace("moved: int", "moved: str"))
    found = subprocess.run(right, capture_output=True, text=True, cwd=tmp_path).stdout
    assert "Found 2 errors" in found


def test_nothing_of_the_server_is_imported() -> None:
    program = "import sys, kestreld.recipes; print(*[name for name in sys.modules if name.startswith('kestreld.')])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    others = {name for name in loaded if not name.startswith("kestreld.recipes")}
    assert others == {"kestreld.checks", "kestreld.clock", "kestreld.errors", "kestreld.forks"}


def test_threads_share_a_queue(servers: Servers) -> None:
    log, queue = LogQueue(servers, "events"), LockingQueue(servers, "jobs")

    def put(thread: int) -> None:
        for number in range(20):
            log.put(b"%d %d" % (thread, number))
            queue.put(b"%d %d" % (thread, number))

    def take(thread: int) -> list[bytes]:
        return [message for _ in range(20) if (message := queue.get(timeout=WAIT_S)) is not None]

    with ThreadPoolExecutor(8) as threads:
        taken = threads.map(take, range(4))
        list(threads.map(put, range(4)))
    expected = Counter(b"%d %d" % (thread, number) for thread in range(4) for number in range(20))
    assert sum(map(Counter, taken), Counter[bytes]()) == expected
    assert Counter(log.reader().get_many()) == expected


def test_a_forked_child_goes_on_with_connections_of_its_own(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    log.put(b"0")
    children = [Child(lambda: [log.put(b"%d" % number).number for number in range(20)]) for _ in range(4)]
    numbers = [log.put(b"x").number for _ in range(20)]
    for child in children:
        numbers += child.result()
    assert sorted(numbers) == list(range(1, 101))


def test_a_server_that_is_away_is_named_and_used_again_when_it_is_back(servers: Servers, cache: CacheProcess) -> None:
    log, ring, queue = LogQueue(servers, "events"), RingQueue(servers, "ring", 4), LockingQueue(servers, "jobs")
    reader = log.reader()
    log.put(b"a")
    assert reader.get() == b"a"
    cache.stop()
    for use in (lambda: log.put(b"b"), reader.get, lambda: ring.put(b"b"), lambda: queue.put(b"b"), queue.get):
        with pytest.raises(CacheAway, match=rf"no memcached at {cache.address} \(.*refused\)"):
            use()
    cache.restart()
    assert log.put(b"c").number == 0


def test_a_server_that_does_not_answer_is_told_after_the_timeout(servers: Servers, cache: CacheProcess) -> None:
    with Servers(cache.address, timeout=WAIT_S) as patient, Servers(cache.address, timeout=0.1) as impatient:
        log = LogQueue(patient, "events")
        log.put(b"a")
        stop(cache.pid)
        (connection,) = patient.of(b"events")._idle
        connection.sock.settimeout(0.1)  # not before it has stopped: a busy machine answers late
        try:
            with pytest.raises(ConnectionLost, match="it may have executed the command"):
                log.put(b"b")
            with pytest.raises(CacheAway, match="timed out"):
                LogQueue(impatient, "events").put(b"c")
        finally:
            os.kill(cache.pid, signal.SIGCONT)


def test_one_server_has_queues_of_all_kinds_under_one_name(servers: Servers) -> None:
    log, ring, queue = LogQueue(servers, "x"), RingQueue(servers, "x", 4), LockingQueue(servers, "x")
    log.put(b"log")
    ring.put(b"ring")
    queue.put(b"queue")
    assert (log.reader().get(), ring.reader().get(), queue.get()) == (b"log", b"ring", b"queue")
