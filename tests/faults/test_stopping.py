"""SIGTERM while clients are at work: it exits with 0 within seconds, and what they have been told is so."""

import signal
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.load import WRITERS, Load
from tests.support.queue_client import QueueClient

EXITS_S: Final = 5.0


@pytest.mark.parametrize(
    ("sync", "cycles"),
    [("false", 2), pytest.param("false", 50, marks=pytest.mark.long), pytest.param("true", 50, marks=pytest.mark.long)],
)
def test_a_stop_under_load_loses_nothing_and_repeats_nothing_that_was_confirmed(
    tmp_path: Path, sync: str, cycles: int
) -> None:
    slowest_s, stored, confirmed = 0.0, 0, 0
    with running_daemon(tmp_path, f"sync_journal={sync}", "max_journal_size=50KiB") as daemon:
        for cycle in range(cycles):
            load = Load(daemon.port)
            time.sleep(0.1 + 0.007 * (cycle % 10))  # anywhere in their work
            began = time.monotonic()
            assert daemon.stop() == 0
            slowest_s = max(slowest_s, time.monotonic() - began)
            load.join()
            daemon.start()
            with QueueClient(daemon.port) as client:
                left = client.drain("q")
            assert len(left) == len(set(left))
            assert load.stored - load.confirmed - load.closing - set(left) == set(), "lost"
            assert load.confirmed & set(left) == set(), "confirmed, and there again"
            for writer in range(WRITERS):
                own = [data for data in left if data.startswith(b"%d-" % writer)]
                assert own == sorted(own), "open items are back in their places"
            stored, confirmed = stored + len(load.stored), confirmed + len(load.confirmed)
    assert slowest_s < EXITS_S
    print(f"\n{cycles} stops: {stored} stored, {confirmed} confirmed, the slowest took {slowest_s:.2f} s")


def test_a_second_sigterm_under_load_ends_it_at_once_and_loses_nothing(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, settings=["sync_journal=true"])
    daemon.start()
    try:
        load = Load(daemon.port)
        with QueueClient(daemon.port) as deaf:
            deaf.put("large", b"x" * 30_000_000)
            deaf.ask_for("large/peek")
            deaf.read(1)  # its answer holds the stop up
            daemon.signal(signal.SIGTERM)
            daemon.logged("shutting down")
            began = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 130
            assert time.monotonic() - began < 1.8  # two seconds is what it gives a client to read its answers
        load.join()
        daemon.start()
        with QueueClient(daemon.port) as client:
            left = set(client.drain("q"))
        assert load.stored - load.confirmed - load.closing - left == set()
        assert load.confirmed & left == set()
    finally:
        if daemon.process is not None:
            daemon.kill()
