"""The other nodes as jobs need them: which are up, which take copies, and sets of nodes."""

from collections.abc import Callable, Iterable
from typing import Final

from kestreld.cluster.chance import RandomBytes, sample
from kestreld.cluster.job_bus import JobBus
from kestreld.cluster.job_messages import JobMessage
from kestreld.cluster.nodes import Flag, Node, NodeTable
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.store import JITTER_MS

SLOW_MS: Final = 500  # an answer to a PING that takes longer
# Between the times at which two holders of a job would queue it if the others failed. Jitter moves each time by up to
# JITTER_MS; the rest is for the message that says that one of them has queued it.
GAP_MS: Final = 2 * JITTER_MS + 250


class Peers:
    """The other nodes. Sets of nodes are those of `jobs.node_sets`. `stores` tells whether this node can put copies
    where they count: in its log, if it has one.
    """

    def __init__(
        self,
        jobs: ReplicatedJobs,
        table: NodeTable,
        bus: JobBus,
        random_bytes: RandomBytes,
        stores: Callable[[], bool] = lambda: True,
    ) -> None:
        self.jobs = jobs
        self.table = table
        self.bus = bus
        self.random_bytes = random_bytes
        self._stores = stores
        self._ranks: dict[tuple[int, int], int] = {}

    # Nodes and sets of nodes

    @property
    def members(self) -> int:
        """Set of the other nodes of the cluster, up or not."""
        return self.jobs.node_sets.of_all([node.id for node in self.table.members()])

    def has_members(self) -> bool:
        """Return True if there are other nodes."""
        return bool(self.table.members())

    def up(self) -> list[Node]:
        """Return the other nodes that take messages now."""
        return [node for node in self.table.members() if node.is_up]

    def hears(self, node: Node) -> bool:
        """Return True if the node is up and answers as fast as usual, so it has most likely read earlier messages."""
        waited_ms = self.jobs.clock.monotonic_ms - node.ping_at_ms if node.ping_at_ms else 0
        return node.is_up and waited_ms < SLOW_MS and not self.bus.is_crowded(node)

    def set_of(self, node: Node) -> int:
        return self.jobs.node_sets.of(node.id)

    def nodes_in(self, nodes: int) -> list[Node]:
        """Return the members in a set, without this node."""
        found = [self.table.get(node_id) for node_id in self.jobs.node_sets.ids(nodes & ~self.jobs.me)]
        return [node for node in found if node is not None and node.is_member]

    def ids(self, nodes: int) -> tuple[bytes, ...]:
        return self.jobs.node_sets.ids(nodes)

    def takers(self) -> list[Node]:
        """Return the nodes that may be given a copy now, in random order."""
        nodes = [node for node in self.table.reachable() if not self.bus.is_crowded(node)]
        return sample(nodes, len(nodes), self.random_bytes)

    @property
    def is_leaving(self) -> bool:
        return bool(self.table.myself.flags & Flag.LEAVING)

    @property
    def is_loading(self) -> bool:
        """True while this node has yet to read its log."""
        return bool(self.table.myself.flags & Flag.LOADING)

    @property
    def keeps_copies(self) -> bool:
        """True if this node may have more copies."""
        return not (self.is_leaving or self.jobs.memory.level) and self._stores()

    @property
    def stores(self) -> bool:
        """True if changes made now get into the log, if there is one."""
        return self._stores()

    def rank_ms(self, owners: int, node: Node) -> int:
        """Return how much later than its retry time this node queues a job that `node` has queued, ms.

        It differs between the owners, so that they do not queue the job at the same time.
        """
        key = (owners, self.set_of(node))
        rank = self._ranks.get(key)
        if rank is None:
            me = self.jobs.node_id
            rank = 1 + sum(one < me for one in self.ids(owners) if one not in (me, node.id))
            if len(self._ranks) > 4096:
                self._ranks.clear()
            self._ranks[key] = rank
        return rank * GAP_MS

    # Messages

    def tell(self, nodes: int, message: JobMessage) -> None:
        """Send a message to the members in a set."""
        for node in self.nodes_in(nodes):
            self.bus.send(node, message)

    def tell_each(self, nodes: Iterable[Node], message: JobMessage) -> None:
        for node in nodes:
            self.bus.send(node, message)
