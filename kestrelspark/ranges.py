"""A range of a queue's item ids, read from its server as RecordBatches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestrelctl.remote.reader_api import Gone, ReaderApi, open_reader_api
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.journal.records import FRAME_BYTES, PUT_HEADER_BYTES
from kestrelspark.readers import ItemsLost, RemoteQueue, complain
from kestrelspark.rows import COLUMNS as EVENT_COLUMNS
from kestrelspark.rows import Column, instants, numbers
from kestrelspark.scanning import Block, blocks
from kestrelspark.servers import Patience, Servers, ServerTrouble

COLUMNS: Final = {
    name: EVENT_COLUMNS[name]
    for name in ("server", "queue", "id", "add_time", "expire_time", "flags", "size", "journal_id", "value")
}
IS_REPEAT: Final = "is_repeat"  # of items that are taken (kestrelspark/wal.py)
PAGE_ITEMS: Final = 50_000
PAGE_BYTES: Final = 8 << 20
GONE: Final = "no longer exist"


@dataclass(slots=True, frozen=True)
class RangeOfIds:
    """Ids from `first` to before `end`."""

    server: str
    queue: str
    journal_id: int
    first: int
    end: int

    def part(self, first: int, end: int) -> "RangeOfIds":
        return replace(self, first=first, end=end)

    def __str__(self) -> str:
        return f"{RemoteQueue(self.server, self.queue)}: items {self.first} to {self.end - 1}"


@dataclass(slots=True, frozen=True)
class RangeOptions:
    """Columns in order, the servers, and the choice to fail if items are gone."""

    columns: tuple[str, ...]
    servers: Servers
    fails_on_loss: bool


def range_batches(what: RangeOfIds, options: RangeOptions) -> Iterator[Any]:
    """The items of a range: the same ones each time. Raises ItemsLost, ServerTrouble."""
    first, patience, api, login = what.first, Patience(options.servers.retries), None, options.servers.login()
    while first < what.end:
        try:
            api = api or open_reader_api(what.server, options.servers.timeout_ms, login=login)
            records, next_id = _page(api, what, first)
        except Failure as failure:
            if failure.code == ExitCode.NEGATIVE:
                lose(f"{what.part(first, what.end)} {GONE}", options)
                return
            api = None
            patience.spend(failure)
            continue
        except Gone as gone:
            there = what.end if gone.journal_id != what.journal_id else max(min(gone.first_id, what.end), first)
            if there == first:  # the journal ends before
                there = what.end
            lose(f"{what.part(first, there)} {GONE}", options)
            first = there
            continue
        if next_id == first:
            lose(f"{what.part(first, what.end)} {GONE}", options)
            return
        patience = Patience(options.servers.retries)
        if records:
            yield _batch(records, what, options)
        first = next_id


def _page(api: ReaderApi, what: RangeOfIds, first: int) -> tuple[bytes, int]:
    limit = min(what.end - first, PAGE_ITEMS)
    query: Mapping[str, int] = {"first": first, "journal_id": what.journal_id, "limit": limit, "bytes": PAGE_BYTES}
    return api.records(what.queue, query)


def lose(words: str, options: RangeOptions) -> None:
    """Raise ItemsLost, or only print a warning if the options say so."""
    if options.fails_on_loss:
        raise ItemsLost(words)
    complain(f"{words}; continuing without them")


def _batch(records: bytes, what: RangeOfIds, options: RangeOptions) -> Any:
    """The rows of one page. Raises ServerTrouble if it was damaged in transit."""
    found = list(blocks(records, 0, len(records)))
    if not found or found[-1].end != len(records) or any(block.others or len(block.leases) for block in found):
        raise ServerTrouble(f"{what}: the reply is damaged")
    return row_batch(records, found, what, options.columns)


def row_batch(records: bytes, found: list[Block], what: RangeOfIds, names: tuple[str, ...]) -> Any:
    """A RecordBatch of the PUTs of `found`, blocks of `records`, that are in the range."""
    if not found:
        found = [Block(0)]
    puts = np.concatenate([block.puts for block in found])
    starts = np.concatenate([block.put_offsets for block in found])
    ends = starts + FRAME_BYTES + puts["body_bytes"]
    inside = (puts["id"] >= what.first) & (puts["id"] < what.end)
    puts, starts, ends = puts[inside], starts[inside] + PUT_HEADER_BYTES, ends[inside]
    count = len(puts)
    add_at_ms, expire_at_ms = puts["add_at_ms"].astype(np.int64), puts["expire_at_ms"].astype(np.int64)
    columns: dict[str, Column] = {
        "server": lambda: pa.repeat(what.server, count),
        "queue": lambda: pa.repeat(what.queue, count),
        "id": lambda: numbers(puts["id"].astype(np.int64)),
        "add_time": lambda: instants(add_at_ms, None),
        "expire_time": lambda: instants(expire_at_ms, expire_at_ms == 0),
        "flags": lambda: numbers(puts["flags"].astype(np.int64)),
        "size": lambda: numbers(ends - starts),
        "journal_id": lambda: pa.repeat(pa.scalar(what.journal_id, pa.int64()), count),
        "value": lambda: pa.array(
            list(map(records.__getitem__, map(slice, starts.tolist(), ends.tolist()))), pa.binary()
        ),
        IS_REPEAT: lambda: pa.array(puts["only_reader"] != 0),
    }
    schema = pa.schema([(name, COLUMNS.get(name, pa.bool_())) for name in names])
    return pa.RecordBatch.from_arrays([columns[name]() for name in names], schema=schema)
