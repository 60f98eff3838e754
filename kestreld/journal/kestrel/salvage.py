"""Salvage of a damaged Kestrel journal file: stretches of whole ops, and the damage between them.

A Kestrel journal has no checksums, so damage shows only where the ops stop making sense. Reading resumes at the next
bytes that can hardly be anything but an item: a header with a possible length and times of this age. A file that reads
without error from end to end is accepted, whatever its items contain.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kestreld.journal.kestrel import ops

ITEM_HEAD_BYTES: Final = ops.ADDX_HEAD.size
RUN_OPS: Final = 3  # this many ops in a row, or ops to the end of the file, are no accident
LOOK_BACK_ITEMS: Final = 4  # after a wrong length a few ops may seem to make sense

# Fields after an item's length. add_at_ms is from 2004 to 2248 (2**40 to 2**43), or before 2248 at least;
# expire_at_ms is 0, a time, or the negative one that a client's negative expiry can give.
_EXPIRY: Final = rb".{6}(?:\x00\x00|\xff\xff)"
_TIMES_OF_THIS_AGE: Final = rb".{5}[\x01-\x07]\x00\x00" + _EXPIRY
_TIMES: Final = rb".{5}[\x00-\x07]\x00\x00" + _EXPIRY
# ADDX, or ADD_XID or CONTINUE with an xid whose last byte is not 2: that is the end of a small op and an ADDX.
_HEAD: Final = rb"(?:\x02|[\x07\x08].{3}[^\x02]).{3}[\x00-\x7f]"
# ADD, which has no add time: a length that is not 0, and no expiry or one after 2004.
_OLD_ITEM: Final = rb"\x00(?!\x00{4}).{3}\x00(?:\x00{4}|.{3}[\x40-\x7f])"

_AGE_PATTERN: Final = re.compile(_TIMES_OF_THIS_AGE, re.DOTALL)
_TIMES_PATTERN: Final = re.compile(_TIMES, re.DOTALL)
_ITEM_OF_THIS_AGE: Final = re.compile(_HEAD + _TIMES_OF_THIS_AGE, re.DOTALL)
_ITEM_OF_ANY_AGE: Final = re.compile(_HEAD + _TIMES + b"|" + _OLD_ITEM, re.DOTALL)


@dataclass(slots=True)
class KestrelDamage:
    at: int
    resume_at: int  # the end of the file when nothing more can be read
    reason: str
    one_item: bool  # exactly one item was here, and nothing else


@dataclass(slots=True)
class Stretch:
    """Whole ops from `start` to `end`, and the damage that stopped them; None at the end of the file.

    `end` is before the damage if the last ops may be an accident of it.
    """

    start: int
    end: int
    damage: KestrelDamage | None


def stretches(buffer: bytes) -> Iterator[Stretch]:
    """All stretches of a file, in order."""
    start = 0
    while True:
        recent: deque[int] = deque(maxlen=LOOK_BACK_ITEMS)
        try:
            _walk(buffer, start, recent)
        except ops.Unreadable as error:
            stretch = _stretch_before(buffer, start, recent, error)
        else:
            stretch = Stretch(start, len(buffer), None)
        yield stretch
        if stretch.damage is None or stretch.damage.resume_at == len(buffer):
            return
        start = stretch.damage.resume_at


def _walk(buffer: bytes, at: int, recent: deque[int]) -> None:
    """Step over every op to the end of the file, collecting the starts of items in `recent`. Raises Unreadable."""
    size_bytes = len(buffer)
    unpack_size, is_item = ops.I32.unpack_from, recent.append
    while at < size_bytes:
        opcode = buffer[at]
        if opcode == ops.ADDX and size_bytes - at >= ITEM_HEAD_BYTES:
            (block_bytes,) = unpack_size(buffer, at + 1)
            end = at + 5 + block_bytes
            if block_bytes < 16 or end > size_bytes:
                end = ops.op_end(buffer, at)
            is_item(at)
            at = end
        elif opcode == ops.REMOVE:
            at += 1
        else:
            end = ops.op_end(buffer, at)
            if not ops.OP_BYTES[opcode]:
                is_item(at)
            at = end


def _stretch_before(buffer: bytes, start: int, recent: deque[int], error: ops.Unreadable) -> Stretch:
    bad_at = error.offset
    look_from = recent[0] if recent else start
    # An item whose opcode became that of a small op reads as that op, and perhaps a few more, up to `bad_at`.
    suspects = _small_ops_before(buffer, look_from, bad_at)
    for at in [*suspects, bad_at]:
        end = _end_as_item(buffer, at)
        if end > bad_at and _runs_clean(buffer, end):
            reason = f"an item with the opcode {buffer[at]}"
            return Stretch(start, at, KestrelDamage(at, end, reason, one_item=True))
    at, reason = bad_at, error.reason
    resume_at = _resume_at(buffer, look_from + 1, bad_at, recent)
    if resume_at < bad_at:
        # Good ops run on from inside one that was thought to be whole: its length, or its opcode, is wrong.
        at = max(op_at for op_at in _op_starts(buffer, look_from, bad_at) if op_at < resume_at)
        reason = f"{ops.NAMES[buffer[at]]} overlaps the operations after it"
        suspects = _small_ops_before(buffer, look_from, at)
    elif resume_at == len(buffer) and _is_torn_tail(buffer, error):
        suspects = []
    one_item = resume_at < len(buffer) and _is_one_item(buffer, at, resume_at)
    end = suspects[0] if suspects and not one_item else at
    return Stretch(start, end, KestrelDamage(at, resume_at, reason, one_item))


def _is_torn_tail(buffer: bytes, error: ops.Unreadable) -> bool:
    """True if the file ends in an op that was being written, or in zeros: the ops before are good."""
    return isinstance(error, ops.Truncated) or not any(buffer[error.offset :])


def _op_starts(buffer: bytes, at: int, stop: int) -> Iterator[int]:
    while at < stop:
        yield at
        at = ops.op_end(buffer, at)


def _small_ops_before(buffer: bytes, look_from: int, stop: int) -> list[int]:
    """Starts of ops without data that no item follows, less than an item's head before `stop`."""
    small_ops: list[int] = []
    for at in _op_starts(buffer, look_from, stop):
        if not ops.OP_BYTES[buffer[at]]:
            small_ops.clear()
        elif stop - at < ITEM_HEAD_BYTES:
            small_ops.append(at)
    return small_ops


