"""Salvage of whole records from a damaged segment, also after bad stretches.

Pure. A record is accepted by its checksum, and after damage also by its place: items may contain records of other
journals, while the ids of this one rise within the bounds of the segment.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from kestreld.journal import records

READER_BYTES: Final = range(records.FRAME_BYTES + 22, 1024)  # a queue name is shorter
OTHER_ENDS_MAX: Final = 256
LONG_BYTES: Final = 256 * 1024
UNKNOWN: Final = -1
ID_END: Final = 1 << 64
SCAN_BYTES: Final = 32 * 1024
SCAN_RECORDS: Final = 1024
Piece = tuple[int, int, int]  # type of a whole record, or 0 for a stretch that holds none; start, end
PAUSE: Final[Piece] = (-1, 0, 0)  # no result yet: a search goes on


class Resync:
    """Reads one segment from `start` on. Its ids begin at `first_id`, and are below `end_id` if that is known.

    `is_end_said`: all of `buffer` counts. Otherwise it may end in the rest of a failed commit.
    """

    def __init__(
        self, buffer: bytes, start: int, first_id: int, end_id: int | None, *, is_end_said: bool = False
    ) -> None:
        self._buffer = buffer
        self._start = start
        self._last = first_id - 1  # the highest id met
        self._end_id = end_id
        self._is_end_said = is_end_said
        self._whole: list[Piece] | None = None  # whole records after the first bad one, also inside others
        self._anchors: list[tuple[int, int]] | None = None  # start and id of PUTs at which reading may resume
        self.readers: list[bytes] = []  # READER records that a bad stretch may have held

    def pieces(self) -> Iterator[Piece]:
        """The segment from `start` to its end, in order; PAUSE now and then."""
        buffer, at = self._buffer, self._start
        while at < len(buffer):
            record_type, end = records.checked_end(buffer, at)
            if record_type == records.Type.PUT:
                found = self._id(at)
                is_too_high = self._end_id is not None and found >= self._end_id
                if is_too_high and not self._is_end_said:
                    return  # of a failed commit: the next segment has its ids
                if is_too_high or found <= self._last or not self._fits_in(at, found):
                    record_type = 0
                else:
                    self._last = found
            elif record_type == records.Type.CHECKPOINT and at != self._start:
                record_type = 0
            if record_type:
                yield record_type, at, end
            else:
                before: list[Piece] = []
                if end < 0:
                    end, is_search = yield from self._resume(at)
                    if is_search:
                        self._find_readers(at, end)
                        before = self._said_before(at, end)
                yield 0, at, before[0][1] if before else end
                yield from before
            at = end

    def _id(self, at: int) -> int:
        return records.item_id(self._buffer[at : at + records.ADD_OFFSET])

    def _find_readers(self, at: int, end: int) -> None:
        for record_type, start, stop in self._within(at + 1, end):
            if (
                record_type == records.Type.READER
                and not records.read_reader(self._buffer[start + records.FRAME_BYTES : stop]).dropped
            ):
                self.readers.append(self._buffer[start:stop])

    def _said_before(self, at: int, end: int) -> list[Piece]:
        """Whole DUE, KEY and ORIGIN records right before the whole PUT at `end`, which they are about."""
        before: list[Piece] = []
        for piece in reversed(list(self._within(at + 1, end))):
            if piece[0] not in records.NOTES or piece[2] != end:
                break
            before.insert(0, piece)
            end = piece[1]
        return before

    # Resuming after a bad record

    def _resume(self, at: int) -> Generator[Piece, None, tuple[int, bool]]:
        """Offset at which reading resumes after the bad record at `at`; True if other records may lie between."""
        buffer, size = self._buffer, len(self._buffer)
        if at + records.ADD_OFFSET > size:
            return size, False
        is_next_item = self._id(at) == self._last + 1
        end = records.record_end(buffer, at)
        makes_sense = at + records.FRAME_BYTES < end <= size and (
            end == size or records.checked_end(buffer, end)[0] > 0
        )
        following = self._next_id(end) if makes_sense else UNKNOWN
        if following == self._last + 1 + is_next_item:
            self._mend(at, end)
            return end, False
        if self._whole is None:
            self._whole = yield from self._scan(at + 1)
        # The length itself may be wrong, and by accident lead to the end of another record.
        if true_end := self._end_with_other_length(at):
            return true_end, False
        if makes_sense and not self._holds_item(at + 1, end, following):
            self._mend(at, end)
            return end, False
        if self._anchors is None:
            self._anchors = yield from self._find_anchors(at + 1)
        return self._next_anchor(at, is_item=is_next_item and buffer[at + 8] == records.Type.PUT), True

    def _scan(self, at: int) -> Generator[Piece, None, list[Piece]]:
        """The whole records from `at` on, at any byte."""
        whole: list[Piece] = []
        while at < len(self._buffer):
            stop = at + SCAN_BYTES
            for piece in records.find_whole_records(self._buffer, at, stop):
                whole.append(piece)
                at = piece[2]
            at = max(at, stop)
            yield PAUSE
        return whole

    def _within(self, start: int, end: int) -> Iterator[Piece]:
        """The whole records between `start` and `end`, once `_scan` has run."""
        whole = self._whole or []
        for index in range(bisect_left(whole, start, key=_start), len(whole)):
            piece = whole[index]
            if piece[1] >= end:
                return
            if piece[2] <= end:
                yield piece

    def _next_id(self, at: int) -> int:
        """Id of the next item to which whole records lead from `at`, or UNKNOWN."""
        buffer = self._buffer
        while at < len(buffer):
            record_type, end = records.checked_end(buffer, at)
            if not record_type:
                return UNKNOWN
            if record_type == records.Type.PUT:
                return self._id(at)
            at = end
        return UNKNOWN if self._end_id is None else self._end_id

    def _end_with_other_length(self, at: int) -> int:
        """End of the record at `at` if only its length is wrong; 0 otherwise."""
        buffer, size = self._buffer, len(self._buffer)
        written = int.from_bytes(buffer[at : at + 4], "little")
        ends = [at + records.FRAME_BYTES + (written ^ (1 << bit)) for bit in range(32)]
        whole = self._whole or []
        behind = bisect_left(whole, at + 1, key=_start)
        ends += [size, *map(_start, whole[behind : behind + OTHER_ENDS_MAX])]
        for end in ends:
            if at + records.FRAME_BYTES < end <= size and self._may_end(at, end):
                record = (end - at - records.FRAME_BYTES).to_bytes(4, "little") + buffer[at + 4 : end]
                record_type, _ = records.checked_end(record, 0)
                if record_type:
                    if record_type == records.Type.READER:
                        self.readers.append(record)
                    return end
        return 0

    def _may_end(self, at: int, end: int) -> bool:
        """True if a record from `at` to `end` is worth checking: a long one only before a whole record."""
        if end - at <= LONG_BYTES:
            return True
        if end == len(self._buffer):
            return not any(self._within(at + 1, end))
        return records.checked_end(self._buffer, end)[0] > 0

    def _holds_item(self, start: int, end: int, following: int) -> bool:
        """True if an item that belongs before `following` is between `start` and `end`."""
        end_id = ID_END if following == UNKNOWN else following
        return any(
            record_type == records.Type.PUT and self._last < self._id(found) < end_id
            for record_type, found, _ in self._within(start, end)
        )

    def _next_anchor(self, at: int, *, is_item: bool) -> int:
        """The first PUT after `at` that belongs here, or the end of the segment.

        `is_item`: the bad record at `at` says that it is the next item. Then no more items can be missing than fit in
        between, or the PUT is inside that item: a segment may be cut short in one.
        """
        last = self._last + is_item
        anchors = self._anchors or []
        for index in range(bisect_left(anchors, (at + 1, 0)), len(anchors)):
            anchor, anchor_id = anchors[index]
            if anchor_id > last and not (is_item and (anchor_id - last) * records.PUT_HEADER_BYTES > anchor - at):
                return anchor
        return len(self._buffer)

    def _fits_in(self, at: int, found: int) -> bool:
        """True if the PUT at `at` is one of the anchors, or these were not needed so far."""
        if self._anchors is None:
            return True
        index = bisect_left(self._anchors, (at, 0))
        return index < len(self._anchors) and self._anchors[index] == (at, found)

    def _find_anchors(self, at: int) -> Generator[Piece, None, list[tuple[int, int]]]:
        """Largest set of PUTs from `at` on in the order of their ids: those inside items do not fit in."""
        end_id = ID_END if self._end_id is None else self._end_id
        whole = self._whole or []
        puts: list[tuple[int, int]] = []
        for index in range(bisect_left(whole, at, key=_start), len(whole)):
            record_type, start, _ = whole[index]
            if record_type == records.Type.PUT and self._last < (found := self._id(start)) < end_id:
                puts.append((start, found))
            if index % SCAN_RECORDS == 0:
                yield PAUSE
        return (yield from longest_row(puts))

    def _mend(self, at: int, end: int) -> None:
        """Search for the one wrong bit of a READER, without which a queue or its name would be lost."""
        record = self._buffer[at:end]
        if len(record) not in READER_BYTES or (record[8] ^ records.Type.READER).bit_count() > 1:
            return
        for corrected in one_bit_off(record, range(32, len(record) * 8)):
            if records.checked_end(corrected, 0)[0] == records.Type.READER:
                self.readers.append(corrected)
                return


def longest_row(found: Sequence[tuple[int, int]]) -> Generator[Piece, None, list[tuple[int, int]]]:
    """Longest subsequence of these pairs whose second numbers rise; PAUSE now and then."""
    tails: list[int] = []  # the lowest last number of a subsequence of each length
    lengths = []
    for count, (_, number) in enumerate(found):
        length = bisect_left(tails, number)
        tails[length : length + 1] = [number]
        lengths.append(length)
        if count % SCAN_RECORDS == 0:
            yield PAUSE
    wanted, row = len(tails) - 1, list[tuple[int, int]]()
    for count, (pair, length) in enumerate(zip(reversed(found), reversed(lengths), strict=True)):
        if length == wanted and (not row or pair[1] < row[-1][1]):
            row.append(pair)
            wanted -= 1
        if count % SCAN_RECORDS == 0:
            yield PAUSE
    return row[::-1]


def one_bit_off(data: bytes, bits: Iterable[int]) -> Iterator[bytes]:
    """Copies of the bytes, each with one of these bits inverted."""
    for bit in bits:
        byte = bit >> 3
        yield data[:byte] + bytes([data[byte] ^ (1 << (bit & 7))]) + data[byte + 1 :]


def _start(piece: Piece) -> int:
    return piece[1]
