"""What is no text: memcached's binary protocol, the first bytes of others. None of it is run as commands."""

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.functional.conftest import Connect
from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

HEADER: Final = struct.Struct(">BBHBBHIIQ")  # magic, opcode, key, extras, data type, status, body, opaque, CAS
SET: Final = 1
UNKNOWN_COMMAND: Final = 0x81
EVIL: Final = b"hello\nflush_all\nbye"
USERS: Final = f"""
users:
  alice: {{password: "{quick_hash("pw")}", rights: {{"*": all}}}}
"""


def binary_set(key: bytes, value: bytes, opaque: int = 0xCAFE) -> bytes:
    """A set as memcached's binary protocol has it."""
    extras = bytes(8)  # flags and expiry
    body = extras + key + value
    return HEADER.pack(0x80, SET, len(key), len(extras), 0, 0, len(body), opaque, 0) + body


def expect_binary_error(client: QueueClient, opcode: int = SET, opaque: int = 0xCAFE) -> None:
    """One binary answer, "unknown command", and the end."""
    answer = client.read_all()
    magic, of, key, extras, _, status, body, about, _ = HEADER.unpack_from(answer)
    assert (magic, of, key, extras, status, about) == (0x81, opcode, 0, 0, UNKNOWN_COMMAND, opaque)
    assert answer[HEADER.size :] == b"Unknown command"
    assert body == len(b"Unknown command")


def send_for_ever(client: QueueClient) -> None:
    while True:
        client.send(b"flush_all\r\n")
        time.sleep(0.01)


@contextmanager
def asking_for_logins(folder: Path, *settings: str) -> Iterator[Daemon]:
    with running_daemon(folder, *settings, config=USERS) as daemon:
        yield daemon


def test_a_binary_value_is_not_run_as_commands_and_its_client_is_told_at_once(connect: Connect, queue: str) -> None:
    other, binary = connect(), connect()
    other.put(queue, b"kept")
    binary.send(binary_set(b"k", EVIL))
    expect_binary_error(binary)
    assert other.get(queue) == b"kept"


@pytest.mark.parametrize("first", [b"\x80", b"\x81"])
def test_the_first_byte_is_enough(connect: Connect, first: bytes) -> None:
    client = connect()
    client.send(first)
    expect_binary_error(client, 0, 0)


def test_a_client_that_sends_megabytes_of_it_can_send_them_all_and_still_reads_the_answer(connect: Connect) -> None:
    client = connect()
    client.send(binary_set(b"k", b"flush_all\n" * 500_000) + binary_set(b"k", EVIL))
    expect_binary_error(client)


def test_a_binary_command_is_not_run_in_kestrel_1(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as other:
        other.put("work", b"kept")
        with QueueClient(daemon.port) as binary:
            binary.send(binary_set(b"k", EVIL))
            expect_binary_error(binary)
        with QueueClient(daemon.port) as odd:
            odd.send(b"version\r\n\x16\x03\x01\nflush_all\n")
            odd.expect_line(b"VERSION ")
            odd.expect_end(b"CLIENT_ERROR\r\n")
        assert other.get("work") == b"kept"


def test_a_binary_command_is_not_run_before_or_after_a_login(tmp_path: Path) -> None:
    with asking_for_logins(tmp_path) as daemon, QueueClient(daemon.port) as other:
        other.ask(login("alice", "pw"), b"STORED\r\n")
        other.put("work", b"kept")
        with QueueClient(daemon.port) as binary:
            binary.send(binary_set(b"k", EVIL + b"x" * 1_000_000))
            expect_binary_error(binary)
        with QueueClient(daemon.port) as odd:
            odd.send(b"version\r\n\x80 odd\r\nversion\r\n")
            odd.expect_end(b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR no command begins with the byte 0x80\r\n")
        with QueueClient(daemon.port) as late:
            late.send(login("alice", "pw") + b"version\r\n" + binary_set(b"k", EVIL))
            late.expect(b"STORED\r\n")
            late.expect_line(b"VERSION ")
            late.expect_end(b"CLIENT_ERROR no command begins with the byte 0x80\r\n")
        assert other.get("work") == b"kept"


@pytest.mark.parametrize("first", [b"\0", b"\x01", b"\t", b"\x16", b"\x1b", b"\x7f", b"\x80", b"\x81", b"\xff"])
def test_a_line_that_begins_with_a_byte_that_is_not_printable_is_answered_once_and_ends_the_connection(
    connect: Connect, first: bytes
) -> None:
    problem = b"CLIENT_ERROR no command begins with the byte 0x%02x\r\n" % first[0]
    for sent in (b"get nothing\r\n" + first + b" odd\r\nflush_all\r\n", b"get nothing\r\n" + first):
        client = connect()
        client.send(sent)
        client.expect_end(b"END\r\n" + problem)


def test_whoever_is_hung_up_on_and_goes_on_sending_is_let_go(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as stays, QueueClient(daemon.port) as other:
        stays.send(b"\x80")
        expect_binary_error(stays, 0, 0)
        with pytest.raises(ConnectionError):  # the server does not listen forever
            send_for_ever(stays)
        until(lambda: other.stats()["curr_connections"] == "1", "it to be let go")
