"""kestrelctl while its server is killed and started again: leases are kept and confirmed, and waits go on."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kestreld.client import KestrelCluster
from tests.support.daemon import Daemon, running_daemon
from tests.support.forwarder import Forwarder
from tests.support.ports import free_port
from tests.support.shell import Kestrelctl
from tests.support.waiting import until


def figure(daemon: Daemon, name: str) -> int:
    with KestrelCluster([daemon.address]) as cluster:
        return int(cluster.queue("q").stats()[daemon.address].get(name, 0))


def await_waiter(daemon: Daemon) -> None:
    until(lambda: figure(daemon, "waiters"), "somebody who waits")


class Work:
    """A command that waits with each item until it is told to go on."""

    def __init__(self, folder: Path, *items: str) -> None:
        self._folder = folder
        self.command = f'item=$(cat); cat "{folder}/$item"'
        for item in items:
            os.mkfifo(folder / item)

    def go_on(self, item: str) -> None:
        (self._folder / item).write_text(f"{item} is done\n")


# get --lease --exec


def test_a_leased_item_is_confirmed_though_its_server_was_killed_while_the_command_ran(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    own_kestrelctl("put", "q", "--lines", stdin=b"first\nsecond\n")
    work = Work(tmp_path, "first", "second")
    worker = own_kestrelctl.start("get", "q", "--lease", "1h", "--all", "--exec", work.command)
    until(lambda: figure(own_daemon, "leased"), "a lease")
    own_daemon.kill()
    own_daemon.start()
    assert figure(own_daemon, "leased") == 1
    work.go_on("first")
    work.go_on("second")
    assert worker.communicate() == (b"first is done\nsecond is done\n", b"")
    assert worker.returncode == 0
    assert own_kestrelctl("get", "q").code == 1


def test_a_confirm_waits_for_the_server(own_daemon: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    own_kestrelctl("put", "q", "job")
    work = Work(tmp_path, "job")
    worker = own_kestrelctl.start("get", "q", "--lease", "1h", "--exec", work.command)
    until(lambda: figure(own_daemon, "leased"), "a lease")
    own_daemon.kill()
    work.go_on("job")
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"job is done\n"
    own_daemon.start()
    assert worker.communicate() == (b"", b"")
    assert worker.returncode == 0
    assert own_kestrelctl("get", "q").code == 1


@pytest.mark.parametrize("command", ["kill -9 {pid}", "kill -9 {pid}; false"])
def test_a_server_that_stays_away_until_the_lease_is_over_is_exit_69(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, command: str
) -> None:
    own_kestrelctl("put", "q", "job")
    got = own_kestrelctl("get", "q", "--lease", "300ms", "--exec", command.format(pid=own_daemon.pid))
    assert (got.code, own_daemon.address in got.err, got.err.count("\n")) == (69, True, 1)
    own_daemon.wait()


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    forwarder = Forwarder(Random(1))
    yield forwarder
    forwarder.close()


def test_a_confirm_whose_reply_is_lost_is_done_or_lost(
    daemon: Daemon, kestrelctl: Kestrelctl, queue: str, forwarder: Forwarder
) -> None:
    kestrelctl("put", queue, "job")
    port = free_port()
    forwarder.forward(port, daemon.port)
    forwarder.broken_by = b"DELETED"
    got = kestrelctl("get", queue, "-s", f"127.0.0.1:{port}", "--lease", "1h", "--exec", "cat")
    assert (got.code, got.out, got.err.count("\n")) == (85, b"job", 1)
    assert got.err.startswith("kestrelctl: done, or lost: ")
    assert kestrelctl("get", queue).code == 1


# lease


@pytest.mark.parametrize(
    ("verb", "lost", "code", "words"),
    [
        ("confirm", b"DELETED", 1, "kestrelctl: done, or lost: a request was not answered"),
        ("confirm", b"delete ", 0, ""),
        ("extend", b"TOUCHED", 0, ""),
        ("give-back", b"TOUCHED", 0, ""),
    ],
)
def test_a_verb_whose_reply_is_lost_asks_again(
    daemon: Daemon,
    kestrelctl: Kestrelctl,
    queue: str,
    forwarder: Forwarder,
    verb: str,
    lost: bytes,
    code: int,
    words: str,
) -> None:
    kestrelctl("put", queue, "job")
    token = str(json.loads(kestrelctl("get", queue, "--lease", "1h", "--json").out)["token"])
    port = free_port()
    forwarder.forward(port, daemon.port)
    forwarder.broken_by = lost
    got = kestrelctl("lease", verb, queue, token, "-s", f"127.0.0.1:{port}")
    assert (got.code, got.err.startswith(words)) == (code, True), got


# Waiting


@pytest.mark.parametrize(
    "line",
    [
        ["get", "q", "--wait", "1h"],
        ["get", "q", "--wait", "1h", "--lease", "1h", "--json"],
        ["peek", "q", "--wait", "1h"],
    ],
    ids=" ".join,
)
def test_who_waits_for_an_item_goes_on_waiting(own_daemon: Daemon, own_kestrelctl: Kestrelctl, line: list[str]) -> None:
    own_kestrelctl("put", "q", "makes the queue")
    own_kestrelctl("flush", "q", "--yes")
    run = own_kestrelctl.start(*line)
    await_waiter(own_daemon)
    own_daemon.kill()
    own_daemon.start()
    await_waiter(own_daemon)
    own_kestrelctl("put", "q", "job")
    out, err = run.communicate()
    assert (run.returncode, json.loads(out)["data"] if "--json" in line else out.decode(), err) == (0, "job", b"")


def test_who_waits_for_the_next_item_has_confirmed_the_last_one(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "q", "1")
    run = own_kestrelctl.start("get", "q", "-n", "2", "--wait", "1h")
    assert run.stdout is not None
    assert run.stdout.readline() == b"1\n"
    await_waiter(own_daemon)
    own_daemon.kill()
    own_daemon.start()
    await_waiter(own_daemon)
    own_kestrelctl("put", "q", "2")
    assert run.communicate() == (b"2\n", b"")
    assert run.returncode == 0


def test_of_several_servers_one_that_is_back_is_waited_at_again(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    own_kestrelctl.environment["XDG_CONFIG_HOME"] = str(tmp_path / "settings")
    with running_daemon(tmp_path / "other") as other:
        own_kestrelctl("context", "add", "both", own_daemon.address, other.address)
        run = own_kestrelctl.start("-c", "both", "get", "q", "--wait", "1h")
        for daemon in (own_daemon, other):
            await_waiter(daemon)
            daemon.kill()
        own_daemon.start()
        await_waiter(own_daemon)
        own_kestrelctl("put", "q", "job")
        assert run.communicate() == (b"job", b"")
        assert run.returncode == 0


def test_a_wait_that_ends_while_the_server_is_away_is_exit_69(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "q", "job")
    got = own_kestrelctl("get", "q", "-n", "2", "--wait", "300ms", "--exec", f"kill -9 {own_daemon.pid}")
    assert got.code == 69
    own_daemon.wait()
    assert own_kestrelctl("get", "q", "--wait", "1h").code == 69, "one that was never there is not waited for"
