"""Timers of millions of jobs, most of which are acknowledged before they are due.

Times go into buckets of a second; a second ahead a bucket is spread over slots of 4 ms. An entry stays where it is when
the job's time moves on: when it falls due the job is put in again. So moving a job's time costs nothing, and entries of
jobs that are gone are skipped, or swept up when there are too many of them. Each step is short.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from kestreld.jobs.job import GONE, NEVER, Job

BUCKET_BITS: Final = 10
SLOT_BITS: Final = 2
CHUNK_JOBS: Final = 512
MOVED_MANY: Final = 1 << 13
IDLE_ENTRIES_MAX: Final = 1 << 12  # entries are swept beyond this and twice the jobs there are


class Timers:
    """All wake-up times of a store, on its steady clock."""

    __slots__ = (
        "_bucket_heap",
        "_buckets",
        "_moved",
        "_slot_heap",
        "_slots",
        "_spread",
        "_sweeping",
        "entries",
        "is_untidy",
    )

    def __init__(self) -> None:
        self._buckets: dict[int, list[list[Job]]] = {}
        self._bucket_heap: list[int] = []
        self._slots: dict[int, list[Job]] = {}
        self._slot_heap: list[int] = []
        self._spread = -1  # buckets up to this one are in slots
        self.entries = 0  # in buckets
        self._moved = 0  # entries moved to slots since `has_moved_many` was True
        self._sweeping: Iterator[None] | None = None
        self.is_untidy = False  # `tidy` is to be called

    def add(self, job: Job, at_ms: int) -> None:
        """Wake the job then, and not at its earlier time."""
        job.wakes_at_ms = at_ms
        number = at_ms >> BUCKET_BITS
        if number <= self._spread:
            self._add_to_slot(job, at_ms >> SLOT_BITS)
            return
        self.entries += 1
        chunks = self._buckets.get(number)
        if chunks is not None and len(chunks[-1]) < CHUNK_JOBS:
            chunks[-1].append(job)
            return
        self.is_untidy = self.entries > IDLE_ENTRIES_MAX
        if chunks is None:
            self._buckets[number] = [[job]]
            heappush(self._bucket_heap, number)
        else:
            chunks.append([job])

    def _add_to_slot(self, job: Job, number: int) -> None:
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = [job]
            heappush(self._slot_heap, number)
        else:
            slot.append(job)

    def next_at_ms(self) -> int | None:
        """Return when there is something to do next; None = never."""
        next_at_ms: int | None = None
        if self._slot_heap:
            next_at_ms = (self._slot_heap[0] + 1) << SLOT_BITS
        if self._bucket_heap:
            spread_at_ms = (self._bucket_heap[0] - 1) << BUCKET_BITS
            if next_at_ms is None or spread_at_ms < next_at_ms:
                next_at_ms = spread_at_ms
        return next_at_ms

    def due(self, now_ms: int, most: int) -> list[Job]:
        """Return up to `most` jobs that are due; each has to be added again to wake once more.

        Fewer than are due if there was other work to do: see `next_at_ms`.
        """
        while self._bucket_heap and self._bucket_heap[0] <= (now_ms >> BUCKET_BITS) + 1:
            most -= self._spread_some(self._bucket_heap[0])
            if most <= 0:
                return []
        self._spread = max(self._spread, (now_ms >> BUCKET_BITS) + 1)
        due: list[Job] = []
        while self._slot_heap and (self._slot_heap[0] + 1) << SLOT_BITS <= now_ms and most > 0:
            number = self._slot_heap[0]
            slot = self._slots[number]
            some = slot[-most:]
            del slot[-most:]
            most -= len(some)
            if not slot:
                del self._slots[heappop(self._slot_heap)]
            for job in some:
                # Each job once: an earlier entry of it may be in the same slot.
                if job.state != GONE and job.wakes_at_ms >> SLOT_BITS == number:
                    job.wakes_at_ms = NEVER
                    due.append(job)
        return due

    def _spread_some(self, number: int) -> int:
        """Move a chunk of a bucket to slots. Return the work that took, as a number of jobs that fall due."""
        chunks = self._buckets[number]
        chunk = chunks.pop()
        if not chunks:
            del self._buckets[heappop(self._bucket_heap)]
        self.entries -= len(chunk)
        self._moved += len(chunk)
        for job in chunk:
            if job.state != GONE and job.wakes_at_ms >> BUCKET_BITS == number:
                self._add_to_slot(job, job.wakes_at_ms >> SLOT_BITS)
        return len(chunk) >> 3 or 1

    def has_moved_many(self) -> bool:
        """Return True once each time that so many entries were moved to slots that these lists are young and long."""
        if self._moved < MOVED_MANY:
            return False
        self._moved = 0
        return True

    # Entries of jobs that have gone

    def tidy(self, jobs_count: int) -> None:
        """Sweep some entries, if most are of jobs that are gone. To be called when jobs are added while `is_untidy`."""
        if self._sweeping is None:
            if self.entries <= 2 * jobs_count + IDLE_ENTRIES_MAX:
                self.is_untidy = False
                return
            self._sweeping = self._sweep()
        if next(self._sweeping, self) is self:
            self._sweeping = None

    def _sweep(self) -> Iterator[None]:
        for number in list(self._buckets):
            left = len(self._buckets.get(number, ()))
            while left > 0 and (chunks := self._buckets.get(number)) is not None:
                left = min(left, len(chunks)) - 1
                chunk = chunks.pop(0)
                kept = [job for job in chunk if job.state != GONE and job.wakes_at_ms >> BUCKET_BITS == number]
                self.entries -= len(chunk) - len(kept)
                if chunks and len(chunks[-1]) + len(kept) <= CHUNK_JOBS:
                    chunks[-1] += kept
                else:
                    chunks.append(kept)  # even if empty: a bucket has at least one chunk
                yield

    def drop_some(self) -> list[Job] | None:
        """Return and remove some entries of discarded timers; None if there are none left."""
        if self._slots:
            return self._slots.popitem()[1]
        if not self._buckets:
            return None
        number, chunks = self._buckets.popitem()
        chunk = chunks.pop()
        if chunks:
            self._buckets[number] = chunks
        return chunk
