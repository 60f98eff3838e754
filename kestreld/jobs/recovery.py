"""Recovery of jobs from the segments of a job log, a slice at a time.

All jobs come back active: only a controlled stop records which were queued, and that counts once. Instants stay what
they were: the steady clock continues no earlier than the log's latest one, so that a step of the system clock makes no
TTL and no DELAY longer.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer, must_be_the_systems, naming
from kestreld.jobs.job import ACKED, ACTIVE, BORROWED, DELAYED, DeadLetter, Job, JobTerms, ctime_of
from kestreld.jobs.job_queue import NOT_PAUSED, JobQueue
from kestreld.jobs.node_sets import NodeSets
from kestreld.jobs.table import MASK, Table
from kestreld.journal import job_records
from kestreld.journal.job_records import JOB, JOB_FIELDS_BYTES, SHARED_OFFSET, JobType, checked_job_end
from kestreld.journal.job_segments import HEADER_BYTES, FoundJobSegment, FoundLog, find_job_log
from kestreld.journal.job_torn_tails import cut_torn_tail, is_said_again, must_be_torn_tail, set_aside
from kestreld.journal.records import FRAME, FRAME_BYTES, read_sync
from kestreld.journal.segment import UNSYNCED_MARK, Segment
from kestreld.queues.slices import Work

CHUNK_BYTES: Final = 1 << 20
RECORDS_AT_ONCE: Final = 256
SHARED_MAX: Final = 4096  # terms remembered at a time
_JOB_TYPE: Final = int(JobType.JOB)
_JOB_SEED: Final = _JOB_TYPE << 56
_U32: Final = 0xFFFFFFFF
_MORE: Final = 1
_unpack_frame: Final = FRAME.unpack_from
_unpack_job: Final = JOB.unpack_from
_CUT_SHORT: Final = -1

Reading = Generator[int | None, None, int]


@dataclass(slots=True)
class RecoveredJobs:
    """Contents of a log. No job is queued yet: jobs are active or delayed; `queued` has the queues at a controlled
    stop, with the ids of their jobs in order.

    `latest_at_ms` is the log's latest instant. `bytes_total` and `bytes_read` are the progress of the reading.
    """

    found: FoundLog
    jobs: Table[Job] = field(default_factory=Table)
    client_keys: Table[job_records.JobKey] = field(default_factory=Table)
    queued: list[tuple[bytes, list[bytes]]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    jobs_in: dict[int, int] = field(default_factory=dict)  # segment -> number of its jobs that are not done
    keys_until_ms: dict[int, int] = field(default_factory=dict)  # segment -> expiry of its KEY records
    pauses: dict[bytes, int] = field(default_factory=dict)  # paused queue -> directions
    paused_in: dict[bytes, int] = field(default_factory=dict)  # paused queue -> segment with its PAUSED record
    latest_at_ms: int = 0
    bytes_total: int = 0
    bytes_read: int = 0
    was_stopped: bool = False  # by a controlled stop: `queued` counts
    synced_bytes: int = 0  # of the last segment: bytes known to be on disk
    is_sealed: bool = False  # the log ends as a stop in good order leaves it
    is_distrusted: bool = False  # a sync of it failed in an earlier process
    notes: list[str] = field(default_factory=list)


class JobRecovery:
    """Reader of the job log in `folder`. `may_cut`: a torn tail is cut off, else it counts as corruption."""

    def __init__(
        self, files: FileLayer, clock: Clock, folder: str, node_sets: NodeSets, *, may_cut: bool = True
    ) -> None:
        self._files = files
        self._clock = clock
        self._folder = folder
        self._may_cut = may_cut
        self._node_sets = node_sets
        self._queues: dict[bytes, JobQueue] = {}
        self._shared: dict[bytes, JobTerms] = {}
        self._number = 0  # of the segment that is read
        self._added = 0  # jobs in it that are not done
        self._sync_end = -1  # of the last SYNC in it
        self._sealed_at = -1  # end of a second SYNC in a row, which only a stop in good order leaves
        self._flushed: list[Table[Any]] = []  # to be freed in parts, like `_not_queued`
        self._not_queued: list[tuple[bytes, list[bytes]]] = []
        self._queued_jobs = 0
        self.state = RecoveredJobs(FoundLog())

    def run(self) -> Work:
        """Read the whole log into `state`. Raises JournalCorrupt or OSError, with nothing changed on disk."""
        found = find_job_log(self._files, self._folder)
        state = self.state = RecoveredJobs(found)
        state.bytes_total = sum(one.size_bytes for one in found.segments)
        state.is_distrusted = any(name.endswith(UNSYNCED_MARK) for name in found.names)
        for place, one in enumerate(found.segments):
            self._stop_counts_no_more()
            end = yield from self._read(one)
            if self._added:
                state.jobs_in[one.number] = self._added
            state.is_sealed = self._sealed_at == end == one.used_bytes
            is_torn = end < one.used_bytes and not is_said_again(found, place)
            if is_torn:
                self._cut(place, end)
            state.segments.append(Segment(one.number, one.number, one.path, end, HEADER_BYTES))
            if is_torn:
                break
        self._tidy(found)
        yield from self._free()

    # Reading

    def _read(self, one: FoundJobSegment) -> Reading:
        """Apply a segment's records. Returns where the good ones end."""
        state = self.state
        self._number, self._added, self._sync_end, self._sealed_at, state.synced_bytes = one.number, 0, -1, -1, 0
        limit, offset, wanted = min(one.used_bytes, one.size_bytes), HEADER_BYTES, CHUNK_BYTES
        fd = self._files.open_read(one.path)
        try:
            while offset < limit:
                with naming(one.path):
                    buffer = self._files.read_at(fd, min(wanted, limit - offset), offset)
                at, outcome = 0, _MORE
                while outcome == _MORE:
                    at, outcome = self._apply(buffer, at, offset)
                    yield None
                state.bytes_read += at
                if not buffer or (outcome and outcome != _CUT_SHORT):
                    return offset + at
                if outcome and offset + len(buffer) >= limit:
                    return offset + at
                wanted = CHUNK_BYTES
                if outcome and len(buffer) - at >= FRAME_BYTES:
                    wanted = max(wanted, FRAME_BYTES + int.from_bytes(buffer[at : at + 4], "little"))
                    if offset + at + FRAME_BYTES + int.from_bytes(buffer[at : at + 4], "little") > limit:
                        return offset + at
                offset += at
        finally:
            self._files.close(fd)
        return offset

    def _apply(self, buffer: bytes, at: int, base: int) -> tuple[int, int]:
        """Apply some records of a chunk that begins at `base`. JOBs are handled here: they are most of a start's time.

        Returns their end, and `_MORE`, 0 at the end of the chunk, or the code of `checked_job_end` for a bad one.
        """
        size, number, shared = len(buffer), self._number, self._shared
        parts, at_ms, shared_at_ms = self.state.jobs.parts, 0, 0
        outcome = _MORE
        for _ in range(RECORDS_AT_ONCE):
            if size - at < FRAME_BYTES:
                outcome = _CUT_SHORT if at < size else 0
                break
            body_bytes, checksum, record_type = _unpack_frame(buffer, at)
            start = at + FRAME_BYTES
            end = start + body_bytes
            if record_type != _JOB_TYPE or body_bytes < JOB_FIELDS_BYTES or end > size:
                found, end = checked_job_end(buffer, at)
                if not found:
                    outcome = end
                    break
                self._take(found, buffer[start:end], base + at, base + end)
                parts = self.state.jobs.parts
                at = end
                continue
            if xxh3_64_intdigest(buffer[start:end], body_bytes + _JOB_SEED) & _U32 != checksum:
                outcome = -2
                break
            (
                at_ms, created, requeue_at_ms, job_id, state, nacks, deliveries, extras_bytes, _, _, _, _, queue_bytes,
            ) = _unpack_job(buffer, start)  # fmt: skip
            shared_end = start + JOB_FIELDS_BYTES + queue_bytes
            terms = shared.get(buffer[start + SHARED_OFFSET : shared_end + extras_bytes])
            if terms is None:
                terms = self._terms(buffer, start, end, shared_end + extras_bytes)
                if terms is None:
                    outcome = -4
                    break
            body = buffer[shared_end + extras_bytes : end]
            if state != DELAYED and state != ACKED and state < BORROWED:
                state = ACTIVE
            if requeue_at_ms == shared_at_ms:
                requeue_at_ms = shared_at_ms  # one number in memory for many jobs
            else:
                shared_at_ms = requeue_at_ms
            job = Job(job_id, body, terms, ctime_of(created), requeue_at_ms, state, nacks, deliveries, number)
            part = parts[hash(job_id) & MASK]
            if job_id in part:
                self._leave(part[job_id])
            part[job_id] = job
            self._added += 1
            if self._queued_jobs:
                self._stop_counts_no_more()
            at = end
        if at_ms:
            self.state.latest_at_ms = max(self.state.latest_at_ms, at_ms)
        return at, outcome

    def _leave(self, job: Job) -> None:
        """Uncount a job that is done or was written anew."""
        state = self.state
        if job.segment == self._number:
            self._added -= 1
        elif state.jobs_in[job.segment] == 1:
            del state.jobs_in[job.segment]
        else:
            state.jobs_in[job.segment] -= 1

    def _terms(self, buffer: bytes, start: int, end: int, extras_end: int) -> JobTerms | None:
        """Read the terms of a job that are not among those remembered; None if they are invalid."""
        try:
            record = job_records.read_job(buffer[start:end])
        except ValueError:
            return None
        queue = self._queues.get(record.queue)
        if queue is None:
            queue = self._queues[record.queue] = JobQueue(record.queue)
        extras = record.extras
        dead = None
        if extras.origin is not None:
            dead = DeadLetter(extras.origin.queue, extras.origin.reason, extras.origin.dead_at_ms)
        terms = JobTerms(
            queue,
            record.ttl_ms,
            record.retry_ms,
            record.delay_ms // 1000,
            extras.retries_max,
            extras.key,
            dead,
            record.replicas,
            self._node_sets.of_all(extras.delivered),
            extras.moves or int(dead is not None),
        )
        if not extras.key and dead is None:
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[buffer[start + SHARED_OFFSET : extras_end]] = terms
        return terms

    def _take(self, record_type: int, body: bytes, at: int, end: int) -> None:
        state = self.state
        if record_type == JobType.SYNC:
            state.synced_bytes = read_sync(body)
            is_second = at == self._sync_end and at - (end - at) == state.synced_bytes
            self._sync_end, self._sealed_at = end, end if is_second else -1
            return
        if record_type == JobType.QUEUED:
            if state.was_stopped:
                self._stop_counts_no_more()
            name, ids = job_records.read_queued(body)
            state.queued.append((name, ids))
            self._queued_jobs += len(ids)
            return
        if record_type == JobType.STOPPED:
            at_ms, queued_jobs = job_records.read_stopped(body)
            state.was_stopped = queued_jobs == self._queued_jobs
            state.latest_at_ms = max(state.latest_at_ms, at_ms)
            return
        self._stop_counts_no_more()
        if record_type == JobType.CHANGE:
            change = job_records.read_change(body)
            at_ms = change.at_ms
            job = state.jobs.get(change.job_id)
            if job is not None:
                to = change.state if change.state in (DELAYED, ACKED) else ACTIVE
                if to == ACKED:
                    job.drop_body()
                job.come_back(to, change.requeue_at_ms, change.nacks, change.deliveries, job.segment)
        elif record_type == JobType.DONE:
            at_ms, ids, _ = job_records.read_done(body)
            parts = state.jobs.parts
            for job_id in ids:
                gone = parts[hash(job_id) & MASK].pop(job_id, None)
                if gone is not None:
                    self._leave(gone)
        elif record_type == JobType.KEY:
            key = job_records.read_key(body)
            at_ms, state.client_keys.parts[hash(key.key) & MASK][key.key] = key.at_ms, key
            state.keys_until_ms[self._number] = max(state.keys_until_ms.get(self._number, 0), key.until_ms)
        elif record_type == JobType.OWNERS:
            at_ms, job_id, owners = job_records.read_owners(body)
            job = state.jobs.get(job_id)
            if job is not None:
                job.use_terms(job.terms.with_owners(self._node_sets.of_all(owners)))
        elif record_type == JobType.PAUSED:
            at_ms, name, pause = job_records.read_paused(body)
            state.pauses[name], state.paused_in[name] = pause, self._number
            if pause == NOT_PAUSED:
                del state.pauses[name], state.paused_in[name]
        else:
            at_ms = job_records.read_flushed(body)
            self._flushed += [state.jobs, state.client_keys]
            state.jobs, state.client_keys, state.jobs_in, self._added = Table(), Table(), {}, 0
            state.keys_until_ms, state.pauses, state.paused_in = {}, {}, {}
        state.latest_at_ms = max(state.latest_at_ms, at_ms)

    def _stop_counts_no_more(self) -> None:
        """Discard a controlled stop: the server has continued after it."""
        state = self.state
        if self._queued_jobs or state.was_stopped:
            self._not_queued += state.queued
            state.queued, state.was_stopped, self._queued_jobs = [], False, 0

    # The end of it

    def _cut(self, place: int, end: int) -> None:
        """Cut off a torn tail at `end`, and set later segments aside. Raises JournalCorrupt if it is damage instead."""
        state = self.state
        one = state.found.segments[place]
        buffer = self._files.read_file(one.path)[: one.used_bytes]
        must_be_torn_tail(self._files, state.found, place, buffer, end, is_synced=state.synced_bytes > 0)
        if not self._may_cut:
            raise JournalCorrupt(one.path, end, "torn tail; it cannot be cut off while the log is only read")
        notes, is_cut = cut_torn_tail(self._files, self._clock, state.found, place, buffer, end)
        self.state.notes.extend(notes)
        self.state.is_distrusted = self.state.is_distrusted or not is_cut

    def _tidy(self, found: FoundLog) -> None:
        """Remove files that no longer count, and set unfinished ones aside."""
        for one in found.aside:
            self.state.notes.append(set_aside(self._files, self._clock, one))
        if not (found.stale and self._names_are_on_disk()):
            return
        for name in found.stale:
            try:
                self._files.unlink(f"{self._folder}/{name}")
            except OSError as error:
                must_be_the_systems(error)
                self.state.notes.append(f"{self._folder}/{name}: cannot remove: {error.strerror}")

    def _names_are_on_disk(self) -> bool:
        """Sync the folder before stale files are removed. Return False if that fails.

        The file that makes others stale may have got its name from a process that was killed before the name was on
        disk: a power cut must not take both.
        """
        try:
            self._files.sync_dir(self._folder)
        except OSError as error:
            must_be_the_systems(error)
            self.state.notes.append(f"{self._folder}: cannot sync: {error.strerror}")
            self.state.is_distrusted = True
            return False
        return True

    def _free(self) -> Work:
        for table in self._flushed:
            for part in table.parts:
                if part:
                    part.clear()
                    yield None
        while self._not_queued:
            self._not_queued.pop()
            yield None
