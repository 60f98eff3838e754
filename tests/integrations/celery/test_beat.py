"""Beats: what two of them send that run at once."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import BaseSchedule, crontab, schedule
from celery.signals import before_task_publish

from kestreld.integrations.celery.beat import due_at_ms
from kestreld.integrations.celery.messages import KEY
from tests.support.daemon import Daemon
from tests.support.waiting import until


def beat(server: Daemon, **entries: dict[str, Any]) -> Scheduler:
    """A beat with an app of its own, as in a process of its own."""
    app = Celery(broker=f"kestrel://{server.address}", set_as_current=False)
    app.conf.beat_schedule = {name: {"task": "tick"} | entry for name, entry in entries.items()}
    return Scheduler(app)


def sent(server: Daemon, queue: str) -> int:
    with Celery(broker=f"kestrel://{server.address}", set_as_current=False).connection_for_read() as connection:
        return int(connection.SimpleQueue(queue).qsize())


def test_two_beats_send_a_task_once_in_each_interval(server: Daemon) -> None:
    interval_s = 0.4
    entry = {"schedule": interval_s, "options": {"queue": "intervals"}}
    beats, times = [beat(server, often=entry)], []

    def turn() -> bool:
        for one in beats:
            before = one.schedule["often"]
            one.tick()
            if one.schedule["often"].total_run_count > before.total_run_count:
                times.append(before.last_run_at.timestamp() + interval_s)
        return len(times) >= 6

    time.sleep(interval_s / 2)
    beats.append(beat(server, often=entry))
    until(turn, "tasks of both beats")
    intervals = {int(at / interval_s) for at in times}
    assert len(intervals) < len(times), "both were due in one interval"
    assert sent(server, "intervals") == len(intervals)


def test_a_beat_alone_sends_all_its_tasks(server: Daemon) -> None:
    one = beat(server, often={"schedule": 0.01, "options": {"queue": "alone"}})
    until(lambda: one.tick() is None or one.schedule["often"].total_run_count == 50, "tasks")
    assert sent(server, "alone") == 50


def test_a_beat_that_was_away_catches_up_on_what_the_other_has_sent(server: Daemon) -> None:
    while datetime.now(UTC).second > 55:  # both are to be due in the same minute
        time.sleep(0.1)
    for minutes in (2, 60):
        last = datetime.now(UTC) - timedelta(minutes=minutes)
        entry = {"schedule": crontab(), "options": {"queue": "minutes"}, "last_run_at": last}
        away = beat(server, a=entry, b=entry)
        until(lambda away=away: away.tick() != 0, "tasks")
        assert [one.total_run_count for one in away.schedule.values()] == [1, 1]
    assert sent(server, "minutes") == 2, "one for each name"


def test_what_waits_for_later_is_sent_once(server: Daemon) -> None:
    while datetime.now(UTC).second > 55:
        time.sleep(0.1)
    last = datetime.now(UTC) - timedelta(minutes=5)
    entry = {"schedule": crontab(), "options": {"queue": "delays", "countdown": 60}, "last_run_at": last}
    for _ in range(2):
        one = beat(server, a=entry)
        until(lambda one=one: one.tick() != 0, "the task")
    assert sent(server, "delays") == 0
    with Celery(broker=f"kestrel://{server.address}", set_as_current=False).connection_for_read() as connection:
        assert connection.default_channel.queue_purge("delays") == 1


def test_what_is_sent_with_an_id_of_its_own_is_stored(server: Daemon) -> None:
    for task_id, count in (("a", 1), ("b", 2), ("b", 2)):
        options = {"queue": "ids", "task_id": task_id}
        one = beat(server, a={"schedule": timedelta(days=1), "options": options})
        one.apply_async(one.schedule["a"])
        assert sent(server, "ids") == count


def test_what_a_beat_sends_to_another_broker_has_no_key(server: Daemon) -> None:
    keys: list[object] = []

    def publish(properties: dict[str, object], **sent: object) -> None:
        keys.append(properties.get(KEY))

    before_task_publish.connect(publish)
    for url in (f"kestrel://{server.address}", "memory://"):
        app = Celery(broker=url, set_as_current=False)
        app.conf.beat_schedule = {"a": {"task": "tick", "schedule": 0.01}}
        one, sent = Scheduler(app), len(keys)
        until(lambda one=one, sent=sent: one.tick() is None or len(keys) > sent, "a task")
        one.apply_async(one.schedule["a"])  # without a producer, as other schedulers do
    assert [isinstance(key, str) and key.startswith("beat-") for key in keys] == [True, True, False, False]
    assert keys[2:] == [None, None]


AT = datetime(2026, 3, 4, 12, 34, 56, 789_000, UTC)  # a Wednesday


@pytest.mark.parametrize(
    ("chosen", "due"),
    [
        (crontab(), datetime(2026, 3, 4, 12, 34, tzinfo=UTC)),
        (crontab(minute="0"), datetime(2026, 3, 4, 12, tzinfo=UTC)),
        (crontab(minute="35", hour="12"), datetime(2026, 3, 3, 12, 35, tzinfo=UTC)),
        (crontab(minute="0", hour="3", day_of_month="29", month_of_year="2"), datetime(2024, 2, 29, 3, tzinfo=UTC)),
        (schedule(10), datetime(2026, 3, 4, 12, 34, 40, tzinfo=UTC)),
        (schedule(3), datetime(2026, 3, 4, 12, 34, 54, tzinfo=UTC)),
        (schedule(86400), datetime(2026, 3, 4, tzinfo=UTC)),
        (schedule(timedelta(minutes=2), relative=True), datetime(2026, 3, 4, 12, 34, tzinfo=UTC)),
    ],
    ids=str,
)
def test_a_schedule_was_due(chosen: BaseSchedule, due: datetime) -> None:
    chosen.app = Celery(set_as_current=False)
    chosen.nowfun = lambda: AT
    found = due_at_ms(chosen, AT - timedelta(seconds=17))
    assert found is not None
    assert datetime.fromtimestamp(found / 1000, UTC) == due


class Once(BaseSchedule):
    """A schedule that ends, as those of calendars do."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta | None:
        return None if last_run_at >= AT else AT - self.now()


