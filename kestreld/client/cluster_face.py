"""ClusterFace: what KestrelCluster and AsyncKestrelCluster are made from."""

from collections.abc import Iterable
from random import Random

from kestreld import checks
from kestreld.client.access import Login, checked_addresses, checked_login
from kestreld.client.keeper_calls import Alive


class ClusterFace:
    """A client of several kestrelds, without the means to carry out its calls."""

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
        alive: Alive | None = None,
    ) -> None:
        """`servers`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Does not connect yet.

        `alive` is asked before leases with a heartbeat are extended: as long as it does not return True they are not.

        Raises ValueError for an invalid address, OSError for certificate files that cannot be used.
        """
        patience_ms = checks.span_ms(patience_ms, "patience_ms")
        login = checked_login(user, password, tls=tls, ca=ca, cert=cert, key=key)
        checks.whole(timeout_ms, "timeout_ms", 1)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        if alive is not None:
            checks.function(alive, "alive")
        addresses = checked_addresses(servers, login, "servers")
        self._patience_ms = patience_ms
        own = chance if chance is not None else Random()
        self._begin(addresses, login, timeout_ms, own, alive, is_ours=chance is None)

    def _begin(
        self,
        addresses: list[str],
        login: Login,
        timeout_ms: int,
        chance: Random,
        alive: Alive | None,
        *,
        is_ours: bool,
    ) -> None:
        """Make what carries out the calls. `is_ours`: the generator was not given by the caller."""
        raise NotImplementedError
