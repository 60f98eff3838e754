"""Whoever guesses passwords, from however many connections, keeps nobody at another address from logging in."""

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestreld.passwords import hash_password
from kestreld.server.cpu_worker import origin_of
from tests.support.accounts import login
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import basic
from tests.support.process import stop

GUESSES_MAX = 12  # two, and those of the time in which a busy machine does not let the test count them


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One whose passwords take as long to compare as anybody's."""
    kept = hash_password(b"secret", b"salt of the tests")
    users = f'users:\n  alice: {{password: "{kept}", rights: {{"*": all}}}}\n'
    with running_daemon(tmp_path, config=users, admin="127.0.0.1:0") as running:
        yield running


def connect(daemon: Daemon, source: str, sent: bytes, *, to_admin: bool = False) -> socket.socket:
    """A connection from this address."""
    port = int((daemon.admin if to_admin else daemon.address).rpartition(":")[2])
    one = socket.create_connection(("127.0.0.1", port), 60, source_address=(source, 0))
    one.sendall(sent)
    return one


def compared(clients: list[socket.socket]) -> int:
    """How many of them have been told that they are wrong."""
    told = select.select(clients, [], [], 0)[0]
    return sum(one.recv(100, socket.MSG_PEEK).startswith(b"CLIENT_ERROR") for one in told)


@pytest.mark.parametrize("guessers", [63, 100])
def test_a_first_login_from_elsewhere_waits_for_one_or_two_guesses(daemon: Daemon, guessers: int) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(daemon, "127.0.0.1", login("alice", "guess"))) for _ in range(guessers)]
        select.select(crowd, [], [])  # they have begun
        stop(daemon.pid)
        before = compared(crowd)
        client = stack.enter_context(connect(daemon, "127.0.0.2", login("alice", "secret")))
        daemon.signal(signal.SIGCONT)
        assert client.recv(100) == b"STORED\r\n"
        assert compared(crowd) - before <= GUESSES_MAX


def test_a_first_login_at_the_admin_port_does_not_wait_for_guesses_either(daemon: Daemon) -> None:
    words = (
        f"GET /stats.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('alice', 'secret')['Authorization']}\r\n"
    )
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(daemon, "127.0.0.1", login("alice", "guess"))) for _ in range(60)]
        select.select(crowd, [], [])
        stop(daemon.pid)
        before = compared(crowd)
        client = stack.enter_context(connect(daemon, "127.0.0.2", words.encode() + b"\r\n", to_admin=True))
        daemon.signal(signal.SIGCONT)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert compared(crowd) - before <= GUESSES_MAX


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "192.0.2.1", False),
    ],
)
def test_an_ipv6_network_counts_as_one_address(one: str, other: str, is_same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) == is_same
