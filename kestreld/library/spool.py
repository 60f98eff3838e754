"""Spool: the engine in a process with threads, behind one lock, with a turn for each operation.

The engine knows no threads. A thread uses it only in a turn, with `lock` held; `end_turn` writes the turn's changes
before the lock is released, so that no thread learns of a change which a kill -9 could undo. Every wait, for items or
for the sync of a commit, is without the lock; a caller is answered after the CommitFuture of its turn.

An exception that is not ours, such as a signal handler's, may end a turn anywhere. `cut_short` then names its queue,
and the next turn first rebuilds that from its journal (`renew`). `put` and `Reading.fetch` keep these rules without
`Turn`, for speed. A process has one Spool for each folder (`use`, `let_go`): opened for its first user, closed after
its last, and not opened again in between. In a forked child, or after a thread of ours died, `lock` raises instead.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from shlex import quote
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakSet

from kestreld import checks
from kestreld.clock import Clock
from kestreld.config.config import Config, QueueConfig
from kestreld.disk_threads import ThreadedFiles, Work
from kestreld.errors import InvalidType, InvalidValue, JournalFailed, KestrelError, SpoolUnusable, ThreadDied
from kestreld.files import FileLayer, descriptors_max, must_be_the_systems
from kestreld.forks import call_in_child
from kestreld.journal.segment import FOLDER_SUFFIX
from kestreld.library.answer import Answer
from kestreld.library.forked import dead_lock, forked_lock
from kestreld.library.futures import CommitFuture, ItemFuture
from kestreld.library.turns import Turn, User
from kestreld.library.worker import Worker
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import Committed, GroupCommit
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.reader_lifecycle import ReaderLifecycle
from kestreld.queues.rebuild import cut_short, renew
from kestreld.queues.slices import WAITS, Slices
from kestreld.queues.slices import Work as WorkOfSlices
from kestreld.queues.trash import TRASH
from kestreld.queues.waiters import Waiter
from kestreld.spool_lock import LOCK, check_spool, take_lock

MAINTENANCE_MS: Final = 1000
SLICE_US: Final = 2000  # long work lets others at the engine after this
SLICE_PAUSE_MS: Final = 1
DESCRIPTORS_SHARE: Final = 4  # journals hold at most 1 in 4 of the process's descriptors

Report = Callable[[str], None]
T = TypeVar("T", bound=Reader | Queue)


class Spool:
    """A folder of journals that only this process serves. Nothing but `lock` is for several threads at once."""

    def __init__(self, path: str) -> None:
        """`open` comes first, `close` last, even if `open` has failed."""
        self.path = path
        self.lock = self.closing_lock = Lock()  # `closing_lock` remains if `lock` is replaced by one that raises
        self.problem: ThreadDied | None = None  # the reason for which nothing works any longer
        self.pending: WeakSet[Answer[Any]] = WeakSet()  # unsettled answers, and maybe some settled ones
        _all.add(self)
        self.clock = Clock()
        self.worker = Worker(f"queues in {path}", self._thread_died)
        self.files = ThreadedFiles(
            self._from_disk, lambda error: self._thread_died(ThreadDied(f"disk of {path}", repr(error)))
        )
        self.users: dict[object, Queue | None] = {}  # user -> family, None = not known yet
        self._leaving: list[CommitFuture] = []  # of threads that wait in `put_away`
        self.closing = Lock()
        self.is_open = self.is_closed = False
        self.is_over = False  # it is being closed: nothing is put any longer
        self._held = -1
        self.cut_short: Queue | str | None = None  # queue of the interrupted turn, or EVERY
        self.readings: dict[User, None] = {}  # readings in use
        self.served: list[ItemFuture] = []  # waits that ended in this turn
        self.failed: dict[Committed, JournalFailed] = {}  # in this turn
        self._deadline_at_ms: int | None = None
        self._sync_planned = False

    def open(self, config: Config, report: Report) -> None:
        """Lock and read the spool. Raises SpoolLocked with the pid of another process that has it, or SpoolUnusable."""
        check_spool(self.files, self.path)
        if self._held < 0:
            self._held = take_lock(self.files, self.path)
        self.commit = GroupCommit(self.clock, self.files)
        self.collection = QueueCollection(self.files, self.clock, config, self.commit, report)
        self.collection.remedy = lambda family: f"kestrelctl journal-verify {quote(self.path)} --repair"
        self.collection.open_files.descriptors_max = descriptors_max() // DESCRIPTORS_SHARE
        self.collection.open_files.lent = self._held_elsewhere
        try:
            self.collection.look()
        except OSError as error:
            must_be_the_systems(error)
            raise SpoolUnusable(self.path, f"cannot be read: {error}") from error
        self.crowded = self.collection.crowded
        self.slices = Slices(self.clock, self._work_soon)
        self.maintenance = Maintenance(self.collection, self.slices)
        self.lifecycle = ReaderLifecycle(self.collection, self.maintenance)
        with self.lock, self.turn(None):
            self.end_turn()
        self.worker.at(self.clock.monotonic_ms + MAINTENANCE_MS, self._look_after)
        self.is_open = True

    def _held_elsewhere(self) -> int:
        """Return the number of descriptors that the journals of other spools hold."""
        others = [spool for spool in list(_all) if spool is not self and spool.is_open and not spool.is_closed]
        return sum(spool.collection.open_files.held for spool in others)

    def refuse(self) -> None:
        """In a forked child: make the lock, and answers that are still to come, raise QueueForked."""
        self.lock = self.closing_lock = forked_lock(self.path)
        for answer in list(self.pending):
            answer.refuse(self.path)

    def _thread_died(self, problem: ThreadDied) -> None:
        """Make the lock, and answers that are still to come, raise the problem: nobody else would end those waits."""
        self.lock = dead_lock(problem)
        self.problem = problem
        with self.closing_lock:  # after the last turn; callbacks are called without it
            pending = list(self.pending)
        for answer in pending:
            answer.fail(problem)

    # With the lock held

    def adopt(self, name: str, config: QueueConfig) -> Reader:
        """Return a queue, created if it does not exist. Raises BadQueueName, JournalCorrupt or JournalFailed."""
        self.configure(name, config)
        reader = self.collection.reader(name)
        self.end_turn(reader.queue)
        return reader

    def adopt_family(self, name: str, config: QueueConfig, archive_path: str | None) -> Queue:
        """Return a queue with all its readers, created if it does not exist.

        Raises as `adopt`, and SpoolUnusable for another archive.
        """
        if archive_path is not None:
            if self.maintenance.retirement.archive_path not in (None, archive_path):
                raise SpoolUnusable(
                    self.path, f"already archives to {self.maintenance.retirement.archive_path}, not to {archive_path}"
                )
            self.maintenance.retirement.archive_path = archive_path
        self.configure(name, config)
        queue = self.lifecycle.family(name)
        self.end_turn(queue)
        return queue

    def configure(self, name: str, config: QueueConfig) -> None:
        known = self.collection.config
        queues = {**known.queues, name: asdict(config)}
        if queues != known.queues:
            for _ in self.collection.configure(replace(known, queues=queues)):
                pass

    def end_turn(self, queue: Queue | None = None) -> CommitFuture | None:
        """Commit the turn's changes. The returned future is to be waited for, without the lock, before the answer.

        Raises JournalFailed if the changes to `queue` were undone because they could not be written.
        """
        commit = self.commit
        while commit.dirty:
            commit.run()
            if commit.failed:
                self.failed.update(commit.failed)
            commit.tell()
        if commit.rolling:
            self.maintenance.after_turn()
        if commit.sync_later and not self._sync_planned:
            self._sync_due()
        if self.served:
            self._tell()
        if self.collection.agenda.heap:
            self._plan_deadline()
        failed, hold = self.failed, None
        if failed:
            self.failed = {}
            if queue in failed:
                raise renewed(failed[queue])
        if queue is not None:
            pending_commit = queue.pending_commit
            if pending_commit is not None and pending_commit.pending:
                hold = CommitFuture(pending_commit)
            elif queue in self.collection.crowded and not self.worker.is_current:  # the worker is what makes room
                hold = CommitFuture(None)
                self.collection.crowded[queue].append(hold.released)
        if hold is not None:
            self.pending.add(hold)
        return hold

    def _tell(self) -> None:
        """Settle waits that have ended: at once, or as soon as the commit that ends them is on disk."""
        for wait in self.served:
            pending_commit = wait.queue.pending_commit if wait.item is not None else None
            if wait.item is not None and wait.queue in self.failed:
                wait.settle(self.failed[wait.queue])
            elif pending_commit is not None and pending_commit.pending:
                wait.pending_commit = pending_commit
                pending_commit.observers.append(wait)
            else:
                wait.settle(None)
        self.served.clear()  # in place: waits hold a reference to this list

    def turn(self, queue: Queue | None) -> Turn:
        """Return a turn of a queue, or of all. `put` and `Reading.fetch` write it out."""
        return Turn(self, queue)

    def begin_turn(self) -> None:
        if self.cut_short is not None:
            self.renew()
        self.clock.read()

    def renew(self) -> None:
        """Rebuild the queues of an interrupted turn from their journals. Threads that wait there keep waiting."""
        self.clock.read()
        half_done = cut_short(self.collection, self.cut_short if isinstance(self.cut_short, Queue) else None)
        self.failed = {}
        self.served.clear()
        for queue in half_done:
            is_waiting = renew(self.collection, queue, self._held_of)
            users = [user for user in self.readings if user.reader.queue is queue]
            waiters = [(user.reader, waiter) for user in users for waiter in user.resume(is_waiting)]
            for reader in queue.readers.values():
                reader.wait_queue.begin_again([waiter for of, waiter in waiters if of is reader])
            queue.count_waiters()
            queue.wake()
        self._sync_planned, self._deadline_at_ms = False, None
        self._plan_deadline()
        self.end_turn()
        self.cut_short = None

    def _held_of(self, reader: Reader) -> set[int]:
        """Return the ids of open reads that somebody has, and of leases that have reached their callers."""
        users = [user for user in self.readings if user.reader is reader]
        held = {xid for user in users for xid in user.held()}
        if reader.held is not None:
            on_their_way = {xid for user in users for xid in user.opened}
            leases = reader.held.leases.items()
            held.update([one for one, lease in leases if lease.attempt >= 0 and one not in on_their_way])
        return held

    # Turns of its own

    def put(self, queue: Queue, data: bytes, expire_at_ms: int, only: Reader | None) -> bool:
        """Add an item, for every reader or for `only` one. False if it is refused."""
        if type(data) is not bytes or type(expire_at_ms) is not int or expire_at_ms:
            _check(data, expire_at_ms)
        with self.lock:
            if self.cut_short is not None:
                self.renew()
            if self.is_over or not queue.readers:
                return False  # closed meanwhile, or deleted
            is_over = False
            try:
                if not (expire_at_ms or only is not None or self.crowded) and queue.put_at_once(data):
                    if self.commit.rolling:
                        self.end_turn()
                    is_over = True
                    return True
                self.clock.read()
                stored = queue.put_with(data, expire_at_ms, 0, only)
                hold = self.end_turn(queue)
                is_over = True
            except KestrelError:
                is_over = True
                raise
            finally:
                if not is_over:
                    self.cut_short = queue
        if hold is not None:
            hold.result()
        return stored

    def put_timed(
        self, reader: Reader, data: bytes, expire_at_ms: int, only: Reader | None, delay_ms: int, key: bytes | None
    ) -> bool:
        """Put an item that is not delivered before `delay_ms` from now, or that `reader` knows by a key.

        If the key is known, the result is True and nothing is added.
        """
        _check(data, expire_at_ms)
        queue = reader.queue
        with self.lock, self.turn(queue):
            if self.is_over or reader.deleted:
                return False
            if key is not None and reader.find_key(key):
                assert reader.keys is not None
                reader.keys.refuse()
                stored = True
            elif key is not None:
                stored = queue.put_keyed(key, reader, data, expire_at_ms, 0, only, delay_ms)
            elif delay_ms:
                stored = queue.put_later(data, expire_at_ms, 0, only, delay_ms)
            else:
                stored = queue.put_with(data, expire_at_ms, 0, only)
            hold = self.end_turn(queue)
        if hold is not None:
            hold.result()
        return stored

    def cancel(self, reader: Reader, key: bytes) -> bool:
        """Drop an item that was put with a key and is not due yet. False if there is none."""
        queue = reader.queue
        with self.lock, self.turn(queue):
            if self.is_over or reader.deleted:
                return False
            if queue.stopped is not None:
                raise queue.stopped
            is_cancelled = reader.cancel(key)
            hold = self.end_turn(queue)
        if hold is not None:
            hold.result()
        return is_cancelled

    def put_all(self, queue: Queue, values: Iterable[bytes], expire_at_ms: int, only: Reader | None) -> int:
        """Put items in one write, up to the first that is refused. Return how many were added."""
        added, items = 0, checks.several(values, "values")
        for data in items:
            if type(data) is not bytes or type(expire_at_ms) is not int or expire_at_ms:
                _check(data, expire_at_ms)
        with self.lock, self.turn(queue):
            if self.is_over or not queue.readers:
                return 0
            for data in items:
                if not queue.put_with(data, expire_at_ms, 0, only):
                    break
                added += 1
            hold = self.end_turn(queue)
        if hold is not None:
            hold.result()
        return added

    # With the lock held

    def plan_deadline(self, waiter: Waiter) -> None:
        """Have a waiter time out at its due time."""
        self.collection.agenda.add(waiter)
        self._plan_deadline()

    def _plan_deadline(self) -> None:
        next_at_ms = self.collection.agenda.next_at_ms()
        if next_at_ms is not None and (self._deadline_at_ms is None or next_at_ms < self._deadline_at_ms):
            self._deadline_at_ms = next_at_ms
            self.worker.at(next_at_ms, self._deadline_due)

    def _sync_due(self) -> None:
        next_at_ms = self.maintenance.sync_due()
        self._sync_planned = next_at_ms is not None
        if next_at_ms is not None:
            self.worker.at(max(next_at_ms, self.clock.monotonic_ms + 1), self._sync_now)

    # On the worker

    def _deadline_due(self) -> None:
        with self.lock, self.turn(None):
            self._deadline_at_ms = None
            self.collection.agenda.fall_due(self.clock.monotonic_ms)
            self._plan_deadline()
            self.end_turn()

    def _sync_now(self) -> None:
        with self.lock, self.turn(None):
            self._sync_due()
            self.end_turn()

    def _look_after(self) -> None:
        """Run maintenance once a second: dead segments, compaction, the trash."""
        with self.lock, self.turn(None):
            self.maintenance.start_round()
            self.end_turn()
            self.worker.at(self.clock.monotonic_ms + MAINTENANCE_MS, self._look_after)

    def _work_soon(self) -> None:
        self.worker.soon(self._work)

    def _work(self) -> None:
        with self.lock, self.turn(None):
            self.slices.run(self.clock.stopwatch_us() + SLICE_US)
            if self.slices.is_busy:
                self.worker.at(self.clock.monotonic_ms + SLICE_PAUSE_MS, self._work)
            self.end_turn()

    # On a disk thread

    def _from_disk(self, deliver: Work) -> None:
        with self.lock, self.turn(None):
            deliver()
            self.end_turn()

    # The end

    def put_away(self, queue: Queue) -> None:
        """Close a family that is no longer used, once all of it is on disk, unless it is used again meanwhile.

        Returns when that is done; earlier if its segments are being rewritten or writes to its journal fail.
        """
        with self.closing_lock, self.turn(None):
            if self.is_over or self.problem is not None or queue.in_memory:
                return
            hold = CommitFuture(None)
            self.pending.add(hold)
            self._leaving.append(hold)
            self.slices.take_on(self._put_away(queue, hold))
            self.end_turn()
        if not self.worker.is_current:  # the worker does it
            hold.exception()

    def _put_away(self, queue: Queue, hold: CommitFuture) -> WorkOfSlices:
        try:
            while self.collection.families.get(queue.name) is queue and queue not in list(self.users.values()):
                journal = queue.journal
                if journal is not None and journal.failed is not None and queue.stopped is None:
                    journal.close()  # unwritten gets exist only here: keep the family
                    return
                if self.maintenance.rest(queue):
                    self.collection.put_away(queue)
                    return
                if self.maintenance.is_compacting(queue):
                    self._left(hold)
                yield WAITS
        finally:
            self._left(hold)

    def _left(self, hold: CommitFuture) -> None:
        if hold in self._leaving:
            self._leaving.remove(hold)
            hold.released()

    def close(self) -> None:
        """Put everything on disk and unlock the spool. It is no longer used.

        If a call is interrupted, the next one continues.
        """
        if self.is_open and not self.is_closed:
            self._close_queues()
        self.worker.stop()
        self.files.stop()
        # Unlocked only once, even if interrupted: the descriptor may be another file's after that.
        if self._held >= 0 and self.files.is_open_as(self._held, f"{self.path}/{LOCK}"):
            self.files.unlock(self._held)
        self._held = -1
        self.is_closed = True
        for hold in self._leaving:
            hold.released()

    def _close_queues(self) -> None:
        with self.closing_lock, self.turn(None):
            self.is_over = True
        self._settle_all()
        self.worker.stop()
        self._settle_all()  # changes of its last calls
        self.files.stop()
        with self.closing_lock, self.turn(None):
            self.collection.close(self._held)

    def _settle_all(self) -> None:
        while self.problem is None and (hold := self._last_hold()) is not None:
            hold.exception()  # a commit that fails has been reported

    def _last_hold(self) -> CommitFuture | None:
        with self.closing_lock, self.turn(None):
            self.end_turn()
            for queue in self.collection.families.values():
                if queue.pending_commit is not None and queue.pending_commit.pending:
                    hold = CommitFuture(queue.pending_commit)
                    self.pending.add(hold)
                    return hold
        return None


def _check(data: bytes, expire_at_ms: int) -> None:
    """Raise InvalidType or InvalidValue for an item or expiry that cannot be written: the engine relies on that."""
    checks.data(data, "item")
    allowed = "an int in ms since the epoch, or 0 for never"
    if isinstance(expire_at_ms, bool) or not isinstance(expire_at_ms, int):
        raise InvalidType("expiry", allowed, expire_at_ms)
    if not 0 <= expire_at_ms < 1 << 64:
        raise InvalidValue("expiry", allowed, expire_at_ms)


def put_timed(
    spool: Spool,
    reader: Reader,
    data: bytes,
    expire_at_ms: int,
    only: Reader | None,
    delay: float,
    key: str | bytes | None,
) -> bool:
    """Check a user's arguments and call `Spool.put_timed`. Raises InvalidArgument."""
    delay_ms = checks.seconds_ms(delay, "delay", reader.config.max_delay_ms)
    known = None if key is None else checks.key(key, "key")
    return spool.put_timed(reader, data, expire_at_ms, only, delay_ms, known)


