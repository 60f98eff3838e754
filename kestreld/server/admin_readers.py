"""The reader API: positions on a queue's journal that outlive connections, and ranges of ids read from it.

GET    /queues                                  names, and what is in them
GET    /queues/Q                                readers, ids, the journal's id
GET    /queues/Q/journal                        segments, and who needs them
GET    /queues/Q/items?first=&limit=&bytes=&reader=&waiting=&wait_ms=&format=
POST   /queues/Q/readers/R?from=                make a reader
POST   /queues/Q/readers/R/done?through=        it is done with all items up to this one
DELETE /queues/Q/readers/R
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from kestreld.config import queue_name_problem
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import Kind, item_add_at_ms, item_data, item_expire_at_ms, item_flags, item_id
from kestreld.queues.commit import Ticket
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import RangeRead, earliest_id, waiting_in
from kestreld.queues.reader import Reader, Stream
from kestreld.server.accounts import Account
from kestreld.server.admin_answers import HEADERS, Refused, as_json, in_slices, refusal
from kestreld.server.admin_journal import describe_journal
from kestreld.server.admin_rows import shown_name
from kestreld.users import Right

if TYPE_CHECKING:
    from kestreld.server.admin import AdminListener

ITEMS_MAX: Final = 100_000
ITEMS_DEFAULT: Final = 1000
BYTES_MAX: Final = 16 * 1024**2
BYTES_DEFAULT: Final = 1024**2
STREAMS_MAX: Final = 256  # of a queue: each is in every CHECKPOINT
READS_MAX: Final = 8  # answers with items that are in memory at a time
UPKEEP_LOOK_S: Final = 0.02
RECORDS: Final = "application/x-kestrel-records"
NDJSON: Final = "application/x-ndjson"
ID_DIGITS_MAX: Final = 19


def number_in(request: web.BaseRequest, name: str, lowest: int, highest: int, default: int) -> int:
    """A number from the query. Raises Refused."""
    text = request.rel_url.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS_MAX and lowest <= int(text) <= highest):
        raise Refused(400, f"{name} is a number from {lowest} to {highest}")
    return int(text)


class _Landing:
    """Waits for a commit to be on disk, as sessions do."""

    def __init__(self, ticket: Ticket, future: "asyncio.Future[None]") -> None:
        self._future = future
        ticket.holders.append(self)

    def released(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class Readers:
    """What the API does to the queues. Whatever it changes is answered when it is written, as a session's is."""

    WAIT_MS_MAX: Final = 300_000

    def __init__(self, listener: "AdminListener") -> None:
        self._listener = listener
        self._service = listener.service
        self._collection = listener.collection
        self._clock = listener.clock
        self._waits: set[asyncio.Future[None]] = set()
        self._reads = asyncio.Semaphore(READS_MAX)

    async def answer(self, request: web.BaseRequest, parts: list[str], account: Account | None) -> web.StreamResponse:
        """`parts` is the path behind /queues, as latin-1 text."""
        match (request.method, parts):
            case ("GET", []):
                return await self._list()
            case ("GET", [name]):
                return as_json(self._describe(self._family_of(name)))
            case ("GET", [name, "journal"]):
                return await self._journal(name, account)
            case ("GET", [name, "items"]):
                _check(account, Right.PEEK, name)
                return await self._items(request, name, account)
            case ("POST", [name, "readers", label]):
                _check(account, Right.GET, name)
                return await self._create(request, name, label)
            case ("POST", [name, "readers", label, "done"]):
                _check(account, Right.GET, name)
                return await self._done(request, name, label)
            case ("DELETE", [name, "readers", label]):
                _check(account, Right.GET, name)
                return await self._drop(name, label)
            case (_, [] | [_] | [_, "items" | "journal"] | [_, "readers", _] | [_, "readers", _, "done"]):
                raise Refused(405, f"{request.method} is not for this")
        raise Refused(404, "there is nothing of that name")

    def end_waits(self) -> None:
        """The server stops."""
        for wait in list(self._waits):
            if not wait.done():
                wait.set_result(None)

    # What there is

    def _family_of(self, name: str) -> Queue:
        """The family of a queue, or of that name: readers and children outlive the queue itself."""
        reader = self._collection.find(name)
        queue = reader.queue if reader is not None else self._collection.families.get(name)
        if queue is None:
            problem = self._collection.broken.get(name.partition("+")[0])
            if problem is not None:
                raise refusal(problem)
            raise Refused(404, "there is no such queue")
        return queue

    def _parent(self, name: str) -> Queue:
        """The family a reader belongs to, by its own name."""
        if "+" in name:
            raise Refused(400, "readers belong to the parent of a fanout queue")
        return self._family_of(name)

    async def _list(self) -> web.Response:
        def names() -> Iterator[dict[str, Any] | None]:
            for place, (name, reader) in enumerate(list(self._collection.readers.items())):
                reader.queue.fold()
                yield {"queue": shown_name(name), "items": reader.items, "streams": len(reader.queue.streams)}
                if place % 16 == 0:
                    yield None

        found = await in_slices(names(), self._clock)
        return as_json({"queues": [one for one in found if one is not None]})

    def _describe(self, queue: Queue) -> dict[str, Any]:
        queue.fold()
        readers: list[dict[str, Any]] = [
            {
                "reader": reader.label,
                "kind": Kind.QUEUE.name.lower(),
                "queue": shown_name(reader.name),
                "head": reader.head(),
                "items": reader.items,
                "bytes": reader.data_bytes,
                "open": len(reader.open),
            }
            for reader in queue.readers.values()
        ]
        readers += [_stream_fields(queue, stream) for stream in queue.streams.values()]
        return {
            "queue": shown_name(queue.name),
            "journal_id": queue.journal.journal_id if queue.journal is not None else 0,
            "first_id": earliest_id(queue),
            "next_id": queue.settled_id(),
            "segments": len(queue.journal.segments) if queue.journal is not None else 0,
            "bytes_on_disk": queue.journal.disk_bytes if queue.journal is not None else 0,
            "readers": readers,
        }

    async def _journal(self, name: str, account: Account | None) -> web.Response:
        queue = self._family_of(name)
        is_compacting = self._service.upkeep.is_compacting(queue)
        # Where its files are is said to those who look after the server.
        is_admin = account is None or account.may(Right.ADMIN, name)
        return as_json(await describe_journal(queue, self._clock, is_compacting=is_compacting, with_folder=is_admin))

    # Making, moving and dropping readers

    async def _create(self, request: web.BaseRequest, name: str, label: str) -> web.Response:
        problem = queue_name_problem(label)
        if problem is not None or "+" in label:
            raise Refused(400, problem or "a reader's name cannot have '+' in it")
        if "+" in name:
            raise Refused(400, "readers belong to the parent of a fanout queue")
        queue = self._collection.families.get(name) or self._collection.reader(name).queue
        _check_readable(queue)
        stream = queue.streams.get(label)
        if stream is not None:
            await self._written(queue)
            return as_json(_stream_fields(queue, stream))
        await self._upkeep_over(queue)
        if self._collection.families.get(name) is not queue or label in queue.streams:
            raise Refused(409, "the queue has changed meanwhile; ask again")
        if label in queue.readers:
            raise Refused(409, "this is the name of a fanout queue")
        if len(queue.streams) >= STREAMS_MAX:
            raise Refused(409, f"a queue has at most {STREAMS_MAX} readers")
        at_id = self._place(queue, request.rel_url.query.get("from", "earliest"))
        stream = queue.add_stream(label, at_id)
        await self._written(queue)
        return as_json(_stream_fields(queue, stream), 201)

    def _place(self, queue: Queue, word: str) -> int:
        """The id that `earliest`, `latest` or a number says."""
        first, settled = earliest_id(queue), queue.settled_id()
        if word == "earliest":
            return first
        if word == "latest":
            return settled
        if not (word.isascii() and word.isdecimal() and len(word) <= ID_DIGITS_MAX):
            raise Refused(400, "expected earliest, latest or an item id")
        if int(word) < first or int(word) > settled:
            raise _gone(queue)
        return int(word)

    async def _upkeep_over(self, queue: Queue) -> None:
        """A new reader holds what is there: not while some of it is being deleted or rewritten."""
        while queue.journal is not None and (queue.journal.retiring or self._service.upkeep.is_compacting(queue)):
            await asyncio.sleep(UPKEEP_LOOK_S)

    async def _done(self, request: web.BaseRequest, name: str, label: str) -> web.Response:
        queue = self._parent(name)
        stream = queue.streams.get(label)
        if stream is None:
            raise Refused(404, "there is no such reader")
        through = number_in(request, "through", 1, 10**ID_DIGITS_MAX, 0)
        if not through:
            raise Refused(400, "through is missing: the id of the last item that is done")
        if through >= queue.settled_id():
            raise Refused(409, "there is no such item yet", next_id=queue.settled_id())
        queue.advance_stream(label, through)
        await self._written(queue)
        return as_json(_stream_fields(queue, stream))

    async def _drop(self, name: str, label: str) -> web.Response:
        queue = self._parent(name)
        if label not in queue.streams:
            raise Refused(404, "there is no such reader")
        queue.drop_stream(label)
        await self._written(queue)
        return as_json({"dropped": shown_name(label)})

    async def _written(self, queue: Queue) -> None:
        """Until what was changed is in the journal, and on disk where that is asked for. Raises Refused."""
        commit, is_dirty = self._collection.commit, queue.dirty
        self._service.turn.finish()
        commit.wake()
        if is_dirty and queue in commit.failed:
            raise refusal(commit.failed[queue])
        if queue.journal is not None and queue.journal.failed is not None:
            raise refusal(queue.journal.failed)
        ticket = queue.ticket
        if ticket is not None and ticket.pending:
            landed: asyncio.Future[None] = self._service.loop.create_future()
            _Landing(ticket, landed)
            await landed
            if ticket.failure is not None:
                raise refusal(ticket.failure)

    # Reading

    async def _items(self, request: web.BaseRequest, name: str, account: Account | None) -> web.StreamResponse:
        query = request.rel_url.query
        form = query.get("format", "records")
        if form not in ("records", "ndjson"):
            raise Refused(400, "format is records or ndjson")
        limit = number_in(request, "limit", 1, ITEMS_MAX, ITEMS_DEFAULT)
        bytes_max = number_in(request, "bytes", 1, BYTES_MAX, BYTES_DEFAULT)
        wait_ms = number_in(request, "wait_ms", 0, self.WAIT_MS_MAX, 0)
        only_waiting = number_in(request, "waiting", 0, 1, 0) == 1
        queue = self._family_of(name)
        _check_readable(queue)
        journal = queue.journal
        assert journal is not None
        reader = queue.readers.get(name.partition("+")[2])
        first = self._first(queue, reader, query.get("reader"), query.get("first"), only_waiting=only_waiting)
        wanted = waiting_in(reader.state()) if reader is not None and only_waiting else None
        asked_id = number_in(request, "journal_id", 0, 10**ID_DIGITS_MAX, journal.journal_id)
        if asked_id != journal.journal_id:
            raise _gone(queue)
        only = reader.number if reader is not None and (reader.label or only_waiting) else 0
        if account is not None and account.meter is not None:
            while delay_ms := account.meter.wait_ms():
                await asyncio.sleep(delay_ms / 1000)
                self._clock.read()
        await self._wait(queue, first, only, wait_ms)
        async with self._reads:
            found = await self._read_some(queue, RangeRead(queue, first, limit, bytes_max, only, wanted))
            headers = {
                **HEADERS,
                "X-Kestrel-Next": str(found.next_id),
                "X-Kestrel-Journal": str(journal.journal_id),
                "X-Kestrel-Items": str(len(found.records)),
            }
            if form == "ndjson":
                lines = await in_slices(_lines(found.records, reader), self._clock)
                response = web.Response(body=b"".join(lines), content_type=NDJSON, headers=headers)
            else:
                response = web.Response(body=b"".join(found.records), content_type=RECORDS, headers=headers)
            if account is not None and account.meter is not None:
                account.meter.spend(found.size_bytes)
            found.records.clear()
            await response.prepare(request)
            await response.write_eof()
        return response

    def _first(
        self, queue: Queue, reader: Reader | None, stream: str | None, first: str | None, *, only_waiting: bool
    ) -> int:
        """Where a range begins."""
        if only_waiting and reader is None:
            raise Refused(404, "there is no such queue")
        if first is not None:
            return self._place(queue, first)
        if stream is None:
            earliest = earliest_id(queue)
            return max(reader.head(), earliest) if reader is not None and only_waiting else earliest
        known = queue.streams.get(stream.encode("utf-8", "surrogateescape").decode("latin-1"))
        if known is None:
            raise Refused(404, "there is no such reader")
        return known.head

    async def _wait(self, queue: Queue, first: int, only: int, wait_ms: int) -> None:
        """Until there is an item in the range, or the time is over, or the server stops."""
        until_ms, journal = self._clock.monotonic_ms + wait_ms, queue.journal
        while wait_ms > 0 and not self._collection.stopping and queue.journal is journal:
            look = await self._read_some(queue, RangeRead(queue, first, 1, 1, only))
            if look.records:
                return
            first = look.next_id
            await self._news(queue, wait_ms)
            self._clock.read()
            wait_ms = until_ms - self._clock.monotonic_ms

    async def _read_some(self, queue: Queue, found: RangeRead) -> RangeRead:
        """Read a range, in slices. Raises Refused where it is gone."""
        journal = queue.journal
        try:
            while queue.journal is journal and queue.stopped is None and found.read():
                await asyncio.sleep(0)
        except JournalCorrupt as problem:
            if found.next_id >= earliest_id(queue):  # it has not just been deleted
                self._listener.complain(f"{queue.name}: {problem}")
                raise refusal(problem) from problem
        if queue.stopped is not None:
            raise refusal(queue.stopped)
        if not found.records:
            if queue.journal is not journal or journal is None:
                raise Refused(404, "there is no such queue any more")
            if found.next_id < earliest_id(queue):
                raise _gone(queue)
        return found

    async def _news(self, queue: Queue, wait_ms: int) -> None:
        """Until something has been put, or the time is over."""
        news: asyncio.Future[None] = self._service.loop.create_future()

        def tell() -> None:
            if not news.done():
                news.set_result(None)

        queue.followers.append(tell)
        self._waits.add(news)
        try:
            await asyncio.wait({news}, timeout=wait_ms / 1000)
        finally:
            self._waits.discard(news)
            if tell in queue.followers:
                queue.followers.remove(tell)


