"""The reader API: positions on a queue's journal that outlive connections, and routes of /queues.

GET    /queues                                  names, items and numbers of streams
GET    /queues/Q                                readers, ids, the journal's id
GET    /queues/Q/journal                        segments, and the readers that need them
GET    /queues/Q/consumers?limit=               waiting clients, holders of open reads and leases, lag of readers
GET    /queues/Q/items?first=&limit=&bytes=&reader=&waiting=&wait_ms=&format=
GET    /queues/Q/position?at_ms=, ?first=&bytes=: see positions.py
GET    /queues/Q/items?state=, POST /queues/Q/items/ID/…, /cancel, /redrive: see items.py
POST   /queues/Q/readers/R?from=                make a reader
POST   /queues/Q/readers/R/done?through=        mark all items up to this one as done
DELETE /queues/Q/readers/R
"""

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from kestreld.config.queue_names import queue_name_problem
from kestreld.config.users import Right
from kestreld.journal.records import Kind
from kestreld.queues.commit import Tally
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import earliest_id
from kestreld.queues.stream import Stream
from kestreld.server.accounts import Account
from kestreld.server.admin.answers import ID_DIGITS_MAX, Refused, Share, as_json, number_in, refusal, stream
from kestreld.server.admin.consumers import CONSUMERS_DEFAULT, CONSUMERS_MAX, ConsumersReport
from kestreld.server.admin.items import Items
from kestreld.server.admin.journal import describe_journal
from kestreld.server.admin.positions import Positions
from kestreld.server.admin.ranges import Ranges, check_readable, find_family, place_in, why_stopped
from kestreld.server.admin.rows import shown_name

if TYPE_CHECKING:
    from kestreld.server.service import Service

STREAMS_MAX: Final = 256  # of a queue: each is in every CHECKPOINT
MAINTENANCE_POLL_S: Final = 0.02


