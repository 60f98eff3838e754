"""`ready` is said once all is served, jobs included: in the log, to a service manager, and at /readyz."""

import re
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.support.daemon import STOP_S, Daemon, running_daemon
from tests.support.http import Answer, ask
from tests.support.job_logs import write_job_log
from tests.support.queue_client import QueueClient
from tests.support.resp import RespClient

JOBS = ("listen.disque=127.0.0.1:0", "jobs.journal=true")


class WatchedStart(Daemon):
    """Somebody looks at it while it reads its jobs."""

    def __init__(self, folder: Path, look: Callable[["WatchedStart"], None], notify: str = "") -> None:
        super().__init__(folder, JOBS, admin="127.0.0.1:0")
        self._look = look
        self._notify = notify

    def command(self) -> list[str]:
        return [*(["env", f"NOTIFY_SOCKET={self._notify}"] if self._notify else []), *super().command()]

    def await_ready(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            assert " ready " not in line
            if found := re.search(
                r"reading the job log; all else is served: memcache=(\S+) admin=(\S+) disque=(\S+)", line
            ):
                self.address, self.admin, self.disque = found.groups()
                self._look(self)
                break
        super().await_ready()


def test_a_server_says_that_it_is_ready_when_it_serves_its_jobs(tmp_path: Path) -> None:
    write_job_log(tmp_path / "spool", 20_000)
    with running_daemon(tmp_path, *JOBS) as daemon, closing(RespClient(daemon.disque)) as client:
        assert client("QLEN", "mail") == 0
        assert b"registered_jobs:20000\r\n" in client("INFO", "jobs")


def test_it_is_not_ready_before_that_and_serves_queues(short_path: Path) -> None:
    seen: list[Answer] = []

    def look(daemon: WatchedStart) -> None:
        seen.append(ask(daemon, "/readyz"))
        assert ask(daemon, "/healthz").status == 200
        with QueueClient(daemon.port) as client:
            client.put("q", b"x")

    write_job_log(short_path / "spool", 100_000)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(short_path / "notify"))
        manager.settimeout(STOP_S)
        daemon = WatchedStart(short_path, look, str(short_path / "notify"))
        daemon.start()
        try:
            assert (seen[0].status, seen[0].body) == (503, b"reading jobs\n")
            assert manager.recv(4096) == b"READY=1"
            with closing(RespClient(daemon.disque)) as client:
                assert client("QLEN", "mail") == 0
            assert ask(daemon, "/readyz").body == b"ready\n"
        finally:
            daemon.kill()


def test_a_server_that_is_stopped_while_it_reads_its_jobs_stops_in_good_order(tmp_path: Path) -> None:
    write_job_log(tmp_path / "spool", 100_000)
    daemon = WatchedStart(tmp_path, lambda daemon: daemon.process.terminate())  # type: ignore[union-attr]
    try:
        daemon.start()
        code = daemon.wait()
    except AssertionError:  # it has ended before it was ready
        code = 0 if "stopped" in daemon.log[-1] else -1
    assert code == 0
    assert not any("internal error" in line for line in daemon.log)
