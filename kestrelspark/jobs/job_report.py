"""The job report for logs of jobs: waits, retries and outcomes of jobs by queue.

The log does not record when a job was fetched. Its first delivery is between the first instant at which it was queued
and the first that shows that a worker had it: its acknowledgement, or a NACK (docs/spark.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from kestrelspark.analysis import PERCENTILES, bucket_seconds
from kestrelspark.job_contents import job_folders
from kestrelspark.job_log import job_changes, jobs_of
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.report import percentile_names
from kestrelspark.options import instant_ms
from kestrelspark.rows import Mode

WAITS: Final = ("queued", "delivered_by", "acked")
# Outcome of a job in several logs: the first of these that any log has.
OUTCOMES: Final = ("acked", "expired", "dead letter", "open", "deleted", "flushed", "let-go")


@dataclass(slots=True)
class JobReport:
    """`queues` and `buckets` are DataFrames; docs/spark.md lists their columns."""

    queues: Any
    buckets: Any
    bucket_s: int
    first_ms: int
    last_ms: int


def job_report(spark: Any, paths: Sequence[str], choice: Choice, bucket_s: int = 0) -> JobReport | None:
    """Analyse all logs of jobs under paths; None if there are no such jobs. `bucket_s` 0 = chosen for a plot.

    Jobs are selected by the time at which they were added. Raises FileNotFoundError for a missing path, OSError.
    """
    folders = sorted(set(job_folders(paths)))
    if not folders:
        return None
    changes = job_changes(spark, *folders, mode=choice.mode or Mode.DROPMALFORMED)
    changes = changes.selectExpr("* except (body)", "cast(null as binary) as body").persist()
    changes.createOrReplaceTempView("kestrel_job_changes")
    jobs_of(changes).createOrReplaceTempView("kestrel_held_jobs")
    found = spark.sql(_JOBS.format(outcomes=", ".join(f"'{one}'" for one in OUTCOMES)))
    since_ms, until_ms = instant_ms(choice.since, "since"), instant_ms(choice.until, "until")
    found = found.where(f"added_ms >= {since_ms or 0}")
    found = found.where(f"added_ms < {until_ms}") if until_ms is not None else found
    if choice.queues:
        names = [row.queue for row in found.select("queue").distinct().collect()]
        wanted = [name for name in names if any(fnmatchcase(name, pattern) for pattern in choice.queues)]
        found = found.where(found["queue"].isin(wanted))
    found = found.persist()
    found.createOrReplaceTempView("kestrel_jobs")
    first_ms, last_ms = found.selectExpr("min(added_ms)", "max(greatest(added_ms, ended_ms))").first()
    if first_ms is None:
        return None
    bucket_s = bucket_s or bucket_seconds(first_ms, last_ms)
    queues = spark.sql(_QUEUES.format(waits=_waits(WAITS))).persist()
    buckets = spark.sql(_BUCKETS.format(bucket_ms=bucket_s * 1000, waits=_waits(["acked"]))).persist()
    return JobReport(queues, buckets, bucket_s, first_ms, last_ms)


def write_job_tables(found: JobReport, target: str) -> None:
    """Write both tables as Parquet, with timestamps instead of ms since 1970."""
    buckets = found.buckets.selectExpr("* except (bucket_ms)", "timestamp_millis(bucket_ms) as bucket")
    for name, frame in (("job_queues", found.queues), ("job_buckets", buckets)):
        frame.coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(f"{target}/{name}")


def _waits(names: Sequence[str]) -> str:
    """Percentiles of waits from ADDJOB on."""
    return ", ".join(
        f"percentile_disc({share}) within group (order by {wait}_ms) as {wait}_{name}_ms"
        for wait in names
        for share, name in zip(PERCENTILES, percentile_names(), strict=True)
    )


# A row for each job, of all nodes that hold it; waits begin when it was added. greatest() would make 0 of null.
_JOBS: Final = """
with held as (
    select id, min_by(coalesce(origin, queue), server) as queue, unix_millis(min(ctime)) as added_ms,
        min_by(coalesce(outcome, 'open'), array_position(array({outcomes}), coalesce(outcome, 'open'))) as outcome,
        unix_millis(min(done_time) filter (where outcome = 'acked')) as acked_at_ms,
        unix_millis(max(done_time)) as done_ms
    from kestrel_held_jobs group by id
), seen as (
    select id, unix_millis(min(at) filter (where state = 'queued')) as queued_at_ms,
        unix_millis(min(at) filter (where nacks > 0)) as given_back_ms,
        max(nacks) as nacks, max(nacks + additional_deliveries) as retries
    from kestrel_job_changes where id is not null group by id
)
select queue, id, outcome, added_ms, nacks, retries,
    if(queued_at_ms < added_ms, 0, queued_at_ms - added_ms) as queued_ms,
    if(least(given_back_ms, acked_at_ms) < added_ms, 0, least(given_back_ms, acked_at_ms) - added_ms)
        as delivered_by_ms,
    if(acked_at_ms < added_ms, 0, acked_at_ms - added_ms) as acked_ms,
    case when outcome in ('open', 'dead letter') then null when outcome = 'acked' then acked_at_ms else done_ms end
        as ended_ms
from held join seen using (id)
"""
_QUEUES: Final = """
select queue, count(*) as jobs, count_if(outcome = 'acked') as acked, count_if(outcome = 'deleted') as deleted,
    count_if(outcome = 'expired') as expired, count_if(outcome = 'flushed') as flushed,
    count_if(outcome = 'let-go') as let_go, count_if(outcome = 'dead letter') as dead_letters,
    count_if(outcome = 'open') as open, count_if(retries > 0) as retried_jobs, sum(retries) as retries,
    max(retries) as retries_max, sum(nacks) as nacks, {waits}, max(acked_ms) as acked_max_ms
from kestrel_jobs group by queue
"""
_BUCKETS: Final = """
with steps as (
    select queue, added_ms - added_ms % {bucket_ms} as bucket_ms, 1 as added, 0 as acked, 0 as ended,
        cast(null as bigint) as acked_ms from kestrel_jobs
    union all
    select queue, ended_ms - ended_ms % {bucket_ms}, 0, if(outcome = 'acked', 1, 0), 1, acked_ms
    from kestrel_jobs where ended_ms is not null
)
select *, sum(added - ended) over (partition by queue order by bucket_ms) as open from (
    select queue, bucket_ms, sum(added) as added, sum(acked) as acked, sum(ended) as ended, {waits}
    from steps group by queue, bucket_ms
)
"""
