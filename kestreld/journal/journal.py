"""A journal: the segment files of one queue family, appended to at the end and readable anywhere.

Only the last segment is appended to, a whole commit at a time. After a failed write or sync (`failed`) it is never
appended to again, since its part on disk is unknown: `start_segment` goes on in a new one, whose CHECKPOINT
has the whole state and says how many bytes of the one before count. A SYNC record says how much was on disk when it was
written: a bad record before that place is damage, after it perhaps a torn tail.

Full segments that may not be on disk are in `unproven` or `filled` until a sync covers them. A segment may go once all
its items are done and the next CHECKPOINT is on disk (`synced_number`). The marker is renamed only after a sync, so it
may lag behind the segments, but never leads. What CHECKPOINTs say, and what readers need, comes from the caller.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import DISK_FULL, DISK_SHORT, FileLayer, must_be_the_systems
from kestreld.journal.marker import Marker
from kestreld.journal.open_files import Descriptors, OpenFiles
from kestreld.journal.records import (
    FRAME_BYTES,
    LEASES_VERSION,
    TYPE_OFFSET,
    Checkpoint,
    Type,
    checked_end,
    checkpoint_record,
    item_id,
    record_end,
    sync_record,
    why_bad,
)
from kestreld.journal.segment import REPLACED_MAX, UNSYNCED_MARK, Header, Segment, encode_header, segment_name
from kestreld.journal.segment_sync import SegmentSync

FRAME_LOOK_BYTES: Final = 16
Position = tuple[int, int]  # segment number, offset of a record in it


class Journal(Descriptors):
    """The open journal of one family."""

    __slots__ = (
        "_is_live_lost", "_sync_note", "_untold", "begun_with", "checkpoint_bytes", "clock",
        "compact_again_at_ms", "distrusted", "failed", "failed_at_ms", "filled", "floor_on_disk", "folder",
        "folder_unsynced", "is_sync_failed", "journal_id", "leftover", "leftover_unsynced", "make_room", "marker",
        "marker_refused", "names_unsynced", "queue", "refused_bytes", "retiring", "segments", "sync_us",
        "synced_number", "syncing", "unproven", "unsynced", "version", "written_to",
    )  # fmt: skip

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        open_files: OpenFiles,
        folder: str,
        queue: str,
        journal_id: int,
        segments: Sequence[Segment] = (),
    ) -> None:
        super().__init__(files, open_files)
        self.clock = clock
        self.folder = folder
        self.queue = queue
        self.journal_id = journal_id
        self.make_room: Callable[[], bool] = lambda: False  # called when the disk is full; True = something was freed
        self.segments: list[Segment] = list(segments)
        self.version = max([segment.version for segment in self.segments], default=1)  # of the next segment
        self.failed: JournalFailed | None = None  # why the live segment must not be appended to
        self.failed_at_ms = 0
        self.refused_bytes = 0  # size of the largest failed write since
        self.is_sync_failed = False  # `failed` is of a sync: the state on disk is unknown
        self._is_live_lost = False  # it was the live segment's own sync that failed: it is not asked again
        self._untold: list[str] = []  # segments whose sync failed, as did the note of it for the next process
        self.distrusted = False  # a sync of the live segment failed in an earlier process: it must not be appended to
        self.checkpoint_bytes = 0  # the live segment up to the end of its CHECKPOINT
        self.unsynced = False  # something was written since the last sync
        self.written_to = False  # something was written since startup
        self.names_unsynced = False  # a segment was created or renamed since the folder was synced
        self.folder_unsynced = False  # the folder was created since its parent was synced
        self.synced_number = 0  # the newest segment whose CHECKPOINT is on disk: those before it may go
        self.marker: Marker | None = None  # the folder's marker; None = there is none
        self.marker_refused = False  # renaming or creating it has failed
        self.floor_on_disk = 0  # floor of a synced marker: segments before it may go
        self.retiring = False  # dead segments are being deleted or archived
        self.compact_again_at_ms = 0  # no compaction before this time, because one has failed
        self.begun_with: Checkpoint | None = None  # CHECKPOINT of the live segment, if a number before it is free
        self.leftover: dict[int, Segment] = {}  # replaced by a compacted one; their files are still there
        self.leftover_unsynced = False  # the name of that one may not be on disk
        self.syncing = False  # a background sync is under way
        self.unproven: list[Segment] = []  # full ones, perhaps not on disk; the next sync opens them by name
        self.filled: dict[int, Segment] = {}  # full ones that the next sync covers by these borrowed descriptors
        self.sync_us = 0  # duration of the last sync
        self._sync_note = -1  # offset for a SYNC record at the next write; -1 = none

    def on_full_disk(self, make_room: Callable[[], bool]) -> None:
        """Set the function to call when the disk is full; it returns True if it has freed something."""
        self.make_room = make_room

    def make_folder(self) -> None:
        """Create the folder. Raises JournalFailed."""
        self.folder_unsynced = True
        try:
            self.files.make_dir(self.folder)
        except OSError as error:
            must_be_the_systems(error)
            raise JournalFailed(self.folder, f"cannot create: {error.strerror}") from error

    # Writing

    @property
    def live(self) -> Segment:
        return self.segments[-1]

    @property
    def live_version(self) -> int:
        """Version of the format that the next write is in."""
        return self.segments[-1].version if self.segments else self.version

    @property
    def is_behind(self) -> bool:
        """True if a newer version of the format is needed than the live segment's."""
        return self.live_version < self.version

    def need_version(self, version: int) -> None:
        """Begin segments in this version of the format, or a newer one."""
        self.version = max(self.version, version)

    def go_back_to(self, version: int) -> None:
        """Begin segments in this version of the format again: nothing is to be written that only newer ones have."""
        self.version = version

    @property
    def had_leases(self) -> bool:
        """True if a segment is of the version for leases."""
        return any(segment.version >= LEASES_VERSION for segment in self.segments)

    @property
    def disk_bytes(self) -> int:
        segments = [*self.segments, *self.leftover.values()]
        return sum([segment.used_bytes for segment in segments])

    def grown_bytes(self) -> int:
        """Bytes of the live segment after its CHECKPOINT."""
        return self.segments[-1].used_bytes - self.checkpoint_bytes

    def write(self, parts: list[bytes], first_put_id: int) -> int:
        """Append one commit as a whole; returns the offset of `parts`. Raises JournalFailed with the file cut back.

        After a failure the segment is never appended to again: `start_segment` comes first.
        """
        live = self.segments[-1]
        start = at = live.used_bytes
        if self._sync_note >= 0:
            note = sync_record(self._sync_note)
            parts = [note, *parts]
            at += len(note)
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        try:
            self._write_whole(self._ensure_open(live.path), data)
        except OSError as error:
            must_be_the_systems(error)
            self._cut_back(start)
            raise self._fail(error, "write", len(data)) from error
        self._sync_note = -1
        self.unsynced = self.written_to = True
        live.used_bytes = start + len(data)
        live.mark(first_put_id, at)
        return at

    def append(self, record: bytes, next_put_id: int) -> int:
        """`write` of one record; returns the used bytes of its segment.

        0, with nothing done, if more is needed than one write. Raises as `write` does.
        """
        if self._write_fd < 0 or self._sync_note >= 0 or self.failed is not None:
            return 0
        live, size = self.segments[-1], 0
        try:
            size = self.files.write(self._write_fd, record)
            if size < len(record):
                self._write_whole(self._write_fd, record[size:])
        except OSError as error:
            must_be_the_systems(error)
            if not size:
                return 0  # `write` makes space, or says why there is none
            self._cut_back(live.used_bytes)
            raise self._fail(error, "write", len(record)) from error
        self.unsynced = self.written_to = True
        at = live.used_bytes
        if at >= live.mark_at:
            live.mark(next_put_id, at)
        live.used_bytes = used_bytes = at + len(record)
        return used_bytes

    def _write_whole(self, fd: int, data: bytes) -> None:
        while data:
            try:
                data = data[self.files.write(fd, data) :]
            except OSError as error:
                must_be_the_systems(error)
                if error.errno not in DISK_SHORT or not self.make_room():
                    raise

    def _cut_back(self, start: int) -> None:
        # Best effort: the next segment's CHECKPOINT says how many bytes of this one count.
        if self._write_fd >= 0:
            try:
                self.files.truncate(self._write_fd, start)
            except OSError as error:
                must_be_the_systems(error)

    def _fail(self, error: OSError, doing: str, size_bytes: int = 0) -> JournalFailed:
        reason = f"{doing} failed: {error.strerror or error}"
        self.failed = JournalFailed(
            self.live.path if self.segments else self.folder, reason, disk_full=error.errno in DISK_FULL
        )
        self.failed_at_ms = self.clock.monotonic_ms
        self.refused_bytes = max(size_bytes, self.refused_bytes)
        return self.failed

    def start_segment(self, checkpoint: Checkpoint, skip: int = 0, filled: int = -1, unsaid: bytes = b"") -> None:
        """Continue in a new segment that begins with `checkpoint`.

        `skip` numbers are left free before it, for a compacted segment; none if the previous segment has failed.
        `filled` is a descriptor of the previous segment, borrowed for the next sync; -1 = none. `unsaid` are DONE
        records that the previous segment lacks and that the CHECKPOINT does not replace. Raises JournalFailed, which
        sets `failed`; the segments stay as they were.
        """
        if self.failed is not None:
            skip = 0  # `previous_bytes`, which tells how much of it counts, is about the number before
        number = (self.live.number if self.segments else 0) + 1 + skip
        checkpoint.segment = number
        checkpoint.previous_bytes = self.live.used_bytes if self.segments else 0
        header = encode_header(
            Header(self.journal_id, number, checkpoint.next_id, self.clock.wall_ms, self.queue, version=self.version)
        )
        data = header + checkpoint_record(checkpoint) + unsaid
        path = f"{self.folder}/{segment_name(number, checkpoint.next_id)}"
        segment = Segment(number, checkpoint.next_id, path, len(data), len(header), version=self.version)
        self._go_on_in(segment, data, filled)
        self.begun_with = checkpoint if skip else None

    def _go_on_in(self, segment: Segment, data: bytes, filled: int = -1) -> None:
        """Create a segment of these bytes, and append to it from now on. Raises as `start_segment` does.

        `filled` is as there.
        """
        self.open_files.use(self)
        try:
            fd = self._make_file(segment.path, data)
        except OSError as error:
            must_be_the_systems(error)
            raise self._fail(error, "segment creation", len(data)) from error
        if filled >= 0:
            self.filled[filled] = self.live
        elif self.segments and self.unsynced and not self._is_live_lost:
            self.unproven = [*self.unproven, self.live]  # even if a write failed: what precedes it counts
        self._close_write()
        self._write_fd = fd
        self.segments.append(segment)
        self.checkpoint_bytes = len(data)
        self.failed, self.refused_bytes = None, 0
        self.is_sync_failed, self._is_live_lost, self._untold = False, False, []
        self.unsynced = self.names_unsynced = True
        self._sync_note = -1

    def _make_file(self, path: str, data: bytes) -> int:
        temporary = path + ".new"
        if self.files.exists(temporary):
            self.files.unlink(temporary)
        fd = self._open(self.files.create, temporary)
        is_made = False
        try:
            self._write_whole(fd, data)
            self.files.rename(temporary, path)
            is_made = True
        except OSError as error:
            must_be_the_systems(error)
            self.files.unlink(temporary)
            raise
        finally:
            if not is_made:
                self._close(fd)
        return fd

    def sync(self) -> None:
        """Sync everything written so far, names included. Raises JournalFailed; never retried on this segment."""
        started_us, sync = self.clock.stopwatch_us(), None
        try:
            live = (self._ensure_open(self.live.path), self.live)
            full = [*self._opened_by_name(), *self.filled.items(), live]
            sync = SegmentSync(self.files, full, self.unsynced_folders())
            sync.run()
        except OSError as error:
            must_be_the_systems(error)
            raise self.sync_failed(error, sync) from error
        for fd in list(self.filled):
            self._let_go(fd)
        self.synced(self.live.number, self.live.used_bytes, started_us)

    def seal(self, next_id: int) -> None:
        """Write at a stop that everything is on disk: at the next startup a bad record is then damage and no torn tail.

        Raises JournalFailed.
        """
        if self._sync_note >= 0 and self.written_to:
            self.write([], next_id)

    def unsynced_folders(self) -> list[str]:
        """Folders whose names must be synced together with the live segment."""
        folders = [self.folder] if self.names_unsynced else []
        if self.folder_unsynced:
            folders.append(self.folder.rpartition("/")[0])
        return folders

    def synced(self, number: int, used_bytes: int, started_us: int) -> None:
        """Record a successful sync that covered the first `used_bytes` of segment `number`."""
        self.sync_us = self.clock.stopwatch_us() - started_us
        self.synced_number = max(self.synced_number, number)
        self.unproven = [segment for segment in self.unproven if segment.number >= number]
        if number != self.live.number:
            return
        self.names_unsynced = self.folder_unsynced = False
        self._sync_note = used_bytes
        if used_bytes == self.live.used_bytes:
            self.unsynced = False

    def synced_with_all(self, started_us: int) -> None:
        """Record a successful sync of the whole file system, which covers everything written so far."""
        for fd in list(self.filled):
            self._let_go(fd)
        self.synced(self.live.number, self.live.used_bytes, started_us)

    def _opened_by_name(self) -> list[tuple[int, Segment]]:
        return [(-1, segment) for segment in self.unproven]

    def commit_sync(self, fd: int) -> SegmentSync:
        """A sync of everything written so far; `fd` is open on the live segment."""
        return SegmentSync(self.files, [*self._opened_by_name(), (fd, self.live)], self.unsynced_folders())

    def begin_sync(self) -> tuple[list[tuple[int, Segment]], list[int]]:
        """Begin a background sync; returns the full segments to cover with their descriptors, and the borrowed ones.

        Segments with descriptor -1 come first, and are opened by name. Pass the borrowed descriptors to `end_sync`.
        """
        covered = [*self._opened_by_name(), *self.filled.items()]
        borrowed = list(self.filled)
        self.syncing, self.filled = True, {}
        return covered, borrowed

    def end_sync(self, borrowed: list[int]) -> None:
        """End a background sync and give back its descriptors, removing them from the list one by one."""
        self.syncing = False
        while borrowed:
            self.give_back(borrowed.pop())

    def leave_unproven(self) -> None:
        """Leave full segments to a later sync, which opens them by name."""
        self.unproven = [*self.unproven, *self.filled.values()]
        for fd in list(self.filled):
            self._let_go(fd)

    def _let_go(self, filled: int) -> None:
        del self.filled[filled]
        self.give_back(filled)

    # The marker

    @property
    def is_marked(self) -> bool:
        """True if the marker names the live segment, or there is no segment."""
        number = self.marker.number if self.marker is not None else 0
        return not self.segments or number >= self.segments[-1].number

    @property
    def wants_mark(self) -> bool:
        """True if a newer segment is on disk than the marker says."""
        return self.synced_number > (self.marker.number if self.marker is not None else 0)

    def mark(self, floor: int) -> None:
        """Have the marker name the newest segment on disk, and `floor`, below which nobody needs items.

        One rename. Raises OSError with nothing changed, except that a marker which somebody has removed is forgotten.
        """
        known = self.marker
        if known is None and (self.retiring or not self.synced_number):
            return  # segments retired now need no floor
        new = Marker(self.synced_number, floor)
        if known is not None:
            new = Marker(max(self.synced_number, known.number), max(floor, known.floor))
        if new == known:
            return
        path = f"{self.folder}/{new.name}"
        if known is None:
            self.files.close(self.files.create(path))
        else:
            try:
                self.files.rename(f"{self.folder}/{known.name}", path)
            except FileNotFoundError:
                self.marker = None
                raise
        self.marker = new

    def note_refusal(self, *, refused: bool) -> bool:
        """Remember whether renaming or creating the marker failed; returns the previous value."""
        before, self.marker_refused = self.marker_refused, refused
        return before

    def floor_synced(self, floor: int) -> None:
        """Record that the marker with this floor is on disk."""
        self.floor_on_disk = floor

    def sync_failed(self, error: OSError, sync: SegmentSync | None = None) -> JournalFailed:
        """Record a failed sync: its bytes may not be on disk, and the live segment is not appended to again.

        `sync` knows how far it came; None = it did not begin.
        """
        lost: list[Segment] = []
        if sync is not None:
            lost = sync.lost
            for fd in [fd for fd, segment in self.filled.items() if segment in lost]:
                self._let_go(fd)
            elsewhere = [*self.filled.values(), self.live]
            self.unproven = [segment for segment in sync.left(self.unproven) if segment not in elsewhere]
            self._is_live_lost = self._is_live_lost or self.live in lost
        failure, self.is_sync_failed = self._fail(error, "sync"), True
        self._untold = list(dict.fromkeys([*self._untold, *self._paths_to_note(lost)]))
        self.tell_of_sync()
        return failure

    def _paths_to_note(self, lost: list[Segment]) -> list[str]:
        """Paths of the segments to leave a note for; a CHECKPOINT stands for what earlier ones have lost."""
        return [self.live.path]

    @property
    def sync_untold(self) -> bool:
        """True if a sync failed, and so did the note of it for the next process."""
        return bool(self._untold)

    def tell_of_sync(self) -> None:
        """Create the files that note failed syncs; what could not be noted is left to the next call."""
        # The next process must not append either: it would read everything from the kernel, without an error.
        while self._untold:
            try:
                self.files.close(self.files.create(self._untold[0] + UNSYNCED_MARK))
            except FileExistsError:
                pass
            except OSError as error:
                must_be_the_systems(error)
                return
            del self._untold[0]

    def look(self) -> JournalFailed | None:
        """Check that the live segment's name leads to the written file. If not, it is not appended to again."""
        if self._write_fd < 0 or self.failed is not None:
            return None
        try:
            size_bytes = self.files.size_bytes(self.live.path)
        except OSError as error:
            must_be_the_systems(error)
            return self._fail(error, "check of the live segment")
        if size_bytes == self.live.used_bytes:
            return None
        # Somebody has replaced, cut or extended it: a new file's size stays while the old one's grows.
        reason = f"the live segment has {size_bytes} bytes, but {self.live.used_bytes} were written"
        self.failed = JournalFailed(self.live.path, reason)
        self.failed_at_ms = self.clock.monotonic_ms
        return self.failed

    def cut_back(self, number: int, used_bytes: int) -> None:
        """Cut off the bytes of a failed sync, unless a segment has been begun since. Best effort."""
        if self.live.number == number:
            self._cut_back(used_bytes)
            self.live.used_bytes = used_bytes

    # Reading

    def read(self, number: int, offset: int, size_bytes: int) -> bytes:
        """Whole records of a segment from `offset`: about `size_bytes`, but at least one; b"" at its end."""
        segment = self.segment(number)
        left = segment.used_bytes - offset
        if left <= 0:
            return b""
        fd = self._descriptor(segment)
        chunk = self._read_some(fd, min(size_bytes, left), offset, segment)
        end = 0
        while end < len(chunk):
            if len(chunk) - end < FRAME_LOOK_BYTES and left > len(chunk):
                break
            next_end = record_end(chunk, end)
            if next_end > left or next_end == end + FRAME_BYTES:
                raise JournalCorrupt(segment.path, offset + end, "a record's length goes past the end of its segment")
            if next_end > len(chunk):
                if end:
                    break
                return self._read_some(fd, next_end, offset, segment)
            end = next_end
        return chunk[:end] if end < len(chunk) else chunk

    def read_raw(self, number: int, offset: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` of a segment's records, the last of which may be cut; b"" at its end."""
        segment = self.segment(number)
        left = segment.used_bytes - offset
        return self._read_some(self._descriptor(segment), min(size_bytes, left), offset, segment) if left > 0 else b""

    def _read_some(self, fd: int, size_bytes: int, offset: int, segment: Segment) -> bytes:
        try:
            chunk = self.files.read_at(fd, size_bytes, offset)
        except OSError as error:
            must_be_the_systems(error)
            raise JournalCorrupt(segment.path, offset, f"cannot be read: {error.strerror}") from error
        if len(chunk) < size_bytes:
            raise JournalCorrupt(segment.path, offset + len(chunk), "the file is shorter than what was written to it")
        return chunk

    def _descriptor(self, segment: Segment) -> int:
        if segment is self.live and self._write_fd >= 0:
            return self._write_fd
        if self._read_number != segment.number:
            self._close_read()
            self.open_files.use(self)
            try:
                self._read_fd = self._open(self.files.open_read, segment.path)
            except OSError as error:
                must_be_the_systems(error)
                raise JournalCorrupt(segment.path, 0, f"cannot be opened: {error.strerror}") from error
            self._read_number = segment.number
        return self._read_fd

    def segment(self, number: int) -> Segment:
        """The segment of that number. Raises JournalCorrupt if there is none."""
        index = number - self.segments[0].number
        if 0 <= index < len(self.segments) and self.segments[index].number == number:
            return self.segments[index]
        for segment in self.segments:
            if segment.number == number:
                return segment
        raise JournalCorrupt(self.folder, 0, f"no segment {number}")

    def after(self, number: int) -> Segment | None:
        """The segment that follows `number`, or None if that is the live one."""
        for segment in self.segments:
            if segment.number > number:
                return segment
        return None

    def position_before(self, item_id: int) -> Position:
        """Place from which reading soon meets `item_id`, or the first id still there."""
        index = bisect_right([segment.first_id for segment in self.segments], item_id) - 1
        # Segments without a PUT share their first id with the next: the earliest of them is right too.
        segment = self.segments[max(index, 0)]
        return segment.number, segment.offset_before(item_id)

    def check(self, chunk: bytes, at: int, number: int, offset: int) -> tuple[int, int]:
        """Type and end of the record at `at` of a chunk read from `offset`. Raises JournalCorrupt."""
        record_type, end = checked_end(chunk, at)
        if not record_type:
            raise JournalCorrupt(self.segment(number).path, offset + at, why_bad(end))
        return record_type, end

    def puts(self, first: int, chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Id and record of every item from `first` on, read about `chunk_bytes` at a time. Raises JournalCorrupt.

        Other records are skipped by their length.
        """
        number, offset = self.position_before(first)
        while True:
            chunk = self.read(number, offset, chunk_bytes)
            if not chunk:
                following = self.after(number)
                if following is None:
                    return
                number, offset = following.number, following.records_at
                continue
            at, size = 0, len(chunk)
            while at < size:
                if chunk[at + TYPE_OFFSET] != Type.PUT:
                    at = record_end(chunk, at)
                    continue
                end = self.check(chunk, at, number, offset)[1]
                record = chunk[at:end]
                found = item_id(record)
                if found >= first:
                    yield found, record
                at = end
            offset += at

    # Disk space

    def needed_bytes(self, item_id: int) -> int:
        """Bytes of the segments that a reader with this head still needs."""
        number = self.position_before(item_id)[0]
        return sum(segment.used_bytes for segment in self.segments if segment.number >= number)

    def dead_segments(self, lowest_head: int) -> int:
        """Number of segments at the start that may go: all their items are below `lowest_head`."""
        dead = 0
        for following in self.segments[1:]:
            if following.number > self.synced_number or following.first_id > lowest_head:
                break
            dead += 1
        return dead

    @property
    def may_lose_live(self) -> bool:
        """True if a power cut may take some of the live segment, and a sync can still prevent that."""
        return self.unsynced and bool(self.segments) and not self.is_sync_failed

    @property
    def checkpoint_synced(self) -> bool:
        """True if the live segment's CHECKPOINT is on disk."""
        return self.synced_number == self.live.number

    def leftover_synced(self) -> None:
        """Record that the name of the segment that replaced `leftover` is on disk."""
        self.leftover_unsynced = False

    def retire(self, *, under_way: bool) -> None:
        """Record whether dead segments are being deleted or archived."""
        self.retiring = under_way

    def forget(self, segment: Segment) -> None:
        """Remove a dead segment whose file is gone."""
        if self._read_number == segment.number:
            self._close_read()
        self.leftover.pop(segment.number, None)
        if segment in self.segments:
            self.segments.remove(segment)

    @property
    def is_crowded(self) -> bool:
        """True if there are more files than the header of a compacted segment can name."""
        return len(self.segments) + len(self.leftover) > REPLACED_MAX

    def replace(self, numbers: list[int], compacted: Segment) -> None:
        """Put a compacted segment in the place of those it replaces, which are `leftover` from now on."""
        self.leftover.update({segment.number: segment for segment in self.segments if segment.number in numbers})
        kept = [segment for segment in self.segments if segment.number not in numbers]
        self._close_read()
        self.segments = [compacted, *kept]

    def compact_not_before(self, at_ms: int) -> None:
        """Try no compaction before this time (monotonic, ms), because one has failed."""
        self.compact_again_at_ms = at_ms

    def adopt(
        self,
        checkpoint_bytes: int,
        marker: Marker | None,
        leftover: list[Segment],
        *,
        is_proven: bool,
        is_distrusted: bool,
    ) -> None:
        """Take over a recovered journal. The last segment is live; it and all names may not be on disk.

        Unless the journal `is_proven`, that is true of the other segments, too, and they are synced before anything
        behind them.
        """
        self.checkpoint_bytes = checkpoint_bytes
        self.marker = marker
        self.leftover = {segment.number: segment for segment in leftover}
        self.leftover_unsynced = bool(leftover)
        self.distrusted = is_distrusted
        self.unproven = [] if is_proven else self.segments[:-1]
        self.unsynced = self.names_unsynced = self.folder_unsynced = True

    def take_up(self, begun: list[Segment], used_bytes: int, checkpoint_bytes: int) -> None:
        """Take over an interrupted turn's writes: the segments begun, and the length of the last."""
        self._close_read()
        self._close_write()  # it may be another segment's
        if begun:
            self.segments = [*self.segments, *begun]
            self.failed = self.begun_with = None
            self.names_unsynced = True
        self.live.used_bytes = used_bytes
        self.checkpoint_bytes = checkpoint_bytes
        self.unproven = self.segments[:-1]  # the sync that was to cover them may have been interrupted
        self._sync_note = -1
        self.syncing = False
        self.unsynced = self.written_to = True

    def borrow(self) -> int:
        """Descriptor of the live segment for a sync elsewhere, open until it is given back. Raises OSError."""
        return self._borrow(self._ensure_open(self.live.path))
