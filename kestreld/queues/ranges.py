"""Reading a range of items back from a journal, a slice at a time, without consuming or changing a reader."""

from collections.abc import Callable
from typing import Final

from kestreld.journal.journal import Journal
from kestreld.journal.records import Type, item_add_at_ms, item_id, item_optional_fields
from kestreld.journal.segment import Segment
from kestreld.queues.queue import Queue

CHUNK_BYTES: Final = 64 * 1024  # a millisecond of small items

Wanted = Callable[[int], bool]


def earliest_id(queue: Queue) -> int:
    """Lowest id that can be read back and is not about to go: not of a segment that is being retired."""
    journal = queue.journal
    if journal is None or not journal.segments:
        return queue.settled_id()
    dead = journal.dead_segments(queue.lowest_head()) if journal.retiring else 0
    return journal.segments[dead].first_id


class RangeRead:
    """Settled items from an id on: those for all readers, and with `only` those of the reader of that number."""

    def __init__(
        self, queue: Queue, first: int, limit: int, bytes_max: int, only: int = 0, wanted: Wanted | None = None
    ) -> None:
        self._queue = queue
        self._limit = limit
        self._bytes_max = bytes_max
        self._only = only
        self._wanted = wanted
        self._segment: Segment | None = None  # segment to read on in
        self._offset = 0
        self.records: list[bytes] = []
        self.size_bytes = 0
        self.next_id = first  # all ids below have been read

    def read(self) -> bool:
        """Read a slice of about a millisecond; False when the range is over. Raises JournalCorrupt.

        Items that were removed since the last slice end the range: the next request for the rest says so.
        """
        queue, journal = self._queue, self._queue.journal
        if journal is None or not journal.segments:
            return False
        end_id = queue.settled_id()
        if self.next_id < earliest_id(queue) or self.next_id >= end_id:
            return False
        segment = self._place(journal)
        chunk = journal.read(segment.number, self._offset, CHUNK_BYTES)
        if chunk:
            return self._take(journal, segment, chunk, end_id)
        following = journal.after(segment.number)
        if following is None:
            self.next_id = end_id
            return False
        self._segment, self._offset = following, following.records_at
        return True

    def _place(self, journal: Journal) -> Segment:
        """Segment to read on in. Between slices it may have been removed, or compacted into another."""
        segment = self._segment
        if segment is None or not any(one is segment for one in journal.segments):
            number, self._offset = journal.position_before(self.next_id)
            self._segment = segment = journal.segment(number)
        return segment

    def _take(self, journal: Journal, segment: Segment, chunk: bytes, end_id: int) -> bool:
        at = 0
        while at < len(chunk):
            record_type, end = journal.check(chunk, at, segment.number, self._offset)
            if record_type == Type.PUT:
                record = chunk[at:end]
                found = item_id(record)
                if found >= end_id:
                    self.next_id = end_id
                    return False
                if found >= self.next_id:
                    if item_optional_fields(record)[2] in (0, self._only) and (
                        self._wanted is None or self._wanted(found)
                    ):
                        if self.records and self.size_bytes + len(record) > self._bytes_max:
                            return False
                        self.records.append(record)
                        self.size_bytes += len(record)
                    self.next_id = found + 1
                    if len(self.records) >= self._limit or self.size_bytes >= self._bytes_max:
                        return False
            at = end
        self._offset += at
        return True


class RangeSearch(RangeRead):
    """Search for the end of a range of at most `bytes_max`, or for the first item put at `at_ms` or later.

    It keeps no records. `next_id` is the result once `read` is over, or the place reached after `scan_bytes_max` of the
    journal; `size_bytes` is the size of the records before it, without those of single readers.
    """

    def __init__(self, queue: Queue, first: int, bytes_max: int, at_ms: int | None, scan_bytes_max: int) -> None:
        super().__init__(queue, first, 1, bytes_max)
        self._at_ms = at_ms
        self._scan_left_bytes = scan_bytes_max
        self.is_partial = False  # True if it ended at `scan_bytes_max`

    def _take(self, journal: Journal, segment: Segment, chunk: bytes, end_id: int) -> bool:
        at = 0
        while at < len(chunk):
            record_type, end = journal.check(chunk, at, segment.number, self._offset)
            if record_type == Type.PUT:
                found = item_id(record := chunk[at:end])
                if at == 0:
                    segment.mark_read(found, self._offset)
                if found >= end_id:
                    self.next_id = end_id
                    return False
                if found >= self.next_id:
                    if self._ends(record):
                        self.next_id = found
                        return False
                    self.next_id = found + 1
            at = end
        self._offset += at
        self._scan_left_bytes -= at
        self.is_partial = self._scan_left_bytes <= 0
        return not self.is_partial

    def _ends(self, record: bytes) -> bool:
        """True if the range ends before this item; otherwise counts it."""
        if item_optional_fields(record)[2]:
            return False
        if self._at_ms is not None:
            return item_add_at_ms(record) >= self._at_ms
        if self.size_bytes and self.size_bytes + len(record) > self._bytes_max:
            return True
        self.size_bytes += len(record)
        return False
