"""Holders of leases that are `present`, and whose network is cut: nobody knows whether they are alive."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.functional.test_presence import is_leased, pass_ms
from tests.support.daemon import running_daemon
from tests.support.namespaces import OWN, hosts, missing
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

pytestmark = pytest.mark.long
ABSENCE_MS = 300
HOLDER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"present me %d\\r\\n" % int(sys.argv[3]))
connection.sendall(b"set work 0 0 1\\r\\nx\\r\\ngets work/open/lease=3600000/by=me\\r\\n")
time.sleep(600)
"""


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_leases_of_a_holder_that_is_cut_off_last_as_long_as_they_were_to(tmp_path: Path) -> None:
    """The server notices after 20 s, and a holder that was killed is gone after the absence that it allowed."""
    with hosts(1) as (far,), running_daemon(tmp_path, "insecure=true", listen=f"{OWN}:0") as daemon:

        def connect() -> QueueClient:
            return QueueClient(daemon.address)

        command = [*far.prefix, sys.executable, "-c", HOLDER, OWN, str(daemon.port), str(ABSENCE_MS)]
        with subprocess.Popen(command) as holder, connect() as watcher:
            try:
                until(lambda: is_leased(watcher, "work", "me"), "the lease")
                far.do("iptables", "-A", "INPUT", "-j", "DROP")
                far.do("iptables", "-A", "OUTPUT", "-j", "DROP")
                until(lambda: watcher.stats()["curr_connections"] == "1", "the end of the connection that is cut")
                pass_ms(connect, "other", ABSENCE_MS)
                assert is_leased(watcher, "work", "me")
            finally:
                holder.kill()
