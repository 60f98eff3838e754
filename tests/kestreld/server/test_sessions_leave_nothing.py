"""A session that has ended is gone at once: no cycle of references is left to the collector, which may come late."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestreld.clock import Clock
from kestreld.config.config_file import load_file
from kestreld.files import FileLayer
from kestreld.net import Network
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.handshake import Handshake
from kestreld.server.loop import TurnLoop
from kestreld.server.memcache.handler import Handler
from kestreld.server.memcache.parser import MemcacheParser
from kestreld.server.memcache.protocol import Memcache
from kestreld.server.service import Service
from kestreld.server.session import Session
from tests.support.accounts import login, quick_hash
from tests.support.queue_client import QueueClient

USERS = f'users:\n  alice: {{password: "{quick_hash("pw")}", rights: {{"*": all}}, max_rate: 100MiB}}\n'
KINDS = {Session, Handler, MemcacheParser, Handshake}


class ServerHere:
    """A server in this process, whose loop runs while somebody waits for something."""

    def __init__(self, folder: Path, config: str) -> None:
        (folder / "kestreld.yaml").write_text(f"queue_path: {folder}/spool\n{config}")
        files, clock, network = FileLayer(), Clock(), Network()
        files.make_dir(str(folder / "spool"))
        settings = load_file(files, str(folder / "kestreld.yaml"), [])
        self.loop = TurnLoop(clock)
        self.collection = QueueCollection(files, clock, settings, GroupCommit(clock, files), print)
        self.collection.recover()
        self.service = Service(self.loop, network, clock, self.collection, lambda: settings, print, b"key")
        self.address = self.service.listen(network.listen_tcp("127.0.0.1", 0), Memcache(self.service.state)).address

    def run_until(self, is_so: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(20):
                while not is_so():
                    await asyncio.sleep(0.005)

        self.loop.run_until_complete(wait())

    def connections(self) -> int:
        return self.service.stats.curr_connections

    def close(self) -> None:
        self.service.shutdown()
        self.run_until(self.service.stopped.done)
        self.service.close()
        self.collection.close()
        self.loop.close()


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive() -> int:
    return sum(type(one) in KINDS for one in gc.get_objects())


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
            said = (login("alice", "pw") if users else b"") + b"set full 0 0 1\r\nx\r\n" + last_words
            for _ in range(3):
                with QueueClient(server.address) as client:
                    due_bytes = server.service.stats.bytes_read + len(said)
                    client.send(said)
                    server.run_until(lambda due_bytes=due_bytes: server.service.stats.bytes_read >= due_bytes)
                server.run_until(lambda: server.connections() == 0)
            assert alive() == 0
    finally:
        server.close()
