"""A pool of independent servers: asks any of them or all of them, and decides how long to keep asking."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random, SystemRandom
from threading import Event
from typing import Final, TypeVar

from kestreld.client.connection import ClientConnection
from kestreld.client.items import preference
from kestreld.client.server import Server, Waiting, event_in_child, now_ms
from kestreld.errors import ConnectionLost, ServersAway, ServerUnfit
from kestreld.forks import restart_in_child

T = TypeVar("T")
# Waits at one server at a time while all are empty; a single one is waited at for longer.
WAIT_TURN_MS: Final = 250
WAIT_ROUND_MS: Final = 1000
WAIT_ALONE_MS: Final = 10_000
PAUSE_MS: Final = 20  # before servers that hang up at once are asked again

_log: Final = logging.getLogger("kestreld.client")


class ServerPool:
    """Servers that are used as one. Threads may share it, and so may forked processes."""

    def __init__(self, servers: Sequence[Server], patience_ms: int, chance: Random, *, is_chance_ours: bool) -> None:
        self.patience_ms = patience_ms
        self.waiting = Waiting()
        self._servers = servers
        self._chance = chance
        self._is_chance_ours = is_chance_ours
        self._drawn = SystemRandom()  # no two clients draw the same key, whatever generator they were given
        self._closed = Event()
        self._without: dict[str, str] = {}  # server with a stopped queue -> reason that was last logged
        restart_in_child(self)

    def after_fork(self) -> None:
        """Prepare a forked child. A random generator of our own gets a new seed: siblings would choose alike."""
        self._closed = event_in_child(self._closed)
        self.waiting.after_fork()
        if self._is_chance_ours:
            self._chance.seed()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Close all connections. Reads that wait return None; open reads can still be confirmed."""
        self._closed.set()
        self.waiting.end()
        for server in self._servers:
            server.close()

    def each(self, do: Callable[[ClientConnection], T]) -> tuple[dict[str, T], dict[str, str]]:
        """Return each server's answer, and the reasons why others gave none, by address.

        Raises ServersAway if no server can be reached.
        """
        patience = Patience(self)
        while not self.is_closed:
            answers: dict[str, T] = {}
            reasons: dict[str, str] = {}
            refusals: dict[str, ServerUnfit] = {}
            for server in self._servers:
                try:
                    answers[server.address] = server.asked(do)
                except ServersAway as away:
                    reasons |= away.reasons
                except ConnectionLost as lost:
                    reasons[server.address] = str(lost)
                except ServerUnfit as unfit:
                    refusals[server.address] = unfit
            if answers:
                return answers, reasons | reasons_of(refusals)
            patience.spend(reasons, refusals)
        raise self._closed_by_us()

    def put(
        self,
        key: bytes,
        data: bytes,
        expire_s: int,
        delay_ms: int = 0,
        item_key: bytes = b"",
        *,
        repeats: bool = False,
    ) -> bool:
        """Put an item on a random server that accepts it. False = all servers that can be reached are full.

        With an `item_key`, put it on the first server that can be reached, in the order of this key. Raises ServersAway
        if the item was not put anywhere, ConnectionLost if it may have been: with `repeats`, which needs a key, only
        after that server was asked again for as long as there is patience.
        """
        patience = Patience(self)
        lost: ConnectionLost | None = None
        where: list[Server] = []  # once a server may have the item, no other is asked
        while not self.is_closed:
            reasons: dict[str, str] = {}
            refusals: dict[str, ServerUnfit] = {}
            for server in where or (self._in_order_of(item_key) if item_key else self._in_any_order()):
                try:
                    if server.asked(partial(_put, key, data, expire_s, delay_ms, item_key)):
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
            if not where and len(reasons) + len(refusals) < len(self._servers):
                return False
            try:
                patience.spend(reasons, refusals)
            except (ServersAway, ServerUnfit) as problem:
                if lost is None:
                    raise
                raise lost from problem
        raise self._closed_by_us()

    def first(self, fetch: Callable[[Server, int], T | None], wait_ms: int | None) -> T | None:
        """Return the result of the first server that has anything; `fetch` waits there for some ms. None = the time is
        over.

        All servers are asked in random order; if none has anything, they are waited at in turn. `wait_ms` None =
        forever. Raises ServersAway.
        """
        until_ms = None if wait_ms is None else now_ms() + wait_ms
        patience, turn_ms = Patience(self, until_ms), 0
        while not self.is_closed:
            reasons: dict[str, str] = {}
            refusals: dict[str, ServerUnfit] = {}
            for server in self._in_any_order():
                left_ms = turn_ms if until_ms is None else max(0, min(turn_ms, until_ms - now_ms()))
                try:
                    found = fetch(server, left_ms)
                except ServersAway as away:
                    reasons |= away.reasons
                except ConnectionLost as lost:  # an item on its way comes again: at once, or when its lease is over
                    reasons[server.address] = str(lost)
                except ServerUnfit as unfit:
                    refusals[server.address] = unfit
                else:
                    if found is not None:
                        return found
            if self._closed.is_set():
                break
            asked = len(self._servers) - len(reasons) - len(refusals)
            if not asked:
                patience.spend(reasons, refusals)
                continue
            patience.renew()
            if until_ms is not None and now_ms() >= until_ms:
                self._log_stopped(refusals)
                return None
            turn_ms = min(WAIT_TURN_MS, WAIT_ROUND_MS // asked) if len(self._servers) > 1 else WAIT_ALONE_MS
        return None

    def _log_stopped(self, refusals: dict[str, ServerUnfit]) -> None:
        """Log servers whose queue is stopped: they may have items once it is repaired, while the others have none."""
        for address, refusal in refusals.items():
            if refusal.is_of_queue and self._without.get(address) != refusal.reason:
                self._without[address] = refusal.reason
                _log.warning("skipping server %s: %s", address, refusal.reason)

    def _closed_by_us(self) -> ServersAway:
        return ServersAway({server.address: "the cluster is closed" for server in self._servers})

    def drawn_key(self) -> bytes:
        """Return a key that no other item has."""
        return b"%032x" % self._drawn.getrandbits(128)

    def _in_any_order(self) -> list[Server]:
        return self._chance.sample(self._servers, len(self._servers))

    def _in_order_of(self, item_key: bytes) -> list[Server]:
        return sorted(self._servers, key=lambda server: preference(server.address, item_key))

    def pause(self, most_ms: int) -> None:
        """Wait until a server that is away is to be tried again or the cluster is closed, at most `most_ms`."""
        next_at_ms = min(server.next_try_at_ms for server in self._servers)
        self._closed.wait(max(PAUSE_MS, min(next_at_ms - now_ms(), most_ms)) / 1000)


def _put(key: bytes, data: bytes, expire_s: int, delay_ms: int, item_key: bytes, connection: ClientConnection) -> bool:
    return connection.put(key, data, expire_s, delay_ms=delay_ms, item_key=item_key)


def reasons_of(refusals: dict[str, ServerUnfit]) -> dict[str, str]:
    return {address: refusal.reason for address, refusal in refusals.items()}


class Patience:
    """Time for which one operation keeps asking while all servers are away."""

    def __init__(self, pool: ServerPool, until_ms: int | None = None) -> None:
        """`until_ms` is the latest end, on the monotonic clock."""
        self._pool = pool
        self._until_ms = until_ms
        self.renew()

    def renew(self) -> None:
        """Start again: a server has answered."""
        self._end_ms = now_ms() + self._pool.patience_ms
        if self._until_ms is not None:
            self._end_ms = min(self._end_ms, self._until_ms)

    def spend(self, reasons: dict[str, str], refusals: dict[str, ServerUnfit]) -> None:
        """Wait until it is worth asking again. Raises ServersAway at the end, and at once a refusal by all servers."""
        if not reasons:
            raise next(iter(refusals.values()))
        left_ms = self._end_ms - now_ms()
        if left_ms <= 0:
            raise ServersAway(reasons | reasons_of(refusals))
        self._pool.pause(left_ms)
