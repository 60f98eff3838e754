"""Inspection of a damaged journal: the damage, the items lost with it, and the readers that still need them.

Nothing is changed. The work is done in steps, so that a running server can do other work between them.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, RecordsDisagree
from kestreld.files import FileLayer
from kestreld.journal import records
from kestreld.journal.beginnings import missing_words
from kestreld.journal.marker import Marker, find_marker
from kestreld.journal.reader_states import settle, undone
from kestreld.journal.recovery import survey
from kestreld.journal.resync import Resync
from kestreld.journal.salvaged_readers import SalvagedReaders
from kestreld.journal.segment_scan import UNREAD, FoundSegment, find_segments, is_unread, read_segment
from kestreld.journal.verify import common

PAUSE_RECORDS: Final = 256
MAY_BE_LOST: Final = "may be lost"
# More ids than segments that may not have been on disk can have held: new ids begin so far behind the known ones.
IDS_AT_MOST: Final = 1 << 32


@dataclass(slots=True)
class Damage:
    """A stretch that holds no whole record, and the ids of the items lost with it.

    `may_hide`: it may have held any number of items. `lost_from` is the id from which on it is not known how many items
    were lost; 0 = that is known.
    """

    path: str
    offset: int
    size_bytes: int
    reason: str
    is_item: bool = False  # it looks like an item
    may_hide: bool = False
    lost: list[records.Range] = field(default_factory=list)
    lost_from: int = 0

    @property
    def lost_items(self) -> int:
        return sum(last - first + 1 for first, last in self.lost)

    def __str__(self) -> str:
        ids = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in self.lost)
        outcomes = [f"lost: item {ids}"] if ids else []
        if self.lost_from:
            outcomes.append(f"items from {self.lost_from} on {MAY_BE_LOST}")
        outcome = "; ".join(outcomes) or "no item known to be lost"
        return f"{self.path}: byte {self.offset}: {self.reason}; {outcome}"


@dataclass(slots=True)
class Known:
    """State that a running server knows of its journal, even if the files are damaged.

    Readers have number, kind, name and `at_id`, streams also their position; `used_bytes` is by segment number.
    """

    next_id: int
    next_reader: int
    readers: list[records.ReaderState]
    used_bytes: dict[int, int]


class Inspection:
    """Inspection of the journal in `folder`.

    `stopped` is why a server has stopped it, so that its end is not a torn tail; None = it was not stopped. `server` is
    what a running server knows of it, or None.
    """

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        folder: str,
        queue: str,
        *,
        stopped: JournalCorrupt | None = None,
        server: Known | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._folder = folder
        self._queue = queue
        self._server = server
        self._is_stopped = stopped is not None
        self._problem: JournalCorrupt | OSError | None = stopped  # why startup does not accept the journal
        self._marker: Marker | None = None
        self.damages: list[Damage] = []
        self.parts: list[FoundSegment] = []  # in the order of their items
        self.last_number = self._last_found = 0  # highest segment number ever known, and found
        self.journal_id = 0
        self.known_readers = SalvagedReaders(None, from_start=False)
        self.readers: list[records.ReaderState] = []
        self.state = records.Checkpoint(1, 0, 1)
        self.imports: list[bytes] = []  # IMPORT records
        self._expected = 0  # the id of the next item, if none is missing
        self._suspects: list[Damage] = []  # since the last whole item

    def run(self) -> Iterator[None]:
        """Find the damage and the intact records, in steps, changing nothing.

        Raises JournalCorrupt if this kestreld must not touch the journal, OSError if a file cannot be opened.
        """
        self._problem = self._problem or self._why_it_does_not_start()
        yield from self._find_parts()
        if not self.parts:
            self._miss_everything()
            return
        base = max((at for at, part in enumerate(self.parts) if part.checkpoint is not None), default=-1)
        self._begin(base)
        torn: list[Damage] = []
        is_complete = True
        for at, part in enumerate(self.parts):
            is_last = at + 1 == len(self.parts)
            found: list[Damage] = []
            is_complete = is_complete and not self.damages and not (at and _misses_any(self.parts[at - 1], part))
            if at == base:
                self.known_readers.reach_checkpoint(is_complete=is_complete)
            elif is_complete and part.checkpoint is not None:
                self.known_readers.pass_checkpoint(part.checkpoint)
            goes_on = yield from self._look_through(at, found, after_base=at >= base)
            if is_last and self._problem is None and not goes_on:
                torn = found
            else:
                self.damages += found
            self._reach_end(part, None if is_last else self.parts[at + 1])
        self._settle(torn)

    def _why_it_does_not_start(self) -> JournalCorrupt | OSError | None:
        """Reason why startup does not accept the journal; None if it does, perhaps with a torn tail."""
        try:
            survey(self._files, self._folder)
        except (JournalCorrupt, OSError) as problem:
            return problem
        return None

    def _miss_everything(self) -> None:
        """Handle a folder without segments: the marker or the server says whether there were any."""
        known = self._server
        if self._marker is None and (known is None or not known.used_bytes):
            return
        damage = Damage(self._folder, 0, 0, "missing: every segment", lost_from=1)
        if known is not None:
            self.state.next_id = known.next_id
            self.known_readers.learn(known.next_reader, known.readers)
        else:
            damage.lost_from = self._marker.floor if self._marker is not None else 1
            self.state.next_id = damage.lost_from + IDS_AT_MOST
        self.damages.append(damage)
        self.readers = self.known_readers.restored(self.state.next_id, self.state.next_id)
        for state in self.readers:
            settle(state, [(0, self.state.next_id - 1)])

    @property
    def version(self) -> int:
        """Version of the format that the intact records need."""
        known = self.known_readers
        has_failures = known.failures or any(origin.failure for origin in known.origins.values())
        needed = 3 if has_failures else 1  # not only by headers, which may be damaged
        if any(due.holder for state in self.readers for due in state.due.values()):
            needed = records.LEASES_VERSION
        return max([needed, *(part.header.version for part in self.parts if part.header is not None)])

    @property
    def first_id(self) -> int:
        """Lowest id that is left."""
        return self.parts[0].first_id if self.parts else self.state.next_id

    def _find_parts(self) -> Iterator[None]:
        """Find the segments that count, in the order of their items, and the journal they belong to."""
        parts = []
        for part in find_segments(self._files, self._folder, self._queue):
            parts.append(part)
            yield
        if self._server is not None:
            for part in parts:
                if (used_bytes := self._server.used_bytes.get(part.number)) is not None:
                    part.count_only(used_bytes)
        self._marker = find_marker(self._files.list_dir(self._folder))
        self._last_found = max((part.number for part in parts), default=0)
        known = self._server.used_bytes if self._server is not None else {}
        self.last_number = max([self._last_found, self._marker.number if self._marker is not None else 0, *known])
        stood_in_for = {number for part in parts if part.header is not None for number in part.header.replaced}
        parts = [part for part in parts if part.number not in stood_in_for]
        ids = Counter(part.header.journal_id for part in parts if part.header is not None)
        self.journal_id = ids.most_common(1)[0][0] if ids else self._clock.wall_ms
        for part in parts:
            if part.header is not None and part.header.journal_id != self.journal_id:
                self.damages.append(Damage(part.path, 0, part.end, "a segment of another journal"))
            else:
                self.parts.append(part)
        self.parts.sort(key=lambda part: (part.first_id, part.number))
        for earlier, later in pairwise(self.parts):
            follows = later.number == earlier.number + 1 and not earlier.is_compacted
            if follows and later.checkpoint is not None and later.checkpoint.previous_bytes:
                earlier.count_only(later.checkpoint.previous_bytes)

    def _begin(self, base: int) -> None:
        from_start = self.parts[0].number == 1
        checkpoint = self.parts[base].checkpoint if base >= 0 else None
        self.known_readers = SalvagedReaders(checkpoint, from_start=from_start)
        self._expected = self.parts[0].first_id
        self.state.next_id = self._expected
        if checkpoint is not None:
            self.state.next_id = max(checkpoint.next_id, self._expected)
            self.state.put_items, self.state.put_bytes = checkpoint.put_items, checkpoint.put_bytes
        if self._server is not None:
            self.state.next_id = max(self.state.next_id, self._server.next_id)

    def resync(self, at: int) -> Generator[None, None, tuple[bytes, Resync]]:
        """The bytes of the part at `at` that count, and a reader of them. Raises OSError."""
        part = self.parts[at]
        end_id = self.parts[at + 1].first_id if at + 1 < len(self.parts) else None
        buffer = yield from read_segment(self._files, part)
        return buffer, Resync(buffer, part.records_at, part.first_id, end_id, is_end_said=part.is_end_said)

    def _look_through(self, part_at: int, found: list[Damage], *, after_base: bool) -> Generator[None, None, bool]:
        """Note all records of a segment; returns True if whole records follow a bad stretch."""
        part = self.parts[part_at]
        if part.problem:
            self._suspect(Damage(part.path, 0, part.records_at, part.problem, may_hide=part.header is None))
            found.append(self._suspects[-1])
        buffer, resync = yield from self.resync(part_at)
        is_counted = after_base and not part.is_compacted
        goes_on = False
        self.known_readers.holders.clear()  # each segment has its own
        for count, (record_type, at, end) in enumerate(resync.pieces()):
            if count % PAUSE_RECORDS == 0 or record_type < 0:
                yield
            goes_on = goes_on or (record_type > 0 and bool(found))
            if record_type == records.Type.PUT:
                self._meet_item(buffer, at, end, is_counted=is_counted, after_base=after_base)
            elif record_type == 0:
                self.known_readers.holders.clear()  # the stretch may have had others of the same numbers
                self._suspect(self._bad_stretch(part, buffer, at, end))
                found.append(self._suspects[-1])
                for record in resync.readers:
                    self.known_readers.recall(record[records.FRAME_BYTES :])
                resync.readers.clear()
            elif record_type == records.Type.IMPORT:
                self.imports.append(buffer[at:end])
            elif record_type > 0:
                take = self.known_readers.take if after_base else self.known_readers.take_before
                take(record_type, buffer[at + records.FRAME_BYTES : end])
        if part.checkpoint is None and not found:
            reason = "the segment does not begin with a CHECKPOINT"
            self._suspect(Damage(part.path, part.records_at, 0, reason))
            found.append(self._suspects[-1])
        if part.missing_bytes:
            reason = f"the file is {part.missing_bytes} bytes shorter than what was written to it"
            self._suspect(Damage(part.path, len(buffer), 0, reason))
            found.append(self._suspects[-1])
        return goes_on

    def _bad_stretch(self, part: FoundSegment, buffer: bytes, at: int, end: int) -> Damage:
        is_item, is_bad = self._may_be_item(buffer, at), is_unread(part.unread, at, end)
        # A record with only wrong content, and zeros that were never written to, hide none.
        may_hide = is_bad or (records.record_end(buffer, at) != end and bool(buffer[at:end].strip(b"\0")))
        return Damage(part.path, at, end - at, UNREAD if is_bad else _what_is_bad(buffer, at), is_item, may_hide)

    def _may_be_item(self, buffer: bytes, at: int) -> bool:
        next_id = self._expected.to_bytes(8, "little")
        is_put = buffer[at + records.TYPE_OFFSET : at + records.FRAME_BYTES] == b"\1"
        return is_put or buffer[at + records.ID_OFFSET : at + records.ADD_OFFSET] == next_id

    def _suspect(self, damage: Damage) -> None:
        """Note a damage in which the items found missing next may have been lost."""
        self._suspects.append(damage)

    def _meet_item(self, buffer: bytes, at: int, end: int, *, is_counted: bool, after_base: bool) -> None:
        found, only = records.PUT.unpack_from(buffer, at)[3], records.PUT.unpack_from(buffer, at)[7]
        self._reach(found)
        self._expected = found + 1
        self.state.next_id = max(self.state.next_id, found + 1)
        if only and after_base:
            self.known_readers.meet(only)
        if is_counted:
            self.state.put_items += 1
            self.state.put_bytes += end - at - records.PUT_HEADER_BYTES

    def _reach(self, item_id: int) -> None:
        """Note an id that was given out: missing ids before it were lost in the damages since the last item."""
        if self._suspects and item_id > self._expected:
            self._suspects[0].lost.append((self._expected, item_id - 1))
        self._suspects = []

    def _reach_end(self, part: FoundSegment, following: FoundSegment | None) -> None:
        """Handle the end of a segment."""
        if following is None:
            self._reach_tail(part)
            return
        if self._problem is not None and not self._suspects:
            self._explain_gap(part, following)
        self._reach(following.first_id)
        self._expected = max(self._expected, following.first_id)

    def _explain_gap(self, part: FoundSegment, following: FoundSegment) -> None:
        """Explain ids missing between two segments when no bad stretch accounts for them."""
        if part.is_compacted:
            # It has only some of the items before the next one, whose first id its CHECKPOINT says.
            self._expected = following.first_id if part.checkpoint is None else part.checkpoint.next_id
        if following.first_id <= self._expected:
            return
        if following.number > part.number + 1:
            self._suspect(Damage(self._folder, 0, 0, missing_words(part.number + 1, following.number - 1)))
        elif following.checkpoint is None:  # if whole, it says that nothing is missing: after a repair ids may jump
            self._suspect(Damage(part.path, part.end, 0, "the file ends before the next one begins"))
        self.damages += self._suspects

    def _reach_tail(self, part: FoundSegment) -> None:
        """Handle the journal's end: how many ids were given out behind the last whole item is uncertain."""
        if self.last_number > self._last_found:
            words = missing_words(self._last_found + 1, self.last_number)
            self._suspect(Damage(self._folder, 0, 0, words))
            self.damages.append(self._suspects[-1])
        suspects = list(self._suspects)
        self._reach(self.state.next_id)
        hiding = [damage for damage in suspects if damage.may_hide and self._problem is not None]
        is_gone = self.last_number > self._last_found or (suspects and part.end <= part.records_at)
        is_gone = is_gone or (part.header is None and bool(hiding))  # its length does not say how many, either
        if self._server is None and is_gone:
            suspects[-1].lost_from = self.state.next_id
            self.state.next_id += IDS_AT_MOST
        for damage in suspects:
            if self.state.next_id > self._expected or not damage.is_item:
                continue
            damage.lost.append((self.state.next_id, self.state.next_id))
            self.state.next_id += 1
            self._expected = self.state.next_id
        if self._server is None and hiding and not is_gone:
            hiding[-1].lost_from = self.state.next_id
        bad_bytes = sum(damage.size_bytes for damage in suspects)
        self.state.next_id += bad_bytes // records.PUT_HEADER_BYTES

    def _settle(self, torn: list[Damage]) -> None:
        """Compute each reader's needed and lost items. A `torn` tail without other damage is left to startup."""
        first = self.parts[0]
        if self._server is not None:
            self.known_readers.learn(self._server.next_reader, self._server.readers)
        self.readers = self.known_readers.restored(first.first_id, self.state.next_id)
        needed = records.merged(
            [ids for state in self.readers if state.kind == records.Kind.QUEUE for ids in undone(state)]
        )
        lowest = min([min([state.head, *state.due]) for state in self.readers], default=first.first_id)
        floor = max(lowest, self._marker.floor if self._marker is not None else 0)
        if self._may_miss_the_first() and floor < first.first_id:
            words = f"everything before segment {first.number} is missing"
            self.damages.append(Damage(self._folder, 0, 0, words, lost=[(floor, first.first_id - 1)]))
        # The reason of a stop may be gone again; that of startup is true now.
        if not self.damages and isinstance(self._problem, RecordsDisagree if self._is_stopped else JournalCorrupt):
            self.damages.append(Damage(self._problem.path, self._problem.offset, 0, self._problem.reason))
        if self.damages:
            self.damages += torn
        for damage in self.damages:
            damage.lost = common(damage.lost, needed)
        for state in self.readers:
            settle(state, [(0, first.first_id - 1), *state.done])

    def _may_miss_the_first(self) -> bool:
        """True if there may have been a segment before the first that was not removed as dead."""
        first = self.parts[0]
        if self._server is not None:
            return min(self._server.used_bytes, default=first.number) < first.number
        return self._problem is not None and not first.is_compacted


def _what_is_bad(buffer: bytes, at: int) -> str:
    code = records.checked_end(buffer, at)[1]
    reason = records.why_bad(code) if code < 0 else "out of place"
    known = buffer[at + 8] if at + 8 < len(buffer) else 0
    return f"{records.Type(known).name}: {reason}" if known in set(records.Type) else reason


def _misses_any(earlier: FoundSegment, later: FoundSegment) -> bool:
    """True if a segment between two consecutive ones may be missing, with or without items."""
    said_bytes = later.checkpoint.previous_bytes if later.checkpoint is not None else 0
    # A number is left free for a compacted segment, which may never come.
    return later.number > earlier.number + 1 and said_bytes != earlier.end
