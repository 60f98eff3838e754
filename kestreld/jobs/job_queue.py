"""One queue of jobs: waiting jobs by ctime and id, counters, and clients that wait for jobs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from kestreld.jobs.job import Job, JobTerms
from kestreld.jobs.waiting import JobWaiter

AddedWith = tuple[int, int, int, int]  # TTL and retry time in ms, delay in s, largest number of retries
SharedWith = tuple[AddedWith, int, int]  # and number of copies, set of owners

CHUNK_JOBS: Final = 256
TERMS_MAX: Final = 64
NOT_PAUSED: Final = 0
PAUSED_IN: Final = 1
PAUSED_OUT: Final = 2


def _order(job: Job) -> tuple[int, bytes]:
    return job.ctime, job.id


class OrderedJobs:
    """Jobs in the order of (ctime, id), in chunks: no step takes longer with millions of jobs than with thousands.

    Most jobs come at the end and leave at the front.
    """

    __slots__ = ("_chunks", "count")

    def __init__(self) -> None:
        self._chunks: list[list[Job]] = []
        self.count = 0

    def add(self, job: Job) -> None:
        """Insert a job that is not there yet at its place."""
        chunks = self._chunks
        self.count += 1
        if not chunks:
            chunks.append([job])
        elif job.ctime <= chunks[-1][-1].ctime:
            self._insert(job)
        elif len(chunks[-1]) < CHUNK_JOBS:
            chunks[-1].append(job)
        else:
            chunks.append([job])

    def _insert(self, job: Job) -> None:
        place = self._chunk_of(job)
        chunk = self._chunks[place]
        chunk.insert(bisect_left(chunk, (job.ctime, job.id), key=_order), job)
        if len(chunk) > 2 * CHUNK_JOBS:
            self._chunks[place : place + 1] = [chunk[:CHUNK_JOBS], chunk[CHUNK_JOBS:]]

    def _chunk_of(self, job: Job) -> int:
        """Return the index of the first chunk whose last job does not come before this one, else of the last chunk."""
        low, high = 0, len(self._chunks) - 1
        while low < high:
            middle = (low + high) // 2
            last = self._chunks[middle][-1]
            if last.ctime < job.ctime or (last.ctime == job.ctime and last.id < job.id):
                low = middle + 1
            else:
                high = middle
        return low

    def remove(self, job: Job) -> None:
        """Remove a job that is there."""
        place = self._chunk_of(job)
        self._drop(place, bisect_left(self._chunks[place], (job.ctime, job.id), key=_order))

    def _drop(self, place: int, at: int) -> None:
        self.count -= 1
        chunk = self._chunks[place]
        if len(chunk) == 1:
            del self._chunks[place]
        else:
            del chunk[at]

    def first(self) -> Job:
        """Return the oldest job; there must be one."""
        return self._chunks[0][0]

    def drop_first(self) -> None:
        """Remove the oldest job; there must be one."""
        self.count -= 1
        chunk = self._chunks[0]
        if len(chunk) == 1:
            del self._chunks[0]
        else:
            del chunk[0]

    def oldest(self) -> Iterator[Job]:
        """Iterate from the oldest job on. Nothing may change meanwhile."""
        for chunk in self._chunks:
            yield from chunk

    def chunks(self, *, is_newest_first: bool) -> Iterator[list[Job]]:
        """Iterate over the jobs in chunks. Jobs that come or go meanwhile may or may not be included."""
        chunks = self._chunks[::-1] if is_newest_first else self._chunks[:]
        for chunk in chunks:
            yield chunk[::-1] if is_newest_first else chunk[:]

    def behind(self, ctime: int, job_id: bytes) -> Iterator[list[Job]]:
        """Iterate over the jobs after that place in the order, in chunks. Nothing may change meanwhile."""
        place = (ctime, job_id)
        first = bisect_right(self._chunks, place, key=lambda chunk: _order(chunk[-1]))
        for number in range(first, len(self._chunks)):
            yield [job for job in self._chunks[number] if _order(job) > place]

    def drop(self) -> Iterator[None]:
        """Remove all jobs, a chunk at a time."""
        while self._chunks:
            self.count -= len(self._chunks.pop())
            yield

    def newest(self) -> Iterator[Job]:
        """Iterate from the newest job back. Nothing may change meanwhile."""
        for chunk in reversed(self._chunks):
            yield from reversed(chunk)


class JobQueue:
    """One queue. It counts all its jobs, but is listed only while it is used: jobs that workers have, or that wait for
    their time, do not keep it listed.
    """

    __slots__ = (
        "created_at_ms",
        "delayed",
        "fetched_from",
        "is_listed",
        "jobs",
        "jobs_in",
        "jobs_out",
        "name",
        "pause",
        "shared_terms",
        "terms",
        "total",
        "used_at_ms",
        "waiters",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.fetched_from = b"*3\r\n$%d\r\n%b\r\n$40\r\n" % (len(name), name)  # start of its jobs in replies
        self.jobs = OrderedJobs()
        self.waiters: dict[JobWaiter, None] = {}  # in the order they came
        self.total = 0  # its jobs, whatever their state
        self.delayed = 0  # jobs that wait for the time at which they are queued
        self.terms: dict[AddedWith, JobTerms] = {}
        self.shared_terms: dict[SharedWith, JobTerms] = {}
        self.unlist()

    def enlist(self, now_ms: int) -> None:
        """List the queue: it is used from now on."""
        self.is_listed = True
        self.created_at_ms = self.used_at_ms = now_ms

    def unlist(self) -> None:
        """Unlist the queue, end its pause, and reset its counters."""
        self.is_listed = False
        self.pause = NOT_PAUSED
        self.jobs_in = 0
        self.jobs_out = 0  # handed out
        self.created_at_ms = self.used_at_ms = 0
        self.terms = {}
        self.shared_terms = {}

    @property
    def active(self) -> int:
        """Number of jobs that workers have."""
        return self.total - self.delayed - self.jobs.count

    @property
    def is_idle(self) -> bool:
        """True if the queue has no waiting jobs or clients and is not paused."""
        return not (self.jobs.count or self.waiters or self.pause)

    def terms_of(self, options: AddedWith, key: bytes = b"") -> JobTerms:
        """Return the terms of jobs with these options that no other node holds.

        Terms without a key are remembered and shared, up to TERMS_MAX.
        """
        if key:
            return JobTerms(self, *options, key)
        terms = self.terms.get(options)
        if terms is None:
            if len(self.terms) >= TERMS_MAX:
                self.terms.clear()
            terms = self.terms[options] = JobTerms(self, *options)
        return terms

    def terms_shared_with(self, options: AddedWith, replicate: int, owners: int, key: bytes = b"") -> JobTerms:
        """Return the terms of jobs with these options that the nodes `owners` may hold; see `terms_of`."""
        ttl_ms, retry_ms, delay_s, retries_max = options
        if key:
            return JobTerms(self, ttl_ms, retry_ms, delay_s, retries_max, key, None, replicate, owners)
        shared_with = (options, replicate, owners)
        terms = self.shared_terms.get(shared_with)
        if terms is None:
            if len(self.shared_terms) >= TERMS_MAX:
                self.shared_terms.clear()
            terms = JobTerms(self, ttl_ms, retry_ms, delay_s, retries_max, b"", None, replicate, owners)
            self.shared_terms[shared_with] = terms
        return terms
