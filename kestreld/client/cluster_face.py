"""ClusterFace: what KestrelCluster and AsyncKestrelCluster are made from."""

from collections.abc import Iterable
from random import Random
from typing import Any

from kestreld import checks
from kestreld.client.access import Login, checked_addresses, checked_login
from kestreld.client.keeper_calls import Alive
from kestreld.client.own_leases import ClientName
from kestreld.client.pool_calls import PATIENCE_MS, PoolCalls


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
        patience_ms: int = PATIENCE_MS,
        outage_s: float | None = None,
        name: str | None = None,
        chance: Random | None = None,
        alive: Alive | None = None,
    ) -> None:
        """`servers`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Does not connect yet.

        `alive` is asked before leases with a heartbeat are extended: as long as it does not return True they are not.
        An operation goes on for `patience_ms` while no server can be reached, and for `outage_s` seconds, 60 unless
        one of the two is given, if it holds or waits for something. Leases without a `by` are taken in the `name`,
        which must be this client's alone, as others' leases in it would be given back; None = one is drawn.
        Raises ValueError for an invalid address, OSError for certificate files that cannot be used.
        """
        patience_ms = checks.span_ms(patience_ms, "patience_ms")
        outage_ms = None if outage_s is None else round(checks.span_s(outage_s, "outage_s") * 1000)
        client_name = ClientName(checks.holder(name, "name"))
        login = checked_login(user, password, tls=tls, ca=ca, cert=cert, key=key)
        checks.whole(timeout_ms, "timeout_ms", 1)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        if alive is not None:
            checks.function(alive, "alive")
        addresses = checked_addresses(servers, login, "servers")
        own = chance if chance is not None else Random()
        servers = [self._server(address, login, timeout_ms, own, alive) for address in addresses]
        self._calls: PoolCalls[Any] = PoolCalls(servers, patience_ms, outage_ms, client_name, own)
        self._begin(own, is_ours=chance is None)

    def _server(self, address: str, login: Login, timeout_ms: int, chance: Random, alive: Alive | None) -> Any:
        """Make what stands for a server."""
        raise NotImplementedError

    def _begin(self, chance: Random, *, is_ours: bool) -> None:
        """Make what carries out the calls. `is_ours`: the generator was not given by the caller."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name in which leases are taken that are given no other one."""
        return self._calls.name.text

    @property
    def patience_ms(self) -> int:
        return self._calls.patience_ms

    @patience_ms.setter
    def patience_ms(self, patience_ms: int) -> None:
        self._calls.patience_ms = patience_ms

    @property
    def is_closed(self) -> bool:
        return self._calls.is_closed()
