"""kill -9 and power cuts under a server of jobs: what was added is delivered, what was acknowledged never again, and a
job without a retry time at most once.
"""

import os
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon
from tests.support.power_disk import power_disk
from tests.support.resp import ErrorReply, RespClient, Status, resp_client

SETTINGS: Final = ["listen.disque=127.0.0.1:0", "jobs.journal=true", "max_journal_size=20KiB"]
RETRY_S: Final = 1
DRAIN_S: Final = 60
LONG: Final = [pytest.mark.long, pytest.mark.timeout(900)]
KILLS: Final = int(os.environ.get("JOB_KILLS", "20"))
CUTS: Final = int(os.environ.get("JOB_POWER_CUTS", "10"))


@dataclass
class Told:
    """What clients were told over all lives of the server, by body. Each is one writer's own."""

    added: set[bytes] = field(default_factory=set)
    once: set[bytes] = field(default_factory=set)  # of these: without a retry time
    acknowledged: dict[bytes, int] = field(default_factory=dict)  # with the number of the fetch that was begun last
    unanswered: set[bytes] = field(default_factory=set)  # acknowledgements
    fetched: Counter[bytes] = field(default_factory=Counter)
    fetches: int = 0  # so many were begun
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class JobLoad:
    """Clients that add, fetch and acknowledge until the server is gone."""

    def __init__(self, address: str, told: Told, life: int) -> None:
        self.address = address
        self.told = told
        self.life = life
        self.answered = threading.Semaphore(0)  # as often as a job was added
        self.threads = [
            *[threading.Thread(target=self._until_gone, args=(self._add, number)) for number in range(2)],
            *[threading.Thread(target=self._until_gone, args=(self._work, number)) for number in range(2)],
        ]
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def _until_gone(self, task: Callable[[RespClient, int], None], number: int) -> None:
        try:
            with resp_client(self.address) as client:
                task(client, number)
        except (OSError, EOFError, ValueError):
            pass  # killed

    def _add(self, client: RespClient, number: int) -> None:
        for count in range(10_000):
            is_once = count % 5 == 0
            body = b"%d-%d-%d" % (self.life, number, count)
            if is_once:
                with self.told.lock:
                    self.told.once.add(body)
            reply = client("ADDJOB", "q", body, 0, "RETRY", 0 if is_once else RETRY_S)
            if isinstance(reply, Status):
                with self.told.lock:
                    self.told.added.add(body)
                self.answered.release()

    def _work(self, client: RespClient, number: int) -> None:
        chance = random.Random(f"{self.life} {number}")
        while True:
            fetch(client, self.told, chance.random() < 0.7, timeout_ms=100)


def fetch(client: RespClient, told: Told, acknowledges: bool, timeout_ms: int) -> bool:
    """Fetch a job, and acknowledge it or not; whether there was one."""
    with told.lock:
        told.fetches += 1
        number = told.fetches
    jobs = client("GETJOB", "TIMEOUT", timeout_ms, "FROM", "q")
    if not isinstance(jobs, list):
        return False
    _, job_id, body = jobs[0]
    with told.lock:
        told.fetched[body] += 1
        if told.acknowledged.get(body, number) < number:  # else it may have been on its way already
            told.broken.append(f"{body!r} was acknowledged and came again")
        if body in told.once and told.fetched[body] > 1:
            told.broken.append(f"{body!r} has no retry time and came again")
        if acknowledges:
            told.unanswered.add(body)
    if acknowledges:
        reply = client("ACKJOB", job_id)
        assert not isinstance(reply, ErrorReply)
        with told.lock:
            told.acknowledged[body] = told.fetches
            told.unanswered.discard(body)
    return True


def wait_until_loaded(address: str) -> None:
    with resp_client(address) as client:
        while (reply := client("PING")) != b"PONG":
            assert reply.startswith(b"LOADING"), reply
            time.sleep(0.01)


def drain(address: str, told: Told) -> None:
    """Fetch and acknowledge until every job that has to come has come."""
    wait_until_loaded(address)
    until_s = time.monotonic() + DRAIN_S
    with resp_client(address) as client:
        while missing(told) and time.monotonic() < until_s:
            fetch(client, told, True, timeout_ms=200)


