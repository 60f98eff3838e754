"""Looking at a server by its admin port."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelctl.remote import access
from kestrelctl.remote.client import NOBODY
from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.tui.sights import PATIENCE_S, put
from tui.admin_port import admin_port_of
from tui.feed import Feed
from tui.polling import Poller
from tui.snapshots import KEYS, Snapshot

MINUTE_MS = 60_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        yield daemon


def look(poller: Poller) -> Snapshot:
    found = poller.poll()
    assert isinstance(found, Snapshot), found
    return found


def test_both_ways_of_looking_say_the_same(daemon: Daemon) -> None:
    for queue in ("work", "käse", "work+audit"):
        put(daemon.address, queue, b"hello")
    with QueueClient(daemon.port) as client:
        client.ask(b"set \xff 0 0 1\r\nx\r\n", b"STORED\r\n")
        client.get("work/open")
        poller = Poller(daemon.address, 5000, 1000)
        by_memcache, by_feed = look(poller), look(poller)
        assert poller._feed is not None
        poller.close()
    assert set(by_feed.queues) == {"work", "käse", "work+audit", os.fsdecode(b"\xff")}
    oldest = KEYS.index("oldest_at_ms")
    for name, figures in by_feed.queues.items():
        dumped = by_memcache.queues[name]
        assert abs((figures[oldest] or 0) - (dumped[oldest] or 0)) < MINUTE_MS, "reckoned back from oldest_ms"
        assert (*figures[:oldest], *figures[oldest + 1 :]) == (*dumped[:oldest], *dumped[oldest + 1 :])
    assert by_feed.counters.keys() == by_memcache.counters.keys()
    assert {type(value) for name, value in by_feed.counters.items() if name not in ("version", "admin")} == {int}


def test_later_looks_follow_what_changes(daemon: Daemon) -> None:
    put(daemon.address, "work", b"hello")
    put(daemon.address, "mail", b"hello")
    poller = Poller(daemon.address, 5000, 1000)
    look(poller)
    first = look(poller)
    put(daemon.address, "work", b"more")
    with QueueClient(daemon.port) as client:
        client.do(b"delete mail", b"DELETED\r\n")
    second = look(poller)
    poller.close()
    assert (first.queues["work"][0], first.queues["mail"][0]) == (1, 1)  # looks are not changed afterwards
    assert {name: figures[0] for name, figures in second.queues.items()} == {"work": 2}


def test_a_server_that_restarts_is_looked_at_from_the_beginning(daemon: Daemon) -> None:
    put(daemon.address, "work", b"hello")
    poller = Poller(daemon.address, 5000, 1000)
    for _ in range(2):
        look(poller)
    daemon.restart()
    end = time.monotonic() + PATIENCE_S
    while not isinstance(found := poller.poll(), Snapshot):
        assert time.monotonic() < end, f"waited for the server to answer again: {found}"
    assert found.queues["work"][0] == 1
    assert look(poller).queues["work"][0] == 1
    poller.close()


def test_without_the_right_to_the_admin_port_the_memcache_port_serves(daemon: Daemon) -> None:
    put(daemon.address, "work", b"hello")
    poller = Poller(daemon.address, 5000, 1000)
    look(poller)
    nobody = admin_port_of(daemon.address, "127.0.0.1:1", 5000, NOBODY)
    assert nobody is not None
    poller._feed = Feed(nobody)
    assert look(poller).queues["work"][0] == 1
    poller.close()


def test_users_log_in_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = f"users: {{alice: {{password: '{quick_hash('pw')}', rights: {{'*': all}}}}}}\n"
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon:
        monkeypatch.setenv(access.PASSWORD_VARIABLE, "pw")
        login = access.login_of("alice")
        put(daemon.address, "work", b"hello", login=login)
        poller = Poller(daemon.address, 5000, 1000, login)
        look(poller)
        assert look(poller).queues["work"][0] == 1
        assert poller._feed is not None
        poller.close()


@pytest.mark.parametrize(
    ("address", "admin", "reached"),
    [
        ("127.0.0.1:22133", "127.0.0.1:2223", True),
        ("localhost:22133", "127.0.0.1:2223", True),
        ("unix:/run/k.sock", "127.0.0.1:2223", True),
        ("unix:/run/k.sock", "unix:/run/a.sock", True),
        ("queues.example.org:22133", "0.0.0.0:2223", True),
        ("queues.example.org:22133", "[::]:2223", True),
        ("queues.example.org:22133", "127.0.0.1:2223", False),
        ("queues.example.org:22133", "unix:/run/a.sock", False),
        ("10.0.0.1:22133", "10.0.0.1:2223", True),
    ],
)
def test_an_admin_port_of_another_machine_s_own_is_not_tried(address: str, admin: str, reached: bool) -> None:
    assert (admin_port_of(address, admin, 1000, NOBODY) is not None) == reached


def test_a_password_does_not_leave_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.PASSWORD_VARIABLE, "pw")
    assert admin_port_of("tls:10.0.0.1:22134", "10.0.0.1:2223", 1000, access.login_of("alice")) is None
