"""This node as a member of a cluster: its table of nodes, its bus, and the events passed to its jobs.

It receives the events of the bus (`BusEvents`) and of Membership (`Watcher`), and passes them to each other, to the
nodes' file and to the jobs. A node that stands alone has a table with one node and no bus, and none of this is called.
After a start, clients wait until each known node has been pinged or not reached, for half a second at most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kestreld.clock import Clock
from kestreld.cluster.codec import Message
from kestreld.cluster.frames import Hello
from kestreld.cluster.jobs_side import JobsSide
from kestreld.cluster.membership import TIMEOUT_MS_MIN, Membership
from kestreld.cluster.messages import OF_NODES, NodeMessage, Pong
from kestreld.cluster.nodes import Flag, Node, NodeAddress, NodeTable
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.store import RandomBytes
from kestreld.queues.agenda import Agenda, Alarm
from kestreld.queues.commit import PendingCommit
from kestreld.queues.slices import Work
from kestreld.server.bus.bus import ClusterBus
from kestreld.server.bus.host_names import HostNames
from kestreld.server.bus.peers import BusEvents
from kestreld.server.disque.nodes_file import NodesFile
from kestreld.server.disque.persistence import Done, Persistence
from kestreld.server.listener import BoundListener
from kestreld.server.rate_limited_log import RateLimitedLog

TIMEOUT_MS: Final = 15_000  # cluster-node-timeout
START_MS: Final = 500  # longest wait of clients for pings to known nodes
COPIED_MS: Final = 10_000  # after its last call, the copy of a spool counts as gone
COPIES_MAX: Final = 100  # the most that are counted

Report = Callable[[str], None]


class _NoBus:
    """Links of a node without a bus: none."""

    def connect(self, node: Node) -> None: ...

    def disconnect(self, node: Node) -> None: ...

    def send(self, node: Node, message: NodeMessage) -> None: ...

    def refuse(self, node_id: bytes, run_id: bytes, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Announced:
    """Address that this node announces. `host` "" = that of its connections; `is_fixed`: set by the operator."""

    address: NodeAddress
    is_fixed: bool = False


class Clustering(BusEvents):
    """This node's side of the cluster. It is the `Watcher` of its Membership."""

    def __init__(
        self,
        jobs: Jobs,
        clock: Clock,
        agenda: Agenda,
        random_bytes: RandomBytes,
        persistence: Callable[[], Persistence],
        run_id: bytes,
        port: int,
        take_on: Callable[[Work], None],
    ) -> None:
        """`take_on` runs long work in slices."""
        self._take_on = take_on
        self._is_settling = False  # the log has been read, and its jobs are being registered
        self.table = NodeTable(Node(jobs.node_id, NodeAddress("", port, port), Flag.MYSELF, clock.monotonic_ms))
        self.table.myself.run_id = run_id
        self.bus: ClusterBus | None = None
        self.why_alone = "it does not join clusters"
        self.timeout_ms = TIMEOUT_MS
        self.membership = self._new_membership(_NoBus(), random_bytes)
        self._jobs = jobs
        self._clock = clock
        self._random_bytes = random_bytes
        self._side = JobsSide()
        self._persistence = persistence
        self._announced = Announced(self.table.myself.address)
        self._file: NodesFile | None = None
        self._names: HostNames | None = None
        self._note: Report = lambda line: None
        self._report: Report = lambda line: None
        self._complaints = RateLimitedLog(clock, lambda line: None)
        self._copied_at_ms: dict[str, int] = {}  # time at which each pair with one id was found last
        self._timer = Alarm(agenda, self._tick)
        self._held: list[BoundListener] = []  # clients wait there until these nodes
        self._awaited: set[Node] = set()  # have been pinged
        self._start_timer = Alarm(agenda, self._let_clients_in)

    def _new_membership(self, bus: "ClusterBus | _NoBus", random_bytes: RandomBytes) -> Membership:
        return Membership(self.table, bus, self, random_bytes, timeout_ms=self.timeout_ms)

    @property
    def is_one_of_several(self) -> bool:
        """True if the node knows other nodes."""
        return len(self.table) > 1

    def attach_jobs(self, side: JobsSide) -> None:
        """Pass events of nodes and messages about jobs to `side`."""
        self._side = side

    # At the start

    def hello(self) -> Hello:
        """Return the HELLO by which this node identifies itself to others."""
        return Hello(self.table.myself.id, self.table.myself.run_id, self._announced.address)

    def announce(self, announced: Announced) -> None:
        """Set the address told to other nodes, and, if it is fixed, to clients."""
        self._announced = announced
        host = announced.address.host if announced.is_fixed else ""
        self.table.myself.address = NodeAddress(host, announced.address.port, announced.address.bus_port)

    def join(
        self,
        bus: ClusterBus,
        names: HostNames,
        file: NodesFile,
        complaints: RateLimitedLog,
        note: Report,
        report: Report,
    ) -> list[Node]:
        """Become one of the nodes in the file, on a bus. Returns this node as the file has it, if it does."""
        self.bus, self._names, self._file = bus, names, file
        self._complaints, self._note, self._report = complaints, note, report
        self.membership = self._new_membership(bus, self._random_bytes)
        self.use_id()
        found = file.read()
        for node in found:
            if not node.flags & Flag.MYSELF:
                node.added_at_ms = self._clock.monotonic_ms
                self.table.add(node)
        return [node for node in found if node.flags & Flag.MYSELF]

    def use_id(self) -> None:
        """Take the node id of the jobs. If it is another one, the other nodes are forgotten."""
        myself = self.table.myself
        if myself.id != self._jobs.node_id:
            self.table.rename(myself, self._jobs.node_id)
            if self.is_one_of_several:
                self.membership.forget_all()
            if self.bus is not None:
                self.bus.close_incoming()

    def start(self, held: list[BoundListener]) -> None:
        """Connect to the known nodes. Clients of these listeners wait until each was pinged, or START_MS."""
        now_ms = self._clock.monotonic_ms
        self._awaited = {node for node in self.table.members() if not node.flags & Flag.NO_ADDRESS}
        if self._awaited:
            self._held = held
            for listener in held:
                listener.hold()
            self._start_timer.set(now_ms + START_MS)
        self.membership.start(now_ms)
        self._go_on_ticking()

    def _let_clients_in(self) -> None:
        self._awaited = set()
        held, self._held = self._held, []
        for listener in held:
            listener.let_in()

    def _was_pinged(self, node: Node) -> None:
        self._awaited.discard(node)
        if self._held and not self._awaited:
            self._let_clients_in()

    # Requests of operators

    def set_timeout(self, timeout_ms: int) -> None:
        """Set cluster-node-timeout."""
        self.timeout_ms = self.membership.timeout_ms = max(timeout_ms, TIMEOUT_MS_MIN)

    def set_leaving(self, *, leaving: bool) -> None:
        """Tell other nodes to give this node no more jobs, or to give it jobs again."""
        self.membership.set_leaving(leaving=leaving, now_ms=self._clock.monotonic_ms)

    def log_changed(self) -> None:
        """Tell other nodes if this node is loading its job log, after a change of that log."""
        is_loading = bool(self._persistence().obstacle)
        was_loading = bool(self.table.myself.flags & Flag.LOADING)
        if is_loading:
            self.membership.set_loading(loading=True, now_ms=self._clock.monotonic_ms)
        elif was_loading and not self._is_settling:
            self._is_settling = True
            self.table.restart_clocks()  # the log may have been ahead of the steady clock
            self._take_on(self._loaded())

    def _loaded(self) -> Work:
        """Register the jobs of the log before other nodes ask for them."""
        yield from self._side.loaded(self.timeout_ms)
        self._is_settling = False
        if not self._persistence().obstacle:
            self.membership.set_loading(loading=False, now_ms=self._clock.monotonic_ms)

    def meet(self, host: str, port: int, bus_port: int, done: Callable[[bool], None]) -> None:
        """Execute CLUSTER MEET; `done` is called with True if the host was found, within a second."""
        assert self._names is not None

        def resolved(address: str) -> None:
            if address:
                self.membership.meet(NodeAddress(address, port, bus_port), self._clock.monotonic_ms)
                self._go_on_ticking()
            done(bool(address))

        self._names.resolve(host, resolved)

    def forget(self, node: Node) -> None:
        """Execute CLUSTER FORGET."""
        self.membership.forget(node, self._clock.monotonic_ms)

    def forget_all(self, done: Done) -> None:
        """Execute CLUSTER RESET: forget all other nodes, on disk first. Changes nothing if that fails."""
        if self._file is None:
            done("")
            return

        def saved(problem: str) -> None:
            if not problem:
                self.membership.forget_all()
            done(problem)

        self._file.save_alone(saved)

    def save(self, done: Done) -> None:
        """Execute CLUSTER SAVECONFIG."""
        if self._file is None:
            done("")
        else:
            self._file.save(done)

    # Time

    def _go_on_ticking(self) -> None:
        if self.bus is not None and (self.bus.is_in_use or len(self.table) > 1):
            self._timer.set(self._clock.monotonic_ms + self.membership.tick_ms)

    def _tick(self) -> None:
        assert self.bus is not None
        self.membership.tick(self._clock.monotonic_ms)
        for peer in self.bus.peers():
            if not self.table.has(peer.node):
                if peer.node.flags & Flag.MEET:
                    self._report(f"cluster: cannot meet a node at {peer.node.address}: {peer.problem or 'no answer'}")
                self.bus.forget(peer.node)
        self.bus.look_after()
        self._go_on_ticking()

    def look_after(self) -> None:
        """Retry failed writes of the nodes' file; called once a second."""
        if self._file is not None:
            self._file.look_after()

    def stop(self) -> None:
        """Close the bus, because the server stops."""
        if self.bus is not None:
            self.bus.stop()
        if self._names is not None:
            self._names.stop()

    # Events of the bus

    def linked(self, node: Node, peer: Hello) -> None:
        self.membership.linked(node, peer, self._clock.monotonic_ms)
        self._was_pinged(node)

    def unlinked(self, node: Node) -> None:
        self.membership.unlinked(node, self._clock.monotonic_ms)
        self._was_pinged(node)

    def arrived(self, peer: Hello, address: NodeAddress, local_host: str) -> str:
        myself = self.table.myself
        if not myself.address.host:
            # As Disque: from the first connection of another node.
            host = self._announced.address.host or local_host
            myself.address = NodeAddress(host, myself.address.port, myself.address.bus_port)
        reason = self.membership.arrived(peer, address, self._clock.monotonic_ms)
        self._go_on_ticking()
        return reason

    def has_links(self) -> None:
        self._go_on_ticking()

    def known_process(self, peer: Hello) -> Node | None:
        node = self.table.get(peer.node_id)
        return node if node is not None and node.run_id == peer.run_id else None

    def received(self, peer: Hello, address: NodeAddress, message: Message, sent_at_ms: int) -> Pong | None:
        if isinstance(message, OF_NODES):
            return self.membership.received(peer, address, message, sent_at_ms, self._clock.monotonic_ms)
        node = self.membership.takes_jobs_of(peer)
        if node is not None:
            self._side.receive(node, message)
        return None

    def log_state(self) -> tuple[bool, PendingCommit | None]:
        persistence = self._persistence()
        log = persistence.committed
        pending = log.pending_commit if log is not None else None
        return bool(persistence.failure), pending if pending is not None and pending.pending else None

    # Events of membership

    def table_changed(self) -> None:
        if self._file is not None:
            self._file.changed()

    def came_up(self, node: Node) -> None:
        self._note(f"cluster: node {_named(node)} is up")
        self._side.came_up(node)

    def went_down(self, node: Node) -> None:
        self._report(f"cluster: node {_named(node)} is down: {self._why_down(node)}")
        self._side.went_down(node)

    def _why_down(self, node: Node) -> str:
        if not self.table.has(node):
            return "it was forgotten"
        if node.flags & Flag.LOADING:
            return "it is reading its job log"
        if not node.is_down:
            return "it does not know this node"
        peer = next((peer for peer in self.bus.peers() if peer.node is node), None) if self.bus is not None else None
        problem = f" ({peer.problem})" if peer is not None and peer.problem else ""
        return f"no answer for {self.timeout_ms / 1000:g} s{problem}"

    def link_broken(self, node: Node) -> None:
        self._side.link_broken(node)

    def forgotten(self, node: Node) -> None:
        self._side.forgotten(node)

    def complain(self, reason: str) -> None:
        if reason in self._copied_at_ms or len(self.copied_spools()) < COPIES_MAX:
            self._copied_at_ms[reason] = self._clock.monotonic_ms
        self._complaints.complain(reason, f"cluster: {reason}")

    def copied_spools(self) -> list[str]:
        """Return the lines of the log about processes that had another node's id within the last COPIED_MS."""
        now_ms = self._clock.monotonic_ms
        self._copied_at_ms = {one: at_ms for one, at_ms in self._copied_at_ms.items() if now_ms - at_ms < COPIED_MS}
        return list(self._copied_at_ms)


def _named(node: Node) -> str:
    return f"{node.id.decode()} at {node.address}"
