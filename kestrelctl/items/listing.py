"""Items as rows, and a queue followed as items are put: nothing here takes items."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kestrelctl.items.framing import Framing, data_fields, frame, readable
from kestrelctl.remote.reader_api import Gone, Item, ReaderApi
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import (
    OBJECTS,
    Layout,
    OutputFormat,
    default_format,
    reader_has_gone,
    say,
    write_data,
    write_rows,
)
from kestreld.client.blocks import Cell

COLUMNS: Final = ["id", "add_ms", "age_ms", "expire_ms", "bytes", "flags", "is_open", "state", "text"]
DEAD_COLUMNS: Final = [
    "id",
    "origin",
    "reason",
    "origin_attempts",
    "failure_reason",
    "put_at_ms",
    "add_ms",
    "bytes",
    "text",
]
COLUMNS_OF: Final = {
    "waiting": ["id", "add_ms", "age_ms", "expire_ms", "bytes", "flags", "origin", "reason", "text", "failure_reason"],
    "delayed": ["id", "add_ms", "due_at_ms", "left_ms", "bytes", "flags", "text"],
    "retrying": ["id", "add_ms", "due_at_ms", "left_ms", "attempts", "bytes", "flags", "text", "failure_reason"],
    "leased": [
        *("id", "client", "since_at_ms", "until_at_ms", "left_ms", "attempts", "bytes", "flags", "text"),
        *("holder", "extended", "seen"),
    ],
}
NOT_SEEN: Final = "not seen since the restart"
# Interval at which to check that standard output still has a reader.
LOOK_MS: Final = 2000

Row = dict[str, Cell]


def matching(items: Iterable[Item], pattern: re.Pattern[bytes] | None) -> Iterator[Item]:
    """The items in whose data the pattern is found; None = all."""
    return (item for item in items if pattern is None or pattern.search(item.data))


def write_items(items: Iterator[Item], layout: Layout, columns: Sequence[str] = COLUMNS) -> int:
    """Write a row for each item and return their number."""
    form = layout.form or default_format()
    now_ms = time.time_ns() // 1_000_000
    blank: Row = dict.fromkeys(columns, "")
    rows = (_as_object(item, now_ms) if form in OBJECTS else blank | _as_row(item, now_ms, form) for item in items)
    return write_rows(list(rows) if form == OutputFormat.TABLE else rows, columns, layout)


def details(item: Item) -> Row:
    """Fields of an item beside its data. `expire_ms` is absent if the item has no expiry."""
    row: Row = {"id": item.id, "add_ms": item.add_ms}
    if item.expire_ms:
        row["expire_ms"] = item.expire_ms
    return row | {"bytes": len(item.data), "flags": item.flags, "is_open": item.is_open} | dict(item.known)


def _ages(item: Item, now_ms: int) -> Row:
    ages: Row = {"age_ms": max(now_ms - item.add_ms, 0)}
    ends_at_ms = item.known.get("due_at_ms", item.known.get("until_at_ms"))
    return ages if ends_at_ms is None else ages | {"left_ms": max(int(ends_at_ms) - now_ms, 0)}


def _as_object(item: Item, now_ms: int) -> Row:
    return {**details(item), **_ages(item, now_ms), **data_fields(item.data)}


def _as_row(item: Item, now_ms: int, form: OutputFormat) -> Row:
    mark = "open" if item.is_open else ""
    shown: Row = {"is_open": mark, "state": item.known.get("state", mark), "text": readable(item.data, form)}
    if "seen" in item.known:
        shown["seen"] = "" if item.known["seen"] else NOT_SEEN
        if form == OutputFormat.TABLE and not item.known["seen"]:
            shown["state"] = f"{shown['state']}, {NOT_SEEN}"
    return {**details(item), **_ages(item, now_ms), **shown}


# Following a queue


def last_of(api: ReaderApi, queue: str, number: int) -> tuple[int, int, list[Item]]:
    """The journal's id, the id that the next put gets, and the last items put that still exist, taken or not.

    Raises Failure.
    """
    family = api.describe(queue)
    journal_id, next_id = int(family["journal_id"]), int(family["next_id"])
    found: list[Item] = []
    at = max(int(family["first_id"]), next_id - number)
    while at < next_id:
        try:
            page = api.page(queue, {"first": at, "journal_id": journal_id})
        except Gone as gone:
            if gone.journal_id != journal_id:
                raise _deleted(queue) from gone
            at = gone.first_id
            continue
        found += [item for item in page.items if item.id < next_id]
        if not page.items:
            break
        at = page.next_id
    return journal_id, next_id, found


def follow(api: ReaderApi, queue: str, journal_id: int, first: int) -> Iterator[list[Item]]:
    """Yield items from the id `first` on as they are put; [] every LOOK_MS if there are none. Raises Failure."""
    while True:
        try:
            page = api.page(queue, {"first": first, "journal_id": journal_id}, wait_ms=LOOK_MS)
        except Gone as gone:
            if gone.journal_id != journal_id:
                raise _deleted(queue) from gone
            say(f"{queue}: items {first} to {gone.first_id - 1} were gone before they could be read")
            first = gone.first_id
            continue
        yield page.items
        first = page.next_id


def _deleted(queue: str) -> Failure:
    return Failure(ExitCode.NEGATIVE, f"{queue} was deleted")


def write_framed(items: Iterable[Item], framing: Framing) -> None:
    """Write the items in one piece. Raises Failure if the reader of stdout has gone."""
    data = b"".join(frame(item.data, framing, details(item)) for item in items)
    if data:
        write_data(data)
    elif reader_has_gone():
        raise Failure(ExitCode.OUTPUT_CLOSED, "")
