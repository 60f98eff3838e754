"""What the bus knows of the nodes that it has links to, and who uses it."""

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from kestreld.cluster.chance import RandomBytes
from kestreld.cluster.codec import Message
from kestreld.cluster.frames import NONCE_BYTES, Hello, LinkProtocol
from kestreld.cluster.messages import Pong
from kestreld.cluster.nodes import Node, NodeAddress
from kestreld.queues.commit import PendingCommit
from kestreld.server.bus.ends import OutgoingLink
from kestreld.server.bus.link import LinkFigures

RETRY_MS_MIN: Final = 100
RETRY_MS_MAX: Final = 1000


class BusEvents(ABC):
    """Who uses the bus. The methods are called with no message half sent or half taken."""

    @abstractmethod
    def linked(self, node: Node, peer: Hello) -> None:
        """There is a link to that node, or to another one that is at its address: `peer`."""

    @abstractmethod
    def unlinked(self, node: Node) -> None:
        """The link to it is broken, or an attempt to have one has failed."""

    @abstractmethod
    def arrived(self, peer: Hello, address: NodeAddress, local_host: str) -> str:
        """A link has come from a process that listens at that address: why it is refused, "" = it is not.

        `local_host` is the address of this machine that it has come to.
        """

    @abstractmethod
    def has_links(self) -> None:
        """There are links, so that `look_after` has to be called every so often."""

    @abstractmethod
    def known_process(self, peer: Hello) -> Node | None:
        """The node that this process counts as."""

    @abstractmethod
    def received(self, peer: Hello, address: NodeAddress, message: Message, sent_at_ms: int) -> Pong | None:
        """A message has come; what to answer on the same link. `sent_at_ms` is on the sender's steady clock."""

    @abstractmethod
    def log_state(self) -> tuple[bool, PendingCommit | None]:
        """After a commit: whether the job log refuses it, and if not, the commit that has yet to reach the disk."""


class Identity:
    """How this node shows itself, and what others have to show."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        steady_ms: Callable[[], int],
        random_bytes: RandomBytes,
        secret: bytes = b"",
        contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    ) -> None:
        """`contexts` are those of both sides of TLS, the server's first; None = the bus does without."""
        self.hello = hello
        self.steady_ms = steady_ms
        self.random_bytes = random_bytes
        self.secret = secret
        self.contexts = contexts

    def protocol(self, *, is_caller: bool) -> LinkProtocol:
        """Of a new link."""
        nonce = self.random_bytes(NONCE_BYTES)
        return LinkProtocol(self.hello(), nonce, self.steady_ms, is_caller=is_caller, secret=self.secret)

    def context(self, *, is_caller: bool) -> ssl.SSLContext | None:
        return None if self.contexts is None else self.contexts[int(is_caller)]


class Peer:
    """A node that a link is wanted to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_wanted = True
        self.link: OutgoingLink | None = None  # None = there is none, and no attempt under way
        self.is_resolving = False
        self.retry_at_ms = 0  # the next attempt
        self.retry_ms = RETRY_MS_MIN
        self.problem = ""  # why there is no link
        self.figures = LinkFigures()

    @property
    def ready_link(self) -> OutgoingLink | None:
        return self.link if self.link is not None and self.link.is_ready else None
