"""Real nodes of a cluster for tests: a kestreld each, in folders of the test, on free ports of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.daemon import Daemon
from tests.support.resp import RespClient
from tests.support.waiting import until

TIMEOUT_S: Final = 1.0  # node timeout, if a test does not say otherwise
CALM: Final = "cluster.node_timeout=60s"  # no node of a busy machine counts as down
SHORT_MS: Final = 300


class ClusterNode(Daemon):
    """One node. It has the same ports after a restart."""

    def __init__(self, folder: Path, *settings: str, admin: str = "null") -> None:
        timeout = [] if any("node_timeout" in one for one in settings) else [f"cluster.node_timeout={TIMEOUT_S:g}s"]
        super().__init__(folder, ["listen.disque=127.0.0.1:0", *timeout, *settings], admin=admin)
        self.bus = ""  # where other nodes connect, once it is ready; "" where there is no bus
        self.id = ""
        self._client: RespClient | None = None

    def await_ready(self) -> None:
        super().await_ready()
        ready = next(line for line in reversed(self.log) if "ready " in line)
        self.bus = next((word.removeprefix("cluster=") for word in ready.split() if word.startswith("cluster=")), "")
        if self.bus and not any(one.startswith("cluster.port=") for one in self.settings):
            self.settings.append(f"cluster.port={self.bus_port}")
        self._client = None
        self.id = self("CLUSTER", "MYID").decode()

    @property
    def client_port(self) -> int:
        return int(self.disque.partition(",")[0].rpartition(":")[2])

    @property
    def bus_port(self) -> int:
        return int(self.bus.rpartition(":")[2])

    def __call__(self, *words: bytes | str | int) -> bytes:
        """The reply to a command."""
        if self._client is None:
            self._client = RespClient(self.disque.partition(",")[0]).until_loaded()
        return self._client(*words)  # type: ignore[no-any-return]

    def client(self) -> RespClient:
        """A connection of its own."""
        return RespClient(self.disque.partition(",")[0]).until_loaded()

    def meet(self, other: "ClusterNode") -> bytes:
        return self("CLUSTER", "MEET", "127.0.0.1", other.client_port, other.bus_port)

    def nodes(self) -> dict[str, tuple[str, str, str]]:
        """What CLUSTER NODES says: address, flags and the state of the link, by id."""
        lines = [line.split() for line in self("CLUSTER", "NODES").decode().splitlines()]
        return {node_id: (address, flags, link) for node_id, address, flags, _, _, link in lines}

    def flags_of(self, other: "ClusterNode") -> str:
        """ "" where it is not known."""
        return self.nodes().get(other.id, ("", "", ""))[1]

    def sees(self, others: "list[ClusterNode]") -> bool:
        """Whether it knows just these nodes and itself, and is linked to them all."""
        found = self.nodes()
        ids = {node.id for node in others} | {self.id}
        return set(found) == ids and all(
            (flags, link) == ("noflags", "connected") for one, (_, flags, link) in found.items() if one != self.id
        )

    def figures(self, other: "ClusterNode") -> dict[str, str]:
        """The line of INFO about another node."""
        lines = [line.partition(":")[2] for line in self("INFO", "cluster").decode().splitlines()]
        (line,) = [line for line in lines if f"id={other.id}" in line]
        return dict(part.split("=", 1) for part in line.split(","))

    def set_timeout(self, timeout_s: float) -> None:
        """The node timeout from now on, also after a restart."""
        assert self("CONFIG", "SET", "cluster-node-timeout", int(timeout_s * 1000)) == b"OK"
        others = [one for one in self.settings if not one.startswith("cluster.node_timeout=")]
        self.settings = [*others, f"cluster.node_timeout={timeout_s:g}s"]

    def notice_silence(self) -> None:
        """From now on whoever says nothing for a moment counts as down."""
        assert self("CONFIG", "SET", "cluster-node-timeout", SHORT_MS) == b"OK"

    def end(self) -> None:
        """Whatever state it is in."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self.process is not None:
            self.kill()


@contextmanager
def cluster_of(folder: Path, count: int, *settings: str, admin: str = "null") -> Iterator[list[ClusterNode]]:
    """So many nodes that know each other. The node timeout counts from then on: a busy machine may keep nodes that have
    yet to meet from running for longer than that.
    """
    nodes: list[ClusterNode] = []
    has_timeout = any("node_timeout" in one for one in settings)
    try:
        for number in range(count):
            node = ClusterNode(folder / f"node{number}", *settings, *([] if has_timeout else [CALM]), admin=admin)
            node.start()
            nodes.append(node)
        for node in nodes[1:]:
            assert node.meet(nodes[0]) == b"OK"
        for node in nodes:
            until(lambda node=node: node.sees([one for one in nodes if one is not node]), "a cluster")  # type: ignore[misc]
        for node in nodes:
            assert node("CLUSTER", "SAVECONFIG") == b"OK"  # it may be killed at once
            if not has_timeout:
                node.set_timeout(TIMEOUT_S)
        yield nodes
    finally:
        for node in nodes:
            node.end()
