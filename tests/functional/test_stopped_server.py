"""A server that did not run for a while: what clients sent meanwhile comes before what is due."""

import signal
import time
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.queue_client import QueueClient

LEASE_S = 1.0


def stop_with_a_lease(daemon: Daemon, holder: QueueClient, other: QueueClient) -> bytes:
    """Stop a server while the holder's lease runs, of an item that another client waits for; the token."""
    holder.send(b"gets work/open/lease=60000\r\n")
    token = holder.expect_line(b"VALUE ").split(b" ")[4]
    holder.read_until(b"END\r\n")
    other.ask_for("work/t=60000")
    with QueueClient(daemon.port) as watcher:
        watcher.until("work", waiters=1)
    holder.do(b"touch work/%b/lease=%d 0" % (token, LEASE_S * 1000), b"TOUCHED\r\n")
    stop(daemon.pid)
    return token


@pytest.mark.parametrize("is_new", [False, True], ids=["on its connection", "on a new one"])
def test_a_lease_that_was_extended_meanwhile_goes_on(tmp_path: Path, *, is_new: bool) -> None:
    """Its time was over while the server was stopped, and the extension there before that."""
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as holder, QueueClient(daemon.port) as other:
        holder.put("work", b"x")
        token = stop_with_a_lease(daemon, holder, other)
        with QueueClient(daemon.port) as again:
            (again if is_new else holder).send(b"touch work/%b/lease=60000 0\r\n" % token)
            time.sleep(1.2 * LEASE_S)
            daemon.signal(signal.SIGCONT)
            (again if is_new else holder).expect(b"TOUCHED\r\n")
        other.expect_no_answer_yet()


def test_leases_that_nobody_extended_end(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as holder, QueueClient(daemon.port) as other:
        holder.put("work", b"x")
        stop_with_a_lease(daemon, holder, other)
        time.sleep(1.2 * LEASE_S)
        daemon.signal(signal.SIGCONT)
        assert other.read_value() == b"x"
