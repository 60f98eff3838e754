"""Ranges of ids: pages of a journal's items from some id on, read without taking them, also after a wait."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web

from kestreld.config.users import Right
from kestreld.errors import JournalCorrupt
from kestreld.queues.collection import QueueCollection
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import RangeRead, earliest_id
from kestreld.queues.reader import Reader
from kestreld.queues.states import undone_in
from kestreld.server.accounts import Account
from kestreld.server.admin.answers import HEADERS, ID_DIGITS_MAX, Refused, Share, in_slices, number_in, refusal
from kestreld.server.admin.item_lines import item_lines

if TYPE_CHECKING:
    from kestreld.server.service import Service

ITEMS_MAX: Final = 100_000
ITEMS_DEFAULT: Final = 1000
BYTES_MAX: Final = 16 * 1024**2
BYTES_DEFAULT: Final = 1024**2
WAIT_MS_MAX: Final = 300_000
READS_MAX: Final = 8  # answers with items that are in memory at a time
RECORDS: Final = "application/x-kestrel-records"
NDJSON: Final = "application/x-ndjson"


class Ranges:
    """Reads of items, a limited number at a time."""

    def __init__(self, service: "Service", share: Share, complain: Callable[[str], None]) -> None:
        self._loop = service.loop
        self._collection = service.collection
        self._clock = service.clock
        self._share = share
        self._complain = complain
        self._waits: set[asyncio.Future[None]] = set()
        self.reads = asyncio.Semaphore(READS_MAX)

    async def answer(self, request: web.BaseRequest, name: str, account: Account | None) -> web.StreamResponse:
        """Answer with a page of a queue's items, or of those that a child was given. Raises Refused."""
        query = request.rel_url.query
        form = query.get("format", "records")
        if form not in ("records", "ndjson"):
            raise Refused(400, "format must be records or ndjson")
        limit = number_in(request, "limit", 1, ITEMS_MAX, ITEMS_DEFAULT)
        bytes_max = number_in(request, "bytes", 1, BYTES_MAX, BYTES_DEFAULT)
        wait_ms = number_in(request, "wait_ms", 0, WAIT_MS_MAX, 0)
        only_waiting = number_in(request, "waiting", 0, 1, 0) == 1
        queue = find_family(self._collection, name)
        check_readable(queue)
        journal = queue.journal
        assert journal is not None
        reader = queue.readers.get(name.partition("+")[2])
        first = self._first(queue, reader, query.get("reader"), query.get("first"), only_waiting=only_waiting)
        wanted = undone_in(reader) if reader is not None and only_waiting else None
        asked_id = number_in(request, "journal_id", 0, 10**ID_DIGITS_MAX, journal.journal_id)
        if asked_id != journal.journal_id:
            raise gone(queue)
        only = reader.number if reader is not None and (reader.label or only_waiting) else 0
        if account is not None and account.meter is not None:
            while delay_ms := account.meter.wait_ms():
                await asyncio.sleep(delay_ms / 1000)
                self._clock.read()
        await self._wait(queue, first, only, wait_ms)
        async with self.reads:
            found = await self.read_some(queue, RangeRead(queue, first, limit, bytes_max, only, wanted))
            headers = {
                **HEADERS,
                "X-Kestrel-Next": str(found.next_id),
                "X-Kestrel-Journal": str(journal.journal_id),
                "X-Kestrel-Items": str(len(found.records)),
            }
            if form == "ndjson":
                is_admin = account is None or account.may(Right.ADMIN, name)
                lines = item_lines(found.records, queue, reader, with_clients=is_admin)
                response = web.Response(
                    body=b"".join(await in_slices(lines, self._share)), content_type=NDJSON, headers=headers
                )
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
        """Return the id at which a range begins. Raises Refused."""
        if only_waiting and reader is None:
            raise Refused(404, "no such queue")
        if first is not None:
            return place_in(queue, first)
        if stream is None:
            earliest = earliest_id(queue)
            return max(reader.head(), earliest) if reader is not None and only_waiting else earliest
        known = queue.streams.get(stream.encode("utf-8", "surrogateescape").decode("latin-1"))
        if known is None:
            raise Refused(404, "no such reader")
        return known.head

    async def _wait(self, queue: Queue, first: int, only: int, wait_ms: int) -> None:
        """Wait until there is an item in the range, the time is over, or the server stops."""
        until_ms, journal = self._clock.monotonic_ms + wait_ms, queue.journal
        while wait_ms > 0 and not self._collection.stopping and queue.journal is journal:
            look = await self.read_some(queue, RangeRead(queue, first, 1, 1, only))
            if look.records:
                return
            first = look.next_id
            await self._news(queue, wait_ms)
            self._clock.read()
            wait_ms = until_ms - self._clock.monotonic_ms

    async def read_some(self, queue: Queue, found: RangeRead) -> RangeRead:
        """Read a range, in slices. Raises Refused if it no longer exists."""
        journal = queue.journal
        try:
            while queue.journal is journal and queue.stopped is None and found.read():
                await asyncio.sleep(0)
        except JournalCorrupt as problem:
            if found.next_id >= earliest_id(queue):  # it has not just been deleted
                self._complain(f"{queue.name}: {problem}")
                raise refusal(problem) from problem
        if queue.stopped is not None:
            raise refusal(queue.stopped)
        if not found.records:
            if queue.journal is not journal or journal is None:
                raise Refused(404, "the queue was deleted")
            if found.next_id < earliest_id(queue):
                raise gone(queue)
        return found

    async def _news(self, queue: Queue, wait_ms: int) -> None:
        """Wait until something has been put, or the time is over."""
        news: asyncio.Future[None] = self._loop.create_future()

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

    def end_waits(self) -> None:
        """End all waits, because the server stops."""
        for wait in list(self._waits):
            if not wait.done():
                wait.set_result(None)


def find_family(collection: QueueCollection, name: str) -> Queue:
    """Return the family of a queue, or of that name: readers and children outlive the queue. Raises Refused."""
    reader = collection.find(name)
    queue = reader.queue if reader is not None else collection.families.get(name)
    if queue is None:
        problem = collection.broken.get(name.partition("+")[0])
        if problem is not None:
            raise refusal(problem)
        raise Refused(404, "no such queue")
    return queue


def why_stopped(queue: Queue) -> dict[str, str]:
    """Return the reason and the remedy of a stopped queue as fields; none for any other."""
    problem = queue.stopped
    return {} if problem is None else {"stopped": problem.reason, "remedy": problem.remedy}


def place_in(queue: Queue, word: str) -> int:
    """Return the id that `earliest`, `latest` or a number means. Raises Refused."""
    first, settled = earliest_id(queue), queue.settled_id()
    if word == "earliest":
        return first
    if word == "latest":
        return settled
    if not (word.isascii() and word.isdecimal() and len(word) <= ID_DIGITS_MAX):
        raise Refused(400, "expected earliest, latest or an item id")
    if int(word) < first or int(word) > settled:
        raise gone(queue)
    return int(word)


def check_readable(queue: Queue) -> None:
    if queue.stopped is not None:
        raise refusal(queue.stopped)
    if queue.journal is None:
        raise Refused(409, "the queue is in memory only: items cannot be read back")


def gone(queue: Queue) -> Refused:
    assert queue.journal is not None
    return Refused(
        410,
        "the items no longer exist, or belong to another journal",
        journal_id=queue.journal.journal_id,
        first_id=earliest_id(queue),
        next_id=queue.settled_id(),
    )
