"""Shutdown of a collection: every journal is synced, sealed and closed.

One sync of the file system covers all journals of the spool, however many there are. Journals for which there is no
time left stay as a kill would leave them.
"""

from collections.abc import Callable, Iterable

from kestreld.clock import Clock
from kestreld.errors import JournalFailed
from kestreld.files import FileLayer
from kestreld.journal.journal import Journal
from kestreld.queues.queue import Queue

Leaving = list[tuple[Queue, Journal]]


class Closing:
    """Syncs and seals journals until the stopwatch says `until_us`; None = no time limit.

    `fd` is on the spool's file system and was opened before anything was written, so that every write-back error since
    then is reported to it, even if another descriptor has reported it already. Without it each journal is synced
    separately.
    """

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        mark: Callable[[Queue, Journal], None],
        report: Callable[[str], None],
        fd: int | None,
        until_us: int | None,
    ) -> None:
        self.left = 0  # journals not sealed for lack of time
        self._files = files
        self._clock = clock
        self._mark = mark
        self._report = report
        self._fd = fd
        self._until_us = until_us

    def close(self, queues: Iterable[Queue]) -> None:
        """Sync, seal and close every journal, those of synced queues first."""
        leaving = [(queue, journal) for queue in queues if (journal := queue.journal) is not None and journal.segments]
        leaving.sort(key=lambda one: one[0].sync_ms is None)
        for _, journal in leaving:
            if journal.sync_untold:
                journal.tell_of_sync()
        sound = [one for one in leaving if one[1].failed is None]
        waiting = [one for one in sound if _is_unsynced(one[1])]
        self._seal([one for one in sound if not _is_unsynced(one[1])])
        separately: Leaving = []
        together: Leaving = []
        for one in waiting:
            if self._is_covered(one[1]):
                together.append(one)
            elif not one[1].syncing:
                separately.append(one)
            else:
                # The sync of its full segments has not ended, and `journal.sync` does not cover them.
                self.left += 1
        if len(together) == 1 and not together[0][1].syncing:
            separately, together = [*together, *separately], []  # its own sync waits for no other writes
        if together:
            self._sync_together(together, [one for one in sound if _is_unsynced(one[1])])
        self._sync_separately(separately)
        if self.left:
            self._report(
                f"stopping: time limit reached, {self.left} of {len(leaving)} journals not synced"
                " and sealed; they will be recovered as after a crash"
            )
        for _, journal in leaving if not self._is_late else ():  # if late: the end of the process closes them sooner
            journal.close()

    def _is_covered(self, journal: Journal) -> bool:
        try:
            return self._fd is not None and self._files.is_covered(journal.live.path, self._fd)
        except OSError:
            return False  # removed by hand: its own sync reports that

    @property
    def _is_late(self) -> bool:
        return self._until_us is not None and self._clock.stopwatch_us() >= self._until_us

    def _sync_together(self, journals: Leaving, written: Leaving) -> None:
        """Sync the file system for `journals`. `written` are all journals that the sync covers, sealed or not."""
        assert self._fd is not None
        fd, started_us = self._fd, self._clock.stopwatch_us()
        within_us = None if self._until_us is None else max(self._until_us - started_us, 0)
        try:
            if not self._files.in_time(lambda: self._files.sync_file_system(fd), within_us):
                self.left += len(journals)
                return
        except OSError as error:
            self._report(
                f"stopping: sync of the file system failed: {error.strerror}; no journal is sealed, and each"
                " will continue in a new segment"
            )
            for _, journal in written:  # all of them, late or not: the next process must not rely on any
                journal.sync_failed(error)
            return
        for _, journal in journals:
            journal.synced_with_all(started_us)
        self._seal(journals)

    def _sync_separately(self, journals: Leaving) -> None:
        for at, (queue, journal) in enumerate(journals):
            if self._is_late:
                self.left += len(journals) - at
                return
            try:
                journal.sync()
                self._mark(queue, journal)
                journal.seal(queue.next_id)
            except JournalFailed as failure:
                self._report(f"{queue.name}: {failure}")

    def _seal(self, journals: Leaving) -> None:
        for at, (queue, journal) in enumerate(journals):
            if self._is_late:
                self.left += sum(journal.written_to for _, journal in journals[at:])
                return
            self._mark(queue, journal)
            try:
                journal.seal(queue.next_id)
            except JournalFailed as failure:
                self._report(f"{queue.name}: {failure}")


def _is_unsynced(journal: Journal) -> bool:
    """True if part of the journal may not be on disk yet."""
    return journal.unsynced or journal.syncing
