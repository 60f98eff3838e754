"""Reading the answer to DUMP_STATS."""

from tests.tui.sights import figures
from tui.snapshots import NOTHING, parse_dump

NOW_MS = 1_700_000_000_000


def test_queues_of_different_keys_in_one_answer() -> None:
    answer = (
        b"queue 'a' {\r\n  items=3\r\n  bytes=12\r\n  total_items=4\r\n  oldest_ms=1500\r\n  children=a+b\r\n}\r\n"
        b"queue 'a+b' {\r\n  items=1\r\n  bytes=2\r\n  total_items=4\r\n}\r\n"
        b"queue 'broken' {\r\n  stopped=1\r\n}\r\nEND\r\n"
    )
    assert parse_dump(answer, NOW_MS) == {
        "a": figures(items=3, bytes=12, total_items=4, oldest_at_ms=NOW_MS - 1500),
        "a+b": figures(items=1, bytes=2, total_items=4),
        "broken": figures(stopped=1),
    }


def test_an_item_that_was_put_just_now_waits_since_now_and_where_there_is_none_nothing_waits() -> None:
    answer = (
        b"queue 'just now' {\r\n  items=1\r\n  oldest_ms=0\r\n}\r\n"
        b"queue 'empty' {\r\n  items=0\r\n  oldest_ms=0\r\n}\r\nEND\r\n"
    )
    assert parse_dump(answer, NOW_MS) == {
        "just now": figures(items=1, oldest_at_ms=NOW_MS),
        "empty": figures(items=0, oldest_at_ms=0),
    }


def test_names_of_any_bytes_and_no_queues_at_all() -> None:
    assert parse_dump(b"END\r\n", NOW_MS) == {}
    (name,) = parse_dump(b"queue '\xff{:}' {\r\n  items=1\r\n}\r\nEND\r\n", NOW_MS)
    assert name.encode("utf-8", "surrogateescape") == b"\xff{:}"


def test_lines_that_are_no_figures_are_left_out() -> None:
    assert parse_dump(b"queue 'x' {\r\n  \r\n}\r\nEND\r\n", NOW_MS) == {"x": NOTHING}
    assert parse_dump(b"queue 'x' {\r\n  items=many\r\n}\r\nEND\r\n", NOW_MS) == {"x": NOTHING}
    odd = parse_dump(b"queue 'x' {\n  items=-1\n  new_key=some words\n  age=5\n}\nEND\r\n", NOW_MS)
    assert odd == {"x": figures(items=-1, age=5)}


def test_what_is_held_back_is_in_the_blocks_of_queues_that_have_any() -> None:
    held = b"  items=1\r\n  delayed=2\r\n  retrying=1\r\n  leased=3\r\n  next_due_ms=%d\r\n  keys=0\r\n}\r\n"
    blocks = (
        b"queue 'some' {\r\n"
        + held % 700
        + b"queue 'leases' {\r\n"
        + held % 0
        + b"queue 'none' {\r\n  items=1\r\n}\r\n"
    )
    assert parse_dump(blocks + b"END\r\n", NOW_MS) == {
        "some": figures(items=1, delayed=2, retrying=1, leased=3, next_due_at_ms=NOW_MS + 700),
        "leases": figures(items=1, delayed=2, retrying=1, leased=3),
        "none": figures(items=1),
    }
