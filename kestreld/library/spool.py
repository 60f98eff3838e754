"""The engine in threads: one lock around it, a turn for each operation, and a thread for what falls due.

Whoever holds the lock has the engine to himself. What he has done is committed before he lets go of it, so that
nobody learns of what a kill -9 could undo. Waiting, for items or for the disk, is done without the lock.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from threading import Event, Lock
from typing import Final, TypeVar

from kestreld.clock import Clock
from kestreld.config import Config, QueueConfig
from kestreld.disk_threads import ThreadedFiles, Work
from kestreld.errors import JournalFailed, KestrelError, SpoolUnusable
from kestreld.files import FileLayer
from kestreld.library.waits import Hold, Wait
from kestreld.library.worker import Worker
from kestreld.queues.alone import put_alone
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.succession import Succession
from kestreld.queues.upkeep import Upkeep
from kestreld.queues.waiters import Deadlines, Waiter
from kestreld.spool_lock import check_spool, take_lock

UPKEEP_MS: Final = 1000
SLICE_US: Final = 2000  # long work lets others at the engine after this
SLICE_PAUSE_MS: Final = 1

Report = Callable[[str], None]
T = TypeVar("T")


class Spool:
    """A folder of journals that this process serves to itself. Nothing but `lock` is for several threads at once."""

    def __init__(self, path: str, config: Config, report: Report) -> None:
        """Raises SpoolLocked with the pid of another process that has it, or SpoolUnusable."""
        self.path = path
        self.lock = Lock()
        self.clock = Clock()
        self.worker = Worker(f"queues in {path}")
        self.files = ThreadedFiles(self._from_disk)
        check_spool(self.files, path)
        self._held = take_lock(self.files, path)
        self.users = 0  # queues that are in use
        self.is_over = False  # it is being let go of: nothing is put any more
        self.served: list[Wait] = []  # waits that this turn has ended
        self.failed: dict[Queue, JournalFailed] = {}  # in this turn
        self.deadlines = Deadlines()
        self._deadline_at_ms: int | None = None
        self._sync_planned = False
        self.commit = GroupCommit(self.clock, self.files)
        self.collection = QueueCollection(self.files, self.clock, config, self.commit, report)
        try:
            self.collection.recover()
        except OSError as error:
            self.files.close(self._held)
            raise SpoolUnusable(path, f"cannot be read: {error}") from error
        self.crowded = self.collection.crowded
        self.upkeep = Upkeep(self.collection, self._work_soon)
        self.succession = Succession(self.collection, self.upkeep)
        with self.lock:
            self.end_turn()
        self.worker.at(self.clock.monotonic_ms + UPKEEP_MS, self._look_after)

    # With the lock held

    def adopt(self, name: str, config: QueueConfig) -> Reader:
        """A queue, made if need be. Raises BadQueueName, JournalCorrupt or JournalFailed."""
        self.clock.read()
        self.configure(name, config)
        reader = self.collection.reader(name)
        self.end_turn(reader.queue)
        return reader

    def adopt_family(self, name: str, config: QueueConfig, archive_path: str | None) -> Queue:
        """A queue with all its readers, made if need be. Raises as `adopt`, and SpoolUnusable for another archive."""
        self.clock.read()
        if archive_path is not None:
            if self.upkeep.archive_path not in (None, archive_path):
                raise SpoolUnusable(self.path, f"archives in {self.upkeep.archive_path} already, not in {archive_path}")
            self.upkeep.archive_path = archive_path
        self.configure(name, config)
        queue = self.succession.family(name)
        self.end_turn(queue)
        return queue

    def configure(self, name: str, config: QueueConfig) -> None:
        known = self.collection.config
        queues = {**known.queues, name: asdict(config)}
        if queues != known.queues:
            self.collection.configure(replace(known, queues=queues))

    def end_turn(self, queue: Queue | None = None) -> Hold | None:
        """Commit what was done. What is returned is to be waited for, without the lock, before telling anybody.

        Raises JournalFailed when nothing was done to `queue` because it could not be written.
        """
        commit = self.commit
        while commit.dirty:
            commit.run()
            if commit.failed:
                self.failed.update(commit.failed)
        if commit.rolling:
            self.upkeep.after_turn()
        if commit.sync_later and not self._sync_planned:
            self._sync_due()
        if self.served:
            self._tell()
        failed, hold = self.failed, None
        if failed:
            self.failed = {}
            if queue in failed:
                raise renewed(failed[queue])
        if queue is not None:
            ticket = queue.ticket
            if ticket is not None and ticket.pending:
                hold = Hold(ticket)
            elif queue in self.collection.crowded and not self.worker.is_current:  # which is what makes room
                hold = Hold(None)
                self.collection.crowded[queue].append(hold.released)
        return hold

    def _tell(self) -> None:
        """Those whose wait is over: at once, or as soon as the commit that ends it is on disk."""
        served = self.served[:]
        self.served.clear()  # and not a new one: those who wait add themselves to this
        for wait in served:
            ticket = wait.queue.ticket if wait.item is not None else None
            if wait.item is not None and wait.queue in self.failed:
                wait.settle(self.failed[wait.queue])
            elif ticket is not None and ticket.pending:
                wait.ticket = ticket
                ticket.holders.append(wait)
            else:
                wait.settle(None)

    # Turns of its own

    def put(self, queue: Queue, data: bytes, expire_at_ms: int, only: Reader | None) -> bool:
        """Add an item, for every reader or for `only` one. False when it is refused."""
        if type(data) is not bytes or expire_at_ms:
            _check(data, expire_at_ms)
        lock = self.lock
        lock.acquire()  # `with` takes twice as long
        try:
            if self.is_over or not queue.readers:
                return False  # closed meanwhile, or deleted
            if not (expire_at_ms or only is not None or self.crowded) and put_alone(queue, data):
                if self.commit.rolling:
                    self.end_turn()
                return True
            self.clock.read()
            stored = queue.put_with(data, expire_at_ms, 0, only)
            hold = self.end_turn(queue)
        finally:
            lock.release()
        if hold is not None:
            hold.result()
        return stored

    def put_all(self, queue: Queue, values: Iterable[bytes], expire_at_ms: int, only: Reader | None) -> int:
        """`put` of items in one write, up to the first that is refused; how many were added."""
        added, values = 0, list(values)
        for data in values:
            _check(data, expire_at_ms)
        with self.lock:
            if self.is_over or not queue.readers:
                return 0
            self.clock.read()
            for data in values:
                if not queue.put_with(data, expire_at_ms, 0, only):
                    break
                added += 1
            hold = self.end_turn(queue)
        if hold is not None:
            hold.result()
        return added

    # With the lock held

    def plan_deadline(self, waiter: Waiter) -> None:
        """Send a waiter away when its time has come."""
        self.deadlines.add(waiter)
        self._plan_deadline()

    def _plan_deadline(self) -> None:
        next_at_ms = self.deadlines.next_at_ms()
        if next_at_ms is not None and (self._deadline_at_ms is None or next_at_ms < self._deadline_at_ms):
            self._deadline_at_ms = next_at_ms
            self.worker.at(next_at_ms, self._deadline_due)

    def _sync_due(self) -> None:
        next_at_ms = self.upkeep.sync_due()
        self._sync_planned = next_at_ms is not None
        if next_at_ms is not None:
            self.worker.at(max(next_at_ms, self.clock.monotonic_ms + 1), self._sync_now)

    # On the worker

    def _deadline_due(self) -> None:
        with self.lock:
            self.clock.read()
            self._deadline_at_ms = None
            self.deadlines.expire(self.clock.monotonic_ms)
            self._plan_deadline()
            self.end_turn()

    def _sync_now(self) -> None:
        with self.lock:
            self.clock.read()
            self._sync_due()
            self.end_turn()

    def _look_after(self) -> None:
        """Once a second: dead segments, compaction, the trash."""
        with self.lock:
            self.clock.read()
            self.upkeep.start_round()
            self.end_turn()
            self.worker.at(self.clock.monotonic_ms + UPKEEP_MS, self._look_after)

    def _work_soon(self) -> None:
        self.worker.soon(self._work)

    def _work(self) -> None:
        with self.lock:
            self.clock.read()
            if self.upkeep.slice(self.clock.stopwatch_us() + SLICE_US):
                self.worker.at(self.clock.monotonic_ms + SLICE_PAUSE_MS, self._work)
            self.end_turn()

    # On a disk thread

    def _from_disk(self, deliver: Work) -> None:
        with self.lock:
            self.clock.read()
            deliver()
            self.end_turn()

    # The end

    def close(self) -> None:
        """Put everything on disk and let the spool go. Nobody uses it any more."""
        with self.lock:
            self.is_over = True
        self._settle_all()
        self.worker.stop()
        self._settle_all()  # what its last calls have done
        self.files.stop()
        with self.lock:
            self.collection.close()
        self.files.close(self._held)

    def _settle_all(self) -> None:
        while (hold := self._last_hold()) is not None:
            hold.exception()  # a commit that fails has been reported

    def _last_hold(self) -> Hold | None:
        with self.lock:
            self.clock.read()
            self.end_turn()
            for queue in self.collection.families.values():
                if queue.ticket is not None and queue.ticket.pending:
                    return Hold(queue.ticket)
        return None


def _check(data: bytes, expire_at_ms: int) -> None:
    """Raise TypeError or ValueError for what cannot be written: the engine relies on it."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"an item is bytes, not {type(data).__name__}")
    if not isinstance(expire_at_ms, int):
        raise TypeError(f"an expiry is an int, ms since the epoch, not {type(expire_at_ms).__name__}")
    if not 0 <= expire_at_ms < 1 << 64:
        raise ValueError(f"an expiry is ms since the epoch, or 0 for never, not {expire_at_ms}")


