"""GET /queues/Q/position: an id by time (`at_ms`), or by size from another id on (`first`, `bytes`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aiohttp import web

from kestreld.journal.records import item_add_at_ms
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import RangeRead, RangeSearch, earliest_id
from kestreld.server.admin.answers import ID_DIGITS_MAX, Refused, as_json, number_in
from kestreld.server.admin.ranges import Ranges, check_readable, find_family, gone, place_in
from kestreld.server.admin.rows import shown_name

if TYPE_CHECKING:
    from kestreld.server.service import Service

BYTES_MAX: Final = 1 << 62
SCAN_BYTES_MAX: Final = 64 * 1024**2  # of the journal for an answer, from which the client continues


class Positions:
    """Searches for ids. Each counts as one of the reads of ranges, and takes no more of a turn."""

    def __init__(self, service: "Service", ranges: Ranges) -> None:
        self._collection = service.collection
        self._ranges = ranges

    async def answer(self, request: web.BaseRequest, name: str) -> web.Response:
        """Find where the items of some time begin, or where a range of some bytes ends. Raises Refused."""
        query = request.rel_url.query
        if ("at_ms" in query) == ("bytes" in query):
            raise Refused(400, "expected either at_ms, or bytes with first")
        queue = find_family(self._collection, name)
        check_readable(queue)
        journal = queue.journal
        assert journal is not None
        if number_in(request, "journal_id", 0, 10**ID_DIGITS_MAX, journal.journal_id) != journal.journal_id:
            raise gone(queue)
        async with self._ranges.reads:
            if queue.journal is not journal:
                raise Refused(404, "the queue was deleted")
            if "at_ms" in query:
                search = await self._by_time(queue, number_in(request, "at_ms", 0, BYTES_MAX, 0))
            else:
                first = place_in(queue, query.get("first", "earliest"))
                bytes_max = number_in(request, "bytes", 1, BYTES_MAX, 1)
                search = RangeSearch(queue, first, bytes_max, None, SCAN_BYTES_MAX)
                await self._ranges.read_some(queue, search)
        fields = {"queue": shown_name(name), "journal_id": journal.journal_id, "id": search.next_id}
        ends = {"is_end": search.next_id >= queue.settled_id(), "is_partial": search.is_partial}
        return as_json({**fields, "bytes": search.size_bytes, **ends})

    async def _by_time(self, queue: Queue, at_ms: int) -> RangeSearch:
        """Search by the first items of segments, then by those of stretches of one, then through one stretch."""
        journal, first = queue.journal, earliest_id(queue)
        assert journal is not None
        segments = [one for one in list(journal.segments) if one.first_id >= first]
        begin = await self._last_before(queue, [first, *(one.first_id for one in segments)], at_ms)
        for segment in segments:
            if segment.first_id == begin:
                begin = await self._last_before(queue, [begin, *(one for one, _ in list(segment.seek_points))], at_ms)
        search = RangeSearch(queue, begin, BYTES_MAX, at_ms, BYTES_MAX)
        await self._ranges.read_some(queue, search)
        return search

    async def _last_before(self, queue: Queue, ids: Sequence[int], at_ms: int) -> int:
        """Return the last of these rising ids whose item was put before that time; the first if there is none."""
        low, high = 1, len(ids)  # those before `low` are before that time; the first is not examined
        while low < high:
            middle = (low + high) // 2
            found = await self._ranges.read_some(queue, RangeRead(queue, ids[middle], 1, 1))
            if found.records and item_add_at_ms(found.records[0]) < at_ms:
                low = middle + 1
            else:
                high = middle
        return ids[low - 1]
