"""The window: the items of one reader that are in memory, and where the rest of them begin on disk.

`window` holds PUT records: first `returned` items that came back, in any order, then fresh ones in id order. While
*attached* it reaches to the journal's end and puts append to it. It is detached when `max_memory_size` is reached; then
the reader is behind, and loads items only into an empty window: from (`segment`, `offset`), or from the family's
pending puts (`detached_at`) once all that is written is loaded. When everything fits, it attaches again.

While detached, items waiting on disk have ids from `next_unread` on and are in `behind_items` and `behind_bytes`. Ids
in `skip`, and held ones, are passed over. `slow` is set whenever a get from a filled window must do more than
`window.popleft()`. `mem_bytes` is exact after `flush_counters`, so that puts and gets of the fast path need not count.
"""

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import Final

from kestreld.config.config import QueueConfig
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    FRAME_BYTES,
    PUT_HEADER_BYTES,
    TYPE_OFFSET,
    Range,
    Type,
    item_add_at_ms,
    item_id,
    item_optional_fields,
    record_end,
)
from kestreld.journal.segment import Segment
from kestreld.queues.family import Family
from kestreld.queues.item import ITEM_HEADER_BYTES, data_bytes_of, has_metadata
from kestreld.queues.notes import Holder

FILL_BYTES: Final = 256 * 1024  # about two milliseconds of reading at most
SEEK_BYTES: Final = 64 * 1024


