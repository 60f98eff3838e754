"""Bugs to plant in the daemon, one at a time, to see that a run finds them: a harness that finds none proves nothing.

Each replaces a method or a call of the disk for as long as the `with` block lasts.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final
from unittest.mock import patch

from kestreld.errors import JournalFailed
from kestreld.journal import records, recovery
from kestreld.journal.compaction import Compaction
from kestreld.journal.journal import Journal
from kestreld.journal.ledger import Changes, Ledger
from kestreld.journal.ledger import Done as LedgerDone
from kestreld.journal.reader_states import ReaderStates
from kestreld.journal.records import Checkpoint, Done, Due, ReaderState, Why
from kestreld.queues import leases, live
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit, PendingCommit, SyncState
from kestreld.queues.dead_segments import DeadSegments
from kestreld.queues.declared import Declarations
from kestreld.queues.held import Held
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.presence import Presence, Present
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.slices import Work
from kestreld.server.memcache.handler import Handler
from kestreld.server.memcache.lists import QueueList
from kestreld.server.turn import Turn
from tests.simulation.process_files import ProcessFiles

# Compiled modules call their own methods directly: what replaces one there is never called.
CAN_BE_PLANTED: Final = str(recovery.__file__).endswith(".py") and str(records.__file__).endswith(".py")
WHY_NOT: Final = "bugs cannot be planted in compiled modules"


def no_sync() -> AbstractContextManager[Any]:
    """A sync of a file does nothing."""

    def sync(self: ProcessFiles, fd: int) -> None:
        self._call("sync", self.open[fd][1])

    return patch.object(ProcessFiles, "sync", sync)


def no_folder_sync() -> AbstractContextManager[Any]:
    """A sync of a folder does nothing: what was made in it is lost in a power cut."""

    def sync_dir(self: ProcessFiles, path: str) -> None:
        self._call("sync_dir", path)

    return patch.object(ProcessFiles, "sync_dir", sync_dir)


def failures_told_late() -> AbstractContextManager[Any]:
    """Who waited for a sync within a turn goes on before it is known what of that turn has failed."""
    run = GroupCommit.run

    def early(self: GroupCommit) -> None:
        run(self)
        self.tell()

    return patch.object(GroupCommit, "run", early)


def answer_before_write() -> AbstractContextManager[Any]:
    """The answers of a turn leave before its commit is written."""
    finish = Turn.finish

    def hasty(self: Turn) -> None:
        outgoing, self.outgoing = self.outgoing, []
        for session in outgoing:
            session.flush()
        finish(self)

    return patch.object(Turn, "finish", hasty)


def open_item_lost_at_disconnect() -> AbstractContextManager[Any]:
    """What a client held when it left goes back to nobody."""
    disconnect = Handler.disconnect

    def forgetful(self: Handler) -> None:
        self.open_reads = []
        disconnect(self)

    return patch.object(Handler, "disconnect", forgetful)


@contextmanager
def write_after_a_failed_write() -> Iterator[None]:
    """The file is not cut back and appended to again, as if the write had not failed."""

    def fail(self: Journal, error: OSError, doing: str) -> JournalFailed:
        return JournalFailed(self.folder, doing)

    def cut_back(self: Journal, start: int) -> None:
        self.live.used_bytes = self.files.size_bytes(self.live.path)

    with patch.object(Journal, "_fail", fail), patch.object(Journal, "_cut_back", cut_back):
        yield


def half_a_fanout() -> AbstractContextManager[Any]:
    """A put goes to the first reader that follows the journal, not to all of them."""
    reattach = Queue.reattach

    def only_one(self: Queue) -> None:
        reattach(self)
        self.windows = self.windows[:1]

    return patch.object(Queue, "reattach", only_one)


class AnyChecksum(int):
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __and__(self, other: int) -> "AnyChecksum":
        return self

    __hash__ = int.__hash__


@contextmanager
def no_checksums() -> Iterator[None]:
    """What stands in a journal is believed."""

    def any_checksum(*arguments: object) -> int:
        return AnyChecksum()

    with patch.object(recovery, "put_checksum", any_checksum), patch.object(records, "put_checksum", any_checksum):
        yield


def compacted_segment_not_synced() -> AbstractContextManager[Any]:
    """A compacted segment takes the place of what is on disk without being there itself."""
    return patch.object(Compaction, "sync", lambda self: None)


def compaction_unlinks_first() -> AbstractContextManager[Any]:
    """The segments that a compaction replaces go before the new one is in its place."""
    put_in_place = Compaction.put_in_place

    def hasty(self: Compaction) -> None:
        for segment in self._journal.segments:
            if segment.number in self.replaced and self._files.exists(segment.path):
                self._files.unlink(segment.path)
        put_in_place(self)

    return patch.object(Compaction, "put_in_place", hasty)


def flush_of_open_items() -> AbstractContextManager[Any]:
    """A flush is written down as if nobody had any of the items open."""
    flush = Reader.flush

    def careless(self: Reader, now_ms: int) -> int:
        held, self.open = self.open, {}
        try:
            return flush(self, now_ms)
        finally:
            self.open = held

    return patch.object(Reader, "flush", careless)


def retries_lost_by_a_roll() -> AbstractContextManager[Any]:
    """A new segment does not say how often items have come back."""
    state = Reader.state

    def forgetful(self: Reader) -> ReaderState:
        known = state(self)
        known.retries = {}
        return known

    return patch.object(Reader, "state", forgetful)


def reasons_lost_by_a_roll() -> AbstractContextManager[Any]:
    """A new segment, and so a compacted one, does not say why items have failed."""
    checkpoint = Queue.checkpoint

    def forgetful(self: Queue) -> Checkpoint:
        known = checkpoint(self)
        known.failures = {}
        return known

    return patch.object(Queue, "checkpoint", forgetful)


def marker_leads() -> AbstractContextManager[Any]:
    """The marker names a segment before that is on disk."""
    start_segment = Journal.start_segment

    def hasty(self: Journal, checkpoint: Checkpoint, skip: int = 0, filled: int = -1) -> None:
        start_segment(self, checkpoint, skip, filled)
        if "/.tmp/" in self.folder:
            return  # a repair puts its own there
        on_disk, self.synced_number = self.synced_number, self.live.number
        with suppress(OSError):
            self.mark(self.segments[0].first_id)
        self.synced_number = on_disk

    return patch.object(Journal, "start_segment", hasty)


def floor_not_synced() -> AbstractContextManager[Any]:
    """Segments go before it is on disk that nobody needs them."""

    def hasty(self: DeadSegments, queue: Queue, journal: Journal, floor: int) -> Generator[int | None, None, bool]:
        if journal.marker is not None:
            with suppress(OSError):
                journal.mark(floor)
        yield from ()
        return True

    return patch.object(DeadSegments, "_raise_floor", hasty)


def flush_of_leased_items() -> AbstractContextManager[Any]:
    """A flush is written down as if nobody had leased any of the items."""
    flush = Reader.flush

    def careless(self: Reader, now_ms: int) -> int:
        opened, self.open = self.open, {one: record for one, record in self.open.items() if not self.is_leased(one)}
        try:
            return flush(self, now_ms)
        finally:
            self.open = opened

    return patch.object(Reader, "flush", careless)


def flush_leaves_delayed_items() -> AbstractContextManager[Any]:
    """A flush drops what waits, and not what is not due yet."""
    drop_waiting = Held.drop_waiting

    def half(self: Held, kept: Collection[int] = ()) -> None:
        later = [(one, value) for part in self.later.parts() for one, value in part.items()]
        drop_waiting(self, kept)
        for one, value in later:
            record = self.record_of(value) if self.is_in_memory(value) else None
            self.hold(one, record, self.size_of(value), self.due_of(value))

    return patch.object(Held, "drop_waiting", half)


def due_times_lost_by_a_compaction() -> AbstractContextManager[Any]:
    """A compacted segment has the items, and not when they are due."""
    return patch.object(live, "due_records", lambda queue, version, found, record: b"")


def held_items_missed_by_a_compaction() -> AbstractContextManager[Any]:
    """A compacted segment has not every item that is held back."""
    held_back = live._held_back
    return patch.object(
        live, "_held_back", lambda *given: (part for part in held_back(*given) if not part.items or part.first_id % 5)
    )


def held_items_copied_forever() -> AbstractContextManager[Any]:
    """What a compacted segment said of an item, the next one says again, whatever has become of it."""
    return patch.object(Held, "is_as_noted", lambda self, one, due_at_ms, has_failed: True)


def dead_letters_lost_on_their_way_back() -> AbstractContextManager[Any]:
    """What is sent back to where it came from does not get there."""

    def send_on(self: Reader, one: int, destination: str) -> bool:
        record = self.pull_out(one)
        if record is not None:
            self.close(one)
        return True

    return patch.object(Reader, "send_on", send_on)


def keys_forgotten_by_a_roll() -> AbstractContextManager[Any]:
    """What only a key needs goes with the other segments that nobody does."""

    def forgetful(self: Reader) -> int:
        return 0 if self.held is None else self.held.lowest()

    return patch.object(Reader, "held_from", forgetful)


def old_tokens_are_good() -> AbstractContextManager[Any]:
    """Who had leased an item before can end the lease of whoever has it now."""
    find = leases._find

    def lenient(reader: Reader, token: int) -> leases._Found | None:
        one, held = token >> leases._LOW_BITS, reader.held
        leased = held.leases.get(one) if held is not None else None
        if leased is not None and one in reader.open and leased.attempt >= 0:
            return leases._Found(one, is_leased=True)
        return find(reader, token)

    return patch.object(leases, "_find", lenient)


def late_failures_are_counted() -> AbstractContextManager[Any]:
    """Whoever says that it has failed when its lease is over is believed once more."""
    fail = leases.fail

    def counting(reader: Reader, token: int, now_ms: int, failure: str = "") -> bool:
        found = leases._find(reader, token)
        if found is None or found.is_leased or not leases._take_up(reader, found._replace(is_counted=False), token):
            return fail(reader, token, now_ms, failure)
        reader.fail(found.item, now_ms, failure)
        return True

    return patch.object(leases, "fail", counting)


def late_tokens_move_due_times() -> AbstractContextManager[Any]:
    """What is given back when its lease is over waits from then on, be it for its retry."""
    give_back = leases.give_back

    def late(reader: Reader, token: int, now_ms: int, delay_ms: int = 0) -> bool:
        found = leases._find(reader, token)
        if found is None or found.is_leased or not leases._take_up(reader, found, token):
            return give_back(reader, token, now_ms, delay_ms)
        reader.give_back(found.item, now_ms, delay_ms)
        return True

    return patch.object(leases, "give_back", late)


def made_up_tokens_are_good() -> AbstractContextManager[Any]:
    """A token is believed whatever its digest is, where no lease of its item is known."""
    find = leases._find

    def gullible(reader: Reader, token: int) -> leases._Found | None:
        found, one = find(reader, token), leases._newest(leases.item_of(token), reader.queue.next_id - 1)
        if found is not None or one < 1 or one in reader.open or reader.held_items().last_attempt(one) >= 0:
            return found
        return leases._Found(one, is_leased=False)

    return patch.object(leases, "_find", gullible)


def tokens_outlive_lost_items() -> AbstractContextManager[Any]:
    """A token is good for any item with its id, also where a power cut took the one it was given for."""
    return patch.object(leases, "_stamp", lambda record: 0)


def leases_end_at_a_stop() -> AbstractContextManager[Any]:
    """A server that stops does not write down who has leased what."""
    return patch.object(Queue, "note_leases", lambda self: None)


def leases_end_at_a_kill() -> AbstractContextManager[Any]:
    """Who has leased what is only in memory while it runs."""
    return patch.object(Reader, "add_lease_records", lambda self, parts, before_id, holders: None)


def extensions_end_at_a_kill() -> AbstractContextManager[Any]:
    """The journal says until when an item was leased first, and not that this was extended."""
    extend = Held.extend

    def forgetful(self: Held, one: int, ends_at_ms: int) -> None:
        extend(self, one, ends_at_ms)
        self.unwritten_leases.pop(one, None)

    return patch.object(Held, "extend", forgetful)


def leases_lost_by_a_compaction() -> AbstractContextManager[Any]:
    """A compacted segment has the leased items, and not that they are leased."""
    noted_due = Held.noted_due
    return patch.object(Held, "noted_due", lambda self, one: None if self.is_leased(one) else noted_due(self, one))


def segments_begun_over_others() -> AbstractContextManager[Any]:
    """A synced queue begins a segment while the one before may not be on disk."""
    return patch.object(Journal, "may_lose_live", False)


def leases_behind_a_roll() -> AbstractContextManager[Any]:
    """Leases are written behind a commit whose sync is followed by a new segment, and not synced with it."""
    begin = SyncState.begin

    def hasty(self: SyncState, commit: PendingCommit, lowest_head: int, *, rolls: bool) -> None:
        begin(self, commit, lowest_head, rolls=False)

    return patch.object(SyncState, "begin", hasty)


def undone_leases_believed() -> AbstractContextManager[Any]:
    """A LEASE record that a failed sync has undone is taken for gone: that the lease has ended is not said."""
    undo = Held.undo_written_leases

    def trusting(self: Held) -> None:
        undo(self)
        self.doubtful = set()

    return patch.object(Held, "undo_written_leases", trusting)


def leases_missed_by_a_start() -> AbstractContextManager[Any]:
    """A start looks for what is held back from the first on that is not leased."""
    lowest = Held.lowest

    def unaware(self: Held) -> int:
        leased, self.leases = self.leases, {}
        try:
            return lowest(self)
        finally:
            self.leases = leased

    return patch.object(Held, "lowest", unaware)


@contextmanager
def lease_grace_counts_from_the_stop() -> Iterator[None]:
    """A lease lasts as long as it should after a start, counted from when the journal was written last."""
    restore = Reader._restore_leases

    def hasty(self: Reader, held: Held, found: list[tuple[int, Due, int]], least_ms: int) -> None:
        down_ms = self.queue.clock.wall_ms - max(known.at_ms for _, known, _ in found)
        restore(self, held, found, max(least_ms - down_ms, 0))

    with patch.object(Reader, "_restore_leases", hasty), patch.object(QueueCollection, "serve", lambda self: None):
        yield


def confirmed_items_are_leased_again() -> AbstractContextManager[Any]:
    """At a start a leased item is leased, be it confirmed."""
    end = ReaderStates.end

    def deaf(self: ReaderStates, done: Done) -> None:
        known = self.due.get(done.reader, {})
        leased = {one: due for one, due in known.items() if due.why == Why.LEASED}
        end(self, done)
        known.update(leased)

    return patch.object(ReaderStates, "end", deaf)


def full_disks_are_full_for_ever() -> AbstractContextManager[Any]:
    """Nothing but a put finds out whether a disk has room again."""

    def hopeless(self: Maintenance, full: list[Queue]) -> Work:
        yield from ()

    return patch.object(Maintenance, "_try_full_disk", hopeless)


def reading_is_not_noticed() -> AbstractContextManager[Any]:
    """A queue goes after its time, be it read."""
    return patch.object(Reader, "was_read", lambda self: False)


def declarations_are_not_written() -> AbstractContextManager[Any]:
    """What is declared is answered for before it is on disk, where it never gets."""
    return patch.object(Declarations, "write", lambda self, name, done: done(None))


def stop_syncs_nothing() -> AbstractContextManager[Any]:
    """The sync of the whole file system does nothing: a stop seals what is not on disk."""
    return patch.object(ProcessFiles, "sync_file_system", lambda self, fd: self._call("sync", "the file system"))


def bindings_answered_early() -> AbstractContextManager[Any]:
    """Bindings are shown and answered before they are on disk."""
    change = Ledger.change

    def hasty(self: Ledger, changes: Changes, done: LedgerDone) -> None:
        change(self, changes, lambda failure: None)
        done(None)

    return patch.object(Ledger, "change", hasty)


def doubtful_ledgers_are_appended_to() -> AbstractContextManager[Any]:
    """After a failed write or sync a ledger goes on in the same file."""
    note_failure = Ledger._note_failure

    def careless(self: Ledger, error: OSError) -> JournalFailed:
        failure = note_failure(self, error)
        self.doubt = ""
        return failure

    return patch.object(Ledger, "_note_failure", careless)


def ledgers_are_believed_after_a_kill() -> AbstractContextManager[Any]:
    """A start takes what it reads for what is on disk."""

    def trusting(self: Ledger) -> None:
        self.doubt = ""

    return patch.object(Ledger, "_write_anew_now", trusting)


def lists_wait_at_their_first_queue() -> AbstractContextManager[Any]:
    """Who waits for an item of a list of queues is not told of one that comes to any but the first."""
    await_lease = Handler._await_lease
    return patch.object(
        Handler, "_await_lease", lambda self, command, reader, *others: await_lease(self, command, reader)
    )


def lists_take_no_turns() -> AbstractContextManager[Any]:
    """The queue that an item was leased from last is the first again."""
    return patch.object(QueueList, "after", lambda self, name: None)


def deliveries_forgotten_by_a_start() -> AbstractContextManager[Any]:
    """The numbers of an item's attempts go on after a start, and how often it was delivered does not."""
    go_on_from = Held.go_on_from

    def forgetful(self: Held, one: int, attempt: int, deliveries: int, *, is_over: bool) -> None:
        go_on_from(self, one, attempt, -is_over, is_over=is_over)

    return patch.object(Held, "go_on_from", forgetful)