def _check(account: Account | None, right: Right, name: str) -> None:
    if account is not None and not account.may(right, name):
        raise Refused(403, f"not allowed: this takes the right {right.value} on the queue")


def _check_readable(queue: Queue) -> None:
    if queue.stopped is not None:
        raise refusal(queue.stopped)
    if queue.journal is None:
        raise Refused(409, "this queue is kept in memory only: nothing can be read back")


def _gone(queue: Queue) -> Refused:
    assert queue.journal is not None
    return Refused(
        410,
        "there are no such items any more, or they are of another journal",
        journal_id=queue.journal.journal_id,
        first_id=earliest_id(queue),
        next_id=queue.settled_id(),
    )


def _stream_fields(queue: Queue, stream: Stream) -> dict[str, Any]:
    return {
        "reader": shown_name(stream.name),
        "kind": Kind.STREAM.name.lower(),
        "head": stream.head,
        "behind": max(queue.settled_id() - stream.head, 0),
    }


def _lines(records: list[bytes], reader: Reader | None) -> Iterator[bytes]:
    """A line of JSON for each item. Data that is no UTF-8 is in base64."""
    for record in records:
        number, data, expire_at_ms = item_id(record), item_data(record), item_expire_at_ms(record)
        line: dict[str, Any] = {"id": number, "add_ms": item_add_at_ms(record)}
        if expire_at_ms:
            line["expire_ms"] = expire_at_ms
        if flags := item_flags(record):
            line["flags"] = flags
        if reader is not None and number in reader.open:
            line["is_open"] = True
        try:
            line["data"] = data.decode("utf-8")
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(data).decode("ascii")
        yield json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
