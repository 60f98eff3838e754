"""From snapshots to rows."""

from tests.tui.sights import figures, row, snapshot
from tui.board import ALL_SERVERS, Board
from tui.queue_rows import COLUMNS, as_record, rows_of, summed, total
from tui.snapshots import Outage


def test_rates_are_differences_by_the_time_between_two_looks() -> None:
    before = snapshot(1000, work=figures(items=10, total_items=100, expired_items=0, discarded=0))
    after = snapshot(3000, work=figures(items=12, total_items=120, expired_items=4, discarded=2))
    (work,) = rows_of(before, after)
    # 20 came; 18 left, of which 6 expired or were discarded.
    assert (work.in_per_s, work.out_per_s) == (10.0, 6.0)


def test_what_is_held_back_has_not_left_and_the_time_it_is_due_draws_near() -> None:
    due_at_ms = snapshot(9000).at_ms
    before = figures(items=0, total_items=10, expired_items=0, discarded=0)
    put_for_later = figures(items=0, total_items=14, expired_items=0, discarded=0, delayed=4, next_due_at_ms=due_at_ms)
    (work,) = rows_of(snapshot(0, work=before), snapshot(1000, work=put_for_later))
    assert (work.in_per_s, work.out_per_s, work.delayed, work.next_due_ms) == (4.0, 0.0, 4, 8000)
    rows = rows_of(snapshot(1000, work=put_for_later), snapshot(2000, work=put_for_later), [work])
    rows = rows_of(snapshot(2000, work=put_for_later), snapshot(3000, work=put_for_later), rows)
    assert rows[0].next_due_ms == 6000, "of a queue at rest, too"
    assert total([rows[0], row("b", next_due_ms=500), row("c")]).next_due_ms == 500


def test_there_are_no_rates_at_the_first_look_nor_across_a_restart() -> None:
    first = snapshot(1000, work=figures(items=1, total_items=100))
    assert rows_of(None, first)[0].in_per_s is None
    restarted = snapshot(2000, uptime=0, work=figures(items=1, total_items=300))
    assert rows_of(first, restarted)[0].in_per_s is None
    fewer = snapshot(2000, work=figures(items=1, total_items=5))
    assert rows_of(first, fewer)[0].in_per_s is None


def test_what_a_server_does_not_give_is_unknown_and_not_nothing() -> None:
    (work,) = rows_of(snapshot(0, work=figures(items=1)), snapshot(1000, work=figures(items=3)))
    assert work.items == 3
    assert [column for column in COLUMNS if getattr(work, column) is None] == [
        column for column in COLUMNS if column not in ("queue", "items", "state", "delayed", "retrying", "leased")
    ]


def test_queues_of_one_name_are_added_up_and_of_ages_the_largest_counts() -> None:
    one = [row("work", items=1, age_ms=500, oldest_ms=70, in_per_s=1.5), row("mail", items=7)]
    other = [row("work", items=2, age_ms=200, oldest_ms=90, in_per_s=2.0, waiters=3)]
    rows = {each.queue: each for each in summed([one, other])}
    assert set(rows) == {"work", "mail"}
    work = rows["work"]
    assert work.oldest_ms == 90
    assert (work.items, work.age_ms, work.in_per_s, work.waiters, work.bytes) == (3, 500, 3.5, 3, None)


def test_the_total_of_nothing_is_unknown() -> None:
    assert as_record(total([]))["items"] is None


def test_a_view_of_each_server_and_one_of_all() -> None:
    board = Board(["a:1", "b:1"])
    board.receive(snapshot(0, "a:1", work=figures(items=1)))
    board.receive(snapshot(0, "b:1", work=figures(items=2), mail=figures(items=5)))
    assert board.advance(0)
    assert {each.queue: each.items for each in board.rows(ALL_SERVERS)} == {"work": 3, "mail": 5}
    assert {each.queue: each.items for each in board.rows("a:1")} == {"work": 1}
    assert not board.advance(1)  # nothing new


def test_a_server_that_went_away_keeps_its_figures_but_not_its_rates() -> None:
    board = Board(["a:1"])
    busy = figures(items=1, total_items=1)
    board.receive(snapshot(0, work=busy))
    board.receive(snapshot(1000, work=figures(items=2, total_items=2)))
    board.advance(1)
    assert board.rows(ALL_SERVERS)[0].in_per_s == 1.0
    board.receive(Outage("a:1", 2000, "gone", 1000))
    board.advance(2)
    (work,) = board.rows(ALL_SERVERS)
    assert (work.items, work.in_per_s) == (2, None)
    assert [state.address for state in board.outages()] == ["a:1"]
    # Back again: a rate across the outage would be a mean over all of it.
    board.receive(snapshot(60_000, work=figures(items=9, total_items=9)))
    board.advance(3)
    assert (board.rows(ALL_SERVERS)[0].in_per_s, board.outages()) == (None, [])


def test_history_gives_the_last_looks_of_a_queue_that_came_later() -> None:
    board = Board(["a:1"])
    board.receive(snapshot(0, work=figures(items=1)))
    board.advance(0)
    for look in (1, 2):
        board.receive(snapshot(look, work=figures(items=look), late=figures(items=10 * look)))
        board.advance(look * 1000)
    history = board.histories[ALL_SERVERS]
    assert history.series("work", "items", 2) == [1, 2]
    assert str(history.series("late", "items", 9)) == "[nan, 10.0, 20.0]"
    assert history.span_ms(9) == 2000
