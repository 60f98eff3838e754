"""Verbs of queues do nothing to a cache, nor those of caches to queues: they ask who is there, and end 76."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymemcache import Client

from tests.support.cache_server import running_memcached
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl
from tests.support.tampering import tampering_proxy

OK, PROTOCOL = 0, 76
KEY, VALUE = "x", b"kept"


@pytest.fixture(scope="module")
def caches(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A memcached and kestreld's own."""
    with running_memcached(tmp_path_factory.mktemp("memcached")) as memcached:
        yield [memcached.address, daemon.cache]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """One that speaks as kestreld does, one as a Kestrel 1.x."""
    with (
        running_daemon(tmp_path_factory.mktemp("new")) as new,
        running_daemon(tmp_path_factory.mktemp("old"), "compat=kestrel-1") as old,
    ):
        yield [new, old]


def value_at(address: str) -> bytes | None:
    host, _, port = address.rpartition(":")
    client = Client((host, int(port)))
    try:
        value: bytes | None = client.get(KEY)
        return value
    finally:
        client.close()


@pytest.mark.parametrize(
    "line",
    [
        "put x lost",
        "put x lost --delay 5s",
        "put x lost --key k",
        "put x --lines",
        "get x",
        "get x --lease 5s --json",
        "peek x",
        "flush x --yes",
        "flush x --yes --missing-ok",
        "flush-all --yes",
        "flush-expired x",
        "flush-all-expired",
        "delete x --yes",
        "delete x --yes --missing-ok",
        "undo x",
        "repair x",
        "reload",
        "shutdown --yes",
        "cancel x k",
        "cancel x 3",
        "run-now x 3",
        "redrive x --yes",
        "readers create x r",
        "readers drop x r",
        "import x -",
        "copy x y",
        "move x y",
        "wait x --empty",
        "stats x",
        "bench flood --queue x",
    ],
)
def test_verbs_of_queues_change_nothing_in_a_cache(caches: list[str], tmp_path: Path, line: str) -> None:
    for address in caches:
        host, _, port = address.rpartition(":")
        client = Client((host, int(port)), default_noreply=False)
        client.set(KEY, VALUE)
        client.set("y", VALUE)
        client.close()
        run = Kestrelctl(address, tmp_path)(*line.split(), stdin=b'{"data":"a"}\n{"data":"b"}\n')
        assert run.code == PROTOCOL, run
        assert f"{address} is not a Kestrel server: it is a cache" in run.err
        assert "unknown" not in run.err
        assert value_at(address) == VALUE


def test_items_are_not_moved_or_copied_to_a_cache(
    kestrelctl: Kestrelctl, daemon: Daemon, caches: list[str], queue: str
) -> None:
    with QueueClient(daemon.port) as client:
        client.put(queue, b"item")
        for address in caches:
            for verb in ("copy", "move"):
                assert kestrelctl(verb, queue, KEY, "--to", address).code == PROTOCOL
        assert client.get(queue) == b"item"


@pytest.mark.parametrize(
    "line",
    ["get q", "set q lost", "add q lost", "incr q", "delete q --yes", "delete q --yes --missing-ok", "flush --yes"],
)
def test_verbs_of_caches_change_nothing_in_queues(daemons: list[Daemon], tmp_path: Path, line: str) -> None:
    for daemon in daemons:
        with QueueClient(daemon.port) as client:
            client.put("q", b"item")
            run = Kestrelctl(daemon.address, tmp_path, daemon.address)("cache", *line.split())
            assert run.code == PROTOCOL, run
            assert "is not a memcached server: it has queues; nothing was changed" in run.err
            assert client.get("q") == b"item"


def test_a_port_of_jobs_or_of_http_is_neither(daemon: Daemon, tmp_path: Path) -> None:
    for address in (daemon.disque, daemon.admin):
        ctl = Kestrelctl(address, tmp_path, address, address)
        assert ctl("put", "q", "lost").code == PROTOCOL
        assert ctl("cache", "delete", "q").code == PROTOCOL
        assert ctl("jobs", "add", "q", "flush_all").code == (OK if address == daemon.disque else PROTOCOL)


def test_jobs_are_sent_to_nodes_of_jobs_only(daemon: Daemon, caches: list[str], tmp_path: Path) -> None:
    with QueueClient(daemon.port) as client:
        client.put("whole", b"item")
        for address in (*caches, daemon.address):
            ctl = Kestrelctl(address, tmp_path, jobs=address)
            assert ctl("jobs", "add", "q", "x\r\nflush_all\r\n").code == PROTOCOL
        assert client.get("whole") == b"item"


def test_an_old_kestrel_is_taken_for_one(daemons: list[Daemon], tmp_path: Path) -> None:
    ctl = Kestrelctl(daemons[1].address, tmp_path)
    assert ctl("put", "old", "item").code == OK
    assert ctl("get", "old").out == b"item"


def test_many_lines_ask_once(daemon: Daemon, tmp_path: Path, queue: str) -> None:
    asked: list[bytes] = []

    def note(request: bytes) -> bool:
        asked.append(request)
        return True

    with tampering_proxy(daemon.port, admit=note) as address:
        ctl = Kestrelctl(address, tmp_path)
        assert ctl("put", queue, "--lines", stdin=b"line\n" * 3000).code == OK
        assert asked[0] == b"version\r\ndump_stats -\r\n"
        assert b"".join(asked).count(b"version") == 1
        assert ctl("get", queue, "-n", "3000").out == b"line\n" * 3000
        assert b"".join(asked).count(b"version") == 2


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", OK)])
def test_cache_delete_and_flush_ask_a_person(kestrelctl: Kestrelctl, queue: str, answer: bytes, code: int) -> None:
    for line, question in ((["delete", queue], f"delete the value of {queue}?"), (["flush"], "delete all values of ")):
        assert kestrelctl("cache", "set", queue, "value").code == OK
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "kestrelctl", "cache", *line]
        with subprocess.Popen(command, stdin=theirs, stderr=theirs, env=kestrelctl.environment) as run:
            os.close(theirs)
            asked = b""
            while b"[y/N]" not in asked:
                asked += os.read(ours, 1000)
            os.write(ours, answer)
            assert run.wait(60) == code
        os.close(ours)
        assert question in asked.decode()
        assert kestrelctl("cache", "get", queue).code == 1 - code
        assert kestrelctl("cache", *line, "--yes", *(["--missing-ok"] if line != ["flush"] else [])).code == OK
        assert kestrelctl("cache", "get", queue).code == 1
