"""A spool that cannot be used: the start ends with one line and an exit code, and nothing has been made.

Only one that cannot be used at all. What cannot be read of it stops that queue, or the jobs, and names the file.
"""

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support import forked
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.engine import Engine, QuickFiles
from tests.support.job_engine import JobEngine
from tests.support.process import environment
from tests.support.queue_client import QueueClient
from tests.support.resp import resp_client
from tests.support.small_disk import small_disk

NOBODY: Final = 65534
CANNOT_USE: Final = 73
IN_USE: Final = 75


class CommonDaemon(Daemon):
    """A kestreld that may do no more than the owner of a file may, though root runs it."""

    def command(self) -> list[str]:
        return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *super().command()]


def everything(folder: Path) -> list[tuple[str, int, int]]:
    """What there is in a folder, with its rights and owner."""
    found = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), stat.S_IMODE(status.st_mode), status.st_uid) for path, status in found]


def refuses(daemon: Daemon, *, code: int = CANNOT_USE, names: Path) -> None:
    before = everything(daemon.folder)
    ended = daemon.run()
    assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr
    assert ended.stderr.startswith(f"kestreld: {names}"), ended.stderr
    assert ended.stdout == ""
    assert everything(daemon.folder) == before


def test_a_read_only_disk_ends_the_start_whether_there_is_a_spool_on_it_or_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        with running_daemon(tmp_path / "disk") as used, QueueClient(used.port) as client:
            client.put("q", b"x")
        daemon = Daemon(tmp_path / "disk")
        fresh = Daemon(tmp_path / "disk")
        fresh.spool = tmp_path / "disk" / "missing" / "spool"
        disk.make_read_only()
        refuses(daemon, names=daemon.spool)
        refuses(fresh, names=fresh.spool)


def test_a_new_spool_on_a_disk_without_any_room_ends_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "spool", "4k"):
        (tmp_path / "spool" / "full").write_bytes(b"x" * 4096)
        (tmp_path / "spool" / ".lock").touch(0o600)
        refuses(Daemon(tmp_path), names=tmp_path / "spool")


def somebody_elses(spool: Path) -> None:
    spool.mkdir(mode=0o700)
    os.chown(spool, NOBODY, NOBODY)


def open_to_all_with_somebody_elses_lock(spool: Path) -> None:
    spool.mkdir()
    spool.chmod(0o777)
    (spool / ".lock").touch(0o600)
    os.chown(spool / ".lock", NOBODY, NOBODY)


def in_somebody_elses_folder(spool: Path) -> None:
    spool.parent.chmod(0o755)
    os.chown(spool.parent, NOBODY, NOBODY)


def read_only(spool: Path) -> None:
    spool.mkdir()
    spool.chmod(0o500)


@pytest.mark.parametrize(
    "lay_out", [somebody_elses, open_to_all_with_somebody_elses_lock, in_somebody_elses_folder, read_only]
)
def test_a_spool_without_rights_to_it_ends_the_start(tmp_path: Path, lay_out: Callable[[Path], None]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a spool to somebody else")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    daemon = CommonDaemon(tmp_path / "here")
    lay_out(daemon.spool)
    refuses(daemon, names=daemon.spool)


def test_a_spool_that_is_a_link_to_nowhere_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "spool").symlink_to(tmp_path / "gone")
    refuses(Daemon(tmp_path), names=tmp_path / "spool")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / ".lock").symlink_to(precious)
    refuses(Daemon(tmp_path), names=tmp_path / "spool")
    assert precious.read_text() == "mine"