def missing(told: Told) -> set[bytes]:
    """Jobs that were added, are to be retried, and are not acknowledged, as far as anybody was told."""
    return told.added - told.once - told.acknowledged.keys() - told.unanswered


def one_life(daemon: Daemon, told: Told, life: int, jobs: int) -> None:
    """The server runs until about so many jobs were added, and is killed in the middle of it."""
    daemon.start()
    wait_until_loaded(daemon.disque)
    load = JobLoad(daemon.disque, told, life)
    for _ in range(jobs):
        assert load.answered.acquire(timeout=60)
    daemon.kill()
    load.join()


@pytest.mark.parametrize("kills", [4, pytest.param(KILLS, marks=LONG)])
@pytest.mark.parametrize("sync", ["false", "true"])
def test_no_job_is_lost_and_none_comes_again_however_often_the_server_is_killed(
    tmp_path: Path, kills: int, sync: str
) -> None:
    chance = random.Random(kills)
    daemon, told = Daemon(tmp_path, [*SETTINGS, f"jobs.sync_journal={sync}"]), Told()
    try:
        for life in range(kills):
            one_life(daemon, told, life, chance.randrange(1, 60))
        daemon.start()
        drain(daemon.disque, told)
    finally:
        if daemon.process is not None:
            daemon.kill()
    fetched = sum(told.fetched.values())
    assert [line for line in daemon.log if "internal error" in line] == []
    print(f"\n{kills} kills: {len(told.added)} jobs added, {fetched} fetched, {len(told.acknowledged)} acknowledged")
    assert told.broken == []
    assert missing(told) == set()
    assert told.acknowledged


@pytest.mark.parametrize("cuts", [2, pytest.param(CUTS, marks=LONG)])
def test_a_power_cut_takes_no_job_that_was_synced_and_brings_none_back(tmp_path: Path, cuts: int) -> None:
    chance, told = random.Random(cuts), Told()
    with power_disk(tmp_path / "disk", cuts) as disk:
        daemon = Daemon(tmp_path, [*SETTINGS, "jobs.sync_journal=true"])
        daemon.spool = disk.folder / "spool"
        try:
            for life in range(cuts):
                one_life(daemon, told, life, chance.randrange(1, 60))
                disk.cut()
            daemon.start()
            drain(daemon.disque, told)
        finally:
            if daemon.process is not None:
                daemon.kill()
    print(f"\n{cuts} power cuts: {len(told.added)} jobs added, {len(told.acknowledged)} acknowledged")
    assert told.broken == []
    assert missing(told) == set()


def test_a_full_disk_refuses_changes_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk."""
    told = Told()
    daemon = Daemon(tmp_path, ["listen.disque=127.0.0.1:0", "jobs.journal=true"])
    daemon.start()
    try:
        wait_until_loaded(daemon.disque)
        with resp_client(daemon.disque) as client:
            for count in range(20):
                assert isinstance(client("ADDJOB", "q", b"0-0-%d" % count, 0, "RETRY", 1), Status)
                told.added.add(b"0-0-%d" % count)
            size_bytes = sum(path.stat().st_size for path in (daemon.spool / ".jobs").iterdir())
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size_bytes + 100, resource.RLIM_INFINITY))
            reply = client("ADDJOB", "q", b"x" * 5000, 0)
            assert reply.startswith(b"MISCONF Errors writing to the AOF file: ")
            client.expect_end()
        with resp_client(daemon.disque) as client:
            assert client("PING") == client("ACKJOB") == b"MISCONF Errors writing to the AOF file: File too large"
            assert b"aof_last_write_status:err" in client("INFO", "persistence")
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            until_s = time.monotonic() + 60
            while isinstance(client("PING"), ErrorReply) and time.monotonic() < until_s:
                time.sleep(0.05)
            assert client("PING") == b"PONG"
        daemon.kill()
        daemon.start()
        drain(daemon.disque, told)
    finally:
        if daemon.process is not None:
            daemon.kill()
    assert missing(told) == set()
