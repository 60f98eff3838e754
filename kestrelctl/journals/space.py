"""Disk space of a queue's segments: live and dead bytes, the readers that keep each, and when it can be deleted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelctl.journals.locations import folder_of, replaying
from kestrelctl.journals.spools import shown
from kestrelctl.journals.times import written_span
from kestreld.client.blocks import Cell
from kestreld.files import FileLayer
from kestreld.journal.record_reader import segment_records
from kestreld.journal.records import (
    Kind,
    Range,
    ReaderState,
    Type,
    Why,
    item_add_at_ms,
    item_id,
    item_optional_fields,
)
from kestreld.journal.recovery import Survey, survey
from kestreld.journal.segment import Segment

COLUMNS: Final = ["segment", "bytes", "live_bytes", "dead_bytes", "items", "live_items", "pinned_by", "goes"]


@dataclass(slots=True)
class _Put:
    item_id: int
    add_at_ms: int
    record_bytes: int
    only: int


@dataclass(slots=True)
class _Reader:
    """A reader and the items that it needs. Done items behind its head suggest that the head is in an open read."""

    state: ReaderState
    name: str
    head: int  # the lowest item that it needs

    def needs(self, put: _Put) -> bool:
        if put.item_id in self.state.due:
            return True
        if put.only not in (0, self.state.number) or put.item_id < self.state.head:
            return False
        return not _is_in(put.item_id, self.state.done)


def _is_in(item_id: int, ranges: Sequence[Range]) -> bool:
    return any(first <= item_id <= last for first, last in ranges)


def explain(spool: str, queue: str, now_ms: int) -> list[dict[str, Cell]]:
    """A row for each segment, oldest first. Raises Failure."""
    folder = folder_of(spool, queue)
    with replaying(folder):
        found = survey(FileLayer(), folder)
        return list(_rows(found, now_ms)) if found.state is not None else []


def _rows(found: Survey, now_ms: int) -> Iterator[dict[str, Cell]]:
    assert found.state is not None
    readers = [
        _Reader(state, _name(found.queue, state), min([state.head, *state.due])) for state in found.state.readers
    ]
    keys = min([key.item_id for state in found.state.readers for key in state.keys], default=found.state.next_id)
    for segment in found.replaced:
        row = _row(segment, [], [], "")
        yield row | {"goes": "now: a compacted segment has what was live in it"}
    for segment, following in zip(found.segments, [*found.segments[1:], None], strict=True):
        puts = list(_puts(segment))
        # A reader whose head is in or before a segment still has to read it.
        needing = [reader for reader in readers if following is None or reader.head < following.first_id]
        live = [put for put in puts if any(reader.needs(put) for reader in readers)]
        if following is None:
            goes = "not before the next segment is begun: this one is being written"
        elif needing:
            goes = "; ".join(_when(reader, puts, following.first_id, now_ms) for reader in needing)
        elif keys < following.first_id:
            goes = f"when the key that item {keys} was put with is forgotten"
        else:
            goes = "now: as soon as its server has the next segment on disk and looks"
        row = _row(segment, puts, live, ", ".join(reader.name for reader in needing))
        yield row | {"goes": f"{goes}; it stands in for older ones" if segment.compacted else goes}


def _name(family: str, state: ReaderState) -> str:
    if state.kind == Kind.STREAM:
        return f"reader {shown(state.name)}"
    return shown(f"{family}+{state.name}" if state.name else family)


def _row(segment: Segment, puts: Sequence[_Put], live: Sequence[_Put], pinned_by: str) -> dict[str, Cell]:
    live_bytes = sum(put.record_bytes for put in live)
    return {
        "segment": segment.path.rpartition("/")[2],
        "bytes": segment.used_bytes,
        "live_bytes": live_bytes,
        "dead_bytes": segment.used_bytes - live_bytes,
        "items": len(puts),
        "live_items": len(live),
        "pinned_by": pinned_by,
    }


def _when(reader: _Reader, puts: Sequence[_Put], end_id: int, now_ms: int) -> str:
    """The condition under which this reader no longer needs the segment, in words."""
    state = reader.state
    needed = [put for put in puts if reader.needs(put)]
    if not needed:
        return f"when {reader.name} is done with item {reader.head}, in an older segment"
    oldest, last = needed[0], needed[-1]
    if oldest.item_id in state.due:
        due = state.due[oldest.item_id]
        span, is_late = written_span(abs(due.due_at_ms - now_ms)), due.due_at_ms <= now_ms
        when = f"due {'since' if is_late else 'in'} {span}"
        if due.why == Why.LEASED and not is_late:
            when = f"leased for {span} more" + (f" by {due.holder}" if due.holder else "")
        return (
            f"when {reader.name} is done with items={len(needed)} up to {last.item_id}; item {oldest.item_id} is {when}"
        )
    waited = written_span(max(now_ms - oldest.add_at_ms, 0))
    ids = f"item {last.item_id}" if len(needed) == 1 else f"items={len(needed)} up to {last.item_id}"
    done = sum(min(last_id, end_id - 1) - first + 1 for first, last_id in state.done if first < end_id)
    held = f", probably in an open read as items={done} behind it are done" if done else ""
    return f"when {reader.name} is done with {ids}; item {oldest.item_id} was put {waited} ago{held}"


def _puts(segment: Segment) -> Iterator[_Put]:
    for found in segment_records(FileLayer(), segment.path, segment.used_bytes):
        if found is not None and found[0] == Type.PUT:
            record = found[1]
            yield _Put(item_id(record), item_add_at_ms(record), len(record), item_optional_fields(record)[2])
