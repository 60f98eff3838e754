"""Matches removes in a Kestrel journal to the items that they took, with files processed in parallel.

A remove names no item: it takes the head, and an aborted open read becomes the head again, so the k-th remove is not
the k-th add. First each file is summarized without knowing the queue's state at its beginning: a remove takes an item
that the file itself returned, or else "demands" the next item of that state. The summaries in order then give the state
at the beginning of each file, and a second pass numbers the items, from 0 in the order in which they were added.

As in Kestrel, a remove from an empty queue and the end of a read that is not open have no effect. A summary that
assumed items or open reads that turn out to be missing is made again with the known state.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestreld.journal.kestrel import ops

COUNTED: Final = (
    ops.REMOVE_TENTATIVE,
    ops.SAVE_XID,
    ops.ADD_XID,
)  # 1.x: reads that are numbered by counting, across files
# An item of which a file knows only: (False, the how-many-eth it demands), or (True, xid it was open under before).
Symbol = tuple[bool, int]


@dataclass(slots=True)
class Summary:
    """Net effect of one file on the queue.

    `returned`: items put back and still there, the head last; `opened`: its open reads; `closed`: xids opened earlier
    and closed here. The summary assumes `needed_items` waiting items and open `needed_xids` at the beginning. Times are
    of the first and last add, -1 = none.
    """

    adds: int = 0
    demands: int = 0
    returned: list[Symbol] = field(default_factory=list)
    opened: dict[int, Symbol] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    needed_items: int = 0
    needed_xids: set[int] = field(default_factory=set)
    first_add_at_ms: int = -1
    last_add_at_ms: int = -1
    is_counted: bool = False  # it has ops of 1.x: the items of its removes are unknown


@dataclass(slots=True)
class Beginning:
    """The queue at the beginning of a file: returned items, the head last, then the items from `next_item` on.

    `add_base` is the number of the file's first item. Its adds lie between the two times, -1 = unknown.
    """

    returned: list[int] = field(default_factory=list)
    next_item: int = 0
    opened: dict[int, int] = field(default_factory=dict)
    add_base: int = 0
    previous_add_at_ms: int = -1
    next_add_at_ms: int = -1

    @property
    def items(self) -> int:
        """Number of waiting items."""
        return len(self.returned) + self.add_base - self.next_item

    def item(self, symbol: Symbol) -> int | None:
        """Number of an item; None if the journal is inconsistent."""
        was_open, number = symbol
        if was_open:
            return self.opened.get(number)
        if number < len(self.returned):
            return self.returned[-1 - number]
        return self.next_item + number - len(self.returned)


@dataclass(slots=True, frozen=True)
class Taken:
    """An item that left for good, by a get or by a confirmed read. The time is known only to lie between two adds."""

    item: Symbol
    event: int
    not_before_ms: int  # -1 = before the file's first add
    not_after_ms: int  # -1 = after its last


def walk(
    found: Iterable[ops.Op], got: int, confirmed: int, beginning: Beginning | None = None
) -> tuple[Summary, list[Taken]]:
    """A file's summary and the items it took. `got`, `confirmed`: events to note. `beginning` None: unknown."""
    summary = Summary()
    taken: list[Taken] = []
    ends: list[tuple[Symbol, int, int]] = []

    def close(xid: int) -> None:
        if (item := _opened(summary, xid, beginning)) is not None:
            ends.append((item, confirmed, summary.last_add_at_ms))

    for op in found:
        if op.opcode in (ops.ADDX, ops.ADD, ops.ADD_XID, ops.CONTINUE):
            if op.opcode == ops.CONTINUE:
                close(op.xid)
            if op.add_at_ms:
                taken += [Taken(item, event, at_ms, op.add_at_ms) for item, event, at_ms in ends]
                ends = []
                summary.last_add_at_ms = op.add_at_ms
                if summary.first_add_at_ms < 0:
                    summary.first_add_at_ms = op.add_at_ms
            summary.adds += 1
        elif op.opcode == ops.REMOVE:
            if (item := _head(summary, beginning)) is not None:
                ends.append((item, got, summary.last_add_at_ms))
        elif op.opcode == ops.REMOVE_TENTATIVE_XID:
            if (item := _head(summary, beginning)) is not None:
                summary.opened[op.xid] = item
        elif op.opcode == ops.CONFIRM_REMOVE:
            close(op.xid)
        elif op.opcode == ops.UNREMOVE and (item := _opened(summary, op.xid, beginning)) is not None:
            summary.returned.append(item)
        summary.is_counted = summary.is_counted or op.opcode in COUNTED
    taken += [Taken(item, event, at_ms, -1) for item, event, at_ms in ends]
    return summary, taken


def _head(summary: Summary, beginning: Beginning | None) -> Symbol | None:
    """Take the head; None if the queue is empty."""
    if summary.returned:
        return summary.returned.pop()
    needed_items = summary.demands + 1 - summary.adds
    if beginning is not None and needed_items > beginning.items:
        return None
    summary.needed_items = max(summary.needed_items, needed_items)
    summary.demands += 1
    return False, summary.demands - 1


def _opened(summary: Summary, xid: int, beginning: Beginning | None) -> Symbol | None:
    """Close an open read and return its item; None if there is no such read."""
    is_closed = xid in summary.closed
    summary.closed.add(xid)
    if xid in summary.opened:
        return summary.opened.pop(xid)
    if is_closed or (beginning is not None and xid not in beginning.opened):
        return None
    summary.needed_xids.add(xid)
    return True, xid


def beginnings(
    summaries: Sequence[Summary], again: Callable[[int, Beginning], Summary] | None = None
) -> Iterator[Beginning]:
    """The queue at the beginning of each file of a queue. The first file begins with an empty queue.

    `again` summarizes a file, given its index and its beginning. None: all assumptions of the summaries hold.
    """
    state = Beginning()
    for at, summary in enumerate(summaries):
        later = (one.first_add_at_ms for one in summaries[at + 1 :])
        state.next_add_at_ms = next((at_ms for at_ms in later if at_ms >= 0), -1)
        yield state
        if again is not None and (summary.needed_items > state.items or not summary.needed_xids <= state.opened.keys()):
            summary = again(at, state)
        state = _after(state, summary)


def _after(state: Beginning, summary: Summary) -> Beginning:
    demanded = len(state.returned) - summary.demands
    returned = state.returned[: max(demanded, 0)]
    returned += [item for symbol in summary.returned if (item := state.item(symbol)) is not None]
    opened = {xid: item for xid, item in state.opened.items() if xid not in summary.closed}
    for xid, symbol in summary.opened.items():
        if (item := state.item(symbol)) is not None:
            opened[xid] = item
    return Beginning(
        returned,
        state.next_item + max(-demanded, 0),
        opened,
        state.add_base + summary.adds,
        summary.last_add_at_ms if summary.last_add_at_ms >= 0 else state.previous_add_at_ms,
    )
