"""Repair of a damaged journal: it is rebuilt from its whole records beside the old one, which is kept.

An item whose PUT is whole is delivered; one whose PUT is bad is lost, and reported. Other damage brings items back
rather than losing them. The work is done in steps, so that a running server can do other work between them.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from kestreld.clock import Clock
from kestreld.config.queue_names import decode_queue_name
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import FileLayer
from kestreld.journal.builder import JournalBuilder
from kestreld.journal.inspection import PAUSE_RECORDS, Damage, Inspection, Known
from kestreld.journal.marker import Marker
from kestreld.journal.reader_states import undone
from kestreld.journal.records import (
    PUT,
    PUT_HEADER_BYTES,
    TYPE_OFFSET,
    Kind,
    Range,
    Type,
    holder_record,
    whole_records,
)
from kestreld.journal.replacement import Replacement, finish_repairs
from kestreld.journal.segment import FOLDER_SUFFIX, parse_segment_name


@dataclass(slots=True)
class RepairReport:
    """Damages and the outcome of a repair. If `kept_at` is empty nothing was changed."""

    queue: str
    damages: list[Damage] = field(default_factory=list)
    restored: int = 0  # items that a reader has yet to get
    kept_at: str = ""  # the folder of the damaged journal

    @property
    def lost(self) -> int:
        return sum(damage.lost_items for damage in self.damages)

    def is_lost(self, item_id: int) -> bool:
        return any(first <= item_id <= last for damage in self.damages for first, last in damage.lost)


def repair(
    files: FileLayer, clock: Clock, folder: str, *, segment_bytes_max: int = 16 << 20, dry_run: bool = False
) -> RepairReport:
    """Repair the journal in `folder`, which nobody may be using. A sound one is left as it is.

    Raises JournalCorrupt if this kestreld must not touch it, JournalFailed and OSError if the disk fails; then the
    damaged journal is still in place.
    """
    finish_repairs(files, folder.rpartition("/")[0])
    work = Repair(files, clock, folder, segment_bytes_max)
    for _ in work.survey():
        pass
    if work.report.damages and not dry_run:
        for _ in work.build():
            pass
        work.sync()
        work.put_in_place()
        work.sync_names()
    return work.report


class Repair:
    """Call `survey`, then `build`, `sync`, `put_in_place` and `sync_names`. The first two are done in steps.

    `stopped` is why a server has stopped the journal. If it was in use, the server passes its `known` state, may go on
    writing to it, except new items, and calls `catch_up` before `put_in_place`.
    """

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        folder: str,
        segment_bytes_max: int,
        *,
        stopped: JournalCorrupt | None = None,
        known: Known | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._queue = decode_queue_name(folder.rpartition("/")[2].removesuffix(FOLDER_SUFFIX))
        self._segment_bytes_max = segment_bytes_max
        self._new = Replacement(files, clock, folder)
        self._found = Inspection(files, clock, folder, self._queue, stopped=stopped, server=known)
        self.report = RepairReport(self._queue)

    def survey(self) -> Iterator[None]:
        """Find the damage and the intact records, changing nothing.

        Raises JournalCorrupt if this kestreld must not touch the journal, OSError if a file cannot be opened.
        """
        yield from self._found.run()
        self.report.damages = self._found.damages

    def build(self) -> Iterator[None]:
        """Write the new journal under another name, not yet synced. Raises JournalFailed or OSError."""
        self.abandon()
        try:
            yield from self._write()
        except (JournalFailed, OSError):
            with suppress(OSError):
                self.abandon()  # a full disk needs the space
            raise

    def _write(self) -> Iterator[None]:
        builder = JournalBuilder(
            self._files,
            self._clock,
            self._new.building,
            self._queue,
            self._found.journal_id,
            self._found.readers,
            segment_bytes_max=self._segment_bytes_max,
            next_reader=self._found.known_readers.next_reader,
            first_id=self._found.first_id,
            first_segment=self._found.last_number + 1,
            version=self._found.version,
            origins=self._found.known_readers.origins,
            failures=self._found.known_readers.failures,
            syncs=False,
        )
        try:
            for record in self._found.imports:
                builder.note(record)
            yield from self._add_items(builder)
            builder.finish(self._found.state.next_id)
        finally:
            builder.abandon()

    def abandon(self) -> None:
        """Remove the new journal of this or an earlier attempt. Raises OSError."""
        self._new.abandon()

    def _add_items(self, builder: JournalBuilder) -> Iterator[None]:
        wanted = [(state.number, undone(state)) for state in self._found.readers if state.kind == Kind.QUEUE]
        last = items = data_bytes = 0
        for part_at in range(len(self._found.parts)):
            buffer, resync = yield from self._found.resync(part_at)
            for count, (record_type, at, end) in enumerate(resync.pieces()):
                if record_type == Type.PUT:
                    _, _, _, found, _, _, _, only = PUT.unpack_from(buffer, at)
                    if found > last:
                        last = found
                        builder.add(buffer[at:end])
                        items += 1
                        data_bytes += end - at - PUT_HEADER_BYTES
                        self.report.restored += _is_wanted(found, only, wanted)
                if count % PAUSE_RECORDS == 0 or record_type < 0:
                    yield
        builder.count_before(
            max(self._found.state.put_items - items, 0), max(self._found.state.put_bytes - data_bytes, 0)
        )

    def sync(self) -> None:
        """Sync the new journal, under the name that `finish_repairs` looks for. Slow; raises OSError."""
        names = self._files.list_dir(self._new.building)
        for name in names:
            self._sync_file(f"{self._new.building}/{name}")
        self._files.sync_dir(self._new.building)
        numbers, first_ids = zip(*filter(None, map(parse_segment_name, names)), strict=True)
        marker = Marker(max(numbers), min(first_ids))
        self._files.close(self._files.create(f"{self._new.building}/{marker.name}"))
        self._new.publish()

    def _sync_file(self, path: str) -> None:
        fd = self._files.open_append(path)
        try:
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def catch_up(self) -> bool:
        """Copy the records written to the old journal since its inspection; False if there were none.

        If True, `sync_caught_up` comes next. Raises JournalCorrupt or OSError.
        """
        if not self._found.parts:
            return False
        last = self._found.parts[-1]
        written = self._files.size_bytes(last.path) - last.end
        if written <= 0:
            return False
        fd = self._files.open_read(last.path)
        try:
            new = self._files.read_at(fd, written, last.end)
        finally:
            self._files.close(fd)
        records = [new[at:end] for kind, at, end in whole_records(new, 0, last.path, last.end) if kind != Type.SYNC]
        holders = self._found.known_readers.holders  # of the segment that these were written to
        if any(record[TYPE_OFFSET] == Type.LEASE for record in records):
            records = [*(holder_record(number, name) for number, name in holders.items()), *records]
        fd = self._files.open_append(self._newest())
        try:
            data = b"".join(records)
            while data:
                data = data[self._files.write(fd, data) :]
        finally:
            self._files.close(fd)
        last.end += written
        return True

    def sync_caught_up(self) -> None:
        """Sync the records copied by `catch_up`. Slow; raises OSError."""
        self._sync_file(self._newest())

    def _newest(self) -> str:
        built = self._new.built
        return f"{built}/{[name for name in self._files.list_dir(built) if parse_segment_name(name)][-1]}"

    def put_in_place(self) -> None:
        """Replace the old journal, which is kept, by the new one. Quick; raises OSError."""
        self.report.kept_at = self._new.put_in_place()

    def sync_names(self) -> None:
        """Sync the names of both journals. Slow; raises OSError."""
        self._new.sync_names()


def _is_wanted(found: int, only: int, wanted: list[tuple[int, list[Range]]]) -> bool:
    """True if a reader is not done with the item. Ids must rise from call to call: ranges passed are dropped."""
    is_wanted = False
    for number, ranges in wanted:
        while ranges[0][1] < found:
            del ranges[0]
        is_wanted = is_wanted or (only in (0, number) and ranges[0][0] <= found)
    return is_wanted