def _resume_at(buffer: bytes, look_from: int, bad_at: int, recent: deque[int]) -> int:
    """Offset at which reading can resume; the end of the file if there is none."""
    if recent and _is_of_this_age(buffer, recent[-1]):
        return _next_item(buffer, look_from, bad_at, _ITEM_OF_THIS_AGE)
    resume_at = len(buffer)
    if not recent:
        resume_at = _next_item(buffer, look_from, bad_at, _ITEM_OF_THIS_AGE)
    if resume_at == len(buffer):
        resume_at = _next_item(buffer, look_from, bad_at, _ITEM_OF_ANY_AGE)
    return resume_at


def _next_item(buffer: bytes, at: int, bad_at: int, pattern: re.Pattern[bytes]) -> int:
    """Offset of the next item at or after `at`; the end of the file if there is none.

    One before `bad_at` counts only if the ops from there on lead past `bad_at`.
    """
    dead_ends: set[int] = set()
    while match := pattern.search(buffer, at):
        at = match.start()
        if at < bad_at:
            if _leads_past(buffer, at, bad_at, dead_ends):
                return at
        elif at > bad_at and _is_item(buffer, at):
            return at
        at += 1
    return len(buffer)


def _leads_past(buffer: bytes, at: int, bad_at: int, dead_ends: set[int]) -> bool:
    """True if the ops from `at` on step over `bad_at` and go on. `dead_ends` are offsets not to be tried again."""
    walked = []
    try:
        while at < bad_at and at not in dead_ends:
            walked.append(at)
            at = ops.op_end(buffer, at)
    except ops.Unreadable:
        at = bad_at
    if at > bad_at and _runs_clean(buffer, at):
        return True
    dead_ends.update(walked)
    return False


def _is_item(buffer: bytes, at: int) -> bool:
    """True if an apparent head of an item is one."""
    try:
        end = ops.op_end(buffer, at)
    except ops.Unreadable:
        return False
    return (buffer[at] == ops.ADDX and _is_of_this_age(buffer, at)) or _runs_clean(buffer, end)


def _is_of_this_age(buffer: bytes, at: int) -> bool:
    opcode = buffer[at]
    return opcode != ops.ADD and _AGE_PATTERN.match(buffer, at + ops.BLOCK_SIZE_AT[opcode] + 4) is not None


def _runs_clean(buffer: bytes, at: int) -> bool:
    """True if several ops follow at `at`, or ops to the end of the file, the last one perhaps torn."""
    for _ in range(RUN_OPS):
        if at == len(buffer):
            return True
        try:
            at = ops.op_end(buffer, at)
        except ops.BadOp:
            return False
        except ops.Truncated:
            times_at = at + ops.BLOCK_SIZE_AT[buffer[at]] + 4
            return len(buffer) < times_at + 16 or _TIMES_PATTERN.match(buffer, times_at) is not None
    return True


def _end_as_item(buffer: bytes, at: int) -> int:
    """End of an item with a wrong opcode at `at`; 0 if there is none."""
    if len(buffer) - at < ITEM_HEAD_BYTES or not _AGE_PATTERN.match(buffer, at + 5):
        return 0
    (block_bytes,) = ops.I32.unpack_from(buffer, at + 1)
    end = at + 5 + int(block_bytes)
    return end if block_bytes >= 16 and end <= len(buffer) else 0


def _is_one_item(buffer: bytes, at: int, end: int) -> bool:
    """True if one item with a wrong length fills the bytes from `at` to `end`, without a small op after it."""
    if end - at < ITEM_HEAD_BYTES or not _AGE_PATTERN.match(buffer, at + 5):
        return False
    last, fifth_last = buffer[end - 1], buffer[end - 5]
    return not (
        (last <= ops.REMOVE_TENTATIVE_XID and ops.OP_BYTES[last] == 1)
        or (fifth_last <= ops.REMOVE_TENTATIVE_XID and ops.OP_BYTES[fifth_last] == 5)
    )
