"""The machine's clock is set forward and back under a running server: waits go by elapsed time, expiry by the clock."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestreld.journal.records import Type, whole_records
from kestreld.journal.segment import decode_header
from tests.support.queue_client import QueueClient
from tests.support.steps import SteppedDaemon

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
STEPS: Final = [HOUR_S, -HOUR_S, 10 * DAY_S, -10 * DAY_S, 1, 0, 400 * DAY_S, -400 * DAY_S]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[SteppedDaemon]:
    settings = ("sync_journal=20ms", "expiration_timer_frequency_seconds=1", "request_timeout=1")
    running = SteppedDaemon(tmp_path, *settings)
    running.start()
    try:
        yield running
    finally:
        if running.process is not None:
            running.kill()


def syncs_noted(daemon: SteppedDaemon) -> int:
    """The SYNC records in the journal of q: a commit begins with one if there was a sync since the commit before."""
    [path] = (daemon.spool / "q.journal").glob("*.seg")
    content = path.read_bytes()
    _, start = decode_header(content, str(path))
    return sum(kind == Type.SYNC for kind, _, _ in whole_records(content, start, str(path)))


def test_no_wait_is_hurried_or_hung_by_a_step(daemon: SteppedDaemon) -> None:
    with QueueClient(daemon.port) as client, QueueClient(daemon.port) as waiter, QueueClient(daemon.port) as half:
        puts = 0
        for offset_s in STEPS:
            waiter.ask_for("empty/t=100")
            started = time.monotonic()
            client.expect_nothing_more()
            daemon.step_to(offset_s)
            client.put("q", b"%d" % puts)
            puts += 1
            assert waiter.read_value() is None
            assert time.monotonic() - started > 0.09
            noted = syncs_noted(daemon)
            while syncs_noted(daemon) == noted:  # journals are synced, whatever the clock says
                client.put("q", b"%d" % puts)
                puts += 1
        assert client.drain("q") == [b"%d" % number for number in range(puts)], "in the order they were put"
        started = time.monotonic()
        half.send(b"set q 0 0 5\r\nhe")
        daemon.step_to(-HOUR_S)
        half.expect_end()
        assert time.monotonic() - started > 0.9
        assert int(client.stats()["uptime"]) >= 0


def test_expiry_follows_the_clock(daemon: SteppedDaemon) -> None:
    with QueueClient(daemon.port) as client:
        client.put("q", b"an hour", expiry_s=HOUR_S)
        client.put("q", b"a day", expiry_s=DAY_S)
        client.put("q", b"forever")
        daemon.step_to(-10 * DAY_S)
        assert client.items("q") == 3
        client.put("q", b"an hour, back then", expiry_s=HOUR_S)
        assert int(client.queue_stats("q")["age"]) >= 0
        daemon.step_to(2 * HOUR_S)
        while client.items("q") > 3:
            time.sleep(0.01)  # the sweep comes all the same
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as later:
            assert later.get("q") == b"a day"
            daemon.step_to(2 * DAY_S)
            later.put("q", b"late")
            assert later.drain("q") == [b"forever", b"late"]


@pytest.mark.parametrize("offset_s", [-DAY_S, DAY_S])
def test_delays_and_leases_go_by_elapsed_time_while_it_runs(daemon: SteppedDaemon, offset_s: int) -> None:
    with QueueClient(daemon.port, 60) as client:
        client.put("leased", b"2")
        started = time.monotonic()
        client.do(b"set delayed/delay=500 0 0 1\r\n1", b"STORED\r\n")
        client.send(b"gets leased/open/lease=500\r\n")
        client.read_until(b"END\r\n")
        daemon.step_to(offset_s)
        there = (client.get("delayed/peek"), client.get("leased/peek"))
        assert there == (None, None) or time.monotonic() - started >= 0.5
        assert (client.get("delayed/t=50000"), client.get("leased/t=50000")) == (b"1", b"2")
        assert time.monotonic() - started >= 0.5


def test_a_delay_over_a_restart_ends_early_by_what_the_clock_went_forward_and_is_never_longer_than_it_was(
    daemon: SteppedDaemon,
) -> None:
    with QueueClient(daemon.port) as client:
        client.do(b"set hour/delay=3600000 0 0 1\r\n1", b"STORED\r\n")
        client.do(b"set moment/delay=300 0 0 1\r\n2", b"STORED\r\n")
    daemon.kill()
    daemon.step_to(-DAY_S)
    daemon.start()
    with QueueClient(daemon.port) as client:
        assert client.get("moment/t=20000") == b"2", "not a day later"
        assert client.get("hour") is None
    daemon.kill()
    daemon.step_to(2 * HOUR_S)
    daemon.start()
    with QueueClient(daemon.port) as client:
        assert client.get("hour/t=20000") == b"1"


@pytest.mark.parametrize("offset_s", [-DAY_S, DAY_S])
@pytest.mark.long
def test_a_clock_that_was_set_while_it_was_down_loses_nothing(daemon: SteppedDaemon, offset_s: int) -> None:
    with QueueClient(daemon.port) as client:
        client.put("q", b"1", b"2")
    daemon.kill()
    daemon.step_to(offset_s)
    daemon.start()
    with QueueClient(daemon.port) as client:
        client.put("q", b"3")
        client.do(b"delete other", b"NOT_FOUND\r\n")
        client.put("other", b"x")
    daemon.step_to(0)
    daemon.restart()
    with QueueClient(daemon.port) as client:
        client.do(b"delete other", b"DELETED\r\n")
        client.put("other", b"y")
        assert client.drain("other") == [b"y"]
        assert client.drain("q") == [b"1", b"2", b"3"]
