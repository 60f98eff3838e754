import random
from collections import Counter

from kestrelspark.analysis import BUCKETS_S, POINTS_MAX, bucket_seconds, nearest_ranks


def test_percentiles_are_those_of_the_sorted_values() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        values = sorted(chance.choices(range(chance.randrange(1, 500)), k=chance.randrange(1, 200)))
        shares = [0.5, 0.9, 0.99, 0.999, 1.0]
        expected = [next(value for at, value in enumerate(values, 1) if at >= share * len(values)) for share in shares]
        assert nearest_ranks(Counter(values), shares) == expected


def test_no_values_have_no_percentiles() -> None:
    assert nearest_ranks({}) == []


def test_a_plot_never_has_more_points_than_it_has_room_for_unless_it_spans_years() -> None:
    for days in range(1, 2000, 7):
        span_ms = days * 86_400_000
        seconds = bucket_seconds(0, span_ms)
        assert seconds in BUCKETS_S
        assert span_ms // (seconds * 1000) < POINTS_MAX