def parents_do_not_pass_on() -> AbstractContextManager[Any]:
    """The journal does not say that a `fanout_only` parent is done with what is put."""
    return patch.object(Queue, "_passed_on", lambda self, feeder, first_new_id, now_ms: b"")


def one_connection_counts() -> AbstractContextManager[Any]:
    """A holder is gone once any of its connections has closed."""
    leave = Presence.leave

    def hasty(self: Presence, present: Present) -> None:
        self._connections[present.name] = 1
        leave(self, present)
        self._connections.setdefault(present.name, 1)

    return patch.object(Presence, "leave", hasty)


def absences_are_not_forgotten() -> AbstractContextManager[Any]:
    """Who has come back in time is taken for absent all the same."""
    enter = Presence.enter

    def stubborn(self: Presence, present: Present) -> None:
        absence = self._absent.get(present.name)
        enter(self, present)
        if absence is not None:
            self._absent[present.name] = absence

    return patch.object(Presence, "enter", stubborn)


BUGS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "no-sync": no_sync,
    "no-folder-sync": no_folder_sync,
    "answer-before-write": answer_before_write,
    "open-item-lost": open_item_lost_at_disconnect,
    "write-after-failure": write_after_a_failed_write,
    "half-a-fanout": half_a_fanout,
    "no-checksums": no_checksums,
    "unlink-first": compaction_unlinks_first,
    "compacted-unsynced": compacted_segment_not_synced,
    "open-item-flushed": flush_of_open_items,
    "retries-forgotten": retries_lost_by_a_roll,
    "marker-leads": marker_leads,
    "floor-unsynced": floor_not_synced,
    "stop-unsynced": stop_syncs_nothing,
    "segment-over-unsynced": segments_begun_over_others,
    "lease-behind-roll": leases_behind_a_roll,
    "failures-told-late": failures_told_late,
    "room-not-noticed": full_disks_are_full_for_ever,
    "leased-item-flushed": flush_of_leased_items,
    "delayed-item-not-flushed": flush_leaves_delayed_items,
    "due-time-not-compacted": due_times_lost_by_a_compaction,
    "held-item-not-compacted": held_items_missed_by_a_compaction,
    "held-item-copied": held_items_copied_forever,
    "dead-letter-lost": dead_letters_lost_on_their_way_back,
    "key-forgotten": keys_forgotten_by_a_roll,
    "old-token-good": old_tokens_are_good,
    "late-failure-counted": late_failures_are_counted,
    "late-token-moves": late_tokens_move_due_times,
    "made-up-token-good": made_up_tokens_are_good,
    "lost-item-token-good": tokens_outlive_lost_items,
    "leases-end-at-stop": leases_end_at_a_stop,
    "reasons-forgotten": reasons_lost_by_a_roll,
    "lease-not-written": leases_end_at_a_kill,
    "extension-not-written": extensions_end_at_a_kill,
    "lease-not-compacted": leases_lost_by_a_compaction,
    "lease-missed-by-start": leases_missed_by_a_start,
    "undone-lease-believed": undone_leases_believed,
    "confirmed-item-leased": confirmed_items_are_leased_again,
    "binding-answered-early": bindings_answered_early,
    "doubtful-ledger-kept": doubtful_ledgers_are_appended_to,
    "ledger-believed": ledgers_are_believed_after_a_kill,
    "grace-from-stop": lease_grace_counts_from_the_stop,
    "reading-not-noticed": reading_is_not_noticed,
    "declaration-not-written": declarations_are_not_written,
    "list-waits-at-first": lists_wait_at_their_first_queue,
    "list-takes-no-turns": lists_take_no_turns,
    "deliveries-forgotten": deliveries_forgotten_by_a_start,
    "feed-not-passed-on": parents_do_not_pass_on,
    "presence-of-one": one_connection_counts,
    "absence-not-forgotten": absences_are_not_forgotten,
}