def renewed(failure: JournalFailed) -> JournalFailed:
    """The same failure, for somebody else to raise."""
    return JournalFailed(failure.path, failure.reason, disk_full=failure.disk_full)


_spools: dict[str, Spool] = {}
_closing: dict[str, Event] = {}  # set once the spool is free
_opening = Lock()


def use(
    path: str, name: str, config: QueueConfig, report: Report, adopt: Callable[[Spool], T], archive_path: str | None
) -> tuple[Spool, T]:
    """The spool at `path`, which is opened if this process does not have it open yet, and what of it is adopted.

    Raises SpoolLocked, SpoolUnusable, BadQueueName, JournalCorrupt or JournalFailed.
    """
    where = FileLayer().real_path(path)
    first = Config(queue_path=where, archive_path=archive_path, queues={name: asdict(config)})
    while (spool := _use_unless_closing(where, first, report)) is None:
        if (closing := _closing.get(where)) is not None:
            closing.wait()
    try:
        with spool.lock:
            return spool, adopt(spool)
    except KestrelError:
        let_go(spool)
        raise


def _use_unless_closing(where: str, config: Config, report: Report) -> Spool | None:
    with _opening:
        if where in _closing:
            return None
        spool = _spools.get(where)
        if spool is None:
            spool = _spools[where] = Spool(where, config, report)
        spool.users += 1
        return spool


def let_go(spool: Spool) -> None:
    """One queue fewer is in use; the spool is closed with the last."""
    with _opening:
        spool.users -= 1
        if spool.users:
            return
        del _spools[spool.path]
        closed = _closing[spool.path] = Event()
    # Not with the lock: the worker's last calls may open other spools.
    spool.close()
    del _closing[spool.path]
    closed.set()