class ReaderWindow(Holder):
    """Items that a reader has yet to deliver. Base class of a reader, which knows nothing of delivered items."""

    __slots__ = (
        "attached", "behind_bytes", "behind_items", "config", "detached_at", "family", "max_age_ms", "mem_bytes",
        "metadata_items", "name", "next_unread", "offset", "open_bytes", "returned", "segment", "skip", "skip_at",
        "slow", "sought", "taken_in_order", "window",
    )  # fmt: skip

    def __init__(self, family: Family, name: str, number: int, at_id: int, config: QueueConfig) -> None:
        super().__init__(family, number)
        self.family = family
        self.name = name
        self.config = config
        self.max_age_ms = config.max_age_ms or 0

        self.window: deque[bytes] = deque()
        self.mem_bytes = 0  # data in the window, as of the last flush_counters
        self.open_bytes = 0  # data of open reads, which may come back: the window leaves room for it
        self.metadata_items = 0  # items in the window with flags, expiry or only_reader
        self.returned = 0  # items at the window's front that came back
        self.slow = bool(self.max_age_ms or config.open_transaction_timeout_ms)  # window.popleft() is not all of a get
        self.attached = True
        self.behind_items = 0  # items waiting on disk only
        self.behind_bytes = 0
        self.segment = 0  # place of the next item to load, while not attached
        self.offset = 0
        self.next_unread = at_id
        self.detached_at = -1  # index of the next pending PUT to load, until the commit gives its offset; -1 = none
        self.skip: list[Range] = []  # sorted ranges done out of order; pruned below the head
        self.skip_at = 0  # index of the first range that reading has not passed

        # State of `seek_head`: the next_unread it is for, segment and offset reached, time of the put.
        self.sought = (-1, 0, 0, 0)

        self.taken_in_order = True  # no returned item was taken since the last commit

    @property
    def items(self) -> int:
        """Items waiting, without open reads and items not due yet. Exact after `Queue.flush_counters()`."""
        waiting = len(self.window) + self.behind_items
        return waiting if self.held is None else waiting + len(self.held.ready)

    @property
    def data_bytes(self) -> int:
        waiting_bytes = self.mem_bytes + self.behind_bytes
        return waiting_bytes if self.held is None else waiting_bytes + self.held.ready_bytes

    @property
    def is_drained(self) -> bool:
        """True if no item waits, due or not."""
        is_none_held = self.held is None or not (self.held.later or self.held.ready)
        return self.attached and not self.window and is_none_held

    def room_bytes(self) -> int:
        """Bytes that the window may hold: max_memory_size less the open and held items."""
        held_bytes = self.open_bytes if self.held is None else self.open_bytes + self.held.memory_bytes
        return self.config.max_memory_size_bytes - held_bytes

    def oldest_at_ms(self) -> int:
        """Time at which the head was put, ms; 0 if nothing waits, or `seek_head` has not found it on disk yet."""
        if self.window:
            return item_add_at_ms(self.window[0])
        if self.attached:
            return 0
        if self.detached_at >= 0:
            for record in self.family.pending[self.detached_at :]:
                if self._is_wanted(item_id(record), record):
                    return item_add_at_ms(record)
            return 0
        return self.sought[3] if self.sought[0] == self.next_unread else 0

    def seek_head(self) -> bool:
        """Search part of the journal for the time at which the head was put. False when the search is over.

        It loads nothing and serves figures only, so no checksum is verified: damage is found when the item is loaded.
        """
        if self.window or self.attached or self.detached_at >= 0:
            return False
        journal, wanted_id = self.family.journal, self.next_unread
        if self.sought[0] != wanted_id:
            self.sought = (wanted_id, self.segment, self.offset, 0)
        _, number, offset, found_at_ms = self.sought
        if found_at_ms or journal is None:
            return False
        try:
            here = journal.after(number - 1)
            if here is None:
                return False
            if here.number != number:
                number, offset = here.number, here.records_at
            chunk = journal.read_raw(number, offset, SEEK_BYTES)
        except JournalCorrupt:
            return False
        if not chunk:
            following = journal.after(number)
            if following is not None:
                self.sought = (wanted_id, following.number, following.records_at, 0)
            return following is not None
        found_at_ms, end = self._seek_in(chunk)
        self.sought = (wanted_id, number, offset + end, found_at_ms)
        return not found_at_ms and end > 0

    def _seek_in(self, chunk: bytes) -> tuple[int, int]:
        """Time at which the first item of this reader in `chunk` was put, or 0; and where the search ended."""
        at = 0
        while at + FRAME_BYTES <= len(chunk):
            if chunk[at + TYPE_OFFSET] == Type.PUT:
                header = chunk[at : at + PUT_HEADER_BYTES]
                if len(header) < PUT_HEADER_BYTES:
                    break
                found = item_id(header)
                if found >= self.next_unread and self._is_wanted(found, header):
                    return item_add_at_ms(header), at
            at = record_end(chunk, at)
        return 0, at

    def _is_wanted(self, found: int, record: bytes) -> bool:
        """True if an item on disk is this reader's and not done. The record's header is enough."""
        if self.held is not None and self.held.has(found):
            return False
        place = bisect_left(self.skip, found, key=lambda done: done[1])
        if place < len(self.skip) and self.skip[place][0] <= found:
            return False
        return item_optional_fields(record)[2] in (0, self.number)

    def refresh_fast_path(self) -> None:
        """Recompute `slow` after a change of what it depends on."""
        self.slow = bool(self.metadata_items or self.returned or self.max_age_ms or self.family.stopped)
        if self.config.open_transaction_timeout_ms or (self.held is not None and self.held.ready):
            self.slow = True

    def append_with_metadata(self, record: bytes) -> None:
        """Append a new item with flags, expiry or only_reader. All others are appended to `window` directly."""
        self.window.append(record)
        self.metadata_items += 1
        self.slow = True

    def put_back(self, record: bytes) -> None:
        """Make an item the head again."""
        self.window.appendleft(record)
        self.mem_bytes += len(record) - ITEM_HEADER_BYTES
        self.returned += 1
        if has_metadata(record):
            self.metadata_items += 1
        self.slow = True

    def left_front(self, record: bytes) -> None:
        """Update the counters for a record that has just left the window's front."""
        if self.returned:
            self.returned -= 1
            self.taken_in_order = False
        if self.metadata_items and has_metadata(record):
            self.metadata_items -= 1
        self.refresh_fast_path()

    def _take_front(self) -> bytes:
        """Take the head out of the window and of the counters."""
        record = self.window.popleft()
        self.left_front(record)
        self.mem_bytes -= len(record) - ITEM_HEADER_BYTES
        return record

    def attach_at_end(self) -> None:
        """Follow the journal from its end, because nothing waits."""
        self.mem_bytes = self.metadata_items = self.returned = 0
        self.behind_items = self.behind_bytes = 0
        self.skip, self.skip_at = [], 0
        self.detached_at = -1
        self.attached = True
        self.next_unread = self.family.next_id
        self.refresh_fast_path()
        self.family.reattach()

    def detach(self) -> None:
        """Leave items on disk from the next put on, until the full window has drained."""
        self.attached = False
        self.next_unread = self.family.next_id
        self.detached_at = len(self.family.pending)
        self.family.reattach()

    def resume_at(self, segment: int, offset: int, next_unread: int) -> None:
        """Start behind, as after a restart: the next item to load is at this place or after it."""
        self.attached = False
        self.segment, self.offset, self.next_unread = segment, offset, next_unread

    def read_on_at(self, segment: int, offset: int) -> None:
        """Set the place of the next item to load, now that the pending puts are written."""
        self.segment, self.offset = segment, offset
        self.detached_at = -1

    def undo_put(self, record: bytes) -> None:
        """Undo the counting of an item. If it reached the window, it is still there."""
        is_own = item_optional_fields(record)[2] in (0, self.number)
        if self.held is not None and self.held.has(item_id(record)):
            self.held.undo_put(item_id(record))
            return  # it was never counted as waiting
        if is_own and not self.attached and item_id(record) >= self.next_unread:
            self.behind_items -= 1
            self.behind_bytes -= len(record) - ITEM_HEADER_BYTES

    def _undo_from(self, first_new_id: int, back: list[bytes]) -> None:
        """Remove items from `first_new_id` on, and return those in `back` to the head."""
        back += [self.window[index] for index in range(self.returned) if item_id(self.window[index]) < first_new_id]
        fresh = [record for record in islice(self.window, self.returned, None) if item_id(record) < first_new_id]
        back.sort(key=item_id)
        self.window = deque(back + fresh)
        self.returned = len(back)
        self.mem_bytes = data_bytes_of(self.window)
        self.metadata_items = sum(map(has_metadata, self.window))
        self.next_unread = min(self.next_unread, first_new_id)
        self.taken_in_order = True
        self.refresh_fast_path()
        self._undo_detaching()

    def _undo_detaching(self) -> None:
        """Reset a reading place among pending puts, as these were undone."""
        journal = self.family.journal
        if self.detached_at >= 0 and journal is not None and journal.segments:
            self.read_on_at(journal.live.number, journal.live.used_bytes)
        elif self.detached_at >= 0:
            self.detached_at = -1
            self.attached = True  # nothing was ever written that could be read back

    def start_over(self) -> None:
        """Forget the items in memory and the reading place, as the journal was repaired or is read anew."""
        self.window.clear()
        self.taken_in_order = True
        self.sought = (-1, 0, 0, 0)
        self.attach_at_end()

    def count_anew(self) -> None:
        """Recompute the counters from a window that holds every item."""
        self.mem_bytes = data_bytes_of(self.window)
        self.metadata_items = sum(map(has_metadata, self.window))
        self.returned = min(self.returned, len(self.window))
        self.behind_items = self.behind_bytes = 0
        self.taken_in_order = True
        self.refresh_fast_path()

    def _place_in_window(self, one: int) -> int:
        """Index of an item in the window; -1 if it is not there."""
        window = self.window
        for at in range(self.returned):
            if item_id(window[at]) == one:
                return at
        at = bisect_left(window, one, self.returned, key=item_id)
        return at if at < len(window) and item_id(window[at]) == one else -1

    def _pull_from_window(self, one: int) -> bytes | None:
        """Take an item out of the window at any index; None if it is not there."""
        self.family.flush_counters()
        window, at = self.window, self._place_in_window(one)
        if at < 0:
            return None
        record = window[at]
        del window[at]
        self.mem_bytes -= len(record) - ITEM_HEADER_BYTES
        if at < self.returned:
            self.returned -= 1
        if has_metadata(record):
            self.metadata_items -= 1
        self.refresh_fast_path()
        return record

    def _find_on_disk(self, one: int) -> bytes | None:
        """Record of an item that has yet to be loaded, or None. Raises JournalCorrupt."""
        journal = self.family.journal
        if self.attached or one < self.next_unread or journal is None or not journal.segments:
            return None
        first_pending = self.family.next_id - len(self.family.pending)
        found, record = one, b""
        if one < first_pending:
            found, record = next(journal.puts(one, SEEK_BYTES), (0, b""))
        elif one < self.family.next_id:
            record = self.family.pending[one - first_pending]
        return record if found == one and record and self._is_wanted(one, record) else None

    def _pull_from_disk(self, one: int) -> bytes | None:
        """Count out an item that has yet to be loaded. The caller holds it, so that `_wants` passes over it."""
        record = self._find_on_disk(one)
        if record is None:
            return None
        self.family.flush_counters()
        self.behind_items -= 1
        self.behind_bytes -= len(record) - ITEM_HEADER_BYTES
        return record

    def pass_over(self, one: int) -> None:
        """Have reading skip an item that is done and has yet to be loaded."""
        skip, first, last = self.skip, one, one
        place = bisect_left(skip, (one + 1,))
        if place and skip[place - 1][1] >= one:
            return  # it was done or due at startup
        if place < len(skip) and skip[place][0] == one + 1:
            last = skip.pop(place)[1]
        if place and skip[place - 1][1] == one - 1:
            place -= 1
            skip[place] = (skip[place][0], last)
        else:
            skip.insert(place, (first, last))
        # The grown range may reach the reading place; ranges passed before are passed again.
        self.skip_at = min(self.skip_at, place)

    def meet_again(self, one: int) -> None:
        """Have reading find an item again that is not done after all."""
        place = bisect_left(self.skip, (one + 1,)) - 1
        if place < 0 or not self.skip[place][0] <= one <= self.skip[place][1]:
            return
        first, last = self.skip[place]
        parts = [(first, one - 1)] * (first < one) + [(one + 1, last)] * (one < last)
        self.skip[place : place + 1] = parts
        if place < self.skip_at:
            self.skip_at += len(parts) - 1

    def _forget_passed(self, head: int) -> None:
        """Remove ranges below the head: reading never comes to them again."""
        passed = sum(1 for one in self.skip if one[1] < head)
        del self.skip[:passed]
        self.skip_at = max(self.skip_at - passed, 0)

    def moved_to(self, replaced: list[int], compacted: Segment) -> None:
        """Read on in the segment that replaces the compacted ones."""
        if not self.attached and self.segment in replaced:
            self.segment, self.offset = compacted.number, compacted.offset_before(self.next_unread)
            self.skip_at = 0  # ranges passed since the last loaded item are met again

    def fill(self) -> bool:
        """Load the next items into an empty window. False if nothing waits. A JournalCorrupt stops the queue."""
        if self.attached:
            return False
        try:
            return self._fill()
        except JournalCorrupt as problem:
            self.family.stop(problem)
            raise

    def _fill(self) -> bool:
        journal = self.family.journal
        assert journal is not None
        while not self.window:
            if self.detached_at >= 0:
                self._follow()
                break
            there = journal.after(self.segment - 1)
            if there is not None and there.number != self.segment:
                # Its own was read to the end and deleted. A power cut may keep the deletion but not the DONEs.
                self.segment, self.offset = there.number, there.records_at
            chunk = journal.read(self.segment, self.offset, FILL_BYTES)
            if chunk:
                self._load(chunk)
                continue
            following = journal.after(self.segment)
            if following is None:
                self.detached_at = 0
                continue
            self.segment, self.offset = following.number, following.records_at
        return bool(self.window)

    def _load(self, chunk: bytes) -> None:
        """Load the PUTs of a stretch of journal: as many as may be in memory, but at least one."""
        journal = self.family.journal
        assert journal is not None
        at, start = 0, self.offset
        limit_bytes = self.room_bytes()
        before = journal.segment(self.segment)
        while at < len(chunk):
            record_type, end = journal.check(chunk, at, self.segment, start)
            if record_type == Type.PUT:
                record = chunk[at:end]
                found = item_id(record)
                if at == 0:
                    before.mark_read(found, start)
                size = len(record) - ITEM_HEADER_BYTES
                if self.window and self.mem_bytes + size > limit_bytes:
                    break
                if found >= self.next_unread and self._wants(found, record):
                    self.window.append(record)
                    self.mem_bytes += size
                    self.behind_items -= 1
                    self.behind_bytes -= size
                    self.next_unread = found + 1
            at = end
        self.offset = start + at
        if self.metadata_items:
            self.slow = True

    def _wants(self, found: int, record: bytes) -> bool:
        """True if an item read from disk is this reader's and not done; counts it if it has metadata."""
        while self.skip_at < len(self.skip) and self.skip[self.skip_at][1] < found:
            self.skip_at += 1
        if self.skip_at < len(self.skip) and self.skip[self.skip_at][0] <= found:
            return False
        if self.held is not None and self.held.has(found):
            return False
        optional_fields = item_optional_fields(record)
        if optional_fields == (0, 0, 0):
            return True
        if optional_fields[2] not in (0, self.number):
            return False
        self.metadata_items += 1
        return True

    def _follow(self) -> None:
        """Load pending puts once everything written is loaded, and attach if all of them fit."""
        self.family.flush_counters()
        limit_bytes = self.room_bytes()
        for index, record in enumerate(self.family.pending[self.detached_at :], self.detached_at):
            found = item_id(record)
            size = len(record) - ITEM_HEADER_BYTES
            if self.window and self.mem_bytes + size > limit_bytes:
                self.detached_at, self.next_unread = index, found
                self.refresh_fast_path()
                return
            if found >= self.next_unread and self._wants(found, record):
                self.window.append(record)
                self.mem_bytes += size
                self.behind_items -= 1
                self.behind_bytes -= size
        if self.behind_items or self.behind_bytes:
            self.family.report(
                f"{self.name}: {self.behind_items} items ({self.behind_bytes} bytes) fewer in the journal"
                " than counted; corrected"
            )
            self.behind_items = self.behind_bytes = 0
        self.detached_at = -1
        self.attached = True
        self.next_unread = self.family.next_id
        self.refresh_fast_path()
        self.family.reattach()
