"""Events of Kestrel's own journals as rows with item ids, like those of kestreld's journals."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestreld.files import FileTimes
from kestreld.journal.discovery import JournalFile
from kestreld.journal.kestrel.ops import ADD, ADD_XID, ADDX, CONTINUE, Op, decode
from kestreld.journal.kestrel.salvage import stretches
from kestrelspark.contents import CONFIRMED_EVENT, EVENTS, GOT_EVENT
from kestrelspark.lifecycle import Beginning, Summary, Taken, beginnings, walk
from kestrelspark.storage import ENVIRONMENT

HISTORY_SCHEMA: Final = (
    "server string, queue string, journal_id long, reader string, event string, id long, at_ms long, "
    "not_after_ms long, size long"
)
MS_NS: Final = 1_000_000
TICK_MS: Final = 10  # lag of a file's times behind the clock
ARROW: Final = pa.schema(
    [
        ("server", pa.string()),
        ("queue", pa.string()),
        ("journal_id", pa.int64()),
        ("reader", pa.string()),
        ("event", pa.string()),
        ("id", pa.int64()),
        ("at_ms", pa.int64()),
        ("not_after_ms", pa.int64()),
        ("size", pa.int64()),
    ]
)


@dataclass(slots=True, frozen=True)
class _Begun:
    """A file and the queue's state at its beginning. `written_at_ms`: time of its last write, -1 = unknown."""

    file: JournalFile
    beginning: Beginning
    written_at_ms: int
    is_counted: bool


def history(spark: Any, files: Sequence[JournalFile]) -> tuple[Any, list[str]]:
    """Events of Kestrel files, a row for each item, and the 1.x queues whose removes cannot be matched to items.

    The files of each folder must have their own journal id, because items are numbered from 0 in each. `at_ms` of a
    remove is its earliest time, `not_after_ms` its latest; null = unknown.
    """
    tasks = spark.sparkContext.parallelize(files, len(files))
    summaries: list[Summary] = tasks.map(_summary).collect()
    begun: list[_Begun] = []
    counted: list[str] = []
    for group in _queues(files):
        own = [summaries[at] for at in group]
        is_counted = any(summary.is_counted for summary in own)
        if is_counted:
            file = files[group[0]]
            counted.append(f"{file.queue}+{file.reader}" if file.reader else file.queue)
        again = None if is_counted else partial(_summary_again, [files[at] for at in group])
        for at, beginning in zip(group, beginnings(own, again), strict=True):
            written_at_ms = last_written_at_ms(ENVIRONMENT.files.times(files[at].path), summaries[at].last_add_at_ms)
            begun.append(_Begun(files[at], beginning, written_at_ms, is_counted))

    def rows(numbers: Iterable[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from _rows(begun[number])

    numbers = spark.range(0, len(begun), 1, len(begun))
    return numbers.mapInArrow(rows, HISTORY_SCHEMA), counted


def last_written_at_ms(times: FileTimes, last_add_at_ms: int) -> int:
    """Time of a file's last write, ms; -1 if its times do not tell: a copy's may be of the copying, or were set.

    A file created before the last item was added to it has not been copied since: Kestrel itself wrote it. A time that
    was set, as by `cp -p` or `rsync -t`, leaves a change time later than the last write, and so does a rename.
    """
    born_ns = times.born_ns
    was_written_here = born_ns is not None and born_ns // MS_NS <= last_add_at_ms <= times.written_ns // MS_NS + TICK_MS
    return times.written_ns // MS_NS if was_written_here and times.written_ns == times.changed_ns else -1


def _queues(files: Sequence[JournalFile]) -> list[list[int]]:
    """Indexes in `files` of each queue's files, in order."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for at, file in enumerate(files):
        groups.setdefault((os.path.dirname(file.path), file.queue, file.reader), []).append(at)
    return list(groups.values())


def _ops(path: str) -> Iterator[tuple[Op, int]]:
    buffer = ENVIRONMENT.read(path)
    for stretch in stretches(buffer):
        at = stretch.start
        while at < stretch.end:
            op, at = decode(buffer, at)
            yield op, len(op.data)


def _summary(file: JournalFile) -> Summary:
    return walk((op for op, _ in _ops(file.path)), GOT_EVENT, CONFIRMED_EVENT)[0]


def _summary_again(files: Sequence[JournalFile], at: int, beginning: Beginning) -> Summary:
    return walk((op for op, _ in _ops(files[at].path)), GOT_EVENT, CONFIRMED_EVENT, beginning)[0]


def _rows(begun: _Begun) -> Iterator[Any]:
    base = begun.beginning.add_base
    added: list[tuple[int, int]] = []

    def noted() -> Iterator[Op]:
        for op, size in _ops(begun.file.path):
            if op.opcode in (ADDX, ADD, ADD_XID, CONTINUE):
                added.append((op.add_at_ms, size))
            yield op

    _, taken = walk(noted(), GOT_EVENT, CONFIRMED_EVENT, None if begun.is_counted else begun.beginning)
    if added:
        add_at_ms, sizes = np.array(added, np.int64).T
        ids = np.arange(base, base + len(added))
        yield _batch(begun.file, ["put"] * len(added), ids, add_at_ms, add_at_ms, sizes)
    if taken:
        yield _taken_batch(begun, taken)


def _taken_batch(begun: _Begun, taken: list[Taken]) -> Any:
    beginning = begun.beginning
    items = [None if begun.is_counted else beginning.item(one.item) for one in taken]
    early = np.array([one.not_before_ms for one in taken], np.int64)
    late = np.array([one.not_after_ms for one in taken], np.int64)
    late[late < 0] = beginning.next_add_at_ms if beginning.next_add_at_ms >= 0 else begun.written_at_ms
    is_first = early < 0
    early[is_first] = beginning.previous_add_at_ms if beginning.previous_add_at_ms >= 0 else late[is_first]
    # Items that a rewrite of the file added again keep their old times.
    late = np.where(late < 0, late, np.maximum(early, late))
    return _batch(begun.file, [EVENTS[one.event] for one in taken], items, early, late, None)


def _batch(file: JournalFile, events: list[str], ids: Any, at_ms: Any, not_after_ms: Any, sizes: Any) -> Any:
    count = len(events)
    arrays = [
        pa.repeat(file.server, count),
        pa.repeat(file.queue, count),
        pa.repeat(pa.scalar(file.journal_id or 0, pa.int64()), count),
        pa.repeat(file.reader, count),
        pa.array(events),
        pa.array(ids, pa.int64()),
        pa.array(at_ms, pa.int64(), mask=at_ms <= 0),  # null if unknown: an ADD has no time
        pa.array(not_after_ms, pa.int64(), mask=not_after_ms <= 0),
        pa.nulls(count, pa.int64()) if sizes is None else pa.array(sizes, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)
