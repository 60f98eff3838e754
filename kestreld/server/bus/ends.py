"""The two kinds of bus links: incoming ones, opened by other nodes, and outgoing ones of this node."""

import ssl
from collections import deque
from collections.abc import Callable

from kestreld import net
from kestreld.cluster.frames import LinkProtocol
from kestreld.cluster.nodes import Node, NodeAddress
from kestreld.errors import JournalFailed
from kestreld.queues.commit import PendingCommit
from kestreld.server.bus.link import RECORD_BYTES, BusLink, LinkHost, Message


class IncomingLink(BusLink):
    """A link that another node has opened: it receives messages and sends PONGs."""

    def __init__(
        self,
        host: LinkHost,
        connection: net.Connection,
        protocol: LinkProtocol,
        tls: ssl.SSLContext | None,
        now_ms: int,
        *,
        peer_host: str,
        local_host: str,
    ) -> None:
        """`peer_host` and `local_host` are the IP addresses of the connection."""
        super().__init__(host, connection, protocol, peer_host, tls, now_ms, is_caller=False)
        self.peer_host = peer_host
        self.local_host = local_host

    @property
    def address(self) -> NodeAddress:
        """Address at which the other node listens."""
        address = self.peer.address
        return address if address.host else NodeAddress(self.peer_host, address.port, address.bus_port)


class _Held:
    """Messages that are sent once a commit is on disk, and dropped if it fails."""

    __slots__ = ("_settled", "is_failed", "is_pending", "messages")

    def __init__(self, messages: list[Message], settled: Callable[[], None], *, is_pending: bool) -> None:
        self.messages = messages
        self.is_pending = is_pending
        self.is_failed = False
        self._settled = settled

    def released(self, failure: JournalFailed | None) -> None:
        self.is_pending, self.is_failed = False, failure is not None
        self._settled()


class OutgoingLink(BusLink):
    """This node's link to another: it sends messages and receives PONGs.

    Messages that rely on the job log are queued apart from the others.
    """

    def __init__(
        self,
        host: LinkHost,
        connection: net.Connection,
        protocol: LinkProtocol,
        tls: ssl.SSLContext | None,
        now_ms: int,
        node: Node,
    ) -> None:
        super().__init__(host, connection, protocol, node.address.bus, tls, now_ms, is_caller=True)
        self.node = node
        self.pinged_at_us: deque[int] = deque()  # send times of PINGs that are not answered yet
        self._once_written: list[Message] = []
        self._held: deque[_Held] = deque()

    def put_once_written(self, message_type: int, body: bytes) -> None:
        """Send a message once all changes so far are in the log."""
        self._once_written.append((message_type, body))
        self._count(body)

    def commit_is_over(self, pending: PendingCommit | None, *, is_refused: bool) -> None:
        """Send, hold or drop the messages that rely on the log, after the turn's commit.

        `pending`: that commit is not on disk yet. `is_refused`: the log has refused the changes.
        """
        messages, self._once_written = self._once_written, []
        if not messages:
            return
        if is_refused:
            self._drop(messages)
        elif pending is None and not self._held:
            self._this_turns += messages
        else:
            held = _Held(messages, self._settled, is_pending=pending is not None)
            self._held.append(held)
            if pending is not None:
                pending.observers.append(held)

    def _settled(self) -> None:
        """Send held messages that no longer wait for a commit; drop those whose commit has failed."""
        while self.is_open and self._held and not self._held[0].is_pending:
            held = self._held.popleft()
            if held.is_failed:
                self._drop(held.messages)
            else:
                self._release(held.messages)

    def _drop(self, messages: list[Message]) -> None:
        self.queued_bytes -= sum([len(body) + RECORD_BYTES for _, body in messages])
        self.figures.messages_lost += len(messages)

    def close(self) -> None:
        if self.is_open:
            held = sum([len(one.messages) for one in self._held])
            self.figures.messages_lost += len(self._once_written) + held
            self._once_written = []
            self._held.clear()
        super().close()
