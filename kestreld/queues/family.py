"""A queue family as its readers see it: its journal, and the records of the next commit.

Of readers this class knows only that notes are about their items: puts are in queue_puts.py, the commit is in queue.py.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.journal.journal import Journal
from kestreld.journal.records import (
    Abort,
    Due,
    FailedItem,
    Key,
    Origin,
    Why,
    abort_record,
    failure_record,
    key_record,
    origin_record,
)
from kestreld.queues.agenda import Agenda
from kestreld.queues.commit import Committed, GroupCommit
from kestreld.queues.notes import Holder, Note, Notes

T = TypeVar("T")
ORIGINS_FEW: Final = 1024
FAILURES_MAX: Final = 1000  # with the texts they are at most 213 kB of each CHECKPOINT
LETTERS_MAX: Final = 10_000  # items moved here whose failure reason is kept


def _none_is_known(family: str) -> str:
    return ""


class Family(Committed):
    """One journal, and the items and notes since the last commit. `journal` is None for a family in memory only."""

    __slots__ = (
        "_again", "_origins_max", "agenda", "commits", "control", "failures", "followers", "in_memory",
        "letters", "mover", "next_id", "notes", "origins", "pending", "remedy", "undone_from",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        journal: Journal | None,
        clock: Clock,
        commit: GroupCommit,
        report: Callable[[str], None],
        mover: "Callable[[str, bytes, int, Origin | None], Family | None]",
        agenda: Agenda,
    ) -> None:
        super().__init__(name, journal, clock, commit, report)
        self.in_memory = journal is None
        self.agenda = agenda
        self.remedy: Callable[[str], str] = _none_is_known  # the command that reopens a family, by its name
        self.mover = mover  # puts an item on the named queue; returns it, or None if refused

        self.next_id = 1
        self.undone_from = 0  # the lowest id that a failed commit has taken back since `watch_undone`
        self.control: list[bytes] = []  # READER, ABORT and FAILURE records, and streams' DONEs, since the last commit
        self.pending: list[bytes] = []  # PUT records since the last commit
        self.notes = Notes()  # records written before them, or about earlier items
        self.origins: dict[int, Origin] = {}  # of items that were moved here
        self.letters = deque[int]()  # ids of `origins` with a failure reason, oldest first
        self.failures: dict[FailedItem, str] = {}  # last failure reasons of items that may be waiting
        self._origins_max = ORIGINS_FEW  # with more origins, those of items that are done are dropped
        self.commits = 0  # number of commits since startup
        self.followers: list[Callable[[], None]] = []  # called when items have settled, or none will any more
        self._again: Callable[[], object] | None = None  # an act under way that must be done as a whole

    def reattach(self) -> None:
        """Rebuild the set of windows that puts append to, and check the space again at the next put."""
        raise NotImplementedError

    def stop(self, problem: JournalCorrupt) -> None:
        """Stop this queue: its journal cannot be trusted. It answers with an error; other queues are not affected."""
        raise NotImplementedError

    # The journal

    def append_at_once(self, record: bytes, next_id: int) -> bool:
        """Write a commit of one record. False, with nothing done, if it needs a whole turn. Raises JournalFailed."""
        journal = self.journal
        if journal is None or self.dirty or self.sync_ms is not None:
            return False
        try:
            used_bytes = journal.append(record, next_id)
        except JournalFailed as failure:
            self.review_next_put()
            self.report(f"{self.name}: {failure}")
            raise
        if not used_bytes:
            return False
        self.commits += 1
        if used_bytes >= self.segment_bytes_max and self.wants_segment(journal):
            self.commit_group.rolling.append(self)
        return True

    def go_on(self) -> None:
        """Leave a failed segment: begin a new one that has the whole state. Raises JournalFailed."""
        assert self.journal is not None
        self.commit()  # takes since the failure are in memory only, and get into the CHECKPOINT
        self.commit_group.sync_live(self)
        self.start_segment(self.journal, self.checkpoint())

    def use_version(self, version: int) -> None:
        """Have the journal in a version that has DUE records (2) or FAILURE records (3), before one is promised.

        Raises JournalFailed, and JournalCorrupt if the queue has stopped.
        """
        journal = self.journal
        if journal is None or journal.live_version >= version:
            return
        journal.need_version(version)
        if journal.segments:
            try:
                self.commit_group.settle(self)
                self.commit_group.sync_live(self)
                if journal.live_version < version:  # leases may have begun one
                    self.start_segment(journal, self.checkpoint())
            except JournalFailed as failure:
                self.review_next_put()
                self.report(f"{self.name}: {failure}")
                raise

    def expect_failures(self) -> None:
        """Have the journal in a version with FAILURE records, or its next segment if the disk accepts none now.

        Raises JournalCorrupt if the queue has stopped.
        """
        journal = self.journal
        if journal is not None and journal.live_version < 3:
            journal.need_version(3)
            if journal.failed is None:  # else each failure would try, and be logged
                with suppress(JournalFailed):
                    self.use_version(3)

    def leave_journal(self) -> None:
        """Write nothing more: the journal was deleted or closed."""
        self.pending, self.control = [], []
        self.notes.clear()
        self.journal = None

    def reopen_by(self, remedy: Callable[[str], str]) -> None:
        """Set the command, a function of the family's name, that reopens it once it is stopped."""
        self.remedy = remedy

    def stay_stopped(self, problem: JournalCorrupt) -> None:
        """Mark the family as stopped by this problem."""
        problem.remedy = self.remedy(self.name)
        self.stopped = problem

    # Records for the next commit

    def note_due(
        self,
        readers: Sequence[Holder],
        number: int,
        one: int,
        due_at_ms: int,
        size: int,
        why: Why,
        attempts: int = 0,
        lease: int = 0,
        *,
        is_first: bool = True,
    ) -> None:
        """Have the next commit say when an item is due to the reader of that number, or to all (0)."""
        if self.journal is None:
            return
        now_ms = self.clock.wall_ms
        due_wall_ms = max(now_ms + due_at_ms - self.clock.monotonic_ms, 0)
        due = Due(number, why, one, now_ms, due_wall_ms, size, attempts, lease)
        self.mark_dirty()
        self.notes.add_due(Note(readers, due, due_at_ms, is_first=is_first))
        if self.journal.live_version < 2:
            self.journal.need_version(2)
            self.want_segment(wanted=True)
            if attempts and number:  # the record waits for that segment, and a crash may come before
                self.note_abort(number, one, attempts)

    def note_key(self, reader: Holder, digest: bytes, one: int, left_ms: int) -> None:
        """Have the commit of a put say its item's key. `use_version` comes before the put."""
        if self.journal is not None:
            now_ms = self.clock.wall_ms
            record = key_record(Key(reader.number, one, now_ms, now_ms + left_ms, digest))
            self.notes.add_of_put(one, record)

    def note_origin(self, one: int, origin: Origin) -> None:
        """Have the commit of a put say where its item comes from. `use_version` comes before the put."""
        self.origins[one] = replace(origin, item_id=one)
        if self.journal is not None:
            self.notes.add_of_put(one, origin_record(self.origins[one]))
        if origin.failure:
            self.letters.append(one)
            if len(self.letters) > LETTERS_MAX:
                self._forget_letter(self.letters.popleft())
        if len(self.origins) > self._origins_max:
            self.forget_origins()

    def forget_origins(self) -> None:
        """Keep only the origins of items that may be waiting."""
        head = self.lowest_head()
        self.origins = {one: origin for one, origin in self.origins.items() if one >= head}
        self._origins_max = 2 * len(self.origins) + ORIGINS_FEW
        self.letters = deque([one for one, origin in self.origins.items() if origin.failure])
        while len(self.letters) > LETTERS_MAX:
            self._forget_letter(self.letters.popleft())

    def _forget_letter(self, one: int) -> None:
        if (origin := self.origins.get(one)) is not None:
            self.origins[one] = replace(origin, failure="")

    def lowest_origin(self) -> int:
        """Lowest id of an item that was moved here and may be waiting; 0 = there is none."""
        if not self.origins:
            return 0
        head, gone, lowest = self.lowest_head(), 0, 0
        for one in self.origins:
            if one >= head:
                lowest = one
                break
            gone += 1
        if gone > len(self.origins) // 2:
            self.forget_origins()  # many at once: a dictionary is slow to find its first entry behind deleted ones
        return lowest

    def note_failure(self, number: int, one: int, text: str) -> None:
        """Have the next commit say why an item failed for the reader of that number.

        `expect_failures` comes before. If the disk has refused that segment, the next CHECKPOINT says it.
        """
        self.failures.pop((number, one), None)
        self.failures[number, one] = text
        if len(self.failures) > FAILURES_MAX:
            self.forget_failures()
        self.mark_dirty()
        if self.journal is not None and self.journal.live_version >= 3:
            self.control.append(failure_record((number, one), text))

    def forget_failures(self) -> None:
        """Keep only the reasons of items that are not done, and the latest if there are too many."""
        raise NotImplementedError

    def failure_of(self, number: int, one: int) -> str:
        """Reason of an item's last failure, here or where it was moved from; "" = none was given."""
        if failure := self.failures.get((number, one)):
            return failure
        origin = self.origins.get(one)
        return "" if origin is None else origin.failure

    def note_abort(self, reader: int, aborted: int, times: int) -> None:
        """Have the next commit say how often an item has failed for the reader of that number."""
        self.mark_dirty()
        self.control.append(abort_record(Abort(reader, self.clock.wall_ms, aborted, times)))

    def note_move(self) -> None:
        """Record that an item is about to leave a reader for another queue."""
        self.mark_dirty()
        self.moving = True

    # Pending and in flight

    def first_id(self) -> int:
        """Lowest id that can still be read back; next_id if there is none."""
        if self.journal is None or not self.journal.segments:
            return self.next_id
        return self.journal.segments[0].first_id

    def settled_id(self) -> int:
        """Ids below this one can no longer be undone, so they are never given to another item."""
        return self.next_id - len(self.pending) - len(self.sync.in_flight)

    def is_landing(self, puts: list[bytes]) -> bool:
        """True if the PUT records that were `pending` are not written yet, or not on disk if replies wait for that."""
        is_in_flight = self.sync.in_flight is puts and self.sync.syncing_commit is not None
        return self.pending is puts or is_in_flight

    def watch_undone(self, end_id: int) -> None:
        """Have `undone_from` become the lowest id below `end_id` that is undone."""
        self.undone_from = end_id

    def _undo_from(self, first_id: int) -> None:
        """Undo the puts of items from `first_id` on."""
        self.pending = []
        self.next_id = first_id
        self.undone_from = min(self.undone_from, first_id)
        self.notes.undo_from(first_id)
        self.origins = {one: origin for one, origin in self.origins.items() if one < first_id}
        self.failures = {failed: text for failed, text in self.failures.items() if failed[1] < first_id}

    def tell_followers(self) -> None:
        """Call the followers: there may be more to read back, or nothing any more."""
        followers, self.followers = self.followers, []
        for tell in followers:
            tell()

    def do_whole(self, act: Callable[[], T]) -> T:
        """Do something that must not stay half done: without a journal, an interruption repeats it from its start."""
        if self.in_memory:
            self._again = act
        made = act()
        self._again = None
        return made


def full_name(family: str, label: str) -> str:
    """A reader's name for clients: the family's name, or with the child's label."""
    return f"{family}+{label}" if label else family
