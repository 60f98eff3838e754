"""The nodes of a cluster of jobs: reaching all of them from one, and each node's view of itself and the others."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, TypeVar

from kestrelctl.remote.access import parse_address
from kestrelctl.remote.jobs import JobsClient
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client import job_commands as commands
from kestreld.client.access import Login
from kestreld.client.blocks import text
from kestreld.client.job_commands import JobCommand
from kestreld.client.resp import RespValue

T = TypeVar("T")
ASKED_AT_ONCE: Final = 32  # nodes
NODE_ID_LENGTH: Final = 40
BUS_PORT_OFFSET: Final = 10_000  # from a node's port to its bus port, unless the node reports another
DOWN: Final = frozenset({"fail", "fail?"})
_NODE_LINE: Final = re.compile(r"node\d+")


@dataclass(frozen=True, slots=True)
class Member:
    """A line of CLUSTER NODES: a node as another node, or it itself, sees it."""

    id: str
    address: str  # HOST:PORT; "" = not known
    flags: tuple[str, ...]
    is_linked: bool

    @property
    def is_myself(self) -> bool:
        return "myself" in self.flags

    @property
    def is_member(self) -> bool:
        """True if the node has answered: until then it has no id."""
        return "handshake" not in self.flags

    @property
    def is_down(self) -> bool:
        return not DOWN.isdisjoint(self.flags)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's view of itself and of others. `info`: INFO without lines on other nodes, which are in `links` by id."""

    address: str  # at which it was asked
    id: str
    members: Mapping[str, Member]  # by id
    info: Mapping[str, str] = field(repr=False)
    links: Mapping[str, Mapping[str, str]] = field(repr=False)

    def number(self, name: str) -> int | None:
        """A figure of INFO; None if it is missing, as on a Disque."""
        value = self.info.get(name, "")
        return int(value) if value.lstrip("-").isdecimal() else None

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the nodes of its cluster, its own included."""
        return frozenset(node_id for node_id, member in self.members.items() if member.is_member)

    @property
    def copied_spools(self) -> list[str]:
        """Reports on other processes that use the id of a node."""
        return [words for name, words in self.info.items() if re.fullmatch(r"cluster_copied_spool\d+", name)]

    @property
    def place(self) -> str:
        """Address at which the other nodes know it."""
        return self.members[self.id].address or self.address


def _nodes() -> JobCommand[dict[str, Member]]:
    return JobCommand([b"CLUSTER", b"NODES"], _members)


def _info() -> JobCommand[str]:
    return JobCommand([b"INFO", b"all"], lambda value: text(_bytes(value)))


def _bytes(value: RespValue) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _members(value: RespValue) -> dict[str, Member]:
    members = [_member(line) for line in text(_bytes(value)).splitlines()]
    if not any(one.is_myself for one in members):
        raise ValueError
    return {one.id: one for one in members}


def _member(line: str) -> Member:
    """Parse a line of CLUSTER NODES. Raises ValueError."""
    node_id, address, flags, _, _, link = line.split(" ")
    host, _, port = address.rpartition(":")
    known = f"{f'[{host}]' if ':' in host else host}:{port}" if host else ""
    return Member(node_id, known, tuple(flags.split(",")), link == "connected")


def view_of(client: JobsClient) -> NodeView:
    """Ask a node for its view. Raises Failure."""
    members = client.ask(_nodes())
    info: dict[str, str] = {}
    links: dict[str, dict[str, str]] = {}
    for line in client.ask(_info()).splitlines():
        name, colon, value = line.partition(":")
        if _NODE_LINE.fullmatch(name):
            fields = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
            links[fields.get("id", "")] = fields
        elif colon:
            info[name] = value
    return NodeView(client.address, next(one.id for one in members.values() if one.is_myself), members, info, links)


class JobCluster:
    """All nodes that one of them knows, each asked over its own connection, several at a time.

    A node that cannot be reached does not delay the others.
    """

    def __init__(self, address: str, timeout_ms: int, login: Login) -> None:
        """Raises Failure for an invalid address."""
        self.address = address
        self._timeout_ms = timeout_ms
        self._login = login
        self._prefix = "tls:" if parse_address(address).tls else ""

    def client(self, address: str = "") -> JobsClient:
        """A client for the node at `address`, "" = the node that the command line names."""
        return JobsClient(address or self.address, self._timeout_ms, self._login)

    def ask(self, do: Callable[[JobsClient], T], address: str = "") -> T:
        """Run `do` with a client for one node. Raises Failure."""
        client = self.client(address)
        try:
            return do(client)
        finally:
            client.close()

    def tell(self, words: Sequence[str | int], address: str = "") -> None:
        """Send a command to a node. Raises Failure."""
        self.ask(lambda client: client.ask(commands.done(words)), address)

    def way(self, address: str) -> str:
        """The address to connect to: with TLS if the first node uses it."""
        return f"{self._prefix}{address.removeprefix(self._prefix)}"

    def way_to(self, member: Member) -> str:
        """The address to connect to; "" if it is not known."""
        return self.way(member.address) if member.address else ""

    def ask_each(self, addresses: Sequence[str], do: Callable[[JobsClient], T]) -> dict[str, T | Failure]:
        """Results of the nodes by address, in that order; a Failure for each that has none."""
        left, answers = SimpleQueue[str](), SimpleQueue[tuple[str, T | Failure]]()
        for address in addresses:
            left.put(address)

        def work() -> None:
            while not left.empty():
                address = left.get()
                try:
                    answers.put((address, self.ask(do, address)))
                except Failure as failure:
                    answers.put((address, failure))

        for _ in range(min(len(addresses), ASKED_AT_ONCE)):
            # A daemon thread, so that Ctrl-C does not wait for a node that does not answer.
            threading.Thread(target=work, daemon=True).start()
        found = dict([answers.get() for _ in addresses])
        return {address: found[address] for address in addresses}

    def look(self, more: Iterable[str] = ()) -> "ClusterView":
        """The views of all nodes; `more`: addresses of other nodes to ask. Raises the Failure of the first node."""
        first = self.ask(view_of)
        view = ClusterView({self.address: first})
        left = dict.fromkeys(more)
        while left or (left := dict.fromkeys(self._unasked(view))):
            for address, found in self.ask_each(list(left), view_of).items():
                view.add(address, found)
            left = {}
        return view

    def _unasked(self, view: "ClusterView") -> Iterable[str]:
        """Addresses of known members that have not been asked, by id or address."""
        asked = {one.id for one in view.nodes}
        for one in view.nodes:
            for member in one.members.values():
                way = self.way_to(member)
                if member.is_member and member.id not in asked and way and way not in view.asked:
                    yield way


class ClusterView:
    """Views of the nodes that could be asked, and the failures of the others."""

    def __init__(self, views: Mapping[str, NodeView]) -> None:
        self._views = dict(views)
        self.failures: dict[str, Failure] = {}  # by address

    def add(self, address: str, found: NodeView | Failure) -> None:
        """Add a node's view, or the failure to get it."""
        if isinstance(found, Failure):
            self.failures[address] = found
        else:
            self._views[address] = found

    @property
    def nodes(self) -> list[NodeView]:
        """Views of the nodes, each node once, the one asked first at the beginning."""
        return list({one.id: one for one in reversed(self._views.values())}.values())[::-1]

    @property
    def asked(self) -> frozenset[str]:
        """Addresses of all nodes asked, successfully or not."""
        return frozenset(self._views) | frozenset(self.failures)

    def view(self, node_id: str) -> NodeView | None:
        """View of the node with that id; None if it could not be asked."""
        return next((one for one in self._views.values() if one.id == node_id), None)

    def at(self, address: str) -> NodeView | None:
        """View of the node that was asked at that address."""
        return self._views.get(address)

    @property
    def members(self) -> dict[str, Member]:
        """Every known member by id: as the node itself describes it, else as the first that knows it does."""
        found: dict[str, Member] = {}
        for one in self.nodes:
            for node_id, member in one.members.items():
                if member.is_member and (member.is_myself or node_id not in found):
                    kept = found.get(node_id)
                    address = member.address or (kept.address if kept is not None else "") or one.address
                    found[node_id] = Member(node_id, address, member.flags, member.is_linked)
        return found

    def find(self, words: str) -> Member:
        """The node with that id, unique beginning of an id, or address. Raises Failure."""
        found = [one for one in self.members.values() if words in (one.id, one.address)]
        if not found and re.fullmatch(r"[0-9a-f]{4,40}", words):
            found = [one for one in self.members.values() if one.id.startswith(words)]
        if len(found) > 1:
            raise Failure(ExitCode.USAGE, f"{words}: {len(found)} nodes: {', '.join(one.id for one in found)}")
        if not found:
            raise Failure(ExitCode.NO_INPUT, f"no node {words}: see kestrelctl cluster nodes")
        return found[0]
