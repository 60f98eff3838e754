"""Another protocol is one folder: sessions, turns, admission and the service serve it as they are."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kestreld.net import Network
from tests.kestreld.server.echo.echo_protocol import Echo
from tests.support.accounts import quick_hash
from tests.support.compiled import interpreted_only
from tests.support.server_here import ServerHere

pytestmark = interpreted_only
USERS = f'users:\n  alice: {{password: "{quick_hash("pw")}", rights: {{"letters": [put, get]}}}}\n'


@contextmanager
def echo_server(folder: Path, config: str = "") -> Iterator[tuple[ServerHere, str]]:
    server = ServerHere(folder, config)
    try:
        yield server, server.listen(Echo(server.service.state))
    finally:
        server.close()


def ask(server: ServerHere, address: str, said: bytes, lines: int) -> list[bytes]:
    """What comes back on a connection of its own."""
    host, _, port = address.rpartition(":")
    connection = Network().connect(host, int(port))
    received = bytearray()

    def is_answered() -> bool:
        with suppress(BlockingIOError):
            received.extend(connection.recv(4096))
        return received.count(b"\n") >= lines

    try:
        server.run_until(lambda: server.network.is_connected(connection))
        connection.send(said)
        server.run_until(is_answered)
    finally:
        connection.close()
    return bytes(received).splitlines()


def test_lines_come_back_in_pieces_or_whole(tmp_path: Path) -> None:
    with echo_server(tmp_path) as (server, address):
        assert ask(server, address, b"one\ntwo\nthr", 2) == [b"one", b"two"]


def test_its_answers_wait_for_the_commit_of_what_it_puts(tmp_path: Path) -> None:
    with echo_server(tmp_path, "queues: {letters: {sync_journal: true}}\n") as (server, address):
        assert ask(server, address, b"put letters a\nput letters b\ntake letters\nx\n", 4) == [b"ok", b"ok", b"a", b"x"]


def test_its_clients_log_in_by_a_command_of_the_session(tmp_path: Path) -> None:
    with echo_server(tmp_path, USERS) as (server, address):
        said = b"put letters a\nauth alice nonsense\nauth alice pw\nput letters a\nput orders a\ntake letters\n"
        assert ask(server, address, said, 6) == [b"no", b"wrong", b"welcome", b"ok", b"no", b"a"]