def renewed(failure: JournalFailed) -> JournalFailed:
    """Return a copy of the failure, to be raised in another thread."""
    return JournalFailed(failure.path, failure.reason, disk_full=failure.disk_full)


_spools: dict[str, Spool] = {}
_closing: dict[str, Spool] = {}  # spools without users, being closed
_opening = Lock()
_all: Final[WeakSet[Spool]] = WeakSet()


@call_in_child
def _leave_to_parent() -> None:
    """In a forked child: drop all spools, and close their descriptors, one of which would keep the parent's lock."""
    global _opening
    _opening = Lock()
    _closing.clear()
    _spools.clear()
    spools = list(_all)
    _all.clear()
    for spool in spools:
        spool.refuse()
    if spools:
        paths = "|".join(re.escape(spool.path) for spool in spools)
        ours = rf"(?:{paths})/(?:{re.escape(LOCK)}|{re.escape(TRASH)}/|[^/]+{re.escape(FOLDER_SUFFIX)}/)"
        FileLayer().close_inherited(re.compile(ours))


def use(
    user: object,
    path: str,
    name: str,
    config: QueueConfig,
    report: Report,
    adopt: Callable[[Spool], T],
    archive_path: str | None,
) -> tuple[Spool, T]:
    """Return the spool at `path`, opened if this process has not opened it yet, and the result of `adopt`.

    Raises SpoolLocked, SpoolUnusable, BadQueueName, JournalCorrupt or JournalFailed.
    """
    where = FileLayer().real_path(path)
    first = Config(queue_path=where, archive_path=archive_path, max_queues=None, queues={name: asdict(config)})
    is_adopted = False
    try:
        while (spool := _use_unless_closing(user, where, first, report)) is None:
            if (closing := _closing.get(where)) is not None:
                _finish(closing)
        with spool.lock, spool.turn(None):
            adopted = adopt(spool)
            spool.users[user] = adopted.queue if isinstance(adopted, Reader) else adopted
        is_adopted = True
    finally:
        if not is_adopted and (unused := _spools.get(where)) is not None:
            let_go(user, unused)
    return spool, adopted


def _use_unless_closing(user: object, where: str, config: Config, report: Report) -> Spool | None:
    with _opening:
        if where in _closing:
            return None
        spool = _spools.get(where)
        if spool is None:
            spool = _spools[where] = Spool(where)
        spool.users[user] = None
        if not spool.is_open:
            spool.open(config, report)
        return spool


def let_go(user: object, spool: Spool) -> None:
    """Remove a user. The last user of a family puts the family away, and the last of all closes the spool.

    If a call is interrupted, the next one continues.
    """
    with _opening:
        queue = spool.users.pop(user, None)
        is_last = not spool.users and not spool.is_closed
        if is_last:
            _closing[spool.path] = spool
            if _spools.get(spool.path) is spool:
                del _spools[spool.path]
    if is_last:
        _finish(spool)
    elif queue is not None:
        spool.put_away(queue)


def _finish(spool: Spool) -> None:
    if spool.closing.locked() and spool.worker.is_current:
        return  # the closing thread waits for this one
    with spool.closing:  # not `_opening`: the worker's last calls may open other spools
        spool.close()
    with _opening:
        if _closing.get(spool.path) is spool:
            del _closing[spool.path]
