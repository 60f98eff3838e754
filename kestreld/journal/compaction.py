"""A compacted segment that replaces many: their items that are still needed, with ids, times and flags.

Its header names the segments it replaces; from the moment it has its name, these are dead. Its number is the one left
free before the live segment, so that the order of numbers is the order of ids.
"""

from typing import Final

from kestreld.errors import JournalFailed
from kestreld.files import must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.records import Checkpoint, checkpoint_record
from kestreld.journal.segment import Header, Segment, encode_header, segment_name

WRITE_BYTES: Final = 256 * 1024
PAUSE_RECORDS: Final = 100  # a millisecond and a half, with the records about each


class Compaction:
    """`add` the live items in order, then `close`, `sync`, `put_in_place`. Raises JournalFailed if the disk fails."""

    def __init__(self, journal: Journal, checkpoint: Checkpoint) -> None:
        """`checkpoint` is that of the live segment, which was just begun."""
        self._files = journal.files
        self._journal = journal
        self.replaced = [segment.number for segment in journal.segments[:-1]]
        number = journal.live.number - 1
        checkpoint.segment, checkpoint.previous_bytes = number, 0
        self._checkpoint = checkpoint_record(checkpoint)
        self._number = number
        self._fd = -1
        self._path = f"{journal.folder}/compacting.seg.new"
        version = journal.live.version
        self.segment = Segment(number, journal.live.first_id, "", 0, 0, compacted=True, version=version)
        self._parts: list[bytes] = []
        self._bytes = 0
        self.wants_a_pause = False
        self.unsynced_bytes = 0
        self._added = 0  # since the last pause

    def add(self, first_id: int, data: bytes, items: int = 1) -> None:
        """Add consecutive live items from `first_id` on, with the records about them. Ids must rise."""
        self._added += items
        self.wants_a_pause = self._added >= PAUSE_RECORDS
        if self._fd < 0:
            self._begin(first_id)
        if not self._parts:
            self.segment.mark(first_id, self.segment.used_bytes)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= WRITE_BYTES:
            self._write()
            self.wants_a_pause = True
        if self.wants_a_pause:
            self._added = 0

    def note(self, records: bytes) -> None:
        """Add records that are about no item in particular."""
        if self._fd < 0:
            self._begin(self.segment.first_id)
        self._parts.append(records)
        self._bytes += len(records)

    def _begin(self, first_id: int) -> None:
        journal, segment = self._journal, self.segment
        segment.first_id = first_id
        segment.path = f"{journal.folder}/{segment_name(self._number, first_id)}"
        header = encode_header(
            Header(
                journal.journal_id,
                self._number,
                first_id,
                journal.clock.wall_ms,
                journal.queue,
                self._dead_on_sight(),
                segment.version,
            )
        )
        segment.records_at = len(header)
        try:
            if self._files.exists(self._path):
                self._files.unlink(self._path)
            self._fd = self._files.create(self._path)
        except OSError as error:
            must_be_the_systems(error)
            raise JournalFailed(self._path, f"cannot create: {error.strerror}") from error
        self._parts = [header, self._checkpoint]
        self._bytes = len(header) + len(self._checkpoint)
        self._write()

    def _dead_on_sight(self) -> tuple[int, ...]:
        """Numbers of the segments it replaces, and of those replaced earlier that are still there."""
        return tuple(sorted({*self._journal.leftover, *self.replaced}))

    def _write(self) -> None:
        data = b"".join(self._parts)
        self._parts, self._bytes = [], 0
        try:
            written = 0
            while written < len(data):
                written += self._files.write(self._fd, data[written:])
        except OSError as error:
            must_be_the_systems(error)
            raise JournalFailed(self._path, f"write failed: {error.strerror}") from error
        self.segment.used_bytes += len(data)
        self.unsynced_bytes += len(data)

    def close(self) -> None:
        """Write the rest: all live items have been added."""
        if self._fd < 0:
            self._begin(self.segment.first_id)
        if self._parts:
            self._write()

    def sync(self) -> None:
        """Sync the file, but not its name. For a thread; raises OSError."""
        self.unsynced_bytes = 0
        self._files.sync(self._fd)

    def put_in_place(self) -> None:
        """Rename the file to the segment's name. For a thread; raises OSError."""
        self._files.rename(self._path, self.segment.path)
        self._files.sync_dir(self._journal.folder)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        self._files.close(fd)

    def abandon(self) -> None:
        """Remove the file. Best effort: a leftover is removed at the next startup."""
        if self._fd >= 0:
            try:
                self._close()
                # The second has its name, but perhaps not on disk, if the sync of the folder failed.
                for path in (self._path, self.segment.path):
                    if self._files.exists(path):
                        self._files.unlink(path)
            except OSError:
                return
