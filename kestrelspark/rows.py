"""Rows of the source as Arrow RecordBatches: one per item put, and one per event of an item."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestreld.journal.discovery import JournalFile, text_of
from kestreld.journal.records import Origin
from kestrelspark.contents import (
    EVENTS,
    LATEST_MS,
    NO_ATTEMPTS,
    NO_ID,
    NO_LEASE,
    NO_TIME,
    DamagedStretch,
    Endings,
    Progress,
    Puts,
    contents,
)
from kestrelspark.lease_entries import UNKNOWN, LatestLeases
from kestrelspark.packing import is_later
from kestrelspark.scanning import blocks
from kestrelspark.storage import ENVIRONMENT, Storage

ROWS_MAX: Final = 1 << 16
ROWS_WITH_VALUES_MAX: Final = 10_000
VALUE_BYTES_MAX: Final = 32 << 20
INSTANT: Final = pa.timestamp("us", "UTC")
CORRUPT: Final = "_corrupt"
VALUE: Final = "value"
COLUMNS: Final = {
    "server": pa.string(),
    "queue": pa.string(),
    "reader": pa.string(),
    "event": pa.string(),
    "id": pa.int64(),
    "at": INSTANT,
    "add_time": INSTANT,
    "expire_time": INSTANT,
    "flags": pa.int64(),
    "size": pa.int64(),
    "due_time": INSTANT,
    "attempts": pa.int64(),
    "origin": pa.string(),
    "reason": pa.string(),
    "journal_id": pa.int64(),
    VALUE: pa.binary(),
    CORRUPT: pa.string(),
    "failure_reason": pa.string(),
    "lease": pa.int64(),
    "holder": pa.string(),
}
Column = Callable[[], Any]
_log: Final = logging.getLogger("kestrelspark")


class Mode(StrEnum):
    """Handling of a damaged stretch: return a row for it, log it, or raise."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


@dataclass(slots=True, frozen=True)
class RowSelection:
    """Columns in order, and a selection of rows. `since_ms` is included, `until_ms` not; None = no limit.

    With a limit, rows without a time are left out. `puts_only`: only rows of puts.
    """

    columns: tuple[str, ...]
    mode: Mode = Mode.PERMISSIVE
    since_ms: int | None = None
    until_ms: int | None = None
    puts_only: bool = False


def batches(
    files: Iterable[JournalFile],
    selection: RowSelection,
    *,
    missing_is_fine: bool = False,
    storage: Storage = ENVIRONMENT,
    earlier: Sequence[JournalFile] = (),
) -> Iterator[Any]:
    """The rows of some files, those of a journal in order. Raises JournalCorrupt in FAILFAST, OSError.

    `earlier` are segments before the first, which may have the leases that it extends.
    """
    leases, before = LatestLeases(earlier=partial(_leases_in, earlier, storage) if earlier else None), None
    for file in files:
        if before is not None and not is_later(before, file):
            leases = LatestLeases()
        before = file
        try:
            buffer = storage.content(file)
        except FileNotFoundError:
            if missing_is_fine:
                continue
            raise
        yield from file_batches(buffer, file, selection, storage, leases)


def _leases_in(files: Iterable[JournalFile], storage: Storage) -> LatestLeases:
    """The latest leases in segments of a journal."""
    leases = LatestLeases()
    for file in files:
        with suppress(FileNotFoundError):  # removed by its server
            for _ in contents(storage.content(file), file, Progress(leases=leases)):
                pass
    return leases


def file_batches(
    buffer: bytes,
    file: JournalFile,
    selection: RowSelection,
    storage: Storage = ENVIRONMENT,
    leases: LatestLeases | None = None,
) -> Iterator[Any]:
    """The rows of one file. A torn tail is not damage. Damage that is not returned as a row is logged.

    `leases` are those of earlier files of the journal.
    """
    progress = Progress(leases=leases if leases is not None else LatestLeases())
    dropped = dropped_bytes = 0
    for piece in contents(buffer, file, progress):
        match piece:
            case Puts():
                yield from _put_batches(_without(piece, file, storage), buffer, file, selection, progress)
            case Endings() if not selection.puts_only:
                yield from _ending_batches(piece, file, selection, progress)
            case DamagedStretch(is_torn=True):
                if piece.left_out:
                    _log.warning("%s: byte %d: torn tail: %s", file.path, piece.at, piece.reason)
            case DamagedStretch():
                yield from _corrupt_batch(piece, file, selection)
                if selection.mode == Mode.DROPMALFORMED:
                    dropped, dropped_bytes = dropped + 1, dropped_bytes + piece.size_bytes
                    if piece.is_missing:
                        _log.warning("%s", piece.error(file))
                    else:
                        _log.warning("%s: byte %d: dropped: %s", file.path, piece.at, piece.reason)
    if dropped:
        _log.warning("%s: %d damaged stretches of %d bytes dropped", file.path, dropped, dropped_bytes)


