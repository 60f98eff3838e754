"""A worker is killed at every step of lease, work and confirm: what docs/reliable-work.md says becomes of its item."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

LEASE_MS: Final = 2000  # by when it is killed, on a busy machine too
# Stops at a step, until it is killed.
WORKER: Final = """
import socket, sys

port, lease_ms, last = sys.argv[1:]
connection = socket.create_connection(("127.0.0.1", int(port)))
replies = connection.makefile("rb")

def reached(step):
    if step == last:
        print(step, flush=True)
        sys.stdin.read()

connection.sendall(b"gets work/open/lease=%b/t=60000\\r\\n" % lease_ms.encode())
reached("asked")
token = replies.readline().split()[4]
assert (replies.readline(), replies.readline()) == (b"job\\r\\n", b"END\\r\\n")
reached("works")
connection.sendall(b"delete work/%b\\r\\n" % token)
reached("confirms")
assert replies.readline() == b"DELETED\\r\\n"
reached("has confirmed")
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path, "max_retries=1", "move_failed_to=dead") as running:
        yield running


@contextmanager
def worker_at(daemon: Daemon, step: str, lease_ms: int = LEASE_MS) -> Iterator[Callable[[], None]]:
    """A worker that has reached a step; what kills it."""
    command = [sys.executable, "-c", WORKER, str(daemon.port), str(lease_ms), step]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == step.encode() + b"\n"

            def kill() -> None:
                process.kill()
                process.wait()

            yield kill
        finally:
            process.kill()


def until(client: QueueClient, figure: str, value: int) -> None:
    end = time.monotonic() + 60
    while client.queue_stats("work").get(figure) != str(value):
        assert time.monotonic() < end, f"{figure} is not {value} after 60 s"
        time.sleep(0.005)


def failures(client: QueueClient) -> int:
    """How often the item that waits has failed: with one more than a single retry it is a dead letter."""
    for times in range(1, 3):
        client.send(b"gets work/open/lease=60000\r\n")
        token = client.expect_line(b"VALUE ").split()[4]
        client.read_until(b"\r\nEND\r\n")
        client.do(b"touch work/%b/failed 0" % token, b"TOUCHED\r\n")
        if client.get("dead") is not None:
            return 2 - times
    raise AssertionError("it is never a dead letter")


def test_killed_while_it_waits_it_has_taken_nothing(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client, worker_at(daemon, "asked") as kill:
        until(client, "waiters", 1)
        kill()
        until(client, "waiters", 0)
        client.put("work", b"job")
        assert client.items("work") == 1
        assert failures(client) == 0


@pytest.mark.long
def test_killed_before_the_reply_has_left_its_item_waits_again_at_once_and_has_not_failed(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client, worker_at(daemon, "asked", lease_ms=3_600_000) as kill:
        until(client, "waiters", 1)
        client.put("work", b"x" * 16_000_000)  # more than goes into the buffers of a connection
        until(client, "open_transactions", 1)
        kill()
        until(client, "items", 1)
        assert failures(client) == 0


@pytest.mark.parametrize("step", ["asked", "works"])
def test_killed_with_a_lease_its_item_waits_again_when_that_is_over_and_has_failed_once(
    daemon: Daemon, step: str
) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", b"job")
        began = time.monotonic()
        with worker_at(daemon, step) as kill:
            until(client, "open_transactions", 1)
            kill()
            assert client.get("work") is None
            assert client.get("work/t=20000/peek") == b"job"
            assert time.monotonic() - began > LEASE_MS / 1000
        assert failures(client) == 1


@pytest.mark.parametrize("step", ["confirms", "has confirmed"])
def test_killed_after_it_has_confirmed_with_or_without_the_reply_its_item_is_done(daemon: Daemon, step: str) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", b"job")
        with worker_at(daemon, step, lease_ms=60_000) as kill:
            until(client, "open_transactions", 0)
            kill()
        assert client.get("work") is None
        assert client.queue_stats("work")["items"] == "0"
        assert client.get("dead") is None
