"""A server in this process, to look into."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from kestreld.clock import Clock
from kestreld.config.config_file import load_file
from kestreld.files import FileLayer
from kestreld.net import Network
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.loop import TurnLoop
from kestreld.server.memcache.protocol import Memcache
from kestreld.server.service import Service
from kestreld.server.wire_protocol import WireProtocol


class ServerHere:
    """A server in this process, whose loop runs while somebody waits for something."""

    def __init__(self, folder: Path, config: str, files: FileLayer | None = None) -> None:
        (folder / "kestreld.yaml").write_text(f"queue_path: {folder}/spool\n{config}")
        files, clock, self.network = files or FileLayer(), Clock(), Network()
        files.make_dir(str(folder / "spool"))
        settings = load_file(files, str(folder / "kestreld.yaml"), [])
        self.loop = TurnLoop(clock)
        self.collection = QueueCollection(files, clock, settings, GroupCommit(clock, files), print)
        self.collection.recover()
        self.service = Service(self.loop, self.network, clock, self.collection, lambda: settings, print, b"key")
        self.address = self.listen(Memcache(self.service.state))

    def listen(self, protocol: WireProtocol) -> str:
        """Serve it at a free port; the address."""
        return self.service.listen(self.network.listen_tcp("127.0.0.1", 0), protocol).address

    def run_until(self, is_so: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(60):
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
