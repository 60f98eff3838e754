"""The heartbeat itself: when it beats, and how it ends."""

import threading
from itertools import islice

from kestreld.client.heartbeat import ThreadHeartbeat, pauses_ms
from tests.support.forking import in_child


def test_attempts_come_at_longer_and_longer_intervals_of_at_most_two_seconds() -> None:
    assert list(islice(pauses_ms(), 7)) == [100, 200, 400, 800, 1600, 2000, 2000]


def test_it_beats_until_it_is_told_that_no_further_beat_is_due() -> None:
    pauses, over = iter([0.001, 0.002, None]), threading.Event()

    def beat() -> float | None:
        pause_s = next(pauses)
        if pause_s is None:
            over.set()
        return pause_s

    with ThreadHeartbeat("heartbeat of a test", beat):
        assert over.wait(60)
    assert next(pauses, "all") == "all"


def test_a_child_that_is_forked_during_a_beat_does_not_wait_for_it() -> None:
    beating, goes_on = threading.Event(), threading.Event()

    def beat() -> float | None:
        beating.set()
        goes_on.wait()
        return None

    with ThreadHeartbeat("heartbeat of a test", beat) as heartbeat:
        assert beating.wait(60)
        assert in_child(heartbeat.stop) is None
        goes_on.set()
