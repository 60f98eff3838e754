"""All queues of a server by name: creation, lookup, deletion, recovery at startup, and sweeps of expired items.

A family is in `families`, and its readers are in `readers` by full name. A family whose journal could not be recovered
is in `broken` instead, and raises the reason when it is asked for.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from shlex import quote
from typing import Final

from kestreld.clock import Clock
from kestreld.config.config import Config, QueueConfig
from kestreld.config.queue_names import decode_queue_name, encode_queue_name, queue_name_problem
from kestreld.errors import (
    BadQueueName,
    DeclarationRefused,
    JournalCorrupt,
    JournalFailed,
    JournalUnreadable,
    LedgerFull,
    QueueNotMade,
    TooManyQueues,
)
from kestreld.files import DISK_FULL, OUT_OF_MEANS, FileLayer, must_be_the_systems, why_unread
from kestreld.journal.journal import Journal
from kestreld.journal.kestrel.importing import import_at_start
from kestreld.journal.ledger import Done
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.records import Checkpoint, Origin, Reason
from kestreld.journal.recovery import recover
from kestreld.journal.replacement import BUILT, finish_repairs
from kestreld.journal.segment import FOLDER_SUFFIX
from kestreld.queues.agenda import Agenda
from kestreld.queues.bindings import Bindings
from kestreld.queues.closing import Closing
from kestreld.queues.commit import GroupCommit
from kestreld.queues.declared import Declarations, Options
from kestreld.queues.everywhere import Steps
from kestreld.queues.memory import Memory
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.slices import WAITS, Work
from kestreld.queues.trash import Trash
from kestreld.queues.trash_note import DELETE, FLUSH, Note
from kestreld.queues.waiters import Absence, Waiter
from kestreld.stats import Totals

PROGRESS_US: Final = 1_000_000
SWEPT_AT_ONCE: Final = 512  # expired items of one queue
MANY_READERS: Final = 64  # of one queue: a put takes a while


class QueueCollection:
    """All families, and by full name the reader that each queue name stands for."""

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        config: Config,
        commit: GroupCommit,
        report: Callable[[str], None],
    ) -> None:
        self.files = files
        self.clock = clock
        self.config = config
        self.commit = commit
        commit.together = config.sync_together
        self.report = report
        self.spool = config.queue_path
        self.agenda = Agenda()  # due times of waits and held items
        self.open_files = OpenFiles()
        self.memory = Memory(config.max_memory_bytes)
        self.bindings = Bindings(files, self.spool, config.max_bindings, report)
        self.declared = Declarations(files, self.spool, config.max_declared, report)
        self.trash = Trash(files, clock, self.spool, lambda name: self.config_for(name).trash_ms, report)
        self.families: dict[str, Queue] = {}
        self.readers: dict[str, Reader] = {}
        self.broken: dict[str, JournalCorrupt] = {}  # families whose journal could not be recovered
        # Called when a queue is deleted or reconfigured, or has MANY_READERS.
        self.names_changed: list[Callable[[], None]] = []
        self.listed: Counter[str] = Counter()  # queues on lists of connections, which count as readers
        self.created = self.deleted = 0
        self.moved_in = 0  # items put on parents without a SET
        self.past = Totals()  # of deleted queues
        # Queues whose journal is at its limit during a compaction -> functions to call when there is space again
        self.crowded: dict[Queue, list[Callable[[], None]]] = {}
        self.absences: dict[str, Absence] = {}  # waits for an item of queues that do not exist
        self.remedy: Callable[[str], str] = repair_command  # of a family
        self.stopping = False
        self._last_journal_id = 0
        self._unseen: JournalFailed | None = None  # why repaired journals may not have been moved into place
        self._found: list[Queue] = []  # recovered queues whose state may not be on disk
        self._move_reported_at_ms: dict[str, int] = {}

    # Journals at their limit

    def let_in(self, queue: Queue) -> None:
        """Let waiting puts to a full journal go on: it has space again, or nothing will make any."""
        held_back = self.crowded.pop(queue, None)
        if held_back:
            for tell in held_back:
                tell()
            self.commit.wake()

    # Names

    def find(self, name: str) -> Reader | None:
        """The queue of that name, or None."""
        return self.readers.get(name)

    def problem_of(self, name: str) -> JournalCorrupt | None:
        """Reason why the queue of that name is stopped, even if its journal was never recovered; None = it is not."""
        reader = self.readers.get(name)
        return reader.queue.stopped if reader is not None else self.broken.get(name.partition("+")[0])

    def _must_be_sound(self, name: str) -> None:
        problem = self.broken.get(name.partition("+")[0])
        if problem is not None:
            raise problem

    def look_for(self, name: str) -> Reader | None:
        """The queue of that name, or None. Raises BadQueueName, or JournalCorrupt as `reader` does."""
        found = self.readers.get(name)
        if found is not None:
            return found
        problem = queue_name_problem(name)
        if problem is not None:
            raise BadQueueName(problem)
        self._must_be_sound(name)
        return None

    def await_queue(self, name: str, waiter: Waiter) -> None:
        """Have a waiter wait for the creation of a queue, and then at the queue."""
        (self.absences.get(name) or Absence(name, self.absences)).add(waiter)

    def reader(self, name: str) -> Reader:
        """The queue of that name, created if there is none.

        Raises BadQueueName, TooManyQueues, JournalFailed, or JournalCorrupt if its journal is damaged.
        """
        found = self.look_for(name)
        if found is None:
            limit = self.config.max_queues
            if limit is not None and len(self.readers) >= limit:
                raise TooManyQueues
            found = self._new_reader(name)
            if (absence := self.absences.get(name)) is not None:
                absence.over(found)
        return found

    def _new_reader(self, name: str) -> Reader:
        parent, _, label = name.partition("+")
        queue = self.families.get(parent)
        if queue is None:
            queue = self._new_family(parent)
            if name in self.readers:
                return self.readers[name]
        reader = queue.add_reader(label, self.config_for(name))
        if len(queue.readers) == MANY_READERS:
            self._tell()
        self.readers[name] = reader
        self.created += 1
        return reader

    def _new_family(self, parent: str) -> Queue:
        """A new family, or the existing one whose journal had not been read."""
        journal = None
        if self.config_for(parent).journal:
            if (found := self._unread(parent)) is not None:
                return found
            if self._unseen is not None:
                raise self._unseen
            folder = self._folder(parent)
            # Two journals of one name never share an id, even when made within a millisecond.
            self._last_journal_id = max(self.clock.wall_ms, self._last_journal_id + 1)
            journal = Journal(self.files, self.clock, self.open_files, folder, parent, self._last_journal_id)
            journal.make_folder()
        return self._adopt_family(parent, journal, self.config_for(parent))

    def family(self, name: str) -> Queue | None:
        """The family of that name with its readers, or None. Raises as `reader` does."""
        self.look_for(name)
        found = self.families.get(name)
        return found if found is not None else self._unread(name)

    def _folder(self, parent: str) -> str:
        """Path of a family's journal folder."""
        return f"{self.spool}/{encode_queue_name(parent)}{FOLDER_SUFFIX}"

    def _unread(self, parent: str) -> Queue | None:
        """A family whose journal was never read, or could not be removed, or None. Raises as `reader` does."""
        folder = self._folder(parent)
        if not self.config_for(parent).journal or not self.files.is_dir(folder):
            return None
        try:
            obstacle = self.recover_family(parent, folder)
        except OSError as error:
            must_be_the_systems(error)
            raise JournalFailed(folder, f"cannot be read: {error.strerror}") from error
        self._must_be_sound(parent)
        found = self.families.get(parent)
        self.trash.settle(parent, found)
        if obstacle is not None:
            raise obstacle
        if found is not None:
            self._move_failed(found)
            self._review_feeder(found)
        return found

    def _adopt_family(self, parent: str, journal: Journal | None, config: QueueConfig) -> Queue:
        queue = Queue(parent, journal, self.clock, self.commit, self.report, self.memory, self._move, self.agenda)
        if journal is not None:
            journal.on_full_disk(self.trash.drop_all)
        queue.reopen_by(self.remedy)
        queue.configure(config)
        self.families[parent] = queue
        return queue

    def _move(self, destination: str, data: bytes, flags: int, origin: Origin | None) -> Queue | None:
        """Put an item on another queue, as a client's SET would. Returns that queue; None if the put fails."""
        try:
            reader = self.reader(destination)
            only = reader if reader.label else None
            if origin is None:
                stored = reader.queue.put_with(data, 0, flags, only)
            else:
                stored = reader.queue.put_moved(data, flags, only, origin)
        except (JournalFailed, JournalCorrupt, BadQueueName, QueueNotMade) as problem:
            self._report_move(destination, str(problem))
            return None
        if stored and not reader.label:
            self.moved_in += 1
        return reader.queue if stored else None

    def _report_move(self, destination: str, problem: str) -> None:
        # Once a minute for each: a full destination must not become a flood of log lines.
        now_ms = self.clock.monotonic_ms
        if now_ms - self._move_reported_at_ms.get(destination, -60_000) >= 60_000:
            self._move_reported_at_ms[destination] = now_ms
            self.report(f"{destination}: cannot accept a moved item: {problem}")

    # Deleting and emptying

    def delete(self, name: str) -> bool:
        """Delete a queue and its items. False if there is none. Raises JournalFailed or JournalCorrupt."""
        self._must_be_sound(name)
        reader = self.readers.get(name)
        if reader is None:
            return False
        queue = reader.queue
        queue.flush_counters()
        failure = None
        if len(queue.readers) == 1:
            failure = self._remove_journal(queue, name, self.trash.note(reader, DELETE))
        else:
            self.trash.keep(reader, DELETE)
        del self.readers[name]
        self.declared.forget(name)
        queue.drop_reader(reader.label)
        self.deleted += 1
        self.past += reader.totals()
        if not queue.readers:
            del self.families[queue.name]
            self.memory.forget(queue)
            queue.tell_followers()
        self._tell()
        if failure is not None:
            raise failure
        return True

    def _remove_journal(self, queue: Queue, name: str, note: Note | None = None) -> JournalFailed | None:
        """Move a journal to the trash; delete it if there is no `note` of its items. Returns a failure of the deletion.

        Raises JournalFailed if the journal could not be moved; then nothing has changed.
        """
        journal = queue.journal
        failure = None
        if journal is not None:
            try:
                self.trash.throw_away(journal, name, note, sync=queue.sync_ms is not None)
            except OSError as error:
                must_be_the_systems(error)
                failure = JournalFailed(journal.folder, f"cannot delete: {error.strerror}")
                if self.files.is_dir(journal.folder):
                    raise failure from error
            journal.close()
        queue.leave_journal()
        return failure

    def flush(self, name: str) -> int:
        """Drop the waiting items of a queue; returns their number, 0 without such a queue. Raises JournalCorrupt."""
        if (problem := self.problem_of(name)) is not None:
            raise problem
        reader = self.readers.get(name)
        if reader is None:
            return 0
        self.trash.keep(reader, FLUSH)
        return reader.flush(self.clock.wall_ms)

    def discard_passed_on(self, parent: Reader) -> None:
        """Drop what waits in a `fanout_only` parent: the children have it, and the record of that was lost."""
        with suppress(JournalCorrupt):  # it has stopped its queue, and was reported
            if not parent.is_drained:
                count = parent.discard_waiting(self.clock.wall_ms)
                self.report(f"{parent.name}: dropped {count} waiting items, as it is fanout_only")

    def _review_feeder(self, queue: Queue) -> None:
        """Say that a parent which is to be `fanout_only` is none yet."""
        if (parent := queue.emptying) is not None:
            queue.flush_counters()
            later = len(parent.held.later) if parent.held is not None else 0
            self.report(
                f"{parent.name}: fanout_only begins once the {parent.items + later} items there are taken or flushed"
            )

    def delete_unread(self, queue: Queue) -> Work:
        """Delete the queues of a family whose `idle_delete` is over, with their bindings, one per step.

        A queue counts as read while it is on a connection's list, a `fanout_only` parent while it has children, and
        the last queue of a family while somebody follows the journal: by a position of the reader API, or waiting for
        items.
        """
        for reader in [one for one in queue.readers.values() if one.config.idle_delete_ms is not None]:
            if reader.deleted:
                continue
            now_ms = self.clock.monotonic_up_ms()
            is_last = len(queue.readers) == 1
            if (
                reader.was_read()
                or reader.unread_since_ms < 0
                or reader.name in self.listed
                or (reader is queue.feeder and not is_last)
                or (is_last and (queue.streams or queue.followers))
            ):
                reader.count_unread_from(now_ms)
            elif now_ms - reader.unread_since_ms > (reader.config.idle_delete_ms or 0) and queue.stopped is None:
                is_bound = yield from self._unbind_unread(reader)
                if self.readers.get(reader.name) is not reader:
                    continue
                if is_bound or reader.was_read() or reader.name in self.listed:
                    reader.count_unread_from(now_ms)
                    continue
                try:
                    self.delete(reader.name)
                except (JournalFailed, JournalCorrupt) as problem:
                    reader.count_unread_from(now_ms)
                    self.report(f"{reader.name}: cannot be deleted, although nobody reads it: {problem}")
                else:
                    yield None

    def _unbind_unread(self, reader: Reader) -> Generator[int | None, None, bool]:
        """Remove the bindings of a queue, by which others would make it anew, and without its settings.

        Returns True if it has some all the same.
        """
        key = reader.name.encode("latin-1")
        if self.bindings.has(key):
            problem = yield from self.bindings.unbind_all(key)
            if problem is not None:
                self.report(f"{reader.name}: cannot be unbound, although nobody reads it: {problem}")
        return self.bindings.has(key)

    def flush_all(self) -> Steps:
        """Flush every queue, one per step."""
        for reader in list(self.readers.values()):
            if not reader.deleted and reader.queue.stopped is None:
                yield reader.queue, self.flush(reader.name)

    def flush_expired(self, name: str) -> int:
        """Remove the expired items at the head of a queue; returns their number. Raises JournalCorrupt."""
        if (problem := self.problem_of(name)) is not None:
            raise problem
        reader = self.readers.get(name)
        return sum(self._sweep(reader)) if reader else 0

    def flush_all_expired(self) -> Steps:
        """Remove the expired items at the head of every queue, up to SWEPT_AT_ONCE of one queue per step."""
        for reader in list(self.readers.values()):
            with suppress(JournalCorrupt):  # it has stopped its queue, and was reported
                for count in self._sweep(reader):
                    yield reader.queue, count

    def _sweep(self, reader: Reader) -> Iterator[int]:
        """Expire heads among the items present at the start only: moved items may come back to this queue."""
        queue = reader.queue
        if queue.dirty:
            queue.flush_counters()
        left = reader.items
        while queue.stopped is None and not reader.deleted:
            limit = min(left, SWEPT_AT_ONCE)
            count = reader.expire_heads(self.clock.wall_ms, limit)
            yield count
            left -= count
            if count < limit or not left:
                return

    def _tell(self) -> None:
        for tell in self.names_changed:
            tell()

    # Configuration

    def config_for(self, name: str) -> QueueConfig:
        """Settings of a queue, whether it exists or not."""
        return self.declared.over(self.config, name)

    def declare(self, name: str, options: Options, by: str, done: Done, *, may_delete: bool) -> Reader:
        """Declare settings of a queue, which is created if there is none; `done` is called once they are on disk.

        What is new for a queue that exists may drop items of it: that takes the right to delete it. Raises as `reader`,
        and DeclarationRefused, both with nothing changed, and as `Ledger.change`.
        """
        found, before = self.look_for(name), self.declared.of(name)
        new = self.declared.news(self.config, name, options)
        if new and found is not None:
            self._must_fit(found, new, may_delete=may_delete)
        if new:
            self.declared.add(name, new, by, self.clock.wall_ms)

        def undo() -> None:
            self.declared.put_back(name, before)
            if (reader := self.readers.get(name)) is not None and new:
                self._configure_anew(reader)

        def settled(failure: JournalFailed | None) -> None:
            if failure is not None and self.declared.of(name) is declaration:
                undo()
            done(failure)

        declaration = self.declared.of(name)
        try:
            reader = self.reader(name)
            if new and found is not None:
                self._configure_anew(reader)
            reader.count_unread_from(-1)
            self.declared.write(name, settled)
        except (QueueNotMade, JournalFailed, JournalCorrupt, LedgerFull):
            undo()
            raise
        return reader

    def _must_fit(self, reader: Reader, new: Options, *, may_delete: bool) -> None:
        if not may_delete:
            raise DeclarationRefused(
                f"not allowed: delete on {reader.name!r}, which exists: {', '.join(new)} may drop items"
            )
        if "journal" in new and reader.queue.in_memory == new["journal"]:
            raise DeclarationRefused(f"journal of {reader.name!r} cannot change while the queue exists")
        reader.queue.flush_counters()
        if new.get("fanout_only") and reader.items:
            raise DeclarationRefused(f"fanout_only=true: {reader.items} items wait in {reader.name!r}; flush it first")

    def _configure_anew(self, reader: Reader) -> None:
        config = self.config_for(reader.name)
        reader.configure(config)
        if not reader.label:
            reader.queue.configure(config)

    def _take_up_declared(self) -> None:
        """Create declared queues that are gone: they were in memory only, or a power cut took their journals."""
        for name in sorted(self.declared.names()):
            if name in self.readers or name.partition("+")[0] in self.broken:
                continue
            try:
                self.reader(name)
            except (QueueNotMade, BadQueueName, JournalFailed, JournalCorrupt) as problem:
                self.report(f"{name}: declared, but cannot be created: {problem}")

    def configure(self, config: Config) -> Iterator[int | None]:
        """Use this configuration from now on. Live queues take it over step by step.

        `journal` and the spool stay as they are until the next start.
        """
        before, self.config = self.config, config
        self.commit.together = config.sync_together
        is_other_memory = self.memory.limit_bytes != config.max_memory_bytes
        self.memory.limit_bytes = config.max_memory_bytes
        self.bindings.ledger.entries_max = config.max_bindings
        self.declared.ledger.entries_max = config.max_declared
        return self._configure_queues(
            is_other=(before.defaults, before.queues, before.patterns)
            != (config.defaults, config.queues, config.patterns),
            is_other_memory=is_other_memory,
        )

    def _configure_queues(self, *, is_other: bool, is_other_memory: bool) -> Iterator[int | None]:
        for reader in list(self.readers.values()) if is_other else []:
            if reader.config != (config := self.config_for(reader.name)):
                reader.configure(config)
                if not reader.label:
                    self._review_feeder(reader.queue)
            yield None
        for queue in list(self.families.values()):
            if is_other:
                queue.configure(self.config_for(queue.name))
            if is_other_memory:
                queue.review_next_put()
            while _has_failed(queue) and queue.sync.syncing_commit is not None:
                yield WAITS  # the commit being synced belongs to the segment that is left behind
            if _has_failed(queue):
                try:
                    queue.go_on()
                except JournalFailed as failure:
                    self.report(f"{queue.name}: {failure}")
            yield None
        if is_other:
            self._tell()

    # Recovery

    def recover(
        self,
        progress: Callable[[int, int], None] | None = None,
        syncing: Callable[[int], None] = lambda journals: None,
    ) -> None:
        """Recover every journal in the spool. A damaged one stops only its own queue; foreign files are reported.

        `progress` is called once a second with the number of names handled and their total. If recovery took that long,
        `syncing` is called with the number of journals that are synced next, which may take as long again.
        """
        started_us = self.clock.stopwatch_us()
        self.bindings.read()
        self.declared.read()
        names = self._names()
        tell_at_us = self.clock.stopwatch_us() + PROGRESS_US if progress is not None else 0
        for read, name in enumerate(names):
            if progress is not None and self.clock.stopwatch_us() >= tell_at_us:
                tell_at_us += PROGRESS_US
                progress(read, len(names))
            parent = self._family_of(name)
            if parent and parent not in self.broken:
                self._recover_family(parent, f"{self.spool}/{name}")
        if self._found and self.clock.stopwatch_us() - started_us >= PROGRESS_US:
            syncing(len(self._found))
        self._settle_found()
        self._take_up_trash()
        for queue in list(self.families.values()):
            self._move_failed(queue)
            self._review_feeder(queue)
        self._take_up_declared()

    def serve(self) -> None:
        """Have the grace of leases begin: clients are served from now on, however long recovery took."""
        self.clock.read()
        for reader in self.readers.values():
            reader.begin_lease_grace()

    def look(self) -> None:
        """Prepare the spool without reading journals, for users of few queues: each is read when it is first needed."""
        for name in self._names():
            self._family_of(name)  # which reports those of no queue
        self._take_up_trash(lambda parent: self.files.is_dir(self._folder(parent)))

    def _names(self) -> list[str]:
        """Names in the spool, after pending repairs and imports have been finished."""
        self._finish_repairs()
        self.broken.update(import_at_start(self.files, self.clock, self.config, self.report))
        return self.files.list_dir(self.spool)

    def _family_of(self, name: str) -> str:
        """Family whose journal is in the folder of that name; "" = none. Unexpected folders are reported."""
        path = f"{self.spool}/{name}"
        if name.startswith(".") or not self.files.is_dir(path):
            return ""
        if not name.endswith(FOLDER_SUFFIX):
            self.report(f"{path}: not a kestreld journal; left alone")
            return ""
        parent = decode_queue_name(name[: -len(FOLDER_SUFFIX)])
        if queue_name_problem(parent) is not None or "+" in parent or self._folder(parent) != path:
            self.report(f"{path}: not a valid queue name; left alone")
            return ""
        return parent

    def _move_failed(self, queue: Queue) -> None:
        for reader in list(queue.readers.values()):
            with suppress(JournalCorrupt):  # it has stopped its queue, and was reported
                reader.move_failed()

    def _finish_repairs(self) -> None:
        def failed(built: str, error: OSError) -> None:
            name = built.rpartition("/")[2].removesuffix(BUILT)
            if name.endswith(FOLDER_SUFFIX):  # else of jobs, whose reading finds them missing
                reason = f"the repaired journal cannot be moved into the spool: {error.strerror}"
                family = decode_queue_name(name.removesuffix(FOLDER_SUFFIX))
                self._stop_broken(family, JournalUnreadable(built, reason))

        try:
            for folder in finish_repairs(self.files, self.spool, failed):
                self.report(f"{folder}: repair completed: the repaired journal is now in place")
        except OSError as error:
            must_be_the_systems(error)
            path = error.filename or self.spool
            self._unseen = JournalFailed(path, f"cannot be read: {error.strerror}; a repaired journal may be in it")
            self.report(f"{self._unseen}; no new queue is created until a restart")

    def _take_up_trash(self, is_to_be_read: Callable[[str], bool] = lambda parent: False) -> None:
        self.trash.find()
        for parent in dict.fromkeys([entry.queue.partition("+")[0] for entry in self.trash.entries]):
            if parent not in self.broken and not is_to_be_read(parent):
                self.trash.settle(parent, self.families.get(parent))
        for _ in self.trash.expire():
            pass

    def recover_family(self, parent: str, path: str) -> JournalFailed | None:
        """Recover the journal in folder `path`; a damaged one goes to `broken`.

        Returns the failure if one without readers cannot be removed. Raises OSError.
        """
        obstacle = self._recover_family(parent, path)
        self._settle_found()
        return obstacle

    def _recover_family(self, parent: str, path: str) -> JournalFailed | None:
        """`recover_family` without the sync of the recovered journal."""
        try:
            recovered = recover(self.files, self.clock, self.open_files, path)
        except JournalCorrupt as problem:
            self._stop_broken(parent, problem)
            return None
        except OSError as error:
            must_be_the_systems(error)
            if error.errno in OUT_OF_MEANS:
                raise
            self._stop_broken(parent, _unreadable(error, path))
            return None
        config = self.config_for(parent)
        if not config.journal:
            self.report(f"{parent}: journal found, but journal is off in the configuration; not read")
            return None
        if recovered is None:
            self._forget_empty(path)
            return None
        for note in recovered.notes:
            self.report(f"{parent}: {note}")
        self._last_journal_id = max(self._last_journal_id, recovered.journal.journal_id)
        queue = self._adopt_family(parent, recovered.journal, config)
        self.restore(queue, recovered.state)
        # A stop in good order leaves nothing torn, nor does a queue that has passed nothing on.
        emptying = queue.emptying
        if emptying is not None and not recovered.is_sealed and emptying.ended_items[Reason.DISCARDED]:
            self.discard_passed_on(emptying)
        if queue.readers and (recovered.journal.distrusted or (queue.sync_ms is not None and not recovered.is_sealed)):
            self._found.append(queue)
        if not queue.readers:
            del self.families[parent]
            try:
                obstacle = self._remove_journal(queue, parent)
            except JournalFailed as failure:  # harmless: every reader was dropped
                self.report(f"{failure}; will be retried at the next start")
                return failure
            if obstacle is not None:
                self.report(f"{obstacle}; will be retried at the next start")
        return None

    def _stop_broken(self, parent: str, problem: JournalCorrupt) -> None:
        problem.remedy = self.remedy(parent)
        self.broken[parent] = problem
        self.report(problem.with_remedy(f"{parent}: stopped: {problem}; other queues are not affected"))

    def _settle_found(self) -> None:
        """Sync what startup found, so that clients of a synced journal get nothing that a power cut may take back.

        One sync of the file system covers all journals; if it fails, each is synced separately.
        """
        found, self._found = self._found, []
        unsynced = {queue for queue in found if queue.sync_ms is not None}
        if len(unsynced) > 1 and self._synced_together([one.journal for one in unsynced if one.journal is not None]):
            unsynced = set()
        for queue in found:
            journal = queue.journal
            assert journal is not None
            if queue in unsynced:
                try:
                    journal.sync()
                except JournalFailed as failure:
                    self.report(f"{queue.name}: {failure}")
            if queue.stopped is None and (journal.distrusted or journal.failed is not None):
                try:
                    journal.start_segment(queue.checkpoint())
                except JournalFailed as failure:
                    self.report(f"{queue.name}: {failure}; puts are refused until a new segment can be created")

    def _synced_together(self, journals: list[Journal]) -> bool:
        started_us = self.clock.stopwatch_us()
        try:
            fd = journals[0].borrow()
            try:
                self.files.sync_file_system(fd)
            finally:
                journals[0].give_back(fd)
        except OSError:
            return False
        for journal in journals:
            journal.synced(journal.live.number, journal.live.used_bytes, started_us)
        return True

    def forget_family(self, queue: Queue) -> None:
        """Remove a family whose creation or deletion was interrupted: nothing of it is written."""
        if self.families.get(queue.name) is queue:
            del self.families[queue.name]
        self.memory.forget(queue)
        if queue.journal is not None:
            queue.journal.close()
            if self.files.is_dir(queue.journal.folder):
                self._forget_empty(queue.journal.folder)

    def _forget_empty(self, path: str) -> None:
        """Remove a folder that a crash left before anything was written to its journal."""
        try:
            if not self.files.list_dir(path):
                self.files.remove_dir(path)
        except OSError as error:
            must_be_the_systems(error)
            self.report(f"{path}: cannot be removed: {error.strerror}")

    def restore(self, queue: Queue, state: Checkpoint, is_lost: Callable[[int], bool] = lambda item: False) -> None:
        """Restore a queue from its journal. See `Queue.restore`."""
        queue.restore(state, self.config_for, is_lost)
        self.readers.update({reader.name: reader for reader in queue.readers.values()})

    def close(self, fd: int | None = None, until_us: int | None = None) -> int:
        """Sync, seal and close every journal; returns the number for which there was no time.

        For the arguments see `Closing`. This comes last, just before the lock is released.
        """
        self.bindings.ledger.close()
        self.declared.ledger.close()
        for queue in self.families.values() if until_us is None or self.clock.stopwatch_us() < until_us else ():
            self._note_leases(queue)
        closing = Closing(self.files, self.clock, self.commit.mark, self.report, fd, until_us)
        closing.close(self.families.values())
        return closing.left

    def put_away(self, queue: Queue) -> None:
        """Seal and close an idle family that nobody uses. Its journal is read again when the queue is next needed."""
        self._note_leases(queue)
        Closing(self.files, self.clock, self.commit.mark, self.report, None, None).close([queue])
        for reader in list(queue.readers.values()):
            del self.readers[reader.name]
            queue.forget_reader(reader)
        del self.families[queue.name]
        self.memory.forget(queue)
        self.commit.sync_no_more(queue)
        queue.leave_journal()
        queue.tell_followers()

    def _note_leases(self, queue: Queue) -> None:
        if queue.holds_back and queue.journal is not None and queue.stopped is None:
            try:
                queue.note_leases()
                self.commit.settle(queue)
            except JournalFailed as failure:
                self.report(f"{queue.name}: {failure}; its leases end with this process")
            self.commit.tell()


def repair_command(family: str) -> str:
    """Command that reopens a stopped family."""
    return f"kestrelctl repair {quote(family)}"


def _unreadable(error: OSError, folder: str) -> JournalUnreadable:
    """The error for the journal in `folder`, which cannot be recovered."""
    path = error.filename or folder
    if error.errno in DISK_FULL:
        return JournalUnreadable(path, f"cannot be recovered: {error.strerror}")
    return JournalUnreadable(path, f"cannot be read: {why_unread(error, path)}")


def _has_failed(queue: Queue) -> bool:
    """True if its journal accepts no writes until a new segment is begun."""
    return queue.journal is not None and queue.journal.failed is not None and queue.stopped is None