class Readers:
    """Requests on queues and readers. Changes are answered once they are written, as a session's are."""

    def __init__(self, service: "Service", share: Share, ranges: Ranges) -> None:
        self._ranges = ranges
        self._service = service
        self._collection = service.collection
        self._share = share
        self._items = Items(service, share, ranges, self._written)
        self._positions = Positions(service, ranges)

    async def answer(self, request: web.BaseRequest, parts: list[str], account: Account | None) -> web.StreamResponse:
        """Answer a request; `parts` is the path behind /queues, as latin-1 text."""
        match (request.method, parts):
            case ("GET", []):
                return await self._list(request, account)
            case ("GET", [name]):
                _check_seen(account, name)
                return as_json(self._describe(find_family(self._collection, name), account))
            case ("GET", [name, "journal"]):
                _check_seen(account, name)
                return await self._journal(name, account)
            case ("GET", [name, "consumers"]):
                _check_seen(account, name)
                return await self._consumers(request, name, account)
            case ("GET", [name, "items"]):
                _check(account, Right.PEEK, name)
                if "state" in request.rel_url.query:
                    return await self._items.page(request, name, account)
                return await self._ranges.answer(request, name, account)
            case ("GET", [name, "position"]):
                _check(account, Right.PEEK, name)
                return await self._positions.answer(request, name)
            case ("POST", [name, "items", number, "cancel" | "run-now" | "extend" | "give-back" as action]):
                _check(account, Right.GET, name)
                return await self._items.act(request, name, number, action)
            case ("POST", [name, "cancel"]):
                _check(account, Right.PUT, name)
                return await self._items.cancel(request, name)
            case ("POST", [name, "redrive"]):
                _check(account, Right.GET, name)
                return await self._items.redrive(request, name, account)
            case ("POST", [name, "readers", label]):
                _check(account, Right.GET, name)
                return await self._create(request, name, label, account)
            case ("POST", [name, "readers", label, "done"]):
                _check(account, Right.GET, name)
                return await self._done(request, name, label)
            case ("DELETE", [name, "readers", label]):
                _check(account, Right.GET, name)
                return await self._drop(name, label)
            case (
                _,
                []
                | [_]
                | [_, "items" | "position" | "journal" | "consumers" | "cancel" | "redrive"]
                | [_, "readers", _]
                | [_, "readers", _, "done"]
                | [_, "items", _, "cancel" | "run-now" | "extend" | "give-back"],
            ):
                raise Refused(405, f"method {request.method} not allowed")
        raise Refused(404, "not found")

    # Reports

    def _parent(self, name: str) -> Queue:
        """Return the family of a name, which must not be a child's. Raises Refused."""
        if "+" in name:
            raise Refused(400, "readers belong to the parent of a fanout queue")
        return find_family(self._collection, name)

    async def _list(self, request: web.BaseRequest, account: Account | None) -> web.StreamResponse:
        def pieces() -> Iterator[str | None]:
            before = '{"queues":['
            for reader in list(self._collection.readers.values()):
                if not reader.deleted and (account is None or account.sees(reader.name)):
                    reader.queue.flush_counters()
                    name, streams = shown_name(reader.name), len(reader.queue.streams)
                    one = {"queue": name, "items": reader.items, "streams": streams}
                    yield before + json.dumps(one, separators=(",", ":"))
                    before = ","
                yield None
            yield "]}\n" if before == "," else before + "]}\n"

        return await stream(request, pieces(), "application/json; charset=utf-8", self._share)

    def _describe(self, queue: Queue, account: Account | None) -> dict[str, Any]:
        queue.flush_counters()
        return {
            "queue": shown_name(queue.name),
            "journal_id": queue.journal.journal_id if queue.journal is not None else 0,
            "first_id": earliest_id(queue),
            "next_id": queue.settled_id(),
            "segments": len(queue.journal.segments) if queue.journal is not None else 0,
            "bytes_on_disk": queue.journal.disk_bytes if queue.journal is not None else 0,
            "readers": list(_readers_of(queue, account)),
            **why_stopped(queue),
        }

    async def _consumers(self, request: web.BaseRequest, name: str, account: Account | None) -> web.StreamResponse:
        queue = find_family(self._collection, name)
        limit = number_in(request, "limit", 1, CONSUMERS_MAX, CONSUMERS_DEFAULT)
        # Only admins see addresses and users of clients.
        is_admin = account is None or account.may(Right.ADMIN, name)
        report = ConsumersReport(self._service, limit, with_clients=is_admin)
        pieces = report.pieces(name, queue, _lagging(queue, account))
        return await stream(request, pieces, "application/json; charset=utf-8", self._share)

    async def _journal(self, name: str, account: Account | None) -> web.Response:
        queue = find_family(self._collection, name)
        is_compacting = self._service.maintenance.is_compacting(queue)
        # Only admins see the folder.
        is_admin = account is None or account.may(Right.ADMIN, name)
        return as_json(await describe_journal(queue, self._share, is_compacting=is_compacting, with_folder=is_admin))

    # Making, moving and dropping readers

    async def _create(self, request: web.BaseRequest, name: str, label: str, account: Account | None) -> web.Response:
        problem = queue_name_problem(label)
        if problem is not None or "+" in label:
            raise Refused(400, problem or "reader name must not contain '+'")
        if "+" in name:
            raise Refused(400, "readers belong to the parent of a fanout queue")
        if name not in self._collection.families and account is not None and not account.may_create(name):
            _check(account, Right.CREATE, name)
        queue = self._collection.families.get(name) or self._collection.reader(name).queue
        check_readable(queue)
        stream = queue.streams.get(label)
        if stream is not None:
            await self._written(queue)
            return as_json(_stream_fields(queue, stream))
        await self._upkeep_over(queue)
        if self._collection.families.get(name) is not queue or label in queue.streams:
            raise Refused(409, "the queue has changed; try again")
        if label in queue.readers:
            raise Refused(409, "this name belongs to a fanout queue")
        if len(queue.streams) >= STREAMS_MAX:
            raise Refused(409, f"too many readers: the maximum is {STREAMS_MAX}")
        at_id = place_in(queue, request.rel_url.query.get("from", "earliest"))
        stream = queue.add_stream(label, at_id)
        await self._written(queue)
        return as_json(_stream_fields(queue, stream), 201)

    async def _upkeep_over(self, queue: Queue) -> None:
        """Wait while segments are being deleted or rewritten, because a new reader pins the present ones."""
        while queue.journal is not None and (queue.journal.retiring or self._service.maintenance.is_compacting(queue)):
            await asyncio.sleep(MAINTENANCE_POLL_S)

    async def _done(self, request: web.BaseRequest, name: str, label: str) -> web.Response:
        queue = self._parent(name)
        stream = queue.streams.get(label)
        if stream is None:
            raise Refused(404, "no such reader")
        through = number_in(request, "through", 1, 10**ID_DIGITS_MAX, 0)
        if not through:
            raise Refused(400, "missing parameter: through, the id of the last item done")
        if through >= queue.settled_id():
            raise Refused(409, "no such item yet", next_id=queue.settled_id())
        queue.advance_stream(label, through)
        await self._written(queue)
        return as_json(_stream_fields(queue, stream))

    async def _drop(self, name: str, label: str) -> web.Response:
        queue = self._parent(name)
        if label not in queue.streams:
            raise Refused(404, "no such reader")
        queue.drop_stream(label)
        await self._written(queue)
        return as_json({"dropped": shown_name(label)})

    async def _written(self, queue: Queue) -> None:
        """Wait until changes are in the journal, and on disk if configured. Raises Refused."""
        commit, is_dirty = self._collection.commit, queue.dirty
        self._service.turn.finish()
        commit.wake()
        if is_dirty and queue in commit.failed:
            raise refusal(commit.failed[queue])
        if queue.journal is not None and queue.journal.failed is not None:
            raise refusal(queue.journal.failed)
        pending_commit = queue.pending_commit
        if pending_commit is not None and pending_commit.pending:
            commit_synced = asyncio.Event()
            tally = Tally(commit_synced.set)
            tally.wait_for(pending_commit)
            await commit_synced.wait()
            if tally.failure is not None:
                raise refusal(tally.failure)


