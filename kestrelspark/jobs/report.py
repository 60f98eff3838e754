"""The job report: load, waits and backlog of queues, from the journals alone."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kestrelctl.journals.times import now_ms
from kestreld.journal.discovery import Discovery, JournalFile, KnownReader, discover, text_of
from kestreld.journal.records import FRAME_BYTES, ID_MAX, Type, read_reader
from kestrelspark.analysis import PERCENTILES, bucket_seconds
from kestrelspark.batch import KestrelSource
from kestrelspark.jobs.anomalies import Held
from kestrelspark.jobs.convert import Choice, write_pending
from kestrelspark.jobs.kestrel_history import history
from kestrelspark.jobs.time_in_work import view_work, work_by, work_by_holder
from kestrelspark.options import instant_ms
from kestrelspark.rows import CORRUPT, Mode, RowSelection, batches
from kestrelspark.runs import Runs, exclusive_run
from kestrelspark.scanning import blocks
from kestrelspark.storage import ENVIRONMENT

GROUP: Final = ("server", "queue", "reader")
COUNTED: Final = ("got", "expired", "moved", "discarded", "flushed", "retried")
INSTANTS: Final = {"bucket_ms", "busiest_minute_ms", "oldest_ms"}
UNKNOWN_MS: Final = 1 << 60  # a wait that may be as long as any
READER_SCHEMA: Final = (
    "server string, queue string, journal_id long, reader string, from_id long, until_id long, "
    "backlog_items long, backlog_bytes long, number long, ended_at_ms long"
)
SOURCE_SCHEMA: Final = (
    "server string, queue string, journal_id long, reader string, event string, id long, at timestamp, size long, "
    "due_time timestamp, lease long, holder string"
)
_MORE: Final = {"due_at_ms": "long", "lease": "long", "holder": "string"}  # of events, beside HISTORY_SCHEMA
Key = tuple[str, str, int, int, str]
SOURCE_COLUMNS: Final = [column.partition(" ")[0] for column in SOURCE_SCHEMA.split(", ")]


@dataclass(slots=True)
class Report:
    """Tables and period of a report. Ages are as of `end_ms`: the end of the period, or the last event.

    `held`: periods in which a queue's or reader's items were delayed or to be retried; reader None = all. `buckets`,
    `queues`, the merged ones over all servers of a queue and `holders` are DataFrames; docs/spark.md lists their
    columns.
    """

    buckets: Any
    queues: Any
    bucket_s: int
    first_ms: int
    last_ms: int
    notes: list[str] = field(default_factory=list)
    merged_buckets: Any = None
    merged_queues: Any = None
    end_ms: int = 0
    held: dict[tuple[str, str | None], list[Held]] = field(default_factory=dict)
    holders: Any = None


def report(spark: Any, paths: Sequence[str], choice: Choice, bucket_s: int = 0, state: str = "") -> Report | None:
    """Analyse all journals under paths; None if there are no events and no items wait.

    `bucket_s` 0 = chosen for a plot. `state` is a folder with the rows of earlier runs, to which those of this run are
    added; "" = none. Raises FileNotFoundError for a missing path, Failure.
    """
    since_ms, until_ms = instant_ms(choice.since, "since"), instant_ms(choice.until, "until")
    # A wait spans two rows, so rows before `since` are needed, too.
    found = discover(paths, choice.queues, files=ENVIRONMENT.files)
    found.files = _by_folder(found.files)
    if state:
        native, readers = _kept(spark, choice, found, state)
    else:
        native, readers = _native(spark, paths, choice, found), _readers(spark, found, _newest(found), [])
    events, notes = _events(spark, native, found)
    events = events.where(f"coalesce(at_ms, 0) < {until_ms} or event is null") if until_ms is not None else events
    events = events.persist()
    damaged = events.where("event is null").count()
    if native is None or (state and any(file.is_kestrel for file in found.files)):  # else native has these, too
        damaged += _damaged_in_kestrels(spark, found, _mode(choice))
    if damaged:
        notes.append(f"Damaged stretches in the journals: {damaged}. Their content is not included.")
    shown = events.where(f"at_ms >= {since_ms or 0}")
    first_ms, last_ms = shown.selectExpr("min(at_ms)", "max(at_ms)").first()
    has_events = first_ms is not None
    if not has_events:
        last_ms = now_ms() if until_ms is None else until_ms
        first_ms = last_ms if since_ms is None else min(since_ms, last_ms)
    bucket_s = bucket_s or bucket_seconds(first_ms, last_ms)
    readers = [*_until_replaced(readers, found), *_of_kestrels(found)]
    spark.createDataFrame([dataclasses.astuple(one) for one in readers], READER_SCHEMA).createOrReplaceTempView(
        "kestrel_readers"
    )
    events.createOrReplaceTempView("kestrel_events")
    steps = spark.sql(_STEPS)
    steps.createOrReplaceTempView("kestrel_steps_raw")
    spark.sql(_ENDED).createOrReplaceTempView("kestrel_ended")
    if any(_is_over(one) for one in readers):
        ends = spark.sql(_ENDS)
        ends = ends.where(f"at_ms < {until_ms}") if until_ms is not None else ends
        steps.unionByName(ends).createOrReplaceTempView("kestrel_steps_raw")
    steps = spark.sql(_BUCKETED.format(bucket_ms=bucket_s * 1000, since_ms=since_ms or 0)).persist()
    steps.createOrReplaceTempView("kestrel_steps")
    base = _collected(spark, spark.sql(_BASE))
    if not has_events and base.where("backlog_items > 0").isEmpty():
        steps.unpersist()
        events.unpersist()
        return None
    base.createOrReplaceTempView("kestrel_base")
    buckets = spark.sql(_BUCKETS.format(figures=_figures())).persist()
    buckets.createOrReplaceTempView("kestrel_buckets")
    spark.sql(_SHOWN).createOrReplaceTempView("kestrel_shown")
    spark.sql(_MINUTES.format(group="server, queue, reader")).createOrReplaceTempView("kestrel_minutes")
    end_ms = last_ms if until_ms is None else max(last_ms, min(until_ms, now_ms()))
    _collected(spark, spark.sql(_QUEUES.format(figures=_figures()))).createOrReplaceTempView("kestrel_counted")
    oldest = spark.sql(_OLDEST.format(end_ms=end_ms, until_ms=ID_MAX if until_ms is None else until_ms))
    _collected(spark, oldest).createOrReplaceTempView("kestrel_oldest")
    view_work(spark, events, since_ms or 0)
    queues = spark.sql(_AGED.format(end_ms=end_ms)).join(work_by(spark, ", ".join(GROUP)), list(GROUP), "left")
    queues = _collected(spark, queues)
    queues.createOrReplaceTempView("kestrel_queues")
    return Report(
        buckets,
        queues,
        bucket_s,
        first_ms,
        last_ms,
        notes,
        *_merged(spark, buckets, queues),
        end_ms,
        _held(spark, bucket_s * 1000),
        _collected(spark, work_by_holder(spark)),
    )


def _collected(spark: Any, frame: Any) -> Any:
    """The same rows collected, one for each queue, so that later queries do not repeat the plan that made them."""
    return spark.createDataFrame(frame.collect(), frame.schema)


def _held(spark: Any, bucket_ms: int) -> dict[tuple[str, str | None], list[Held]]:
    held: dict[tuple[str, str | None], list[Held]] = {}
    for queue, reader, *window in spark.sql(_HELD.format(bucket_ms=bucket_ms)).collect():
        held.setdefault((queue, reader), []).append(Held(*window))
    return held


def _merged(spark: Any, buckets: Any, queues: Any) -> tuple[Any, Any]:
    """Buckets and queues with one row for all servers of a queue."""
    if queues.groupBy("queue", "reader").count().where("count > 1").isEmpty():
        servers = queues.selectExpr("* except (server)", "array(server) as servers")
        return buckets.drop("server"), servers
    merged_buckets = spark.sql(_MERGED_BUCKETS.format(figures=_figures())).persist()
    merged_buckets.createOrReplaceTempView("kestrel_merged_buckets")
    spark.sql(_MINUTES.format(group="queue, reader")).createOrReplaceTempView("kestrel_merged_minutes")
    merged_queues = spark.sql(_MERGED_QUEUES.format(figures=_figures()))
    merged_queues = merged_queues.join(work_by(spark, "queue, reader"), ["queue", "reader"], "left")
    return merged_buckets, merged_queues.persist()


def _native(spark: Any, paths: Sequence[str], choice: Choice, found: Discovery) -> Any | None:
    """Rows of SOURCE_SCHEMA, None if there are no kestreld journals."""
    if all(file.is_kestrel for file in found.files):
        return None
    source = spark.read.format(KestrelSource.name()).schema(SOURCE_SCHEMA)
    options = {"queue": ",".join(choice.queues), "mode": choice.mode, "ignoreMissingFiles": "true"}
    return source.options(**{name: value for name, value in options.items() if value}).load(list(paths))


def _kept(spark: Any, choice: Choice, found: Discovery, state: str) -> tuple[Any | None, list[KnownReader]]:
    """The rows of all runs including this one, and the readers. Raises Failure."""
    with exclusive_run(state):
        runs = Runs(state, f"{state}/state.json", {"queue": sorted(choice.queues)})
        fresh = runs.seen.fresh(spark, found.files)
        selection = RowSelection(tuple(SOURCE_COLUMNS), _mode(choice))
        count = write_pending(spark, runs, [*fresh, *found.missing], selection)
        changed = [file for file in fresh if not file.is_compacted]
        readers = _readers(spark, found, changed, [_saved(one) for one in runs.more if one[2]])
        runs.commit([dataclasses.astuple(one) for one in readers], has_rows=count > 0)
    return spark.read.schema(SOURCE_SCHEMA).parquet(f"{state}/run=*") if runs.run else None, readers


def _mode(choice: Choice) -> Mode:
    return Mode((choice.mode or "PERMISSIVE").upper())


def _damaged_in_kestrels(spark: Any, found: Discovery, mode: Mode) -> int:
    """Number of damaged stretches in Kestrel's files. In FAILFAST the first one raises."""
    files = [file for file in found.files if file.is_kestrel]
    count: int = spark.sparkContext.parallelize(files).map(lambda file: _count_damaged(file, mode)).sum()
    return count


