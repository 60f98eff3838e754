"""Salvage of whole records from a damaged segment of the job log.

Pure. A record is accepted by its checksum, and after damage also by its time: a job's body may contain records of a job
log, while those of a segment are in the order of their times.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator
from typing import Final, TypeVar, cast

from kestreld.journal.job_records import JobType, checked_job_end
from kestreld.journal.job_segments import HEADER_BYTES
from kestreld.journal.records import FRAME_BYTES, find_whole_records
from kestreld.journal.resync import Piece, longest_row

UNTIMED: Final = (JobType.SYNC, JobType.QUEUED)  # all others begin with a time
NO_ANCHOR: Final = -1
T = TypeVar("T")


def result_of(work: Generator[object, None, T]) -> T:
    """Run work that is done in steps to its end; returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("T", end.value)


class JobResync:
    """Reads one segment, whose bytes that count are `buffer`. `since_ms` is no later than its first record."""

    def __init__(self, buffer: bytes, since_ms: int) -> None:
        self.buffer = buffer
        self._since_ms = since_ms  # the time of the last record met
        self._anchors: list[int] | None = None  # starts of the accepted records, once there was damage
        self.first_ms = 0  # the time of the first record; 0 = none was found so far

    def pieces(self) -> Iterator[Piece]:
        """The segment after its header, in order: type, start and end of a record, with type 0 for a bad stretch."""
        buffer, at = self.buffer, HEADER_BYTES
        while at < len(buffer):
            record_type, end = checked_job_end(buffer, at)
            if not record_type:
                end = self._resume(at)
            elif record_type not in UNTIMED:
                if self._is_believed(at):
                    self._since_ms = self._time(at)
                    self.first_ms = self.first_ms or self._since_ms
                else:
                    record_type = 0
            yield record_type, at, end
            at = end

    def _time(self, at: int) -> int:
        return int.from_bytes(self.buffer[at + FRAME_BYTES : at + FRAME_BYTES + 8], "little")

    def _is_believed(self, at: int) -> bool:
        return self._anchors is None or self._next_anchor(at) == at

    def _next_anchor(self, at: int) -> int:
        anchors = self._anchors or []
        index = bisect_left(anchors, at)
        return anchors[index] if index < len(anchors) else NO_ANCHOR

    def _resume(self, at: int) -> int:
        """Offset at which to read on after the bad record at `at`."""
        buffer, size = self.buffer, len(self.buffer)
        if at + FRAME_BYTES >= size:
            return size
        stated = int.from_bytes(buffer[at : at + 4], "little")
        for bit in range(32):  # only the length may be wrong
            body_bytes = stated ^ (1 << bit)
            end = at + FRAME_BYTES + body_bytes
            if end <= size and checked_job_end(body_bytes.to_bytes(4, "little") + buffer[at + 4 : end], 0)[0]:
                return end
        end = at + FRAME_BYTES + stated
        if stated and end < size and checked_job_end(buffer, end)[0]:
            return end
        if self._anchors is None:
            self._anchors = self._find_anchors(at + 1)
        anchor = self._next_anchor(at + 1)
        return size if anchor == NO_ANCHOR else anchor

    def _find_anchors(self, at: int) -> list[int]:
        """Largest set of records from `at` on in the order of their times: those inside bodies do not fit in."""
        timed = [
            (start, (self._time(start) << 32) + start)  # several may have one time
            for record_type, start, _ in find_whole_records(self.buffer, at, None, checked_job_end)
            if record_type not in UNTIMED and self._time(start) >= self._since_ms
        ]
        return [start for start, _ in result_of(longest_row(timed))]
