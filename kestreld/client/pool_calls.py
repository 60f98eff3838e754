"""PoolCalls: what a client does with several independent servers: whom it asks, and how long it keeps asking.

Its calls do no I/O: see calls.py.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from kestreld.client.absence import now_ms
from kestreld.client.calls import Call, Pause
from kestreld.client.items import preference
from kestreld.client.own_leases import ClientName, OwnLeases
from kestreld.client.queue_talks import QueueTalks, Talk
from kestreld.errors import ConnectionLost, KestrelError, ServersAway, ServerUnfit

T = TypeVar("T")
# Waits at one server at a time while all are empty; a single one is waited at for longer.
WAIT_TURN_MS: Final = 250
WAIT_ROUND_MS: Final = 1000
WAIT_ALONE_MS: Final = 10_000
PAUSE_MS: Final = 20  # before servers that hang up at once are asked again
PATIENCE_MS: Final = 5000
OUTAGE_MS: Final = 60_000

_log: Final = logging.getLogger("kestreld.client")


class AnyServer(Protocol):
    """A server, as calls need to know it. `next_try_at_ms`: on the monotonic clock, 0 = it is not left out."""

    @property
    def address(self) -> str: ...

    @property
    def next_try_at_ms(self) -> int: ...

    @property
    def own_leases(self) -> OwnLeases: ...


S = TypeVar("S", bound=AnyServer)


@dataclass(frozen=True, slots=True)
class Ask(Generic[S]):
    """A step: do something with a connection to the server, and return the result.

    `is_urgent`: connect also to a server that is left out. `wait_ms`: for how long the server may wait. `leases_from`:
    the queue from which an item may be leased, which nobody has if the task is cancelled meanwhile.
    """

    server: S
    do: Callable[[Any], Any]
    wait_ms: int = 0
    is_urgent: bool = False
    leases_from: bytes = b""


@dataclass(frozen=True, slots=True)
class Open(Ask[S]):
    """A step: open an item of the queue `key`. The outcome is an OpenRead, which keeps its connection, or None."""

    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Take(Open[S]):
    """A step: open an item and confirm it once it has arrived. The outcome is the item, or None.

    The confirmation is not repeated if there is no answer: the item, which its caller has, may be delivered again.
    """


def talking(talk_of: Callable[[QueueTalks], Talk[Any]]) -> Callable[[Any], Any]:
    """Return what has a connection carry out a talk."""
    return lambda connection: connection.carry_out(talk_of(connection.talks))


Step = Ask[S] | Pause
PoolCall = Call[Step[S], T]


class PoolCalls(Generic[S]):
    """What can be asked of servers that are used as one."""

    def __init__(
        self, servers: Sequence[S], patience_ms: int, outage_ms: int | None, name: ClientName, chance: Random
    ) -> None:
        """`outage_ms` None = OUTAGE_MS, or what was chosen as patience if that was chosen."""
        self.servers = servers
        self.patience_ms = patience_ms
        self.name = name
        self._outage_ms = outage_ms
        self._is_closed = False
        self._chance = chance
        self._without: dict[str, str] = {}  # server with a stopped queue -> reason that was last logged

    @property
    def outage_ms(self) -> int:
        """For how long an operation that holds or waits for something goes on through an outage.

        The longer one of what was chosen; a patience that is the default one was not.
        """
        outage_ms = self._outage_ms
        if self.patience_ms == PATIENCE_MS:
            return OUTAGE_MS if outage_ms is None else outage_ms
        return self.patience_ms if outage_ms is None else max(outage_ms, self.patience_ms)

    def close(self) -> None:
        """Have calls end at the next step: reads find nothing, all others raise ServersAway."""
        self._is_closed = True

    def is_closed(self) -> bool:
        return self._is_closed

    def each(self, do: Callable[[Any], T]) -> PoolCall[S, tuple[dict[str, T], dict[str, str]]]:
        """Return each server's answer, and the reasons why others gave none, by address.

        Raises ServersAway if no server can be reached.
        """
        patience = Patience(self, self.patience_ms)
        while not self.is_closed():
            answers: dict[str, T] = {}
            reasons: dict[str, str] = {}
            refusals: dict[str, ServerUnfit] = {}
            for server in self.servers:
                try:
                    answers[server.address] = yield Ask(server, do)
                except (ServersAway, ConnectionLost) as problem:
                    reasons |= _reasons(server, problem)
                except ServerUnfit as unfit:
                    refusals[server.address] = unfit
            if answers:
                return answers, reasons | reasons_of(refusals)
            yield patience.spend(reasons, refusals)
        raise self._closed_by_us()

    def put(self, do: Callable[[Any], Any], item_key: bytes = b"", *, repeats: bool = False) -> PoolCall[S, bool]:
        """Put an item on a random server that accepts it. False = all servers that can be reached are full.

        With an `item_key`, put it on the first server that can be reached, in the order of this key. Raises ServersAway
        if the item was not put anywhere, ConnectionLost if it may have been: with `repeats`, which needs a key, only
        after that server was asked again for `outage_ms`.
        """
        patience = Patience(self, self.outage_ms if repeats else self.patience_ms)
        lost: ConnectionLost | None = None
        where: list[S] = []  # once a server may have the item, no other is asked
        while not self.is_closed():
            reasons: dict[str, str] = {}
            refusals: dict[str, ServerUnfit] = {}
            for server in where or (self._in_order_of(item_key) if item_key else self._in_any_order()):
                try:
                    if (yield Ask(server, do)):
                        return True
                    if item_key:
                        return False  # on another server it would be stored twice if it is put again
                except ServersAway as away:
                    reasons |= away.reasons
                except ServerUnfit as unfit:
                    refusals[server.address] = unfit
                except ConnectionLost as problem:
                    if not repeats:
                        raise
                    lost, where = problem, [server]
                    reasons[server.address] = str(problem)
                    break
            if not where and len(reasons) + len(refusals) < len(self.servers):
                return False
            try:
                pause = patience.spend(reasons, refusals)
            except (ServersAway, ServerUnfit) as problem:
                if lost is None:
                    raise
                raise lost from problem
            yield pause
        raise self._closed_by_us()

    def first(self, step_of: Callable[[S, int], Ask[S]], wait_ms: int | None) -> PoolCall[S, Any]:
        """Return the first outcome of the steps at the servers that is not None; each waits there for some ms. None =
        the time is over, or the client was closed.

        All servers are asked in random order; if none has anything, they are waited at in turn. `wait_ms` None =
        forever. Raises ServersAway.
        """
        until_ms = None if wait_ms is None else now_ms() + wait_ms
        patience, turn_ms, has_waited = Patience(self, self.outage_ms, until_ms), 0, False
        while not self.is_closed():
            reasons: dict[str, str] = {}
            refusals: dict[str, ServerUnfit] = {}
            for server in self._in_any_order():
                left_ms = turn_ms if until_ms is None else max(0, min(turn_ms, until_ms - now_ms()))
                try:
                    found = yield step_of(server, left_ms)
                except (ServersAway, ConnectionLost) as problem:
                    # An item on its way comes again: at once, or when its lease is over.
                    reasons |= _reasons(server, problem)
                except ServerUnfit as unfit:
                    refusals[server.address] = unfit
                else:
                    if found is not None:
                        return found
            if self.is_closed():
                break
            asked = len(self.servers) - len(reasons) - len(refusals)
            if not asked:
                if has_waited:  # until a moment ago a server was there, although it has said nothing since
                    patience.renew()
                    has_waited = False
                yield patience.spend(reasons, refusals)
                continue
            patience.renew()
            has_waited = True
            if until_ms is not None and now_ms() >= until_ms:
                self._log_stopped(refusals)
                return None
            turn_ms = min(WAIT_TURN_MS, WAIT_ROUND_MS // asked) if len(self.servers) > 1 else WAIT_ALONE_MS
        return None

    def settle(self) -> PoolCall[S, None]:
        """Have each server that can be reached take back what it may have leased to this client for nobody."""
        for server in self.servers:
            if server.own_leases.may_have_more:
                with suppress(KestrelError):
                    yield Ask(server, talking(server.own_leases.settle_all))

    def _log_stopped(self, refusals: dict[str, ServerUnfit]) -> None:
        """Log servers whose queue is stopped: they may have items once it is repaired, while the others have none."""
        for address, refusal in refusals.items():
            if refusal.is_of_queue and self._without.get(address) != refusal.reason:
                self._without[address] = refusal.reason
                _log.warning("skipping server %s: %s", address, refusal.reason)

    def _closed_by_us(self) -> ServersAway:
        return ServersAway({server.address: "the cluster is closed" for server in self.servers})

    def _in_any_order(self) -> list[S]:
        return self._chance.sample(self.servers, len(self.servers))

    def _in_order_of(self, item_key: bytes) -> list[S]:
        return sorted(self.servers, key=lambda server: preference(server.address, item_key))

    def pause(self, most_ms: int) -> Pause:
        """Return a pause until a server that is away is to be tried again, of at most `most_ms`."""
        next_at_ms = min(server.next_try_at_ms for server in self.servers)
        return Pause(max(PAUSE_MS, min(next_at_ms - now_ms(), most_ms)) / 1000)


def _reasons(server: AnyServer, problem: KestrelError) -> dict[str, str]:
    return problem.reasons if isinstance(problem, ServersAway) else {server.address: str(problem)}


def reasons_of(refusals: dict[str, ServerUnfit]) -> dict[str, str]:
    return {address: refusal.reason for address, refusal in refusals.items()}


class Patience:
    """Time for which one operation keeps asking while all servers are away."""

    def __init__(self, pool: PoolCalls[Any], span_ms: int, until_ms: int | None = None) -> None:
        """`until_ms` is the latest end, on the monotonic clock."""
        self._pool = pool
        self._span_ms = span_ms
        self._until_ms = until_ms
        self.renew()

    def renew(self) -> None:
        """Start again: a server has answered."""
        self._end_ms = now_ms() + self._span_ms
        if self._until_ms is not None:
            self._end_ms = min(self._end_ms, self._until_ms)

    def spend(self, reasons: dict[str, str], refusals: dict[str, ServerUnfit]) -> Pause:
        """Return the pause until it is worth asking again. Raises ServersAway at the end, and at once a refusal by all
        servers.
        """
        if not reasons:
            raise next(iter(refusals.values()))
        left_ms = self._end_ms - now_ms()
        if left_ms <= 0:
            raise ServersAway(reasons | reasons_of(refusals))
        return self._pool.pause(left_ms)
