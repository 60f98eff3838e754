"""Leases under gevent and eventlet, in processes that these have patched: a greenlet that computes keeps its lease."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from kestreld.client import KestrelCluster
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import environment

ROOT: Final = Path(__file__).parents[3]
LEASE_S: Final = 1.0
PATCHES: Final = {
    "gevent": "from gevent import monkey; monkey.patch_all(); from gevent import spawn, sleep",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import spawn, sleep",
}
# Others wait on connections of their own meanwhile, as greenlets do; then one computes and lets none of them run.
PROGRAM: Final = """
import sys, time
from kestreld.client import KestrelCluster

address, ca, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
cluster = KestrelCluster([address], ca=ca)
waiting = spawn(cluster.queue("other").get, None)
sleep(0.05)
with cluster.queue("work").lease(seconds, heartbeat=True) as lease:
    print("begins", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + 3 * seconds
    while time.monotonic() < end:
        pass
    is_lost = lease.is_lost
    print("is lost" if is_lost else "is kept", flush=True)
cluster.queue("other").put(b"x")
while not waiting.dead:
    sleep(0.01)
with cluster.queue("work").lease(seconds, timeout=10, heartbeat=True) as lease:
    sleep(1.2 * seconds)
    print("is lost" if lease.is_lost else "is kept", flush=True)
cluster.close()
print("done", flush=True)
"""


@pytest.fixture(scope="module", params=["plain", pytest.param("tls", marks=pytest.mark.long)])
def daemon(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[tuple[Daemon, str]]:
    folder = tmp_path_factory.mktemp("daemon")
    if request.param == "plain":
        with running_daemon(folder / "spool") as daemon:
            yield daemon, ""
        return
    authority = Authority(folder / "ca")
    certificate, key = authority.issue_server()
    config = f"tls: {{certificate: {certificate}, key: {key}}}\n"
    with running_daemon(folder / "spool", config=config, listen="tls:127.0.0.1:0") as daemon:
        yield daemon, str(authority.certificate)


@pytest.mark.parametrize("library", ["gevent", pytest.param("eventlet", marks=pytest.mark.long)])
def test_a_greenlet_that_computes_for_three_lease_times_keeps_its_lease(
    daemon: tuple[Daemon, str], library: str
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: leases of its greenlets are not tested")
    server, ca = daemon
    with (
        KestrelCluster([server.address], ca=ca) as cluster,
        subprocess.Popen(
            [sys.executable, "-c", PATCHES[library] + PROGRAM, server.address, ca, str(LEASE_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        work = cluster.queue("work")
        work.put(b"x")
        assert program.stdout.readline() == "begins\n"
        program.stdin.write("\n")
        program.stdin.flush()
        assert work.lease(LEASE_S, timeout=2 * LEASE_S) is None
        assert program.stdout.readline() == "is kept\n"
        work.put(b"y")
        assert program.stdout.readline() == "is kept\n"
        assert program.stdout.readline() == "done\n"
        assert program.wait(60) == 0
        assert work.get() is None
