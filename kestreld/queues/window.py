"""The window: the items of one reader that are in memory, and where the rest of its items stand on disk.

The window holds PUT records. It is *attached* when it reaches to the journal's end, so that puts append to it; a
reader that is behind reads its next items back from disk. Items that came back (aborted) stand at the window's front,
out of id order, and are counted by `returned`.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from kestreld.config import QueueConfig
from kestreld.errors import JournalCorrupt
from kestreld.journal.records import Range, Type, item_id, item_oddities
from kestreld.journal.segment import Segment
from kestreld.queues.item import ITEM_HEADER_BYTES, is_odd

if TYPE_CHECKING:
    from kestreld.queues.queue import Queue

FILL_BYTES: Final = 256 * 1024  # some two milliseconds of reading at most


class Window:
    """What a reader has yet to deliver. A reader is one; this part knows nothing of what becomes of the items."""

    def __init__(self, queue: "Queue", name: str, number: int, at_id: int, config: QueueConfig) -> None:
        self.queue = queue
        self.name = name
        self.number = number
        self.config = config
        self.max_age_ms = config.max_age_ms or 0

        self.window: deque[bytes] = deque()
        self.mem_bytes = 0  # data in the window, as of the last fold
        self.open_bytes = 0  # data of open reads: it may come back, so the window leaves room for it
        self.odd = 0  # items in the window with flags, expiry or only_reader
        self.returned = 0  # items at the window's front that came back
        self.slow: bool = bool(self.max_age_ms)  # a plain get must look closer than window.popleft()
        self.attached = True
        self.behind_items = 0  # waiting on disk only
        self.behind_bytes = 0
        self.segment = 0  # where the next item to load stands, while not attached
        self.offset = 0
        self.next_unread = at_id
        self.detached_at = -1  # index among the pending PUTs where reading goes on, until the commit says the offset
        self.skip: list[Range] = []  # ranges done out of order before the start, in order; pruned below the head
        self.skip_at = 0  # the first of them that reading has not passed

        self.taken_in_order = True  # nothing that came back was taken since the last commit

    @property
    def items(self) -> int:
        """Items waiting; open reads do not count. Exact after `queue.fold()`."""
        return len(self.window) + self.behind_items

    @property
    def data_bytes(self) -> int:
        return self.mem_bytes + self.behind_bytes

    def look_again(self) -> None:
        """Recompute `slow` after what it depends on has changed."""
        self.slow = bool(self.odd or self.returned or self.max_age_ms or self.queue.stopped)

    def put_back(self, record: bytes) -> None:
        """Make an item the head again."""
        self.window.appendleft(record)
        self.mem_bytes += len(record) - ITEM_HEADER_BYTES
        self.returned += 1
        if is_odd(record):
            self.odd += 1
        self.slow = True

    def left_front(self, record: bytes) -> None:
        """Bookkeeping for a record that has just left the window's front."""
        if self.returned:
            self.returned -= 1
            self.taken_in_order = False
        if self.odd and is_odd(record):
            self.odd -= 1
        self.look_again()

    def attach_at_end(self) -> None:
        """Nothing waits: follow the journal from its end."""
        self.mem_bytes = self.odd = self.returned = 0
        self.behind_items = self.behind_bytes = 0
        self.skip, self.skip_at = [], 0
        self.detached_at = -1
        self.attached = True
        self.next_unread = self.queue.next_id
        self.look_again()
        self.queue.reattach()

    def detach(self) -> None:
        """The window is full: from the next put on items stay on disk until the window has drained."""
        self.attached = False
        self.next_unread = self.queue.next_id
        self.detached_at = len(self.queue.pending)
        self.queue.reattach()

    def resume_at(self, segment: int, offset: int, next_unread: int) -> None:
        """Start behind, as after a restart: the next item to load is at or after this place."""
        self.attached = False
        self.segment, self.offset, self.next_unread = segment, offset, next_unread

    def start_over(self) -> None:
        """Forget what is in memory and where reading had come to: the journal has been repaired."""
        self.window.clear()
        self.taken_in_order = True
        self.attach_at_end()

    def moved_to(self, replaced: list[int], compacted: Segment) -> None:
        """The segments it was to read from have been compacted into one."""
        if not self.attached and self.segment in replaced:
            self.segment, self.offset = compacted.number, compacted.offset_before(self.next_unread)
            self.skip_at = 0  # what was passed over since the last item for the window is met again

    def fill(self) -> bool:
        """Load the next items into an empty window. False when nothing waits. A JournalCorrupt stops the queue."""
        if self.attached:
            return False
        try:
            return self._fill()
        except JournalCorrupt as problem:
            self.queue.stop(problem)
            raise

    def _fill(self) -> bool:
        journal = self.queue.journal
        assert journal is not None
        while not self.window:
            if self.detached_at >= 0:
                self._follow()
                break
            there = journal.after(self.segment - 1)
            if there is not None and there.number != self.segment:
                # Its own had been read to the end, and deleted since. A power cut may keep that and not the DONEs.
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
        """Take the PUTs of a stretch of journal into the window, as many as may be in memory but at least one."""
        journal = self.queue.journal
        assert journal is not None
        at, start = 0, self.offset
        limit_bytes = self.config.max_memory_size_bytes - self.open_bytes
        before = journal.segment(self.segment)
        while at < len(chunk):
            record_type, end = journal.check(chunk, at, self.segment, start)
            if record_type == Type.PUT:
                record = chunk[at:end]
                found = item_id(record)
                if at == 0 and start > (before.marks[-1][1] if before.marks else 0):
                    before.mark(found, start)
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
        if self.odd:
            self.slow = True

    def _wants(self, found: int, record: bytes) -> bool:
        """Whether an item met on disk is this reader's and not done yet; counts it if it is odd."""
        while self.skip_at < len(self.skip) and self.skip[self.skip_at][1] < found:
            self.skip_at += 1
        if self.skip_at < len(self.skip) and self.skip[self.skip_at][0] <= found:
            return False
        oddities = item_oddities(record)
        if oddities == (0, 0, 0):
            return True
        if oddities[2] not in (0, self.number):
            return False
        self.odd += 1
        return True

    def _follow(self) -> None:
        """All that is written has been loaded: take what waits for the commit too, and attach if all of it fits."""
        self.queue.fold()
        limit_bytes = self.config.max_memory_size_bytes - self.open_bytes
        for index, record in enumerate(self.queue.pending[self.detached_at :], self.detached_at):
            found = item_id(record)
            size = len(record) - ITEM_HEADER_BYTES
            if self.window and self.mem_bytes + size > limit_bytes:
                self.detached_at, self.next_unread = index, found
                self.look_again()
                return
            if found >= self.next_unread and self._wants(found, record):
                self.window.append(record)
                self.mem_bytes += size
                self.behind_items -= 1
                self.behind_bytes -= size
        if self.behind_items or self.behind_bytes:
            self.queue.report(
                f"{self.name}: {self.behind_items} items ({self.behind_bytes} bytes) fewer in the journal"
                " than counted; set right"
            )
            self.behind_items = self.behind_bytes = 0
        self.detached_at = -1
        self.attached = True
        self.next_unread = self.queue.next_id
        self.look_again()
        self.queue.reattach()
