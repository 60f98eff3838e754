"""Items of queues as rows in the order in which they were put, of one queue or merged from several."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestrelctl.shell.exit_codes import ExitCode
from kestreld.journal.discovery import JournalFile, text_of
from kestreld.journal.segment import parse_segment_name
from kestrelspark.progress import ItemPosition, ReplayProgress
from kestrelspark.rows import COLUMNS as KINDS
from kestrelspark.rows import CORRUPT, VALUE, Mode, RowSelection, file_batches
from kestrelspark.storage import ENVIRONMENT

COLUMNS: Final = (
    "server", "queue", "reader", "id", "add_time", "expire_time", "flags", "size", "due_time", "journal_id", VALUE,
    CORRUPT
)  # fmt: skip
CODE: Final = "exit_code"
ROWS_TOGETHER: Final = 1000  # rows of several queues returned in one batch


@dataclass(slots=True, frozen=True)
class Source:
    """The files with the items of one queue, oldest first. `queue` is the decoded name."""

    server: str
    queue: str
    files: list[JournalFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def sources_of(files: Iterable[JournalFile]) -> list[Source]:
    """Sources by queue. Kestrel's child queues are left out: their items are copies of the parent's."""
    found: dict[tuple[str, str], list[JournalFile]] = {}
    for file in files:
        if not file.reader:
            queue = file.queue if file.is_kestrel else text_of(file.queue)
            found.setdefault((file.server, queue), []).append(file)
    return [Source(server, queue, _in_order(some)) for (server, queue), some in sorted(found.items())]


def _in_order(files: list[JournalFile]) -> list[JournalFile]:
    """Sort by item ids: a compacted segment holds older items than its number suggests."""
    return files if files[0].is_kestrel else sorted(files, key=lambda file: (file.journal_id or 0, _first_id(file)))


def _first_id(file: JournalFile) -> int:
    parsed = parse_segment_name(os.path.basename(file.path))
    return parsed[1] if parsed is not None else 0


def source_batches(source: Source, selection: RowSelection, state: str) -> Iterator[Any]:
    """The items of a queue not done yet, in order; Kestrel's are numbered. An unreadable file ends the iteration."""
    done_to = ReplayProgress(state).of(source.server, source.queue)
    counted = 0
    lasting = dataclasses.replace(
        selection, mode=Mode.PERMISSIVE if selection.mode == Mode.FAILFAST else selection.mode
    )
    for file, follower in zip(source.files, [*source.files[1:], None], strict=True):
        if done_to is not None and follower is not None and _is_done(file, follower, done_to):
            continue
        try:
            buffer = ENVIRONMENT.content(file)
            for batch in file_batches(buffer, file, lasting):
                if file.is_kestrel:
                    batch = _with_ids(batch, counted)
                    counted += batch.num_rows
                batch = _behind(batch, done_to)
                is_damage = batch.column(CORRUPT).null_count < batch.num_rows
                yield _with_code(batch, ExitCode.CORRUPT if is_damage else None)
                if is_damage and selection.mode == Mode.FAILFAST:
                    return
        except OSError as problem:
            is_gone = isinstance(problem, FileNotFoundError)
            reason = (
                "removed by its server in the meantime; try again"
                if is_gone
                else (problem.strerror or str(problem)).lower()
            )
            yield _trouble(source, selection, f"{file.path}: {reason}", ExitCode.TRY_AGAIN if is_gone else ExitCode.IO)
            return


def _is_done(file: JournalFile, follower: JournalFile, done_to: ItemPosition) -> bool:
    """True if all items of a file are done, judged by the name of the next file."""
    if file.is_kestrel:
        return False
    return (
        ItemPosition(follower.journal_id or 0, _first_id(follower) - 1) <= done_to
        or (file.journal_id or 0) < done_to.journal_id
    )


def _with_ids(batch: Any, counted: int) -> Any:
    ids = pa.array(np.arange(counted + 1, counted + 1 + batch.num_rows))
    batch = batch.set_column(batch.schema.get_field_index("id"), "id", ids)
    zeros = pa.array(np.zeros(batch.num_rows, np.int64))
    return batch.set_column(batch.schema.get_field_index("journal_id"), "journal_id", zeros)


def _behind(batch: Any, done_to: ItemPosition | None) -> Any:
    """The rows not done yet, and those of damage."""
    if done_to is None:
        return batch
    ids = batch.column("id").fill_null(0).to_numpy(zero_copy_only=False)
    journal_ids = batch.column("journal_id").fill_null(0).to_numpy(zero_copy_only=False)
    is_new = (journal_ids > done_to.journal_id) | ((journal_ids == done_to.journal_id) & (ids > done_to.item_id))
    is_new |= batch.column(CORRUPT).is_valid().to_numpy(zero_copy_only=False)
    return batch if is_new.all() else batch.filter(pa.array(is_new))


def _with_code(batch: Any, code: int | None) -> Any:
    return batch.append_column(CODE, pa.array([code] * batch.num_rows, pa.int64()))


def _trouble(source: Source, selection: RowSelection, words: str, code: int) -> Any:
    values: Mapping[str, object] = {"server": source.server, "queue": source.queue, CORRUPT: words}
    fields = [(name, KINDS[name]) for name in selection.columns]
    arrays = [pa.array([values.get(name)], kind) for name, kind in fields]
    return _with_code(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), code)


def merged(queues: list[Iterator[Any]]) -> Iterator[Any]:
    """Merge the rows of several queues by time, keeping the order within each."""
    if len(queues) == 1:
        yield from queues[0]
        return
    heads = [head for head in map(_Head, queues) if head.advance()]
    together: list[Any] = []
    rows = 0
    while heads:
        heads.sort(key=lambda head: head.at_us)
        before_us = heads[1].at_us if len(heads) > 1 else None
        together.append(heads[0].take(before_us))
        rows += together[-1].num_rows
        if not heads[0].is_there and not heads[0].advance():
            heads.pop(0)
        if rows >= ROWS_TOGETHER:
            yield from pa.Table.from_batches(together).combine_chunks().to_batches()
            together, rows = [], 0
    if together:
        yield from pa.Table.from_batches(together).combine_chunks().to_batches()


class _Head:
    """The next rows of a queue."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._latest_us = 0

    def advance(self) -> bool:
        """Go to the next batch with rows. Return False if there is none."""
        for batch in self._batches:
            if batch.num_rows:
                self._batch = batch
                times = self._batch.column("add_time").cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
                # A clock that was set back must not change the order.
                self._times_us = np.maximum(np.maximum.accumulate(times), self._latest_us)
                self._latest_us = int(self._times_us[-1])
                self._at = 0
                return True
        return False

    @property
    def is_there(self) -> bool:
        return self._at < int(self._batch.num_rows)

    @property
    def at_us(self) -> int:
        return int(self._times_us[self._at])

    def take(self, before_us: int | None) -> Any:
        """The first row, and those after it that were put no later than `before_us`."""
        stop = self._batch.num_rows
        if before_us is not None:
            stop = max(int(np.searchsorted(self._times_us, before_us, "right")), self._at + 1)
        taken = self._batch.slice(self._at, stop - self._at)
        self._at = stop
        return taken