def _count_damaged(file: JournalFile, mode: Mode) -> int:
    corrupt = [batch.column(0) for batch in batches([file], RowSelection((CORRUPT,), mode, puts_only=True))]
    return sum(len(column) - column.null_count for column in corrupt)


def _events(spark: Any, native: Any | None, found: Discovery) -> tuple[Any, list[str]]:
    """Rows of HISTORY_SCHEMA, from native and from Kestrel's journals, and notes about them.

    A row of a damaged stretch has no event.
    """
    frames = []
    notes = []
    kestrel = [file for file in found.files if file.is_kestrel]
    if native is not None:
        frames.append(
            native.where("event is null or (journal_id is not null and id is not null)").selectExpr(
                "server", "queue", "journal_id", "reader", "event", "id",
                "unix_millis(at) as at_ms", "unix_millis(at) as not_after_ms", "size",
                "unix_millis(due_time) as due_at_ms", "lease", "holder",
            )
        )  # fmt: skip
        notes.append(
            "Opening a reliable read is not in the journal: where items are read reliably, the wait ends when the read"
            " is confirmed. Leases are: the time in work is from the lease to the confirm, and part of the wait."
        )
    if kestrel:
        frame, counted = history(spark, kestrel)
        frames.append(frame.selectExpr("*", *(f"cast(null as {kind}) as {name}" for name, kind in _MORE.items())))
        notes.append(
            "Kestrel's own journals do not record when or why an item left. It was between the item added before"
            " and the next one: waits are intervals, and expired or discarded items count as got. After the last add to"
            " a queue only its file's times can tell, unless it is a copy: then how long those items waited is unknown."
        )
        if counted:
            notes.append(
                "Kestrel 1.x counts its reliable reads across files, so there are no waits for "
                + ", ".join(sorted(counted))
                + "."
            )
    if not frames:
        from kestrelspark.jobs.kestrel_history import HISTORY_SCHEMA

        more = ", ".join(f"{name} {kind}" for name, kind in _MORE.items())
        return spark.createDataFrame([], f"{HISTORY_SCHEMA}, {more}"), notes
    events = frames[0]
    for frame in frames[1:]:
        events = events.unionByName(frame)
    return events, notes


