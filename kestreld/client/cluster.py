"""Several kestrelds that do not know each other, used as one: an item goes to any of them and comes from any."""

from collections.abc import Iterable
from random import Random
from types import TracebackType

from kestreld import checks
from kestreld.client.access import Login, ServerAddress
from kestreld.client.connection import ClientConnection
from kestreld.client.pool import ServerPool
from kestreld.client.queue import ClusterQueue
from kestreld.client.server import Server
from kestreld.errors import InvalidType, InvalidValue


def _parsed(address: str) -> ServerAddress:
    try:
        parsed = ServerAddress.parse(address)
    except ValueError:
        parsed = None
    # A path that is not absolute would be another one in another working directory.
    if parsed is None or (parsed.path and not parsed.path.startswith("/")):
        raise InvalidValue("each of servers", "HOST:PORT, tls:HOST:PORT or unix:/PATH", address)
    return parsed


class KestrelCluster(ServerPool):
    """A client of kestrelds. Threads may share it, and so may forked processes: each has connections of its own.

    Servers that are away are left out and tried again, more rarely with each time. Every operation raises ServersAway
    once all of them have been away for `patience_ms`, a read also when its own wait is over.
    """

    def __init__(
        self,
        servers: Iterable[str],
        *,
        user: str = "",
        password: str = "",
        tls: bool = False,
        ca: str = "",
        cert: str = "",
        key: str = "",
        timeout_ms: int = 5000,
        patience_ms: int = 5000,
        chance: Random | None = None,
    ) -> None:
        """`servers`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Connects to none of them yet.

        Raises ValueError for an address that is none, OSError for files of certificates that cannot be used.
        """
        patience_ms = checks.span_ms(patience_ms, "patience_ms")
        words = {"user": user, "password": password, "ca": ca, "cert": cert, "key": key}
        for what, word in words.items():
            checks.text(word, what, may_be_empty=True, is_secret=what == "password")
        login = Login(user, password, checks.switch(tls, "tls"), ca, cert, key)
        checks.whole(timeout_ms, "timeout_ms", 1)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        if isinstance(servers, str):  # of whose letters none is a server
            raise InvalidType("servers", "a list of str", servers)
        several = checks.several(servers, "servers")
        addresses = list(dict.fromkeys(checks.text(one, "each of servers", may_be_empty=True) for one in several))
        if not addresses:
            raise InvalidValue("servers", "at least one", [])
        parsed = [_parsed(address) for address in addresses]
        if login.uses_tls(ServerAddress()) or any(at.tls for at in parsed):
            _ = login.context
        own = chance if chance is not None else Random()
        made = [Server(address, login, timeout_ms, own) for address in addresses]
        super().__init__(made, patience_ms, own, is_chance_ours=chance is None)

    def queue(self, name: str) -> ClusterQueue:
        """Raises BadQueueName."""
        return ClusterQueue(self, name)

    def stats(self) -> dict[str, dict[str, int | str]]:
        """The counters of each server that can be reached, by address. Raises ServersAway when none can be."""
        return self.each(ClientConnection.server_stats)[0]

    def __enter__(self) -> "KestrelCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
