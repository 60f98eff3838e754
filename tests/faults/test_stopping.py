"""SIGTERM while clients are at work: it exits with 0 within seconds, and what they have been told is so."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.load import WRITERS, Load
from tests.support.queue_client import QueueClient
from tests.support.strace import injected

pytestmark = pytest.mark.usefixtures("installed_programs")

EXITS_S: Final = 5.0
PIPELINED: Final = 500


@pytest.mark.parametrize(
    ("sync", "cycles"),
    [("false", 2), pytest.param("false", 50, marks=pytest.mark.long), pytest.param("true", 50, marks=pytest.mark.long)],
)
def test_a_stop_under_load_loses_nothing_and_repeats_nothing_that_was_confirmed(
    tmp_path: Path, sync: str, cycles: int
) -> None:
    slowest_s, stored, confirmed = 0.0, 0, 0
    with running_daemon(tmp_path, f"sync_journal={sync}", "max_journal_size=50KiB") as daemon:
        for cycle in range(cycles):
            load = Load(daemon.port)
            time.sleep(0.1 + 0.007 * (cycle % 10))  # anywhere in their work
            began = time.monotonic()
            assert daemon.stop() == 0
            slowest_s = max(slowest_s, time.monotonic() - began)
            load.join()
            daemon.start()
            with QueueClient(daemon.port) as client:
                left = client.drain("q")
            assert len(left) == len(set(left))
            assert load.stored - load.confirmed - load.closing - set(left) == set(), "lost"
            assert load.confirmed & set(left) == set(), "confirmed, and there again"
            for writer in range(WRITERS):
                own = [data for data in left if data.startswith(b"%d-" % writer)]
                assert own == sorted(own), "open items are back in their places"
            stored, confirmed = stored + len(load.stored), confirmed + len(load.confirmed)
    assert slowest_s < EXITS_S or cycles == 2, "which is judged where the machine has nothing else to do"
    print(f"\n{cycles} stops: {stored} stored, {confirmed} confirmed, the slowest took {slowest_s:.2f} s")


@pytest.mark.parametrize(
    "at_once_s",  # two seconds is what it gives a client to read its answers
    [60, pytest.param(1.8, marks=pytest.mark.long)],
)
def test_a_second_sigterm_under_load_ends_it_at_once_and_loses_nothing(tmp_path: Path, at_once_s: float) -> None:
    daemon = Daemon(tmp_path, settings=["sync_journal=true"])
    daemon.start()
    try:
        load = Load(daemon.port)
        with QueueClient(daemon.port) as deaf:
            deaf.put("large", b"x" * 30_000_000)
            deaf.ask_for("large/peek")
            deaf.read(1)  # its answer holds the stop up
            daemon.signal(signal.SIGTERM)
            daemon.logged("shutting down")
            began = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 130
            assert time.monotonic() - began < at_once_s
        load.join()
        daemon.start()
        with QueueClient(daemon.port) as client:
            left = set(client.drain("q"))
        assert load.stored - load.confirmed - load.closing - left == set()
        assert load.confirmed & left == set()
    finally:
        if daemon.process is not None:
            daemon.kill()


# Many queues


def put_on_each(daemon: Daemon, queues: int) -> None:
    with QueueClient(daemon.port) as client:
        for first in range(0, queues, PIPELINED):
            last = min(first + PIPELINED, queues)
            client.do(
                b"\r\n".join([b"set q%d 0 0 4\r\nitem" % number for number in range(first, last)]),
                b"STORED\r\n" * (last - first),
            )


def counted(daemon: Daemon, queues: int) -> int:
    """How many of them have their item."""
    with QueueClient(daemon.port) as client:
        return sum(client.get(f"q{number}") == b"item" for number in range(queues))


@contextmanager
def with_queues(tmp_path: Path, queues: int, *settings: str) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, settings=settings)
    daemon.start()
    try:
        put_on_each(daemon, queues)
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.kill()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("queues", [2000, 5000, 25_000])
def test_it_stops_in_time_however_many_queues_there_are(tmp_path: Path, queues: int) -> None:
    took_s = []
    with with_queues(tmp_path, queues) as daemon:
        for _ in range(2):  # with all of them new, and with all of them old
            began = time.monotonic()
            assert daemon.stop() == 0
            took_s.append(time.monotonic() - began)
            daemon.start()
            put_on_each(daemon, queues)
        assert counted(daemon, queues) == queues
    print(f"\n{queues} queues: stopped in {took_s[0]:.2f} s new, {took_s[1]:.2f} s old")
    assert max(took_s) < EXITS_S


@pytest.fixture
def endless_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which a sync of the whole file system never ends, for processes started from now on."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    library = tmp_path / "endless.so"
    source = b"#include <unistd.h>\nint syncfs(int fd) { for (;;) pause(); }\n"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=source, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))


@pytest.mark.long
@pytest.mark.usefixtures("endless_sync")
def test_a_disk_that_takes_too_long_holds_up_no_stop(tmp_path: Path) -> None:
    with with_queues(tmp_path, 20) as daemon:
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < EXITS_S
        assert daemon.logged("time limit reached, 20 of 20 journals not synced and sealed")
        daemon.start()
        assert counted(daemon, 20) == 20


def test_a_disk_that_fails_at_the_stop_is_reported_and_no_segment_is_gone_on_with(tmp_path: Path) -> None:
    with with_queues(tmp_path, 20) as daemon:
        with injected(daemon.pid, "syncfs:error=EIO"):
            assert daemon.stop() == 0
        assert daemon.logged("sync of the file system failed: Input/output error")
        assert len(list(daemon.spool.glob("*/*.unsynced"))) == 20
        daemon.start()
        assert len(list(daemon.spool.glob("q7.journal/*-*.seg"))) == 2
        assert counted(daemon, 20) == 20


@pytest.mark.usefixtures("endless_sync")
def test_a_second_sigterm_ends_it_while_it_waits_for_the_disk(tmp_path: Path) -> None:
    with with_queues(tmp_path, 20) as daemon:
        before, until = threads(daemon), time.monotonic() + 60
        daemon.signal(signal.SIGTERM)
        while threads(daemon) == before:
            assert time.monotonic() < until, "no thread has begun to sync"
            time.sleep(0.002)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 130
        assert not any("time limit reached" in line for line in daemon.log)


def threads(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/task"))
