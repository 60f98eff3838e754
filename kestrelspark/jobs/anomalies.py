"""Anomalies of a queue in the report: stalls, and bursts of puts, found from its intervals."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kestrelspark.jobs.plots import Mark, count, day_and_time, rate, span

STALL_MIN_MS: Final = 10_000
STALL_BUCKETS_MIN: Final = 3
STALL_GAPS: Final = 10  # factor over the usual gap between two gets while items wait
BURST_TIMES: Final = 4  # factor over the puts that three quarters of the intervals with puts do not exceed
BURST_PUTS_MIN: Final = 20
BURST_AROUND: Final = (12, 24)  # intervals on each side that define the usual rate, for short and long bursts
BURST_BUCKETS_MIN: Final = 4  # intervals with puts needed for a usual rate
TAKEN: Final = ("got", "moved", "retried")
Bucket = tuple[int, dict[str, Any] | None, float]  # begins at, its row, the backlog at its end


@dataclass(slots=True, frozen=True)
class Held:
    """Up to `items` items may be held until due in this period: they wait and cannot be taken."""

    from_ms: int
    until_ms: int
    items: int


def anomalies(
    buckets: Sequence[Bucket], bucket_ms: int, held: Sequence[Held] = (), *, is_interval: bool = False
) -> list[Mark]:
    """Stalls and bursts in order of time. `is_interval`: the time at which an item left lies between two puts."""
    found = [*_stalls(buckets, bucket_ms, held, is_interval), *_bursts(buckets, bucket_ms)]
    return sorted(found, key=lambda one: one.from_ms)


def _stalls(buckets: Sequence[Bucket], bucket_ms: int, held: Sequence[Held], is_interval: bool) -> Iterator[Mark]:
    """Runs of intervals without a get while items waited, longer than usual for this queue."""
    runs = list(_runs(buckets, is_interval))
    busy = sum(1 for _, row, _ in buckets if _has_taken(row))
    for number, run in enumerate(runs):
        others = [len(other) for at, other in enumerate(runs) if at != number]
        gaps = sorted([*others, *[0] * max(busy - len(others), 0)])
        usual = gaps[(len(gaps) - 1) // 2] if gaps else 0
        span_ms = len(run) * bucket_ms
        if len(run) < max(STALL_BUCKETS_MIN, STALL_GAPS * usual) or span_ms < STALL_MIN_MS:
            continue
        from_ms = buckets[run[0]][0]
        backlogs = [buckets[at][2] for at in run]
        until_ms = from_ms + span_ms
        if min(backlogs) <= sum(one.items for one in held if one.from_ms < until_ms and one.until_ms > from_ms):
            continue
        is_last = run[-1] == len(buckets) - 1
        until = "the end" if is_last else day_and_time(until_ms)
        period = f"{day_and_time(from_ms)} to {until} ({span(span_ms)})"
        words = f"{period}: nothing was taken while up to {count(max(backlogs))} items waited"
        yield Mark("stall", from_ms, until_ms, words)


def _runs(buckets: Sequence[Bucket], is_interval: bool) -> Iterator[range]:
    """Runs of intervals in which items waited throughout and none was taken."""
    begin: int | None = None
    first = buckets[0] if buckets else (0, None, 0.0)
    before = first[2] - (first[1]["change"] if first[1] else 0)
    for at, (_, row, backlog) in enumerate(buckets):
        if backlog <= 0 or _has_taken(row):
            if begin is not None and begin < at:
                yield range(begin, at)
            begin = None
        elif begin is None and (not is_interval or (row is not None and row["puts"])):
            # Items waiting at this interval's end came within it, as did the put that dates earlier gets.
            begin = at + 1 if is_interval or before <= 0 else at
        before = backlog
    if begin is not None and begin < len(buckets):
        yield range(begin, len(buckets))


def _has_taken(row: dict[str, Any] | None) -> bool:
    return row is not None and any(row[name] for name in TAKEN)


def _bursts(buckets: Sequence[Bucket], bucket_ms: int) -> Iterator[Mark]:
    puts = [row["puts"] if row else 0 for _, row, _ in buckets]
    mostly = [
        min(_usual(puts[max(at - around, 0) : at + around + 1]) for around in BURST_AROUND) for at in range(len(puts))
    ]
    at = 0
    while at < len(puts):
        end = at
        while end < len(puts) and puts[end] >= max(BURST_TIMES * mostly[end], BURST_PUTS_MIN):
            end += 1
        if end > at:
            from_ms, until_ms = buckets[at][0], buckets[end - 1][0] + bucket_ms
            rates = [items * 1000 / bucket_ms for items in (max(puts[at:end]), max(mostly[at:end]))]
            words = (
                f"{day_and_time(from_ms)} to {day_and_time(until_ms)} ({span(until_ms - from_ms)}): "
                f"{count(sum(puts[at:end]))} puts, up to {rate(rates[0])}; around it mostly at most {rate(rates[1])}"
            )
            yield Mark("burst", from_ms, until_ms, words)
        at = max(end, at + 1)


def _usual(puts: Sequence[int]) -> float:
    """The number that three quarters of the intervals with puts do not exceed; infinity if there are too few."""
    found = sorted(filter(None, puts))
    return found[math.ceil(len(found) * 0.75) - 1] if len(found) >= BURST_BUCKETS_MIN else math.inf
