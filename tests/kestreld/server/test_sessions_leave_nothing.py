"""A session that has ended is gone at once: no cycle of references is left to the collector, which may come late."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestreld.server.handshake import Handshake
from kestreld.server.memcache.handler import Handler
from kestreld.server.memcache.parser import MemcacheParser
from kestreld.server.session import Session
from tests.support.accounts import login, quick_hash
from tests.support.queue_client import QueueClient
from tests.support.server_here import ServerHere

USERS = f'users:\n  alice: {{password: "{quick_hash("pw")}", rights: {{"*": all}}, max_rate: 100MiB}}\n'
KINDS = {Session, Handler, MemcacheParser, Handshake}


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive() -> list[object]:
    return [one for one in gc.get_objects() if type(one) in KINDS]


@pytest.mark.exhaustive("users")
@pytest.mark.parametrize("users", ["", USERS], ids=["anybody", "users"])
@pytest.mark.parametrize(
    "last_words",
    [
        b"set q 0 0 1000000\r\n" + b"x" * 200_000,
        b"get empty/t=60000\r\n",
        b"get full/open\r\n",
        b"\x80",
        b"quit\r\n",
        b"ge",
    ],
)
def test_nothing_of_a_session_is_left_once_its_client_has_gone(tmp_path: Path, users: str, last_words: bytes) -> None:
    server = ServerHere(tmp_path, users)
    try:
        with without_collector():
            earlier = alive()  # an earlier test's may be referred to yet; they stay as long as this list
            said = (login("alice", "pw") if users else b"") + b"set full 0 0 1\r\nx\r\n" + last_words
            for _ in range(3):
                with QueueClient(server.address) as client:
                    due_bytes = server.service.stats.bytes_read + len(said)
                    client.send(said)
                    server.run_until(lambda due_bytes=due_bytes: server.service.stats.bytes_read >= due_bytes)
                server.run_until(lambda: server.connections() == 0)
            assert len(alive()) == len(earlier)
    finally:
        server.close()
