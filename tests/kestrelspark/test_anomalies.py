"""Stalls and bursts in the intervals of the report."""

from collections.abc import Sequence

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.jobs.anomalies import Bucket, Held, anomalies
from kestrelspark.jobs.plots import Mark, plot


def buckets(puts: list[int], got: list[int], *, backlog: int = 0) -> list[Bucket]:
    """Of ten seconds each; one without either has no row."""
    made: list[Bucket] = []
    for at, (put, taken) in enumerate(zip(puts, got, strict=True)):
        backlog += put - taken
        row = {"puts": put, "got": taken, "moved": 0, "retried": 0, "change": put - taken}
        made.append((at * 10_000, row if put or taken else None, float(backlog)))
    return made


def found(made: list[Bucket], held: Sequence[Held] = (), *, is_interval: bool = False) -> list[tuple[str, int, int]]:
    """The kinds and numbers of intervals."""
    seen = anomalies(made, 10_000, held, is_interval=is_interval)
    return [(one.kind, one.from_ms // 10_000, one.until_ms // 10_000) for one in seen]


STALLED = buckets([5] * 40, [5] * 10 + [0] * 12 + [65] + [5] * 17)


def test_a_stall_is_where_items_wait_and_none_is_taken_for_long() -> None:
    assert found(STALLED) == [("stall", 11, 22)]
    (one,) = anomalies(STALLED, 10_000)
    words = "1970-01-01 00:01:50 to 1970-01-01 00:03:40 (1.83 min): nothing was taken while up to 60 items waited"
    assert one.words == words


def test_items_that_are_held_back_do_not_stall_but_others_beside_them_do() -> None:
    assert found(STALLED, [Held(0, 50_000, 100)]) == [("stall", 11, 22)]
    assert found(STALLED, [Held(0, 150_000, 9)]) == [("stall", 11, 22)]
    assert found(STALLED, [Held(0, 150_000, 9), Held(140_000, 160_000, 1)]) == []


def test_two_stalls_do_not_hide_each_other_and_the_last_goes_on_to_the_end() -> None:
    gets = [5] * 10 + [0] * 5 + [30] + [5] * 10 + [0] * 14
    assert found(buckets([5] * 40, gets, backlog=9)) == [("stall", 10, 15), ("stall", 26, 40)]
    last = anomalies(buckets([5] * 40, gets, backlog=9), 10_000)[-1]
    assert "00:04:20 to the end (2.33 min)" in last.words


def test_a_queue_that_is_emptied_now_and_then_or_stays_empty_has_no_stall() -> None:
    assert found(buckets([1] * 60, ([0] * 9 + [10]) * 6)) == []
    assert found(buckets([5, *[0] * 50], [5, *[0] * 50])) == []
    assert found(buckets([1] + [0] * 40 + [1], [1] + [0] * 40 + [1])) == []


def test_a_queue_that_nobody_reads_stalls_throughout() -> None:
    assert found(buckets([0] * 20, [0] * 20, backlog=7)) == [("stall", 0, 20)]


def test_where_gets_have_no_times_a_stall_begins_with_a_put_that_tells_what_was_taken_before() -> None:
    """What was taken after the last put has that put's time, but may have left at any time before the next put."""
    silent = buckets([5] * 10 + [0] * 20, [4] * 10 + [0] * 20)
    assert found(silent) == [("stall", 10, 30)]
    assert found(silent, is_interval=True) == []
    assert found(STALLED, is_interval=True) == [("stall", 11, 22)]


def test_a_burst_is_far_above_what_most_intervals_have() -> None:
    puts = [10, 12, 8, 0] * 10
    puts[20:22] = [90, 70]
    assert found(buckets(puts, puts)) == [("burst", 20, 22)]
    (one,) = anomalies(buckets(puts, puts), 10_000)
    assert one.words.endswith("(20 s): 160 puts, up to 9/s; around it mostly at most 1.2/s")
    day_and_night = [10] * 20 + [100] * 20
    assert found(buckets(day_and_night, day_and_night)) == []
    at_night = [100] * 60 + [8] * 30 + [60] + [8] * 30
    assert found(buckets(at_night, at_night)) == [("burst", 90, 91)]
    few = [0, 0, 500, 0, 0, 500]
    assert found(buckets(few, few)) == []


def test_marks_are_bands_on_the_plot_with_their_words() -> None:
    points: list[tuple[int, float | None]] = [(at_ms, 1.0) for at_ms in range(0, 100_000, 1000)]
    stall = Mark("stall", 50_000, 60_000, "long & quiet")
    drawn = plot("Puts", {"puts/s": points}, marks=[stall, Mark("burst", 98_000, 200_000, "many")])
    assert drawn.count('<rect class="stall"') == drawn.count('<rect class="burst"') == 1
    assert "<title>stall: long &amp; quiet</title>" in drawn
    assert drawn.count('class="mark"') == 2
