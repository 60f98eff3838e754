"""A damaged journal is built anew from all that is whole in it, beside the old one, which is kept.

An item whose PUT is whole is delivered; one whose PUT is bad is lost, and that is said. Whatever else is bad brings
items back rather than losing them. The work is done in steps, so that a running server can give way between them.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kestreld.clock import Clock
from kestreld.config import decode_queue_name
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.builder import JournalBuilder
from kestreld.journal.found_segments import FoundSegment, find_segments, read_segment
from kestreld.journal.known_readers import KnownReaders, undone
from kestreld.journal.records import (
    FRAME_BYTES,
    PUT,
    PUT_HEADER_BYTES,
    Checkpoint,
    Kind,
    Range,
    ReaderState,
    Type,
    checked_end,
    merged,
    whole_records,
    why_bad,
)
from kestreld.journal.recovery import settle, survey
from kestreld.journal.salvage import Salvage
from kestreld.journal.verify import FOLDER_SUFFIX, common

DAMAGED: Final = ".damaged"
BUILDING: Final = ".tmp"
BUILT: Final = ".repaired"  # ends the name of a journal that is whole and on disk, but not in its place yet

PAUSE_RECORDS: Final = 256


@dataclass(slots=True)
class Damage:
    """A stretch that holds no whole record, and the ids of the items that were lost with it."""

    path: str
    offset: int
    size_bytes: int
    reason: str
    is_item: bool = False  # it has the looks of one
    lost: list[Range] = field(default_factory=list)

    @property
    def lost_items(self) -> int:
        return sum(last - first + 1 for first, last in self.lost)

    def __str__(self) -> str:
        ids = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in self.lost)
        return f"{self.path}: byte {self.offset}: {self.reason}; {f'lost: item {ids}' if ids else 'no item lost'}"


@dataclass(slots=True)
class RepairReport:
    """What was bad, and what became of it. Nothing was changed where `kept_at` is empty."""

    queue: str
    damages: list[Damage] = field(default_factory=list)
    restored: int = 0  # items that some reader has yet to get
    kept_at: str = ""  # the folder of the damaged journal

    @property
    def lost(self) -> int:
        return sum(damage.lost_items for damage in self.damages)


def repair(
    files: FileLayer, clock: Clock, folder: str, *, segment_bytes_max: int = 16 << 20, dry_run: bool = False
) -> RepairReport:
    """Repair the journal in `folder`, which nobody may be using. A sound one is left as it is.

    Raises JournalCorrupt when it is not for this kestreld to touch, JournalFailed and OSError when the disk refuses;
    then the damaged journal is still in place.
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
    return work.report


def finish_repairs(files: FileLayer, spool: str) -> list[str]:
    """Give repaired journals the names that a crash kept from them; which. Before anything else looks at the spool."""
    finished = []
    building = f"{spool}/{BUILDING}"
    for name in files.list_dir(building) if files.is_dir(building) else []:
        folder = f"{spool}/{name.removesuffix(BUILT)}"
        if name.endswith(BUILT) and not files.exists(folder):
            files.rename(f"{building}/{name}", folder)
            files.sync_dir(spool)
            finished.append(folder)
    return finished


