"""Replies that wait for a sync, where another command has what it covers synced within a turn."""

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.compiled import interpreted_only
from tests.support.faulty_files import FaultyFiles
from tests.support.server_here import ServerHere

LATER = b"set work/delay=900000 0 0 1\r\nc\r\n"  # the first of a journal begins a segment, before which all is synced


class Client:
    def __init__(self, server: ServerHere) -> None:
        host, _, port = server.address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)))
        self.connection.setblocking(False)
        self.send = self.connection.sendall
        self.received = b""

    def replies(self) -> int:
        """How many have come by now."""
        with suppress(BlockingIOError):
            self.received += self.connection.recv(1 << 16)
        return self.received.count(b"STORED\r\n")


class Synced:
    """A server whose queue `work` is synced before replies, and a client whose reply waits for that."""

    def __init__(self, folder: Path) -> None:
        self.files = FaultyFiles(errno.ENOSPC, ("write",))
        self.server = ServerHere(folder, "queues: {work: {sync_journal: true}}\n", self.files)
        self.client = Client(self.server)
        self.client.send(b"set work 0 0 1\r\na\r\n")
        self.await_sync()
        assert self.client.replies() == 0

    def await_sync(self) -> None:
        self.server.run_until(lambda: bool(self.files.under_way))

    def close(self) -> None:
        while self.files.under_way:
            self.files.finish_background()
        self.client.connection.close()
        self.server.close()


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[Synced]:
    made = Synced(tmp_path)
    yield made
    made.close()


def test_the_next_command_of_the_same_client_is_answered_when_it_is_on_disk_itself(synced: Synced) -> None:
    synced.files.under_way.clear()  # a slow disk: the command has it synced in the turn
    synced.client.send(LATER)
    synced.await_sync()
    assert synced.client.replies() == 1, "the second is not on disk"
    synced.files.finish_background()
    synced.server.run_until(lambda: synced.client.replies() == 2)


def test_the_next_command_of_the_same_client_is_not_answered_with_success_where_its_write_fails(synced: Synced) -> None:
    synced.files.under_way.clear()
    synced.files.fail_from(2)  # behind the CHECKPOINT of its segment
    synced.client.send(LATER)
    synced.server.run_until(lambda: synced.client.replies() == 1 and b"SERVER_ERROR" in synced.client.received)
    assert synced.client.received == b"STORED\r\nSERVER_ERROR journal write failed: No space left on device\r\n"
    synced.client.connection.setblocking(True)
    assert synced.client.connection.recv(1) == b"", "outcome unknown"


@interpreted_only  # to see when the commit runs
def test_nothing_of_a_turn_is_answered_before_it_is_written(synced: Synced) -> None:
    other = Client(synced.server)
    synced.server.run_until(lambda: synced.server.connections() == 2)
    synced.files.under_way.clear()
    commit = synced.server.collection.commit
    run, answered = commit.run, list[int]()

    def running() -> None:
        answered.append(synced.client.replies())
        run()

    commit.run = running  # type: ignore[method-assign]
    synced.client.send(b"set elsewhere 0 0 1\r\nb\r\n")
    other.send(LATER)
    synced.await_sync()
    synced.server.run_until(lambda: synced.client.replies() == 2)
    assert answered[0] == 0
    other.connection.close()