# The first seed that sees each: once the plan draws otherwise, the long test of test_planted.py prints another.
SEEN_BY: Final = {
    "no-sync": 0,
    "no-folder-sync": 1,
    "answer-before-write": 5,
    "open-item-lost": 2,
    "write-after-failure": 92,
    "half-a-fanout": 1,
    "no-checksums": 20,
    "unlink-first": 7,
    "compacted-unsynced": 12,
    "open-item-flushed": 294,
    "retries-forgotten": 485,
    "marker-leads": 0,
    "room-not-noticed": 83,
    "leased-item-flushed": 10_000_496,
    "delayed-item-not-flushed": 10_000_008,
    "due-time-not-compacted": 10_000_000,
    "held-item-not-compacted": 10_000_005,
    "dead-letter-lost": 10_000_803,
    "held-item-copied": 10_000_005,
    "key-forgotten": 10_000_121,
    "old-token-good": 10_000_000,
    "late-failure-counted": 10_000_193,
    "late-token-moves": 10_000_109,
    "made-up-token-good": 10_000_005,
    "leases-end-at-stop": 10_000_026,
    "reasons-forgotten": 20_000_016,
    "lease-not-written": 20_000_000,
    "extension-not-written": 20_000_205,
    "lease-not-compacted": 20_000_044,
    "confirmed-item-leased": 20_000_000,
    "lease-missed-by-start": 20_000_023,
    "binding-answered-early": 1_000_000_000,
    "doubtful-ledger-kept": 1_000_000_013,
    "ledger-believed": 1_000_000_028,
    "grace-from-stop": 20_000_009,
    "reading-not-noticed": 30_000_001,
    "declaration-not-written": 30_000_000,
    "list-waits-at-first": 1_500_000_043,
    "list-takes-no-turns": 1_500_000_001,
    "deliveries-forgotten": 1_500_000_068,
    "feed-not-passed-on": 1_500_000_010,
    "presence-of-one": 2_000_000_010,
    "absence-not-forgotten": 2_000_000_004,
    "failures-told-late": 2_022_541_110,
}
