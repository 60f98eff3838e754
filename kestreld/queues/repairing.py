"""Repair of a queue's journal and undo of a delete or flush, on a running server at an operator's request.

Both are long work between turns, one at a time for each family; further requests wait.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

from kestreld.config.queue_names import encode_queue_name
from kestreld.errors import JournalCorrupt, JournalFailed, KestrelError, NotImported
from kestreld.journal.inspection import Known
from kestreld.journal.journal import Journal
from kestreld.journal.record_reader import segment_records
from kestreld.journal.records import Kind, ReaderState, item_data, item_id, item_optional_fields
from kestreld.journal.recovery import recover
from kestreld.journal.repair import Repair, RepairReport
from kestreld.journal.replacement import finish_repairs
from kestreld.journal.segment import FOLDER_SUFFIX
from kestreld.queues.collection import QueueCollection
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.slices import WAITS, Slices, Work
from kestreld.queues.trash import Dropped, Entry
from kestreld.queues.trash_note import Note

BATCH_ITEMS: Final = 128  # two milliseconds if all are held back
BATCH_BYTES: Final = 512 * 1024
LOGGED_MAX: Final = 100  # damages of one journal in the log; the reply has all

T = TypeVar("T")
Undone = tuple[int, int]  # number of items put back, and of those still in the trash
RepairDone = Callable[[RepairReport | KestrelError | None], None]  # None: there is no such queue
UndoDone = Callable[[Undone | KestrelError | None], None]  # None: there is nothing to undo


class Repairer:
    """Repairs and undoes queues of a collection, as part of its maintenance."""

    def __init__(self, collection: QueueCollection, maintenance: Maintenance, slices: Slices) -> None:
        self._collection = collection
        self._files = collection.files
        self._maintenance = maintenance
        self._slices = slices
        self._busy: set[str] = set()

    def repair(self, name: str, done: RepairDone) -> None:
        """Check a queue's journal, rebuild it if it is damaged, and reopen the queue if it was stopped."""
        self._slices.take_on(self._in_line(name, self._repair, done))

    def undo(self, name: str, done: UndoDone) -> None:
        """Put back what the latest delete or flush of a queue dropped."""
        self._slices.take_on(self._in_line(name, self._undo, done))

    def _in_line(
        self,
        name: str,
        work: Callable[[str], Generator[int | None, None, T]],
        done: Callable[[T | KestrelError], None],
    ) -> Work:
        family = name.partition("+")[0]
        while family in self._busy:
            yield WAITS
        self._busy.add(family)
        outcome: T | KestrelError
        try:
            outcome = yield from work(name)
        except KestrelError as problem:
            outcome = problem
        except OSError as error:
            outcome = JournalFailed(str(error.filename or name), str(error.strerror or error))
        finally:
            self._busy.discard(family)
        if isinstance(outcome, KestrelError):
            self._collection.report(f"{name}: {outcome}")
        done(outcome)

    # Repair

    def _repair(self, name: str) -> Generator[int | None, None, RepairReport | None]:
        family = name.partition("+")[0]
        finish_repairs(self._files, self._collection.spool)  # an earlier one may have failed to do that
        if family in self._collection.broken:
            return (yield from self._repair_broken(family))
        queue = self._collection.families.get(family)
        if queue is None:
            return None
        if queue.journal is not None and queue.stopped is None:
            yield from self._check(queue, queue.journal)
        if queue.journal is None or queue.stopped is None:
            return RepairReport(family)
        return (yield from self._repair_stopped(queue, queue.journal))

    def _check(self, queue: Queue, journal: Journal) -> Work:
        """Read all of a journal in use, and stop its queue at the first damage."""
        for segment in list(journal.segments):
            end = segment.used_bytes
            try:
                for found in segment_records(self._files, segment.path, end):
                    if found is None:
                        yield None
            except JournalCorrupt as problem:
                if segment.used_bytes >= end:  # if less: a failed commit was cut off meanwhile
                    self._stop(queue, journal, problem)
            except OSError as error:
                if segment in journal.segments:  # if not: it was retired meanwhile
                    reason = f"cannot be read: {error.strerror}"
                    self._stop(queue, journal, JournalCorrupt(segment.path, 0, reason))
            if queue.stopped is not None or journal is not queue.journal:
                return
            yield None

    def _stop(self, queue: Queue, journal: Journal, problem: JournalCorrupt) -> None:
        if journal is queue.journal:
            queue.stop(problem)
            self._collection.commit.wake()  # waiters have been answered

    def _repair_broken(self, family: str) -> Generator[int | None, None, RepairReport]:
        """Repair a journal that was found damaged at startup and is not in use."""
        collection = self._collection
        problem = collection.broken[family]
        if isinstance(problem, NotImported):
            raise problem
        folder = f"{collection.spool}/{encode_queue_name(family)}{FOLDER_SUFFIX}"
        work = Repair(self._files, collection.clock, folder, self._segment_bytes_max(family), stopped=problem)
        yield from self._build(work)
        if work.report.damages:
            work.put_in_place()
        collection.recover_family(family, folder)
        if collection.broken[family] is not problem:
            raise collection.broken[family]
        del collection.broken[family]
        collection.trash.settle(family, collection.families.get(family))
        yield from self._finish(work)
        return work.report

    def _segment_bytes_max(self, family: str) -> int:
        return self._collection.config_for(family).max_journal_size_bytes

    def _repair_stopped(self, queue: Queue, journal: Journal) -> Generator[int | None, None, RepairReport | None]:
        """Repair a journal that was in use. Its open reads stay, and may be confirmed or returned meanwhile."""
        while not self._is_quiet(queue, journal):
            yield WAITS
        work = Repair(
            self._files,
            journal.clock,
            journal.folder,
            self._segment_bytes_max(queue.name),
            stopped=queue.stopped,
            known=_known(queue, journal),
        )
        yield from self._build(work)
        while self._is_there(queue, journal) and not (self._is_quiet(queue, journal) and self._is_caught_up(work)):
            if self._is_quiet(queue, journal):
                yield from self._in_background(work.sync_caught_up)
            yield WAITS
        if not self._is_there(queue, journal):
            work.abandon()
            return None
        if work.report.damages:
            work.put_in_place()
        self._reopen(queue, journal, work.report)
        yield from self._finish(work)
        return work.report

    def _is_caught_up(self, work: Repair) -> bool:
        return not work.report.damages or not work.catch_up()

    def _is_there(self, queue: Queue, journal: Journal) -> bool:
        return self._collection.families.get(queue.name) is queue and queue.journal is journal

    def _is_quiet(self, queue: Queue, journal: Journal) -> bool:
        """True if no commit, move, retirement, sync or compaction of the queue is under way."""
        return (
            queue.is_idle
            and not queue.moving
            and not journal.retiring
            and not journal.is_borrowed
            and not self._maintenance.is_compacting(queue)
        )

    def _build(self, work: Repair) -> Work:
        yield from work.survey()
        if work.report.damages:
            yield from work.build()
            yield from self._in_background(work.sync)

    def _finish(self, work: Repair) -> Work:
        """Report the repair, and sync the names."""
        report = work.report
        for damage in report.damages[:LOGGED_MAX]:
            self._collection.report(f"{report.queue}: {damage}")
        if len(report.damages) > LOGGED_MAX:
            self._collection.report(f"{report.queue}: and {len(report.damages) - LOGGED_MAX} more")
        if report.damages:
            self._collection.report(
                f"{report.queue}: repaired and reopened: items={report.restored} lost={report.lost};"
                f" the damaged journal is kept in {report.kept_at}"
            )
            yield from self._in_background(work.sync_names)
        else:
            self._collection.report(f"{report.queue}: no damage found; reopened")

    def _in_background(self, work: Callable[[], None]) -> Work:
        """Make slow calls outside the loop. Raises what they raise."""
        outcome: list[OSError | None] = []
        self._files.in_background(work, outcome.append)
        while not outcome:
            yield WAITS
        if outcome[0] is not None:
            raise outcome[0]

    def _reopen(self, queue: Queue, journal: Journal, report: RepairReport) -> None:
        """Continue a stopped queue from the present contents of its folder. Its readers keep their open reads."""
        collection = self._collection
        try:
            recovered = recover(self._files, collection.clock, collection.open_files, journal.folder)
        except JournalCorrupt as problem:
            queue.stay_stopped(problem)
            raise
        assert recovered is not None
        journal.close()
        recovered.journal.on_full_disk(collection.trash.drop_all)
        queue.reopen(recovered.journal)
        collection.restore(queue, recovered.state, report.is_lost)
        if queue.feeder is not None:
            collection.discard_passed_on(queue.feeder)

    # Undo

    def _undo(self, name: str) -> Generator[int | None, None, Undone | None]:
        if (problem := self._collection.problem_of(name)) is not None:
            raise problem
        trash = self._collection.trash
        while (found := trash.latest(name)) is not None:
            entry, note = found
            entry.busy = True
            try:
                count, is_whole = yield from self._put_back(self._collection.reader(name), entry, note)
            finally:
                entry.busy = False
            if is_whole:
                yield from trash.removal(entry)
            if count or not is_whole:
                left = 0 if is_whole else note.items
                self._collection.report(f"{name}: undid a {note.what}: items={count} left={left}")
                return count, left
        return None

    def _put_back(self, reader: Reader, entry: Entry, note: Note) -> Generator[int | None, None, tuple[int, bool]]:
        """Put back an entry's items; returns how many, and whether these were all."""
        count = 0
        records = self._collection.trash.records(entry, note)
        while not note.is_empty and (batch := (yield from _next_batch(records))):
            put = yield from self._put_batch(reader, entry, note, batch)
            count += put
            if put < len(batch):
                return count, False
        return count, True

    def _put_batch(
        self, reader: Reader, entry: Entry, note: Note, batch: list[Dropped]
    ) -> Generator[int | None, None, int]:
        """Put items with new ids; returns how many, once that is written. The note is true at any moment.

        Raises JournalFailed, JournalCorrupt or OSError, after noting those that are back.
        """
        collection, queue = self._collection, reader.queue
        if reader.deleted:
            return 0
        if reader is queue.feeder:
            queue.keep_again()
        if any(one.failure or (one.origin is not None and one.origin.failure) for one in batch):
            queue.use_version(3)
        elif any(one.left_ms or one.origin is not None for one in batch):
            queue.use_version(2)
        journal_id = queue.journal.journal_id if queue.journal is not None else 0
        first_id = queue.next_id
        collection.trash.putting(entry, note, journal_id, first_id, [item_id(one.record) for one in batch])
        queue.watch_undone(first_id + len(batch))
        problem: KestrelError | None = None
        try:
            for record, left_ms, origin, failure in batch:
                added = queue.next_id
                expire_at_ms, flags, _ = item_optional_fields(record)
                only = reader if len(queue.readers) > 1 or reader.label else None
                if left_ms:
                    is_put = queue.put_later(item_data(record), expire_at_ms, flags, only, left_ms)
                else:
                    is_put = queue.put_with(item_data(record), expire_at_ms, flags, only)
                if not is_put:
                    break
                if origin is not None:
                    queue.note_origin(added, origin)
                if failure:
                    queue.note_failure(reader.number, added, failure)
        except (JournalFailed, JournalCorrupt) as refusal:
            problem = refusal
        put, pending = queue.next_id - first_id, queue.pending
        collection.commit.wake()
        while put and queue.is_landing(pending):
            yield WAITS
        if queue.undone_from <= first_id:
            put = 0
            problem = problem or JournalFailed(entry.path, "the commit failed")
        collection.trash.put_back(entry, note, put)
        if not reader.label:
            collection.moved_in += put
        if problem is not None:
            raise problem
        return put


def _known(queue: Queue, journal: Journal) -> Known:
    readers = [ReaderState(one.number, Kind.QUEUE, one.label, one.at_id, one.at_id) for one in queue.readers.values()]
    streams = [ReaderState(one.number, Kind.STREAM, one.name, one.at_id, one.head) for one in queue.streams.values()]
    used_bytes = {segment.number: segment.used_bytes for segment in journal.segments}
    return Known(queue.next_id, queue.next_reader, [*readers, *streams], used_bytes)


def _next_batch(dropped: Iterator[Dropped | None]) -> Generator[int | None, None, list[Dropped]]:
    """The next items to put in one step; empty at the end."""
    batch: list[Dropped] = []
    size = 0
    for one in dropped:
        if one is None:
            yield None
            continue
        batch.append(one)
        size += len(one.record)
        if len(batch) >= BATCH_ITEMS or size >= BATCH_BYTES:
            break
    return batch