def _without(puts: Puts, file: JournalFile, storage: Storage) -> Puts:
    """Leave out items that are in the original segments or were read before."""
    if not file.is_compacted:
        return puts
    which = puts.ids >= file.from_id
    for original in file.originals:
        start, stop = np.searchsorted(puts.ids, (original.first_id, original.until_id))  # ids rise
        if which[start:stop].any():
            which[start:stop] &= ~np.isin(
                puts.ids[start:stop], _ids_in(storage.content(replace(file, path=original.path)))
            )
    return _picked(puts, which)


def _ids_in(buffer: bytes) -> Any:
    """The ids of all items in a segment, in order."""
    at = int.from_bytes(buffer[12:16], "little")
    ids = [block.puts["id"].astype(np.int64) for block in blocks(buffer, at, len(buffer))]
    return np.concatenate([np.empty(0, np.int64), *ids])


def _picked(puts: Puts, which: Any) -> Puts:
    return Puts(
        puts.ids[which],
        puts.add_at_ms[which],
        puts.expire_at_ms[which],
        puts.flags[which],
        puts.only[which],
        puts.starts[which],
        puts.ends[which],
        None if puts.due_at_ms is None else puts.due_at_ms[which],
        puts.origins,
    )


def _in_time(at_ms: Any, selection: RowSelection) -> Any:
    """Mask of the rows within the selected period, None = all."""
    if selection.since_ms is None and selection.until_ms is None:
        return None
    which = at_ms != NO_TIME
    if selection.since_ms is not None:
        which &= at_ms >= selection.since_ms
    if selection.until_ms is not None:
        which &= at_ms < selection.until_ms
    return which


def _put_batches(
    puts: Puts, buffer: bytes, file: JournalFile, selection: RowSelection, progress: Progress
) -> Iterator[Any]:
    which = _in_time(puts.add_at_ms, selection)
    if which is not None:
        puts = _picked(puts, which)
    for start, stop in _slices(puts, selection):
        yield _put_batch(_picked(puts, slice(start, stop)), buffer, file, selection, progress)


def _slices(puts: Puts, selection: RowSelection) -> Iterator[tuple[int, int]]:
    """Ranges of rows for one batch each: fewer rows if items are large."""
    total = len(puts.ids)
    if VALUE not in selection.columns:
        yield from ((start, min(start + ROWS_MAX, total)) for start in range(0, total, ROWS_MAX))
        return
    so_far = np.concatenate([[0], np.cumsum(puts.ends - puts.starts)])
    start = 0
    while start < total:
        fitting = int(np.searchsorted(so_far, so_far[start] + VALUE_BYTES_MAX, "right")) - 1
        stop = min(max(fitting, start + 1), start + ROWS_WITH_VALUES_MAX, total)
        yield start, stop
        start = stop


def _put_batch(puts: Puts, buffer: bytes, file: JournalFile, selection: RowSelection, progress: Progress) -> Any:
    count = len(puts.ids)
    is_shared = puts.only == 0
    columns: dict[str, Column] = {
        "reader": lambda: (
            pa.repeat(file.reader, count)
            if file.is_kestrel
            else pa.nulls(count, pa.string())
            if is_shared.all()
            else _names(puts.only, progress, is_shared)
        ),
        "event": lambda: pa.repeat("put", count),
        "id": lambda: numbers(puts.ids, puts.ids == NO_ID),
        "at": lambda: instants(puts.add_at_ms, puts.add_at_ms == NO_TIME),
        "add_time": lambda: instants(puts.add_at_ms, puts.add_at_ms == NO_TIME),
        "expire_time": lambda: instants(puts.expire_at_ms, puts.expire_at_ms == 0),
        "flags": lambda: numbers(puts.flags),
        "size": lambda: numbers(puts.ends - puts.starts),
        "due_time": lambda: _due_times(puts.due_at_ms, count),
        "attempts": lambda: _origins(puts, pa.int64(), lambda origin: origin.attempts),
        "origin": lambda: _origins(puts, pa.string(), lambda origin: text_of(origin.queue)),
        "reason": lambda: _origins(puts, pa.string(), lambda origin: origin.reason_word),
        "failure_reason": lambda: _origins(puts, pa.string(), lambda origin: origin.failure or None),
        VALUE: lambda: pa.array(
            list(map(buffer.__getitem__, map(slice, puts.starts.tolist(), puts.ends.tolist()))), pa.binary()
        ),
    }
    return _batch(columns, count, file, selection)


def _ending_batches(endings: Endings, file: JournalFile, selection: RowSelection, progress: Progress) -> Iterator[Any]:
    """A row for each id of the ranges, in batches: one range may be millions of ids."""
    which = _in_time(endings.at_ms, selection)
    if which is None:
        which = slice(None)
    events, readers, at_ms = endings.events[which], endings.readers[which], endings.at_ms[which]
    few = [endings.due_at_ms, endings.attempts, endings.leases, endings.holders]
    few = [None if column is None else column[which] for column in few]
    firsts, lasts = endings.firsts[which], endings.lasts[which]
    behind = np.cumsum(lasts - firsts + 1)
    total = int(behind[-1]) if len(behind) else 0
    before = behind - (lasts - firsts + 1)
    for start in range(0, total, ROWS_MAX):
        stop = min(start + ROWS_MAX, total)
        of = np.repeat(np.arange(len(behind)), np.clip(behind, start, stop) - np.clip(before, start, stop))
        if file.is_kestrel:
            ids = np.zeros(stop - start, np.int64)
        else:
            ids = (firsts - before)[of] + np.arange(start, stop)
        due_at_ms, attempts, leases, holders = (None if column is None else column[of] for column in few)
        part = Endings(
            events[of], readers[of], at_ms[of], ids, ids, due_at_ms, attempts, endings.failures, leases, holders
        )
        yield _ending_batch(part, file, selection, progress)