def _check(account: Account | None, right: Right, name: str) -> None:
    if account is not None and not account.may(right, name):
        raise Refused(403, f"not allowed: requires the right {right.value} on the queue")


def _check_seen(account: Account | None, name: str) -> None:
    if account is not None and not account.sees(name):
        raise Refused(403, "not allowed: requires some right on the queue")


def _readers_of(queue: Queue, account: Account | None) -> Iterator[dict[str, Any]]:
    """Yield the fields of each reader. `queue.flush_counters()` must be called first."""
    for reader in list(queue.readers.values()):
        if account is None or account.sees(reader.name):
            head = reader.head()
            yield {
                "reader": reader.label,
                "kind": Kind.QUEUE.name.lower(),
                "queue": shown_name(reader.name),
                "head": head,
                "behind": max(queue.settled_id() - head, 0),
                "items": reader.items,
                "bytes": reader.data_bytes,
                "open": len(reader.open),
                "waiters": reader.wait_queue.waiting,
                "oldest_at_ms": reader.oldest_at_ms(),
            }
    for each in list(queue.streams.values()):
        yield _stream_fields(queue, each)


def _lagging(queue: Queue, account: Account | None) -> Iterator[dict[str, Any] | None]:
    """Yield `_readers_of`, after determining how long their heads have waited, and None at intervals."""
    for reader in list(queue.readers.values()):
        while reader.seek_head():
            yield None
    queue.flush_counters()
    for fields in _readers_of(queue, account):
        yield fields
        yield None


def _stream_fields(queue: Queue, stream: Stream) -> dict[str, Any]:
    return {
        "reader": shown_name(stream.name),
        "kind": Kind.STREAM.name.lower(),
        "head": stream.head,
        "behind": max(queue.settled_id() - stream.head, 0),
    }