def _newest(found: Discovery) -> list[JournalFile]:
    return [file for file in found.files if not file.is_kestrel and file.is_newest]


def _by_folder(files: Iterable[JournalFile]) -> list[JournalFile]:
    """Kestrel's files with a journal id for each folder: several folders may have a queue of the same name."""
    folders: dict[str, int] = {}
    return [
        dataclasses.replace(file, journal_id=folders.setdefault(os.path.dirname(file.path), len(folders)))
        if file.is_kestrel
        else file
        for file in files
    ]


def _of_kestrels(found: Discovery) -> set[KnownReader]:
    return {
        KnownReader(file.server, file.queue, file.journal_id or 0, file.reader, 0, None, 0, 0)
        for file in found.files
        if file.is_kestrel
    }


def _readers(
    spark: Any, found: Discovery, changed: Sequence[JournalFile], known: Sequence[KnownReader]
) -> list[KnownReader]:
    """The readers of every journal: `known` ones, those in CHECKPOINTs, and those created or dropped in `changed`."""
    named = [_named(one) for one in found.readers]
    changes: list[KnownReader] = []
    if changed:
        for some in spark.sparkContext.parallelize(changed, min(len(changed), 64)).map(_new_readers).collect():
            changes += map(_named, some)
    readers: dict[Key, KnownReader] = {}
    for one in [*(_numbered(one, [*named, *changes]) for one in known), *named]:
        earlier = readers.setdefault(_key(one), one)
        if earlier.until_id is None:
            readers[_key(one)] = _ended(earlier, one)
    for one in changes:
        earlier = readers.setdefault(_key(one), one)
        if one.until_id is not None:  # more exact than the end in a CHECKPOINT
            readers[_key(one)] = _ended(earlier, one)
    return list(readers.values())


