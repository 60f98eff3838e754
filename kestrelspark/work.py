"""Leases and items as tables, made of the rows of journals: who had what, from when to when, and how it ended.

A lease is all rows of an item with its attempt, so extensions do not begin it anew, even after its end. It ends by a
row with its attempt, if it was given back or has failed. Otherwise the last lease of an item ends when the item leaves
its reader.
"""

from typing import Any, Final

_KEY: Final = "server, queue, journal_id, reader, id"
LEASES: Final = f"""
with grants as (
    select {_KEY}, lease, min(at_ms) as leased_at_ms, max_by(due_at_ms, at_ms) as ends_at_ms,
        max_by(holder, at_ms) filter (where holder is not null) as holder,
        count(*) - 1 as extensions, max(at_ms) as said_at_ms
    from {{events}} where event in ('leased', 'extended') and lease is not null group by {_KEY}, lease
), ends as (
    select {_KEY}, lease, max_by(event, at_ms) as event, max(at_ms) as at_ms
    from {{events}} where event in ('returned', 'delayed', 'aborted') and lease is not null group by {_KEY}, lease
), gone as (
    select {_KEY}, min_by(event, at_ms) as event, min(at_ms) as at_ms from {{events}}
    where event in ('got', 'confirmed', 'expired', 'moved', 'discarded', 'flushed') group by {_KEY}
), numbered as (
    select *, row_number() over (partition by {_KEY} order by leased_at_ms desc, ends_at_ms desc) = 1 as is_last
    from grants
), told as (
    select n.*, if(e.at_ms >= said_at_ms, e.event, null) as event, e.at_ms
    from numbered n left join ends e using ({_KEY}, lease)
)
select t.* except (is_last, said_at_ms, event, at_ms),
    case when t.event = 'aborted' then 'failed' when t.event is not null then 'returned' when is_last then g.event end
        as outcome,
    case when t.event is not null then t.at_ms when is_last then g.at_ms end as ended_at_ms
from told t left join gone g using ({_KEY})
"""
_SHOWN: Final = """
select server, queue, reader, id, journal_id, lease, holder, timestamp_millis(leased_at_ms) as leased_at, extensions,
    timestamp_millis(ends_at_ms) as ends_at, outcome, timestamp_millis(ended_at_ms) as ended_at,
    if(outcome = 'confirmed', greatest(ended_at_ms - leased_at_ms, 0), null) as in_work_ms
from {leases}
"""
_ITEMS: Final = f"""
with puts as (
    select server, queue, journal_id, id, max(reader) as put_for, max(at_ms) as put_at_ms, max(due_at_ms) as due_at_ms
    from {{events}} where event = 'put' group by server, queue, journal_id, id
), leases as (
    select {_KEY}, count(*) as leases, min(leased_at) as first_leased_at, max_by(holder, leased_at) as holder,
        max_by(in_work_ms, leased_at) as in_work_ms
    from {{leases}} group by {_KEY}
), gone as (
    select {_KEY}, min_by(event, at_ms) as event, min(at_ms) as at_ms from {{events}}
    where event in ('got', 'confirmed', 'expired', 'moved', 'discarded', 'flushed') group by {_KEY}
), had as (
    select {_KEY} from leases union select {_KEY} from gone
)
select h.server, h.queue, h.reader, h.id, h.journal_id, timestamp_millis(p.put_at_ms) as put_at,
    coalesce(l.leases, 0) as leases, l.first_leased_at, l.holder, g.event as outcome,
    timestamp_millis(g.at_ms) as ended_at,
    if(g.at_ms < greatest(p.put_at_ms, p.due_at_ms), 0, g.at_ms - greatest(p.put_at_ms, p.due_at_ms)) as wait_ms,
    l.in_work_ms
from had h
left join puts p on h.server = p.server and h.queue = p.queue and h.journal_id = p.journal_id and h.id = p.id
left join leases l using ({_KEY})
left join gone g using ({_KEY})
where p.put_for is null or p.put_for = h.reader
"""


def leases(events: Any) -> Any:
    """A row for each lease in a DataFrame of the format "kestrel"; docs/spark.md has the columns."""
    spark = events.sparkSession
    return spark.sql(_SHOWN, leases=spark.sql(LEASES, events=_in_ms(events)))


def items(events: Any) -> Any:
    """A row for each item and reader that has leased it or was done with it; docs/spark.md has the columns."""
    return events.sparkSession.sql(_ITEMS, events=_in_ms(events), leases=leases(events))


def _in_ms(events: Any) -> Any:
    named = ("server", "queue", "reader", "journal_id", "event", "id", "lease", "holder")
    return events.where("id is not null").selectExpr(
        *named, "unix_millis(at) as at_ms", "unix_millis(due_time) as due_at_ms"
    )
