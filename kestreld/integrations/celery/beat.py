"""Periodic tasks: keys by which two beats that run at once publish each due task once.

A beat has no hook between the choice of a due entry and its publishing, and the entry's name is in none of its
messages. So `Scheduler.apply_async` of Celery is wrapped, in programs that have loaded a beat.
"""

import functools
import hashlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kestreld.integrations.celery.messages import KEY

NAME_BYTES: Final = 12
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MINUTE: Final = timedelta(minutes=1)
_YEARS: Final = timedelta(days=3000)  # more than from one 29 February to the next
_SECOND: Final = timedelta(seconds=1)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def key_beats(driver_type: str) -> None:
    """Give the tasks keys that a beat of this process sends through transports of a type."""
    module = sys.modules.get("celery.beat")
    scheduler = getattr(module, "Scheduler", None)  # None while the module is being imported
    if scheduler is not None and not hasattr(scheduler.apply_async, "has_keys"):
        scheduler.apply_async = _keyed(scheduler.apply_async, driver_type)


def _keyed(apply_async: Callable[..., Any], driver_type: str) -> Callable[..., Any]:
    @functools.wraps(apply_async)
    def keyed(scheduler: Any, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        last_run_at = entry.last_run_at  # of the run before this one: where reserving puts the time of this one differs
        entry = scheduler.reserve(entry) if advance else entry
        connection = (producer and producer.connection) or scheduler.app.connection_for_write()
        options, key = entry.options, None
        if connection.transport.driver_type == driver_type:
            key = key_of_entry(entry, last_run_at)
        if key is not None:
            entry.options = {**options, KEY: key}
        try:
            return apply_async(scheduler, entry, producer=producer, advance=False, **kwargs)
        finally:
            entry.options = options

    keyed.has_keys = True  # type: ignore[attr-defined]
    return keyed


def key_of_entry(entry: Any, last_run_at: datetime | None) -> str | None:
    """Return the key of an entry that is due; None if its schedule cannot say since when."""
    due_ms = due_at_ms(entry.schedule, last_run_at)
    if due_ms is None:
        return None
    words = [entry.name, entry.task]
    if "task_id" in entry.options:  # somebody waits for the result of this id
        words.append(str(entry.options["task_id"]))
    name = hashlib.sha256("\n".join(words).encode("utf-8", "surrogateescape"))
    return f"beat-{name.hexdigest()[: 2 * NAME_BYTES]}-{due_ms}"


def due_at_ms(schedule: Any, last_run_at: datetime | None) -> int | None:
    """Return since when a schedule is due, which all beats agree upon; None if it cannot say.

    `last_run_at` None = it never ran, as with entries of RedBeat.

    Intervals begin when their beat does: their time is rounded down to a multiple of the interval since 1970. It is
    counted from the last run, and not from the clock, which may have gone into the next multiple since: a beat would
    send two tasks that are an interval apart with one key.
    """
    from celery.schedules import schedule as Interval

    now = schedule.maybe_make_aware(schedule.now()).astimezone(UTC)
    # Relative intervals are rounded to whole seconds, minutes, hours or days.
    if type(schedule).remaining_estimate is not Interval.remaining_estimate or schedule.relative:
        try:
            return _last_due_ms(schedule, now)
        except NotImplementedError:  # a class of schedules that only says whether it is due
            return None
    every: timedelta = schedule.run_every
    if every <= timedelta(0):
        return None
    since = schedule.maybe_make_aware(last_run_at) if last_run_at else now
    due: datetime = now - (now - since) % every
    return (due - (due - _EPOCH) % every - _EPOCH) // timedelta(milliseconds=1)


def _last_due_ms(schedule: Any, now: datetime) -> int | None:
    """Find the last due time of a schedule that can only be asked for the next one after a time."""
    late, span = now, _MINUTE
    while _next(schedule, now - span) > now:
        late, span = now - span, span * 2
        if span > _YEARS:
            return None
    early = now - span
    while late - early > _SECOND:
        middle = early + (late - early) / 2
        if _next(schedule, middle) > now:
            late = middle
        else:
            early = middle
    return _seconds_ms(_next(schedule, early))


def _next(schedule: Any, last_run_at: datetime) -> datetime:
    """Return when a schedule is due next after a time, or a little sooner: it reads the clock itself meanwhile."""
    at: datetime = schedule.maybe_make_aware(schedule.now()).astimezone(UTC)
    left: timedelta | None = schedule.remaining_estimate(last_run_at.astimezone(schedule.tz))
    return _NEVER if left is None else at + left


def _seconds_ms(at: datetime) -> int:
    return round(at.timestamp()) * 1000