@pytest.mark.parametrize("late", [timedelta(0), timedelta(seconds=45), timedelta(days=9)], ids=str)
def test_the_last_time_of_a_schedule_is_found_however_late(late: timedelta) -> None:
    chosen = Once(app=Celery(set_as_current=False), nowfun=lambda: AT + late)
    assert due_at_ms(chosen, AT) == round(AT.timestamp()) * 1000


@pytest.mark.parametrize("date", [(2026, 3, 8), (2026, 3, 9), (2026, 11, 1), (2026, 11, 2)], ids=str)
def test_a_day_of_a_relative_interval_is_found_where_the_clock_goes_forward_or_back(date: tuple[int, int, int]) -> None:
    app = Celery(set_as_current=False)
    app.conf.timezone = "America/New_York"
    midnight = datetime(*date, tzinfo=app.timezone)
    chosen = schedule(timedelta(days=1), relative=True, app=app, nowfun=lambda: midnight)
    assert due_at_ms(chosen, midnight - timedelta(days=1)) == midnight.timestamp() * 1000


def test_an_interval_that_never_ran_is_due_now() -> None:
    chosen = schedule(10, app=Celery(set_as_current=False), nowfun=lambda: AT)
    assert due_at_ms(chosen, None) == AT.replace(second=50, microsecond=0).timestamp() * 1000


def test_a_schedule_that_only_says_whether_it_is_due_has_no_due_time() -> None:
    assert due_at_ms(BaseSchedule(app=Celery(set_as_current=False)), AT) is None
