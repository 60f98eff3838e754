from kestrelspark.analysis import BUCKETS_S, POINTS_MAX, bucket_seconds


def test_a_plot_never_has_more_points_than_it_has_room_for_unless_it_spans_years() -> None:
    for days in range(1, 2000, 7):
        span_ms = days * 86_400_000
        seconds = bucket_seconds(0, span_ms)
        assert seconds in BUCKETS_S
        assert span_ms // (seconds * 1000) < POINTS_MAX