def _ended(reader: KnownReader, end: KnownReader) -> KnownReader:
    return dataclasses.replace(reader, until_id=end.until_id, ended_at_ms=end.ended_at_ms)


def _until_replaced(readers: Sequence[KnownReader], found: Discovery) -> list[KnownReader]:
    """End the readers of a journal when a newer one of its queue begins, whose id is that time."""
    live = {(file.server, text_of(file.queue), file.journal_id) for file in found.files if file.is_live}
    journals: dict[tuple[str, str], set[int]] = {}
    for one in readers:
        journals.setdefault((one.server, one.queue), set()).add(one.journal_id)
    ended = []
    for one in readers:
        newer = [other for other in journals[one.server, one.queue] if other > one.journal_id]
        # With several servers in one folder there may be two that go on.
        if newer and not _is_over(one) and (one.server, one.queue, one.journal_id) not in live:
            one = dataclasses.replace(one, ended_at_ms=min(newer))
        ended.append(one)
    return ended


def _is_over(reader: KnownReader) -> bool:
    return reader.until_id is not None or reader.ended_at_ms is not None


def _saved(values: Sequence[Any]) -> KnownReader:
    """A reader from a state file. Those without a number may have names in their form on disk."""
    one = KnownReader(*values)
    if one.number:
        return one
    return dataclasses.replace(one, queue=_decoded(one.queue), reader=_decoded(one.reader))


def _decoded(name: str) -> str:
    try:
        return name.encode("latin-1").decode()
    except UnicodeError:
        return name


def _numbered(reader: KnownReader, found: Iterable[KnownReader]) -> KnownReader:
    """The reader with its number, if it was saved without and still exists."""
    if reader.number:
        return reader
    numbers = [
        one.number
        for one in found
        if (one.server, one.queue, one.journal_id, one.reader)
        == (reader.server, reader.queue, reader.journal_id, reader.reader)
        and (reader.until_id is None or one.from_id < reader.until_id)
        and (one.until_id is None or one.until_id > reader.from_id)
    ]
    return dataclasses.replace(reader, number=min(numbers, default=0))


def _named(reader: KnownReader) -> KnownReader:
    """The reader with names as in rows, instead of their form on disk."""
    return dataclasses.replace(reader, queue=text_of(reader.queue), reader=text_of(reader.reader))


