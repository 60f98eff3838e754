"""Time in work of a report: from the grant of a lease to the confirm of its item, by queue and by holder."""

from typing import Any, Final

from kestrelspark.work import LEASES

HOLDERS_MAX: Final = 20  # of a queue that are shown by name, those with the most leases
SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FIGURES: Final = (*(f"work_{name}_ms" for name in SHARES), "work_max_ms")
OUTCOMES: Final = ("confirmed", "returned", "failed")
LEASES_SCHEMA: Final = (
    "server string, queue string, journal_id long, reader string, id long, lease long, leased_at_ms long, "
    "ends_at_ms long, holder string, extensions long, outcome string, ended_at_ms long"
)
_WORK: Final = """
select *, if(outcome = 'confirmed', greatest(ended_at_ms - leased_at_ms, 0), null) as work_ms,
    leased_at_ms >= {since_ms} as is_begun, coalesce(ended_at_ms >= {since_ms}, false) as is_ended
from kestrel_leases
"""
_BY_HOLDER: Final = """
with counted as (
    select queue, reader, holder, count(*) as leases from kestrel_work
    where holder is not null and (is_begun or is_ended) group by queue, reader, holder
), named as (
    select queue, reader, holder as name from (
        select *, row_number() over (partition by queue, reader order by leases desc, holder) as place from counted
    ) where place <= {most}
)
select w.queue, w.reader, n.name as holder, {figures}
from kestrel_work w
left join named n on w.queue = n.queue and w.reader = n.reader and w.holder = n.name
where is_begun or is_ended
group by w.queue, w.reader, n.name
"""


def view_work(spark: Any, events: Any, since_ms: int) -> bool:
    """Make the view kestrel_work of the leases in `events`, with times in ms; False = there are none."""
    has_leases = not events.where("event = 'leased' and lease is not null").isEmpty()
    leases = spark.sql(LEASES, events=events).persist() if has_leases else spark.createDataFrame([], LEASES_SCHEMA)
    leases.createOrReplaceTempView("kestrel_leases")
    spark.sql(_WORK.format(since_ms=since_ms)).createOrReplaceTempView("kestrel_work")
    return has_leases


def work_by(spark: Any, group: str) -> Any:
    """Figures of a period by these columns of kestrel_work."""
    return spark.sql(f"select {group}, {_figures()} from kestrel_work where is_begun or is_ended group by {group}")


def work_by_holder(spark: Any) -> Any:
    """Figures by queue, reader and holder, over all servers. The holder null is all that are not named."""
    return spark.sql(_BY_HOLDER.format(most=HOLDERS_MAX, figures=_figures()))


def _figures() -> str:
    """Counts of leases granted and ended in the period, and percentiles of the work that was confirmed in it."""
    ranks = [
        f"percentile_disc({share}) within group (order by work_ms) filter (where is_ended) as work_{name}_ms"
        for name, share in SHARES.items()
    ]
    return ",\n".join(
        [
            "count_if(is_begun) as leases",
            *(f"count_if(is_ended and outcome = '{outcome}') as leases_{outcome}" for outcome in OUTCOMES),
            *ranks,
            "max(if(is_ended, work_ms, null)) as work_max_ms",
        ]
    )
