"""OwnLeases: what a client has leased in its own name, so that it gives back what it has without knowing.

A lease whose reply was lost is held by nobody until its time is over. The server lists what it has leased in a name;
what of that the client does not know, it gives back. All here is free of I/O: see calls.py.
"""

import re
from contextlib import suppress
from itertools import count
from random import SystemRandom
from typing import Any, Final
from weakref import ref

from kestreld.checks import HOLDER_BYTES_MAX
from kestreld.client.absence import now_ms
from kestreld.client.access import host_name
from kestreld.client.items import OpenItem
from kestreld.client.queue_talks import QueueTalks, Talk
from kestreld.errors import ConnectionLost, KestrelError, ServerRefused, ServerUnfit
from kestreld.forks import process_id, restart_in_child

KNOWN_MS: Final = 3_600_000  # for which a token stays known once its lease is over and its object is gone
LOOK_THROUGH: Final = 1000  # tokens, at least, before those that are over are looked for
HOST_CHARACTERS_MAX: Final = 40
_UNNAMEABLE: Final = re.compile(r"[^!-.0-~]+")
_drawn: Final = SystemRandom()  # no two clients draw the same name, whatever generator they were given


class ClientName:
    """The name in which a client leases. No other client has it: a forked child has another one."""

    def __init__(self, chosen: str) -> None:
        """`chosen` "" = one is drawn: the host, the process and chance."""
        self._chosen = chosen
        self.text = chosen or _drawn_name()
        restart_in_child(self)

    def after_fork(self) -> None:
        suffix = f"-{process_id()}"
        self.text = f"{self._chosen[: HOLDER_BYTES_MAX - len(suffix)]}{suffix}" if self._chosen else _drawn_name()


def _drawn_name() -> str:
    host = _UNNAMEABLE.sub("-", host_name())[:HOST_CHARACTERS_MAX]
    return f"{host or 'client'}-{process_id()}-{_drawn.getrandbits(32):08x}"


class OwnLeases:
    """What one client has leased from one server, and what it may have leased besides.

    Threads share it without a lock: each change is one operation on a dict.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, ref[Any] | None]] = {}  # token -> first end, ms, and who has it
        self._look_through_at = LOOK_THROUGH
        self._numbers = count(1)
        self._under_way: dict[LeaseRequest, int] = {}
        self._lost: dict[bytes, str] = {}  # queue -> name in which a lease was asked for that may be nobody's
        self._suspects: dict[bytes, tuple[list[int], int]] = {}  # queue -> tokens, and the request begun next

    # What it has

    def came(self, token: int, until_ms: int) -> None:
        """Know a token that has arrived, until its lease has ended, or its time is long over and nobody has it."""
        self._known[token] = (until_ms, None)
        if len(self._known) >= self._look_through_at:
            over_ms = now_ms() - KNOWN_MS
            for one, (ends_at_ms, holder) in self._known.copy().items():
                if ends_at_ms < over_ms and (holder is None or holder() is None):
                    self._known.pop(one, None)
            self._look_through_at = max(2 * len(self._known), LOOK_THROUGH)

    def is_had_by(self, token: int, holder: object) -> None:
        """Know the token, if it is known, as long as there is its holder."""
        if (known := self._known.get(token)) is not None:
            self._known[token] = (known[0], ref(holder))

    def is_over(self, token: int) -> None:
        self._known.pop(token, None)

    # What it may have besides

    def begun(self, request: "LeaseRequest") -> None:
        self._under_way[request] = next(self._numbers)

    def answered(self, request: "LeaseRequest") -> None:
        self._under_way.pop(request, None)

    def lost(self, queue: bytes, name: str) -> None:
        """Have the leases of that queue compared with those on the server: the server may have granted one more."""
        self._lost[queue] = name

    @property
    def may_have_more(self) -> bool:
        return bool(self._lost or self._suspects)

    def settle(self, talks: QueueTalks, queue: bytes) -> Talk[None]:
        """Give back what the server has leased to this client and the client does not know, after a reply was lost.

        A token on the list that another request is just receiving is not known yet. So those that are not known
        when all requests of that moment have been answered are given back; none of the later ones can be on the list.
        """
        if name := self._lost.pop(queue, ""):
            try:
                leases = yield from talks.leases(name, queue)
            except (ConnectionLost, ServerUnfit):
                self.lost(queue, name)
                raise
            except ServerRefused:  # it is too old to say, or the user may not know
                return
            self._suspects[queue] = ([lease.token for lease in leases], next(self._numbers))
        tokens, before = self._suspects.get(queue, ((), 0))
        if before and all(begun > before or one.queue != queue for one, begun in self._under_way.copy().items()):
            self._suspects.pop(queue, None)
            for token in tokens:
                if token not in self._known:
                    yield from talks.give_back(queue, token)

    def settle_all(self, talks: QueueTalks) -> Talk[None]:
        """Settle all queues, as far as the server lets."""
        for queue in {*self._lost, *self._suspects}:
            with suppress(ServerRefused):
                yield from self.settle(talks, queue)


class LeaseRequest:
    """One call for a lease, which asks one server after the other, until one has an item."""

    def __init__(self, queue: bytes, name: str, *, is_own: bool) -> None:
        """`is_own`: the name is this client's alone. Nothing is given back of one that others may have."""
        self.queue = queue
        self.name = name
        self.sent_at_ms = 0  # when it was sent last, on the monotonic clock
        self._is_own = is_own
        self._at: OwnLeases | None = None  # where an answer may be on its way, or an item has come from
        self._token = 0

    def lease(self, own: OwnLeases, talks: QueueTalks, lease_ms: int, wait_ms: int) -> Talk[OpenItem | None]:
        """Lease an item as QueueTalks.lease does, once what was lost before is given back."""
        if not self._is_own:
            self.sent_at_ms = now_ms()
            return (yield from talks.lease(self.queue, lease_ms, wait_ms, self.name))
        self._at = own
        try:
            if own.may_have_more:
                yield from own.settle(talks, self.queue)
            own.begun(self)
            self.sent_at_ms = now_ms()
            item = yield from talks.lease(self.queue, lease_ms, wait_ms, self.name)
        except KestrelError as problem:
            if isinstance(problem, (ConnectionLost, ServerUnfit)):
                own.lost(self.queue, self.name)
            own.answered(self)
            raise
        if item is not None:
            self._token = item.id
            own.came(item.id, now_ms() + lease_ms)
        own.answered(self)
        return item

    def drop(self) -> None:
        """Give up what came, or may come, for a caller that was interrupted and does not get it."""
        if self._at is not None:
            self._at.is_over(self._token)
            self._at.answered(self)
            self._at.lost(self.queue, self.name)
