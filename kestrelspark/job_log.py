"""The log of jobs as tables: the last state of each job, and every change in the log (docs/spark.md)."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kestreld.journal.discovery import JournalFile
from kestreld.journal.job_records import (
    ENDS,
    JOB_HEADER_BYTES,
    NO_EXTRAS,
    JobState,
    JobType,
    read_done,
    read_extras,
    read_flushed,
    read_owners,
)
from kestreld.journal.records import FRAME_BYTES, ID_MAX
from kestrelspark.batch import partition_bytes
from kestrelspark.contents import LATEST_MS, DamagedStretch
from kestrelspark.job_contents import CHANGE_DTYPE, JOB_DTYPE, JobBlock, job_contents, job_files, job_folders
from kestrelspark.packing import input_bytes, packed
from kestrelspark.rows import INSTANT, VALUE_BYTES_MAX, Mode, instants, numbers
from kestrelspark.scanning import scans
from kestrelspark.storage import ENVIRONMENT
from kestrelspark.tables import table

_NAMES: Final = pa.list_(pa.string())
COLUMNS: Final = {
    "server": pa.string(),
    "log_id": pa.int64(),
    "segment": pa.int64(),
    "offset": pa.int64(),
    "at": INSTANT,
    "event": pa.string(),
    "id": pa.string(),
    "queue": pa.string(),
    "body": pa.binary(),
    "ctime": INSTANT,
    "ttl_ms": pa.int64(),
    "retry_ms": pa.int64(),
    "delay_ms": pa.int64(),
    "retries": pa.int64(),
    "key": pa.string(),
    "origin": pa.string(),
    "reason": pa.string(),
    "dead_time": INSTANT,
    "state": pa.string(),
    "requeue_time": INSTANT,
    "nacks": pa.int64(),
    "additional_deliveries": pa.int64(),
    "owners": _NAMES,
    "_corrupt": pa.string(),
}
_SCHEMA: Final = pa.schema(list(COLUMNS.items()))
_SQL_TYPES: Final = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    INSTANT: "timestamp",
    _NAMES: "array<string>",
}
# Acknowledged jobs, and jobs left to another node, have no body; a job without owners was never on this node.
_IS_WITHOUT_BODY: Final = "state in ('acked', 'let-go')"
_TERMS: Final = (
    f"queue, if({_IS_WITHOUT_BODY}, null, body) as body, ctime, ttl_ms, retry_ms, delay_ms, retries, key, origin,"
    " reason, dead_time"
)
_STATE: Final = "state, requeue_time, nacks, additional_deliveries"
_PLACE: Final = "struct(segment, offset)"
_END: Final = "segment, offset, at, event"
_STATES: Final = pa.array([state.name.lower().replace("_", "-") for state in JobState])
_CREATED_IN_MS: Final = np.uint64(1_000_000)
_log: Final = logging.getLogger("kestrelspark")
Columns = dict[str, Any]


def jobs(spark: Any, *paths: str, mode: str = Mode.DROPMALFORMED) -> Any:
    """A row for each job in the logs below the paths, with its last state. Raises as `job_changes`."""
    return jobs_of(job_changes(spark, *paths, mode=mode))


def jobs_of(changes: Any) -> Any:
    """A row for each job, from the rows of `job_changes`."""
    from pyspark.sql.functions import expr

    flushes = changes.where("event = 'flushed'").groupBy("server", "log_id")
    found = changes.where("id is not null").groupBy("server", "log_id", "id").agg(
        expr(
            f"max_by(struct({_TERMS}), struct(not {_IS_WITHOUT_BODY}, {_PLACE}))"
            " filter (where event in ('added', 'written') and not (state = 'acked' and owners is null)) as terms"
        ),
        expr(f"max_by(owners, {_PLACE}) filter (where event in ('added', 'written', 'owned')) as owners"),
        expr(f"max_by(struct({_STATE}), {_PLACE}) filter (where state is not null) as was"),
        expr("min(struct(segment, offset, at, state as event)) filter (where state = 'acked') as acked"),
        expr(f"max(struct({_END})) filter (where event in {ENDS}) as done"),
        expr(f"max({_PLACE}) as latest"),
    )  # fmt: skip
    found = found.join(
        flushes.agg(expr(f"sort_array(collect_list(struct({_END}))) as flushes")), ["server", "log_id"], "left"
    )
    flushed = "get(filter(flushes, one -> struct(one.segment, one.offset) > latest), 0)"
    return found.where("terms is not null").withColumn("ended", expr(f"coalesce(acked, done, {flushed})")).selectExpr(
        "server",
        "id",
        "terms.*",
        "was.*",
        "was.nacks + was.additional_deliveries + if(was.state in ('delayed', 'borrowed'), 0, 1) as deliveries",
        "owners",
        "if(was.state = 'let-go', null, ended.at) as done_time",
        "case when was.state = 'let-go' then 'let-go' when ended is not null then ended.event"
        " when terms.origin is not null then 'dead letter' end as outcome",
    )  # fmt: skip


def job_changes(spark: Any, *paths: str, mode: str = Mode.PERMISSIVE) -> Any:
    """A row for each change of a job in the logs below the paths and, with PERMISSIVE, for each damaged stretch.

    Paths are spools, folders of them, or a log's folder. Raises FileNotFoundError for a missing path, OSError.
    """
    files = [file for folder in job_folders(paths) for file in job_files(folder)]
    packs = packed(files, partition_bytes(input_bytes(files)))
    schema = ", ".join(f"`{name}` {_SQL_TYPES[kind]}" for name, kind in COLUMNS.items())
    chosen = Mode(mode)
    return table(spark, packs, lambda pack: _batches(pack, chosen), schema)


def _batches(files: Iterable[JournalFile], mode: Mode) -> Iterator[Any]:
    """Rows of some segments. Raises JournalCorrupt in FAILFAST, OSError."""
    for file in files:
        buffer = ENVIRONMENT.content(file)
        for piece in job_contents(buffer, file):
            columns = _block_columns(buffer, piece) if isinstance(piece, JobBlock) else _corrupt(piece, file, mode)
            for some in columns:
                yield _batch(some, file)


def _batch(columns: Columns, file: JournalFile) -> Any:
    """A batch with all columns; `columns` must have at least one."""
    count = len(next(iter(columns.values())))
    columns["server"] = pa.repeat(file.server, count)
    columns["log_id"], columns["segment"] = (
        pa.repeat(pa.scalar(number, pa.int64()), count) for number in (file.journal_id, file.number)
    )
    arrays = [columns[name] if name in columns else pa.nulls(count, kind) for name, kind in COLUMNS.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _corrupt(damage: DamagedStretch, file: JournalFile, mode: Mode) -> Iterator[Columns]:
    words = str(damage.error(file))
    if damage.is_torn:
        if damage.left_out:
            _log.warning("%s: torn tail, %d intact records left out", words, damage.left_out)
    elif mode == Mode.FAILFAST:
        raise damage.error(file)
    elif mode == Mode.PERMISSIVE:
        yield {"_corrupt": pa.array([words])}
    else:
        _log.warning("%s: %d bytes dropped", words, damage.size_bytes)


def _block_columns(buffer: bytes, block: JobBlock) -> Iterator[Columns]:
    is_job = block.types == JobType.JOB
    starts, ends = block.starts[is_job], block.ends[is_job]
    if len(starts):
        full = np.flatnonzero(np.diff(np.cumsum(ends - starts) // VALUE_BYTES_MAX)) + 1
        for which in np.split(np.arange(len(starts)), full):
            yield _job_columns(buffer, starts[which], ends[which])
    starts = block.starts[block.types == JobType.CHANGE]
    if len(starts):
        heads = scans()[0].heads(buffer, starts + FRAME_BYTES, CHANGE_DTYPE)
        yield _state_columns(heads, starts) | {"event": pa.repeat("changed", len(starts))}
    owned = block.offsets(JobType.OWNERS)
    if owned:
        yield _owner_columns(buffer, block, owned)
    ended = list(_ends(buffer, block))
    if ended:
        offsets, at_ms, events, ids = zip(*ended, strict=True)
        at = _times(np.array(at_ms, np.uint64))
        yield {"offset": pa.array(offsets), "at": at, "event": pa.array(events), "id": pa.array(ids, pa.string())}


def _ends(buffer: bytes, block: JobBlock) -> Iterator[tuple[int, int, str, str | None]]:
    """Offset, instant, event and job id of each end of a job; id None = all jobs so far."""
    for kind, start, end in zip(block.types.tolist(), block.starts.tolist(), block.ends.tolist(), strict=True):
        if kind == JobType.DONE:
            at_ms, ids, event = read_done(buffer[start + FRAME_BYTES : end])
            yield from ((start, at_ms, event, _text(one)) for one in ids)
        elif kind == JobType.FLUSHED:
            yield start, read_flushed(buffer[start + FRAME_BYTES : end]), "flushed", None


def _owner_columns(buffer: bytes, block: JobBlock, starts: list[int]) -> Columns:
    ends = block.ends[block.types == JobType.OWNERS].tolist()
    said = [read_owners(buffer[start + FRAME_BYTES : end]) for start, end in zip(starts, ends, strict=True)]
    return {
        "offset": pa.array(starts, pa.int64()),
        "at": _times(np.array([at_ms for at_ms, _, _ in said], np.uint64)),
        "event": pa.repeat("owned", len(said)),
        "id": pa.array([_text(job_id) for _, job_id, _ in said], pa.string()),
        "owners": pa.array([_texts(nodes) for _, _, nodes in said], _NAMES),
    }


def _job_columns(buffer: bytes, starts: Any, ends: Any) -> Columns:
    heads = scans()[0].heads(buffer, starts + FRAME_BYTES, JOB_DTYPE)
    queues_at = starts + JOB_HEADER_BYTES
    extras_at = queues_at + heads["queue_bytes"]
    bodies_at = extras_at + heads["extras_bytes"]
    extras = [read_extras(packed) if packed else NO_EXTRAS for packed in _slices(buffer, extras_at, bodies_at)]
    origins = [one.origin for one in extras]
    is_new = heads["at_ms"] == heads["created"] // _CREATED_IN_MS
    return _state_columns(heads, starts) | {
        "event": pa.array(["written", "added"]).take(pa.array(is_new.astype(np.int8))),
        "queue": pa.array(map(_text, _slices(buffer, queues_at, extras_at)), pa.string()),
        "body": pa.array(_slices(buffer, bodies_at, ends), pa.binary()),
        "ctime": numbers((heads["created"] // np.uint64(1000)).astype(np.int64)).view(INSTANT),
        "ttl_ms": _spans(heads["ttl_ms"]),
        "retry_ms": _spans(heads["retry_ms"]),
        "delay_ms": _spans(heads["delay_ms"]),
        "retries": pa.array(
            [min(one.retries_max, ID_MAX) if one.retries_max >= 0 else None for one in extras], pa.int64()
        ),
        "key": pa.array([_text(one.key) if one.key else None for one in extras], pa.string()),
        "origin": pa.array([None if one is None else _text(one.queue) for one in origins], pa.string()),
        "reason": pa.array([None if one is None else _text(one.reason) for one in origins], pa.string()),
        "owners": pa.array([_texts(one.delivered) for one in extras], _NAMES),
        "dead_time": _times(np.array([0 if one is None else one.dead_at_ms for one in origins], np.uint64)),
    }


def _state_columns(heads: Any, starts: Any) -> Columns:
    """The columns that JOBs and CHANGEs share."""
    return {
        "offset": numbers(starts),
        "at": _times(heads["at_ms"]),
        "id": pa.array(map(_text, heads["id"].tolist()), pa.string()),
        "state": _STATES.take(pa.array(heads["state"])),
        "requeue_time": _times(heads["requeue_at_ms"]),
        "nacks": numbers(heads["nacks"].astype(np.int64)),
        "additional_deliveries": numbers(heads["deliveries"].astype(np.int64)),
    }


def _slices(buffer: bytes, starts: Any, ends: Any) -> Iterator[bytes]:
    return map(buffer.__getitem__, map(slice, starts.tolist(), ends.tolist()))


def _times(at_ms: Any) -> Any:
    """Timestamps; null for 0."""
    return instants(np.minimum(at_ms, np.uint64(LATEST_MS)).astype(np.int64), at_ms == 0)


def _spans(span_ms: Any) -> Any:
    return numbers(np.minimum(span_ms, np.uint64(ID_MAX - 1)).astype(np.int64))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _texts(names: Sequence[bytes]) -> list[str] | None:
    return list(map(_text, names)) or None
