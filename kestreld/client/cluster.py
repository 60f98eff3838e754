"""KestrelCluster: several independent kestrelds used as one. Items go to, and come from, any of them."""

from random import Random
from types import TracebackType

from kestreld.client.access import Login
from kestreld.client.cluster_face import ClusterFace
from kestreld.client.connection import ClientConnection
from kestreld.client.keeper_calls import Alive
from kestreld.client.pool import ServerPool
from kestreld.client.queue import ClusterQueue
from kestreld.client.server import Server


class KestrelCluster(ClusterFace):
    """A client of kestrelds. Threads may share it, and so may forked processes: each has connections of its own.

    Servers that are away are skipped and tried again, at longer and longer intervals. Every operation raises
    ServersAway once all servers have been away for `patience_ms`, or for `outage_s` if it holds or waits for something;
    a read also raises it when its own wait is over.
    """

    def _server(self, address: str, login: Login, timeout_ms: int, chance: Random, alive: Alive | None) -> Server:
        return Server(address, login, timeout_ms, chance, alive)

    def _begin(self, chance: Random, *, is_ours: bool) -> None:
        self._pool = ServerPool(self._calls, chance, is_chance_ours=is_ours)

    def close(self) -> None:
        """Close all connections. Reads that wait return None; open reads can still be confirmed."""
        self._pool.close()

    def queue(self, name: str) -> ClusterQueue:
        """Return the queue of this name. Raises BadQueueName."""
        return ClusterQueue(self._pool, name)

    def stats(self) -> dict[str, dict[str, int | str]]:
        """Return the counters of each server that can be reached, by address. Raises ServersAway if there is none."""
        return self._pool.carry_out(self._pool.calls.each(ClientConnection.server_stats))[0]

    def __enter__(self) -> "KestrelCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