def _ending_batch(endings: Endings, file: JournalFile, selection: RowSelection, progress: Progress) -> Any:
    """A row for each id."""
    ids, at_ms, attempts, leases, holders = (
        endings.firsts, endings.at_ms, endings.attempts, endings.leases, endings.holders
    )  # fmt: skip
    count = len(ids)
    columns: dict[str, Column] = {
        "reader": lambda: pa.repeat(file.reader, count) if file.is_kestrel else _names(endings.readers, progress),
        "event": lambda: _words(endings.events, EVENTS.__getitem__),
        "id": lambda: numbers(ids, ids == NO_ID),
        "at": lambda: instants(at_ms, at_ms == NO_TIME),
        "due_time": lambda: _due_times(endings.due_at_ms, count),
        "attempts": lambda: (
            pa.nulls(count, pa.int64()) if attempts is None else numbers(attempts, attempts == NO_ATTEMPTS)
        ),
        "failure_reason": lambda: _failures(endings),
        "lease": lambda: pa.nulls(count, pa.int64()) if leases is None else numbers(leases, leases == NO_LEASE),
        "holder": lambda: (
            pa.nulls(count, pa.string())
            if holders is None
            else _words(holders, progress.holders.names.__getitem__, _some(holders == UNKNOWN))
        ),
    }
    return _batch(columns, count, file, selection)


def _due_times(due_at_ms: Any, count: int) -> Any:
    return pa.nulls(count, INSTANT) if due_at_ms is None else instants(due_at_ms, due_at_ms == 0)


def _origins(puts: Puts, kind: Any, cell: Callable[[Origin], int | str | None]) -> Any:
    """A cell for each put that was moved here; null for the others."""
    if not puts.origins:
        return pa.nulls(len(puts.ids), kind)
    found = map(puts.origins.get, puts.ids.tolist())
    return pa.array([None if origin is None else cell(origin) for origin in found], kind)


def _failures(endings: Endings) -> Any:
    """Reason of each failure, in the row with its count; null if none was given."""
    if not endings.failures:
        return pa.nulls(len(endings.firsts), pa.string())
    failed = zip(endings.readers.tolist(), endings.firsts.tolist(), endings.attempts.tolist(), strict=True)
    return pa.array(list(map(endings.failures.get, failed)), pa.string())


def _corrupt_batch(damage: DamagedStretch, file: JournalFile, selection: RowSelection) -> Iterator[Any]:
    if selection.mode == Mode.FAILFAST:
        raise damage.error(file)
    if selection.mode == Mode.PERMISSIVE:
        words = str(damage.error(file))
        yield _batch({CORRUPT: lambda: pa.array([words])}, 1, file, selection)


def _batch(columns: dict[str, Column], count: int, file: JournalFile, selection: RowSelection) -> Any:
    columns["server"] = lambda: pa.repeat(file.server, count)
    columns["queue"] = lambda: pa.repeat(file.queue if file.is_kestrel else text_of(file.queue), count)
    if file.journal_id is not None:
        columns["journal_id"] = lambda: pa.repeat(pa.scalar(file.journal_id, pa.int64()), count)
    arrays = [columns[name]() if name in columns else pa.nulls(count, COLUMNS[name]) for name in selection.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(selection.columns))


def schema(columns: Sequence[str]) -> Any:
    return pa.schema([(name, COLUMNS[name]) for name in columns])


def _names(readers: Any, progress: Progress, unnamed: Any = None) -> Any:
    """The readers' names; "#7" if the name of reader 7 is unknown, null where `unnamed` and for 0."""
    if unnamed is None and not readers.all():
        unnamed = readers == 0
    return _words(readers, lambda number: text_of(progress.names.get(number, f"#{number}")), unnamed)


def _words(codes: Any, word: Callable[[int], str], unknown: Any = None) -> Any:
    """The word for each code, null where `unknown`."""
    if unknown is None and (codes == codes[0]).all():  # almost always
        return pa.repeat(word(int(codes[0])), len(codes))
    found, places = np.unique(codes, return_inverse=True)
    return pa.array([word(code) for code in found.tolist()]).take(pa.array(places, mask=unknown))


def _some(mask: Any) -> Any:
    """The mask, or None if it is of nothing."""
    return mask if mask.any() else None


def numbers(values: Any, unknown: Any = None) -> Any:
    return pa.array(values, pa.int64(), mask=None if unknown is None else _some(unknown))


def instants(at_ms: Any, unknown: Any) -> Any:
    return numbers(np.clip(at_ms, -LATEST_MS, LATEST_MS) * 1000, unknown).view(INSTANT)
