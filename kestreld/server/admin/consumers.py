"""GET /queues/Q/consumers: clients that wait on a queue, hold open reads or leases, and its readers' lag.

It is computed from the state of sessions and readers; nothing is recorded for it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappush, heappushpop, nsmallest
from typing import TYPE_CHECKING, Any, Final

from kestreld import net
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.states import lease_of
from kestreld.queues.waiters import Waiter
from kestreld.server.admin.ranges import why_stopped
from kestreld.server.admin.rows import shown_name
from kestreld.server.session import Session

if TYPE_CHECKING:
    from kestreld.server.service import Service

CONSUMERS_DEFAULT: Final = 100
CONSUMERS_MAX: Final = 1000  # of each kind in an answer
STEP_SESSIONS: Final = 64
STEP_READS: Final = 512

Entry = tuple[int, int, Session, dict[str, Any]]


class _Longest:
    """Sessions that have waited, or held something, for longest: at most `limit`, in that order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[Entry] = []  # the latest first
        self._count = 0

    def add(self, since_ms: int, session: Session, fields: dict[str, Any]) -> None:
        self._count += 1
        entry = (-since_ms, -self._count, session, fields)
        if len(self._heap) < self._limit:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)

    def entries(self) -> list[Entry]:
        return sorted(self._heap, reverse=True)


@dataclass(slots=True)
class _Leases:
    """Leases of one holder: since when it has the first and where it took it, and when the first ends."""

    client: str
    since_ms: int
    until_ms: int
    first_id: int
    count: int = 0
    extended: int = 0  # how often, all together
    is_seen: bool = False  # a token of theirs was presented since the restart


class ConsumersReport:
    """The answer for one queue. `with_clients`: with addresses and users."""

    def __init__(self, service: "Service", limit: int, *, with_clients: bool) -> None:
        self._service = service
        self._clock = service.clock
        self._with_clients = with_clients
        self._waiting = _Longest(limit)
        self._holding = _Longest(limit)
        self._limit = limit
        self._leasing: dict[str, _Leases] = {}

    def pieces(self, name: str, queue: Queue, readers: Iterator[dict[str, Any] | None]) -> Iterator[str | None]:
        """Yield the answer as JSON, and None at intervals. `readers` are those of the family."""
        reader = queue.readers.get(name.partition("+")[2])
        if reader is not None:
            yield from self._look_through_sessions(reader)
            yield from self._look_through_leases(reader)
        self._clock.read()
        head = {
            "queue": shown_name(name),
            "now_ms": self._clock.wall_ms,
            "waiters": reader.wait_queue.waiting if reader is not None else 0,
            "open": len(reader.open) if reader is not None else 0,
            "leased": reader.held.leased if reader is not None and reader.held is not None else 0,
            **why_stopped(queue),
        }
        yield json.dumps(head, separators=(",", ":"))[:-1]
        for key, longest in (("waiting", self._waiting), ("holding", self._holding)):
            yield from _listed(key, self._described(longest))
        yield from _listed("leasing", self._holders())
        yield from _listed("readers", readers)
        yield "}\n"

    def _look_through_sessions(self, reader: Reader) -> Iterator[None]:
        for place, session in enumerate(list(self._service.turn.sessions.values())):
            if place % STEP_SESSIONS == 0:
                yield
            self._look_at_wait(session, reader)
            yield from self._look_at_reads(session, reader)

    def _look_at_wait(self, session: Session, reader: Reader) -> None:
        waiter, since_ms = session.handler.waiter, session.handler.waits_since_ms()
        if isinstance(waiter, Waiter) and waiter.reader is reader and since_ms is not None:
            fields = {"since_at_ms": self._at_ms(since_ms), "until_at_ms": self._at_ms(waiter.due_at_ms)}
            self._waiting.add(since_ms, session, fields)

    def _look_at_reads(self, session: Session, reader: Reader) -> Iterator[None]:
        opened, first_id, first_ms = 0, 0, 0
        for place, (source, item_id, since_ms) in enumerate(session.handler.reads_held(), 1):
            if place % STEP_READS == 0:
                yield
            if source is reader:
                opened += 1
                if opened == 1 or since_ms < first_ms:
                    first_ms = since_ms
                first_id = min(first_id or item_id, item_id)
        if opened:
            fields = {"since_at_ms": self._at_ms(first_ms), "open": opened, "first_id": first_id}
            self._holding.add(first_ms, session, fields)

    def _look_through_leases(self, reader: Reader) -> Iterator[None]:
        """Add up leases by their holders' names or addresses, since they outlive connections."""
        held = reader.held
        for place, one in enumerate(list(held.leases) if held is not None else (), 1):
            if place % STEP_READS == 0:
                yield
            lease = lease_of(reader, one)
            if lease is not None:
                leases = self._leasing.get(lease.name)
                if leases is None:
                    leases = _Leases(lease.client, lease.since_ms, lease.ends_at_ms, one)
                    self._leasing[lease.name] = leases
                leases.count += 1
                leases.extended += lease.extended
                leases.is_seen |= lease.is_seen
                if lease.since_ms < leases.since_ms:
                    leases.since_ms, leases.client = lease.since_ms, lease.client
                leases.until_ms = min(leases.until_ms, lease.ends_at_ms)
                leases.first_id = min(leases.first_id, one)

    def _holders(self) -> Iterator[dict[str, Any] | None]:
        longest = nsmallest(self._limit, self._leasing.items(), key=lambda found: found[1].since_ms)
        for place, (holder, leases) in enumerate(longest, 1):
            fields: dict[str, Any] = {"client": leases.client, "holder": holder} if self._with_clients else {}
            yield fields | {
                "since_at_ms": self._at_ms(leases.since_ms),
                "until_at_ms": self._at_ms(leases.until_ms),
                "leases": leases.count,
                "first_id": leases.first_id,
                "extended": leases.extended,
                "seen": leases.is_seen,
            }
            if place % STEP_SESSIONS == 0:
                yield None

    def _at_ms(self, monotonic_ms: int) -> int:
        return self._clock.wall_ms - self._clock.monotonic_ms + monotonic_ms

    def _described(self, longest: _Longest) -> Iterator[dict[str, Any] | None]:
        account_of = self._service.admission.account_of
        for place, (_, _, session, fields) in enumerate(longest.entries(), 1):
            if session.closed:
                continue
            if self._with_clients:
                account = account_of(session)
                user = account.config.name if account is not None else ""
                yield {"client": net.peer_of(session.fd), "user": user, **fields}
            else:
                yield fields
            if place % STEP_SESSIONS == 0:
                yield None


def _listed(key: str, found: Iterator[dict[str, Any] | None]) -> Iterator[str | None]:
    """Yield a list as the next field of a JSON object."""
    before = f',"{key}":['
    for one in found:
        yield None if one is None else before + json.dumps(one, separators=(",", ":"))
        before = "," if one is not None else before
    yield "]" if before == "," else before + "]"
