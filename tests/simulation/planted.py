"""Bugs to plant in the daemon, one at a time, to see that a run finds them: a harness that finds none proves nothing.

Each replaces a method or a call of the disk for as long as the `with` block lasts.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final
from unittest.mock import patch

from kestreld.errors import JournalFailed
from kestreld.journal import records, recovery
from kestreld.journal.compaction import Compaction
from kestreld.journal.journal import Journal
from kestreld.journal.records import Checkpoint, ReaderState
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.retirement import Retirement
from kestreld.server.memcache.handler import Handler
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


class _AnyChecksum(int):
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __and__(self, other: int) -> "_AnyChecksum":
        return self

    __hash__ = int.__hash__


@contextmanager
def no_checksums() -> Iterator[None]:
    """What stands in a journal is believed."""

    def any_checksum(*arguments: object) -> int:
        return _AnyChecksum()

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

    def hasty(self: Retirement, queue: Queue, journal: Journal, floor: int) -> Generator[int | None, None, bool]:
        if journal.marker is not None:
            with suppress(OSError):
                journal.mark(floor)
        yield from ()
        return True

    return patch.object(Retirement, "_raise_floor", hasty)


def stop_syncs_nothing() -> AbstractContextManager[Any]:
    """The sync of the whole file system does nothing: a stop seals what is not on disk."""
    return patch.object(ProcessFiles, "sync_file_system", lambda self, fd: self._call("sync", "the file system"))


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
}

# The first seed that sees each: once the plan draws otherwise, the long test of test_planted.py prints another.
SEEN_BY: Final = {
    "no-sync": 0,
    "no-folder-sync": 0,
    "answer-before-write": 5,
    "open-item-lost": 8,
    "write-after-failure": 49,
    "half-a-fanout": 1,
    "no-checksums": 20,
    "unlink-first": 4,
    "compacted-unsynced": 11,
    "open-item-flushed": 90,
    "retries-forgotten": 220,
    "marker-leads": 0,
}