class Repair:
    """`survey`, then `build`, `sync` and `put_in_place`. The first two are done in steps."""

    def __init__(self, files: FileLayer, clock: Clock, folder: str, segment_bytes_max: int) -> None:
        self._files = files
        self._clock = clock
        self._folder = folder
        self._spool, _, self._name = folder.rpartition("/")
        self._queue = decode_queue_name(self._name.removesuffix(FOLDER_SUFFIX))
        self._segment_bytes_max = segment_bytes_max
        self._building = f"{self._spool}/{BUILDING}/{self._name}"
        self.report = RepairReport(self._queue)
        self._parts: list[FoundSegment] = []
        self._last_number = 0
        self._journal_id = 0
        self._readers: list[ReaderState] = []
        self._known = KnownReaders(None, from_start=False)
        self._state = Checkpoint(1, 0, 1)
        self._imports: list[bytes] = []
        self._expected = 0  # the id of the next item, if none is missing
        self._suspects: list[Damage] = []  # since the last whole item

    # Looking

    def survey(self) -> Iterator[None]:
        """Find out what is bad and what is left, changing nothing.

        Raises JournalCorrupt when this kestreld must not touch it, OSError when a file cannot be opened.
        """
        starts = self._starts()
        self._find_parts()
        yield
        if not self._parts:
            return
        base = max((at for at, part in enumerate(self._parts) if part.checkpoint is not None), default=-1)
        self._begin(base)
        for at, part in enumerate(self._parts):
            is_last = at + 1 == len(self._parts)
            found: list[Damage] = []
            goes_on = yield from self._look_through(part, self._end_id(at), found, after_base=at >= base)
            if goes_on or not (is_last and starts):
                self.report.damages += found  # else a torn tail, which the next start cuts off
            self._reach_end(part, None if is_last else self._parts[at + 1])
        self._settle()

    def _starts(self) -> bool:
        """Whether a start takes the journal as it is, but for a torn tail."""
        try:
            survey(self._files, self._folder)
        except (JournalCorrupt, OSError):
            return False
        return True

    def _find_parts(self) -> None:
        """The segments that count, in the order of their items, and the journal they belong to."""
        parts = find_segments(self._files, self._folder, self._queue)
        self._last_number = max((part.number for part in parts), default=0)
        stood_in_for = {number for part in parts if part.header is not None for number in part.header.replaced}
        parts = [part for part in parts if part.number not in stood_in_for]
        ids = Counter(part.header.journal_id for part in parts if part.header is not None)
        self._journal_id = ids.most_common(1)[0][0] if ids else self._clock.wall_ms
        for part in parts:
            if part.header is not None and part.header.journal_id != self._journal_id:
                self.report.damages.append(Damage(part.path, 0, part.end, "a segment of another journal"))
            else:
                self._parts.append(part)
        self._parts.sort(key=lambda part: (part.first_id, part.number))
        for earlier, later in pairwise(self._parts):
            follows = later.number == earlier.number + 1 and not earlier.is_compacted
            if follows and later.checkpoint is not None and later.checkpoint.previous_bytes:
                counted = later.checkpoint.previous_bytes
                earlier.end, earlier.missing_bytes = min(earlier.end, counted), max(counted - earlier.end, 0)

    def _begin(self, base: int) -> None:
        from_start = self._parts[0].number == 1
        checkpoint = self._parts[base].checkpoint if base >= 0 else None
        self._known = KnownReaders(checkpoint, from_start=from_start)
        self._expected = self._parts[0].first_id
        self._state.next_id = self._expected
        if checkpoint is not None:
            self._state.next_id = max(checkpoint.next_id, self._expected)
            self._state.put_items, self._state.put_bytes = checkpoint.put_items, checkpoint.put_bytes

    def _end_id(self, at: int) -> int | None:
        return self._parts[at + 1].first_id if at + 1 < len(self._parts) else None

    def _look_through(
        self, part: FoundSegment, end_id: int | None, found: list[Damage], *, after_base: bool
    ) -> Generator[None, None, bool]:
        """Take note of all that stands in a segment; whether whole records follow what is bad."""
        if part.problem:
            found.append(Damage(part.path, 0, part.records_at, part.problem))
        buffer = yield from read_segment(self._files, part)
        salvage = Salvage(buffer, part.records_at, part.first_id, end_id)
        is_counted = after_base and not part.is_compacted
        goes_on = False
        for count, (record_type, at, end) in enumerate(salvage.pieces()):
            goes_on = goes_on or (record_type > 0 and bool(found))
            if record_type == Type.PUT:
                self._meet_item(buffer, at, end, is_counted=is_counted, after_base=after_base)
            elif record_type == 0:
                self._suspect(Damage(part.path, at, end - at, _what_is_bad(buffer, at), self._may_be_item(buffer, at)))
                found.append(self._suspects[-1])
                for record in salvage.readers:
                    self._known.recall(record[FRAME_BYTES:])
                salvage.readers.clear()
            elif record_type == Type.IMPORT:
                self._imports.append(buffer[at:end])
            elif after_base:
                self._known.apply(record_type, buffer[at + FRAME_BYTES : end])
            if count % PAUSE_RECORDS == 0:
                yield
        if part.missing_bytes:
            reason = f"the file is {part.missing_bytes} bytes shorter than what was written to it"
            self._suspect(Damage(part.path, len(buffer), 0, reason))
            found.append(self._suspects[-1])
        return goes_on

    def _may_be_item(self, buffer: bytes, at: int) -> bool:
        next_id = self._expected.to_bytes(8, "little")
        return buffer[at + 8 : at + 9] == b"\1" or buffer[at + FRAME_BYTES : at + FRAME_BYTES + 8] == next_id

    def _suspect(self, damage: Damage) -> None:
        """Whatever item turns out to be missing next may have been lost here."""
        self._suspects.append(damage)

    def _meet_item(self, buffer: bytes, at: int, end: int, *, is_counted: bool, after_base: bool) -> None:
        found, only = PUT.unpack_from(buffer, at)[3], PUT.unpack_from(buffer, at)[7]
        self._reach(found)
        self._expected = found + 1
        self._state.next_id = max(self._state.next_id, found + 1)
        if only and after_base:
            self._known.meet(only)
        if is_counted:
            self._state.put_items += 1
            self._state.put_bytes += end - at - PUT_HEADER_BYTES

    def _reach(self, item_id: int) -> None:
        """An id that was given out: the ids before it that were not met went with what is bad since the last one."""
        if self._suspects and item_id > self._expected:
            self._suspects[0].lost.append((self._expected, item_id - 1))
        self._suspects = []

    def _reach_end(self, part: FoundSegment, following: FoundSegment | None) -> None:
        """The end of a segment."""
        if following is None:
            self._reach_tail(part)
            return
        is_gap = following.first_id > self._expected and not self._suspects
        if is_gap and following.number > part.number + 1 and not part.is_compacted:
            missing = range(part.number + 1, following.number)
            numbers = f"{missing[0]}" if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
            self._suspect(Damage(self._folder, 0, 0, f"missing: segment {numbers}"))
            self.report.damages.append(self._suspects[-1])
        self._reach(following.first_id)
        self._expected = max(self._expected, following.first_id)

    def _reach_tail(self, part: FoundSegment) -> None:
        """The end of the journal: how many ids were given out behind the last whole item is not known for sure."""
        suspects = list(self._suspects)
        self._reach(self._state.next_id)
        for damage in suspects:
            if self._state.next_id > self._expected or not damage.is_item:
                continue
            damage.lost.append((self._state.next_id, self._state.next_id))
            self._state.next_id += 1
            self._expected = self._state.next_id
        bad_bytes = sum(damage.size_bytes for damage in suspects)
        self._state.next_id += bad_bytes // PUT_HEADER_BYTES

    def _settle(self) -> None:
        """All has been seen: who still needs what, and what of that is gone."""
        first = self._parts[0]
        self._readers = self._known.settled(first.first_id)
        needed = merged([ids for state in self._readers if state.kind == Kind.QUEUE for ids in undone(state)])
        if not self.report.damages and not first.is_compacted and common([(0, first.first_id - 1)], needed):
            lost = [(0, first.first_id - 1)]
            self.report.damages.append(
                Damage(self._folder, 0, 0, f"missing: what stood before {first.path}", lost=lost)
            )
        for damage in self.report.damages:
            damage.lost = common(damage.lost, needed)
        for state in self._readers:
            settle(state, [(0, first.first_id - 1), *state.done])

    # Building

    def build(self) -> Iterator[None]:
        """Write the new journal, out of sight and not yet synced. Raises JournalFailed, or OSError."""
        for leftover in (self._building, self._building + BUILT):
            if self._files.exists(leftover):
                self._files.remove_folder(leftover)
        builder = JournalBuilder(
            self._files,
            self._clock,
            self._building,
            self._queue,
            self._journal_id,
            self._readers,
            segment_bytes_max=self._segment_bytes_max,
            next_reader=self._known.next_reader,
            first_id=self._parts[0].first_id,
            first_segment=self._last_number + 1,
            syncs=False,
        )
        try:
            for record in self._imports:
                builder.note(record)
            yield from self._add_items(builder)
            builder.finish(self._state.next_id)
        finally:
            builder.abandon()

    def _add_items(self, builder: JournalBuilder) -> Iterator[None]:
        wanted = [(state.number, undone(state)) for state in self._readers if state.kind == Kind.QUEUE]
        last = items = data_bytes = 0
        for part_at, part in enumerate(self._parts):
            buffer = yield from read_segment(self._files, part)
            pieces = Salvage(buffer, part.records_at, part.first_id, self._end_id(part_at)).pieces()
            for count, (record_type, at, end) in enumerate(pieces):
                if record_type == Type.PUT:
                    _, _, _, found, _, _, _, only = PUT.unpack_from(buffer, at)
                    if found > last:
                        last = found
                        builder.add(buffer[at:end])
                        items += 1
                        data_bytes += end - at - PUT_HEADER_BYTES
                        self.report.restored += _is_wanted(found, only, wanted)
                if count % PAUSE_RECORDS == 0:
                    yield
        builder.count_before(max(self._state.put_items - items, 0), max(self._state.put_bytes - data_bytes, 0))

    def sync(self) -> None:
        """Put the new journal on disk. Slow; raises OSError."""
        for name in self._files.list_dir(self._building):
            fd = self._files.open_append(f"{self._building}/{name}")
            try:
                self._files.sync(fd)
            finally:
                self._files.close(fd)
        self._files.sync_dir(self._building)

    def catch_up(self) -> None:
        """Take over what was written to the old journal since it was looked at: what was done meanwhile."""
        last = self._parts[-1]
        written = self._files.size_bytes(last.path) - last.end
        if written <= 0:
            return
        fd = self._files.open_read(last.path)
        try:
            new = self._files.read_at(fd, written, last.end)
        finally:
            self._files.close(fd)
        records = [new[at:end] for kind, at, end in whole_records(new, 0, last.path, last.end) if kind != Type.SYNC]
        fd = self._files.open_append(f"{self._building}/{self._files.list_dir(self._building)[-1]}")
        try:
            data = b"".join(records)
            while data:
                data = data[self._files.write(fd, data) :]
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def put_in_place(self) -> None:
        """Let the new journal take the place of the old one, which is kept. Raises OSError.

        A crash leaves the one or the other in place, or neither and the new one where `finish_repairs` looks.
        """
        files, encoded = self._files, self._name.removesuffix(FOLDER_SUFFIX)
        damaged, built = f"{self._spool}/{DAMAGED}", self._building + BUILT
        files.make_dir(damaged)
        at_ms = self._clock.wall_ms
        while files.exists(f"{damaged}/{encoded}.{at_ms}"):
            at_ms += 1
        kept_at = f"{damaged}/{encoded}.{at_ms}"
        files.rename(self._building, built)
        files.sync_dir(f"{self._spool}/{BUILDING}")
        files.rename(self._folder, kept_at)
        files.sync_dir(damaged)
        files.sync_dir(self._spool)
        files.rename(built, self._folder)
        files.sync_dir(self._spool)
        self.report.kept_at = kept_at


def _what_is_bad(buffer: bytes, at: int) -> str:
    code = checked_end(buffer, at)[1]
    reason = why_bad(code) if code < 0 else "out of place"
    known = buffer[at + 8] if at + 8 < len(buffer) else 0
    return f"{Type(known).name}: {reason}" if known in set(Type) else reason


def _is_wanted(found: int, only: int, wanted: list[tuple[int, list[Range]]]) -> bool:
    """Whether some reader is not done with an item. Ids rise from call to call: ranges passed by are dropped."""
    is_wanted = False
    for number, ranges in wanted:
        while ranges[0][1] < found:
            del ranges[0]
        is_wanted = is_wanted or (only in (0, number) and ranges[0][0] <= found)
    return is_wanted