def _key(reader: KnownReader) -> Key:
    return reader.server, reader.queue, reader.journal_id, reader.number, "" if reader.number else reader.reader


def _new_readers(file: JournalFile) -> list[KnownReader]:
    """Readers that were created or dropped in a segment; `until_id` is set for dropped ones."""
    try:
        buffer = ENVIRONMENT.content(file)
    except FileNotFoundError:
        return []
    changes: list[KnownReader] = []
    for block in blocks(buffer, int.from_bytes(buffer[12:16], "little"), len(buffer)):
        for record_type, start, end in block.others:
            if record_type == Type.READER:
                change = read_reader(buffer[start + FRAME_BYTES : end])
                until_id, ended_at_ms = (change.at_id, change.at_ms) if change.dropped else (None, None)
                changes.append(
                    KnownReader(
                        file.server,
                        file.queue,
                        file.journal_id or 0,
                        change.name,
                        change.at_id,
                        until_id,
                        0,
                        0,
                        change.reader,
                        ended_at_ms,
                    )
                )
    return changes


def _figures() -> str:
    """The columns that buckets and queues share, over kestrel_steps."""
    counts = [f"sum(if(event = '{event}', items, 0)) as {event}" for event in COUNTED]
    ranks = [
        f"nullif(percentile_disc({share}) within group (order by {wait}_ms) filter (where event = 'got'), {UNKNOWN_MS})"
        f" as {wait}_{name}_ms"
        for wait in ("wait", "longest_wait")
        for share, name in zip(PERCENTILES, percentile_names(), strict=True)
    ]
    return ",\n".join(
        [
            "sum(if(event = 'put', items, 0)) as puts",
            "sum(if(event = 'put', size, 0)) as put_bytes",
            *counts,
            *ranks,
            f"nullif(max(if(event = 'got', longest_wait_ms, null)), {UNKNOWN_MS}) as wait_max_ms",
        ]
    )


def percentile_names() -> list[str]:
    """p50 … p999, as in the names of columns."""
    return [f"p{share * 100:g}".replace(".", "") for share in PERCENTILES]


