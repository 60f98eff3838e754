"""Parts of the bus: the interface to its user, this node's identity on links, and the nodes linked to."""

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
    """User of the bus. Its methods are not called while a message is half sent or half taken."""

    @abstractmethod
    def linked(self, node: Node, peer: Hello) -> None:
        """Note a link to a node, or to another process, `peer`, that is at the node's address."""

    @abstractmethod
    def unlinked(self, node: Node) -> None:
        """Note that the link to a node has broken, or an attempt to connect has failed."""

    @abstractmethod
    def arrived(self, peer: Hello, address: NodeAddress, local_host: str) -> str:
        """Return the reason to refuse a link from a process that listens at `address`, "" = accept it.

        `local_host` is the address of this machine that it has connected to.
        """

    @abstractmethod
    def has_links(self) -> None:
        """Call `look_after` at intervals from now on: there are links."""

    @abstractmethod
    def known_process(self, peer: Hello) -> Node | None:
        """Return the node that this process counts as, None if it counts as none."""

    @abstractmethod
    def received(self, peer: Hello, address: NodeAddress, message: Message, sent_at_ms: int) -> Pong | None:
        """Handle a message; returns the answer for the same link. `sent_at_ms` is on the sender's steady clock."""

    @abstractmethod
    def log_state(self) -> tuple[bool, PendingCommit | None]:
        """Return, after a commit, True if the job log refuses it, and else the commit that is not on disk yet."""


class Identity:
    """Identity of this node on links, and the secret or TLS that others must use."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        steady_ms: Callable[[], int],
        random_bytes: RandomBytes,
        secret: bytes = b"",
        contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    ) -> None:
        """`contexts` are those of both sides of TLS, the server's first; None = no TLS."""
        self.hello = hello
        self.steady_ms = steady_ms
        self.random_bytes = random_bytes
        self.secret = secret
        self.contexts = contexts

    def change(self, secret: bytes, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> None:
        """Change the secret and TLS of links to come."""
        self.secret, self.contexts = secret, contexts

    def protocol(self, *, is_caller: bool) -> LinkProtocol:
        """Make the protocol of a new link."""
        nonce = self.random_bytes(NONCE_BYTES)
        return LinkProtocol(self.hello(), nonce, self.steady_ms, is_caller=is_caller, secret=self.secret)

    def context(self, *, is_caller: bool) -> ssl.SSLContext | None:
        return None if self.contexts is None else self.contexts[int(is_caller)]


class Peer:
    """A node with which a link is wanted."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_wanted = True
        self.link: OutgoingLink | None = None  # None = no link, and no attempt in progress
        self.is_resolving = False
        self.retry_at_ms = 0  # the next attempt
        self.retry_ms = RETRY_MS_MIN
        self.problem = ""  # reason why there is no link
        self.figures = LinkFigures()

    @property
    def ready_link(self) -> OutgoingLink | None:
        return self.link if self.link is not None and self.link.is_ready else None