def test_of_many_that_start_on_one_spool_at_once_one_serves(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as client:
        client.put("q", b"x")
        while not list(daemon.spool.glob("q.journal/*.live")):  # the last that this server does by itself
            time.sleep(0.005)
        before = everything(daemon.spool)
        others = [
            forked.Launched(Daemon(tmp_path).command(), stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
            for _ in range(4)
        ]
        for other in others:
            said = other.communicate(timeout=60)[1]
            assert other.returncode == IN_USE
            assert f"pid {daemon.pid}" in said
            assert said.count("\n") == 1
        assert everything(daemon.spool) == before
        assert client.get("q") == b"x"


# What is in the spool


def denied(path: Path) -> None:
    path.chmod(0)


def linked(path: Path) -> None:
    elsewhere = path.parent.parent.parent / path.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.unlink()
    os.mknod(path, stat.S_IFSOCK | 0o600)


OBSTACLES: Final = {
    denied: "cannot be read: Permission denied",
    linked: "cannot be read: it is a symbolic link",
    a_folder: "cannot be read: it is a folder",
    a_fifo: "cannot be read: it is a FIFO",
    a_socket: "cannot be read: it is a socket",
}
LESS_LIKELY: Final = (linked, a_folder, a_socket)


@contextmanager
def serving(daemon: Daemon) -> Iterator[Daemon]:
    """It has started, whatever is in its spool."""
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.kill()


def filled(spool: Path, *queues: str) -> None:
    """Queues with an item in each of two segments."""
    engine = Engine(spool, QuickFiles(), max_journal_size_bytes=100)
    for queue in queues:
        for item in (b"first" * 20, b"second"):
            engine.put(queue, item)
            engine.end_turn()
        assert len(engine.segments(queue)) == 2
    engine.abandon()


def common_daemon(folder: Path) -> CommonDaemon:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    return CommonDaemon(folder)


def test_whatever_stands_in_a_segments_place_stops_that_queue_only(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    queues = {f"{put.__name__}-{at}": (put, at) for put in OBSTACLES for at in (0, 1)}
    filled(spool, "sound", *queues)
    expected = []
    for queue, (put, at) in queues.items():
        path = sorted((spool / f"{queue}.journal").glob("*.seg"))[at]
        put(path)
        words = f"{path}: {OBSTACLES[put]}; other queues are not affected"
        expected.append(f"kestreld: {queue}: stopped: {words}; run: kestrelctl repair {queue}")
    (spool / "sound.journal" / "0000000003.seg.new").mkdir()
    filled(spool, "unlisted")
    (spool / "unlisted.journal").chmod(0)
    with serving(common_daemon(tmp_path)) as daemon, QueueClient(daemon.port) as client:
        log = [line for line in daemon.log if "stopped: " in line]
        assert f"{spool}/unlisted.journal: cannot be read: Permission denied" in log.pop()
        assert f"{spool}/sound.journal/0000000003.seg.new" in log.pop()
        assert sorted(log) == sorted(expected)
        for queue in queues:
            client.send(b"get %b\r\n" % queue.encode())
            client.expect_line(b"SERVER_ERROR corrupt ")
        client.put("other", b"x")
        assert client.get("other") == b"x"
    (spool / "unlisted.journal").chmod(0o700)


@pytest.mark.parametrize("put", [denied, a_fifo, *(pytest.param(one, marks=pytest.mark.long) for one in LESS_LIKELY)])
def test_whatever_stands_in_a_job_segments_place_stops_the_jobs_only(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    engine = JobEngine(tmp_path / "spool")
    engine.add()
    engine.end_turn()
    engine.files.die()
    (path,) = engine.segments()
    put(path)
    daemon = common_daemon(tmp_path)
    daemon.disque = "127.0.0.1:0"
    daemon.settings.append("jobs.journal=true")
    with serving(daemon), QueueClient(daemon.port) as client, resp_client(daemon.disque) as jobs:
        daemon.logged(f"jobs: {path}: {OBSTACLES[put]}")
        assert f"MISCONF The job log cannot be read: {path}" in str(jobs("GETJOB", "NOHANG", "FROM", "q"))
        client.put("q", b"x")
        assert client.get("q") == b"x"


@pytest.mark.parametrize("put", [a_fifo, pytest.param(denied, marks=pytest.mark.long)])
def test_nothing_else_in_the_spool_keeps_a_server_from_starting(tmp_path: Path, put: Callable[[Path], None]) -> None:
    spool = tmp_path / "spool"
    filled(spool, "sound")
    entry = spool / ".trash" / "sound.1.1"
    entry.mkdir(parents=True)
    for name in (
        ".jobs.node",
        ".jobs.nodes",
        ".jobs.conf",
        "a file",
        "work",
        ".trash/sound.1.1/note",
        ".tmp",
        ".damaged",
    ):
        path = spool / name
        path.touch()
        put(path)
    daemon = common_daemon(tmp_path)
    daemon.disque = "127.0.0.1:0"
    with serving(daemon), QueueClient(daemon.port) as client:
        assert client.get("sound") == b"first" * 20
        client.put("q", b"x")
        assert client.get("q") == b"x"
        assert daemon.stop() == 0
        daemon.start()