# greatest(null, 0) is 0, but waits must be null if the put is not known.
# A put counts for each reader it is for, and a wait from the due time on; items put for a child are only the child's.
# The range of a DONE may include ids of items that its reader never had.
# Items that left at an unknown time count as before the period; the upper bound of their wait is unknown.
_STEPS: Final = f"""
with puts as (select * from kestrel_events where event = 'put')
select p.server, p.queue, p.journal_id, r.reader, 'put' as event, p.id, p.at_ms, p.size,
    cast(null as long) as wait_ms, cast(null as long) as longest_wait_ms, 1L as change,
    greatest(p.at_ms, p.due_at_ms) as waits_from_ms
from puts p join kestrel_readers r
    on p.server = r.server and p.queue = r.queue and p.journal_id = r.journal_id
    and (p.reader is null or p.reader = r.reader) and p.id >= r.from_id and (r.until_id is null or p.id < r.until_id)
union all
select e.server, e.queue, e.journal_id, e.reader,
    case e.event when 'confirmed' then 'got' when 'aborted' then 'retried' else e.event end, e.id, e.at_ms, p.size,
    if(e.at_ms < greatest(p.at_ms, p.due_at_ms), 0, e.at_ms - greatest(p.at_ms, p.due_at_ms)),
    case when greatest(p.at_ms, p.due_at_ms) is null then null when e.not_after_ms is null then {UNKNOWN_MS}
        when e.not_after_ms < greatest(p.at_ms, p.due_at_ms) then 0
        else e.not_after_ms - greatest(p.at_ms, p.due_at_ms) end,
    if(e.event = 'aborted', 0L, -1L), null
from kestrel_events e left join puts p
    on e.server = p.server and e.queue = p.queue and e.journal_id = p.journal_id and e.id = p.id
where e.event not in ('put', 'delayed', 'leased', 'extended', 'returned')
    and (p.id is null or p.reader is null or p.reader = e.reader)
"""
_HELD: Final = """
select queue, reader, min(at_ms), max(due_at_ms), count(*) from kestrel_events
where due_at_ms > at_ms and event not in ('leased', 'extended') group by queue, reader, at_ms - at_ms % {bucket_ms}
"""
# Items left when a reader was dropped, or its journal replaced, no longer wait. The time is not always known.
_ENDED: Final = f"""
select *, lag(end_id, 1, 0L) over (partition by server, queue, journal_id, reader order by end_id) as begin_id
from (
    select *, coalesce(until_id, {ID_MAX}L) as end_id from kestrel_readers
    where until_id is not null or ended_at_ms is not null
)
"""
_ENDS: Final = """
select r.server, r.queue, r.journal_id, r.reader, 'dropped' as event, cast(null as long) as id,
    coalesce(r.ended_at_ms, max(s.at_ms), 0L) as at_ms, cast(null as long) as size, cast(null as long) as wait_ms,
    cast(null as long) as longest_wait_ms, -r.backlog_items - coalesce(sum(s.change), 0L) as change,
    cast(null as long) as waits_from_ms
from kestrel_ended r left join kestrel_steps_raw s
    on s.server = r.server and s.queue = r.queue and s.journal_id = r.journal_id and s.reader = r.reader
    and s.id >= r.begin_id and s.id < r.end_id
group by r.server, r.queue, r.journal_id, r.reader, r.backlog_items, r.ended_at_ms, r.end_id
having change != 0
"""
_BUCKETED: Final = """
select server, queue, reader, journal_id, id, event, at_ms, size, wait_ms, longest_wait_ms, waits_from_ms,
    change, 1 as items, at_ms - at_ms % {bucket_ms} as bucket_ms, coalesce(at_ms >= {since_ms}, false) as is_shown
from kestrel_steps_raw
"""
_BASE: Final = """
select server, queue, reader, sum(items) as backlog_items from (
    select server, queue, reader, backlog_items as items from kestrel_readers
    union all
    select server, queue, reader, change from kestrel_steps where not is_shown
) group by server, queue, reader
"""
_BUCKETS: Final = """
select b.*, greatest(coalesce(base.backlog_items, 0) + b.so_far, 0) as backlog_items from (
    select *, sum(change) over (partition by server, queue, reader order by bucket_ms) as so_far from (
        select server, queue, reader, bucket_ms, sum(change) as change, {figures}
        from kestrel_steps where is_shown group by server, queue, reader, bucket_ms
    )
) b left join kestrel_base base on b.server = base.server and b.queue = base.queue and b.reader = base.reader
"""
_MINUTES: Final = """
select {group}, max_by(minute_ms, puts) as busiest_minute_ms, max(puts) as busiest_minute_puts from (
    select {group}, at_ms - at_ms % 60000 as minute_ms, count_if(event = 'put') as puts
    from kestrel_steps where is_shown group by {group}, minute_ms
) group by {group}
"""
# Waiting items, by their puts. If more seem to wait than the backlog has, it is unknown which have left.
_OLDEST: Final = """
with waiting as (
    select server, queue, reader, journal_id, id, max(waits_from_ms) as from_ms from kestrel_steps
    where id is not null
        and (server, queue, reader) in (select server, queue, reader from kestrel_counted where backlog_items > 0)
    group by server, queue, reader, journal_id, id having sum(change) > 0
)
select server, queue, reader, count(*) as known_items, min(if(from_ms <= {end_ms}, from_ms, null)) as oldest_ms
from waiting w left anti join kestrel_ended e
    on e.server = w.server and e.queue = w.queue and e.journal_id = w.journal_id and e.reader = w.reader
    and w.id >= e.begin_id and w.id < e.end_id and coalesce(e.ended_at_ms, 0) < {until_ms}
group by server, queue, reader
"""
# A queue with waiting items and no events is stuck: it gets a row, too.
_SHOWN: Final = """
select server, queue, reader, event, items, size, wait_ms, longest_wait_ms, change from kestrel_steps where is_shown
union all
select server, queue, reader, null, 0, 0, null, null, 0 from kestrel_base where backlog_items > 0
"""
_QUEUES: Final = """
select q.*, m.busiest_minute_ms, m.busiest_minute_puts,
    greatest(coalesce(base.backlog_items, 0) + q.change, 0) as backlog_items,
    greatest(b.backlog_max_items, base.backlog_items, 0) as backlog_max_items
from (
    select server, queue, reader, sum(change) as change, {figures},
        count_if(event = 'got' and wait_ms is null) as got_without_wait
    from kestrel_shown group by server, queue, reader
) q
left join kestrel_minutes m on q.server = m.server and q.queue = m.queue and q.reader = m.reader
left join kestrel_base base on q.server = base.server and q.queue = base.queue and q.reader = base.reader
left join (select server, queue, reader, max(backlog_items) as backlog_max_items from kestrel_buckets
    group by server, queue, reader) b on q.server = b.server and q.queue = b.queue and q.reader = b.reader
"""
_AGED: Final = """
select c.*, if(known_items > backlog_items, null, oldest_ms) as oldest_ms,
    if(known_items > backlog_items, null, {end_ms} - oldest_ms) as oldest_age_ms,
    case when known_items is null or known_items > backlog_items then backlog_items
        else backlog_items - known_items end as backlog_without_put
from kestrel_counted c left join kestrel_oldest o on c.server = o.server and c.queue = o.queue and c.reader = o.reader
"""
# Waits are ranked again, over all servers. A backlog is the sum of the servers' backlogs, none of which is below 0.
_MERGED_BUCKETS: Final = """
with changes as (
    select queue, reader, bucket_ms, sum(step) as change from (
        select queue, reader, bucket_ms, b.backlog_items - coalesce(
            lag(b.backlog_items) over (partition by server, queue, reader order by bucket_ms),
            greatest(base.backlog_items, 0)) as step
        from kestrel_buckets b left join kestrel_base base using (server, queue, reader)
    ) group by queue, reader, bucket_ms
)
select f.*, c.change, coalesce(base.backlog_items, 0)
    + sum(c.change) over (partition by queue, reader order by bucket_ms) as backlog_items
from (
    select queue, reader, bucket_ms, {figures} from kestrel_steps where is_shown group by queue, reader, bucket_ms
) f
join changes c using (queue, reader, bucket_ms)
left join (
    select queue, reader, sum(greatest(backlog_items, 0)) as backlog_items from kestrel_base group by queue, reader
) base using (queue, reader)
"""
_MERGED_QUEUES: Final = """
select f.*, m.busiest_minute_ms, m.busiest_minute_puts, q.* except (queue, reader, begun_items),
    greatest(b.backlog_max_items, q.backlog_items, q.begun_items) as backlog_max_items
from (select queue, reader, {figures} from kestrel_shown group by queue, reader) f
join (
    select queue, reader, array_sort(collect_set(server)) as servers, sum(backlog_items) as backlog_items,
        sum(got_without_wait) as got_without_wait, min(oldest_ms) as oldest_ms, max(oldest_age_ms) as oldest_age_ms,
        sum(backlog_without_put) as backlog_without_put, sum(greatest(base.items, 0)) as begun_items
    from kestrel_queues left join (
        select server, queue, reader, backlog_items as items from kestrel_base
    ) base using (server, queue, reader) group by queue, reader
) q on f.queue = q.queue and f.reader = q.reader
left join kestrel_merged_minutes m on f.queue = m.queue and f.reader = m.reader
left join (select queue, reader, max(backlog_items) as backlog_max_items from kestrel_merged_buckets
    group by queue, reader) b on f.queue = b.queue and f.reader = b.reader
"""


def write_tables(found: Report, target: str) -> None:
    """Write the tables as Parquet, with timestamps instead of ms since 1970."""
    tables = {
        "buckets": found.buckets,
        "queues": found.queues,
        "merged_buckets": found.merged_buckets,
        "merged_queues": found.merged_queues,
        "holders": found.holders,
    }
    for name, frame in tables.items():
        for instant in INSTANTS & set(frame.columns):
            frame = frame.withColumn(instant, _as_instant(frame, instant))
            frame = frame.withColumnRenamed(instant, instant.removesuffix("_ms"))
        frame.drop("change", "so_far").coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(
            f"{target}/{name}"
        )


def _as_instant(frame: Any, name: str) -> Any:
    from pyspark.sql.functions import timestamp_millis

    return timestamp_millis(frame[name])


def rows(frame: Any) -> Iterable[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
