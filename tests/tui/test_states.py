"""What the console says is the matter with a queue."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient
from tests.support.small_disk import small_disk
from tests.tui.sights import console, drive, figures, line_of, lines, put, snapshot, until, until_box_says
from tui.app import Console
from tui.board import ALL_SERVERS, Board
from tui.choosing import chosen, in_order
from tui.queue_rows import QueueRow
from tui.snapshots import Figures, Outage
from tui.states import FAILED, FULL, GROWING, OK, STALE, STOPPED, STUCK
from tui.summaries import trouble_lines

NOW_MS = 1_700_000_000_000  # of a snapshot whose clock says 0


def states(*looks: Figures, interval_ms: int = 1000) -> list[str]:
    """The state of one queue after each look."""
    board = Board(["a:1"])
    seen = []
    for number, look in enumerate(looks):
        board.receive(snapshot(number * interval_ms, work=look))
        board.advance(number * interval_ms)
        seen.append(board.rows(ALL_SERVERS)[0].state)
    return seen


def waiting(items: int, since_ms: int, total: int = 100, **others: int) -> Figures:
    """A queue whose head was put `since_ms` before the first look."""
    known = {"items": items, "total_items": total, "expired_items": 0, "discarded": 0, "open_transactions": 0}
    return figures(**known | {"oldest_at_ms": NOW_MS - since_ms} | others)


def test_a_queue_from_which_nobody_fetches_is_stuck_at_the_second_look() -> None:
    assert states(waiting(5, 60_000), waiting(5, 60_000)) == [OK, STUCK]
    assert states(waiting(5, 60_000), waiting(7, 60_000, total=102)) == [OK, STUCK]


def test_a_queue_is_not_stuck_before_its_items_have_waited() -> None:
    looks = [waiting(5, 0)] * 12
    assert states(*looks) == [OK] * 10 + [STUCK] * 2


def test_a_consumer_that_fetches_or_works_on_an_item_keeps_a_queue_from_being_stuck() -> None:
    assert states(waiting(5, 60_000), waiting(4, 60_000)) == [OK, OK]
    # It rests for five seconds after each.
    fetched = [waiting(50 - look // 5, 3_600_000) for look in range(20)]
    assert set(states(*fetched)[5:]) == {OK}
    at_work = waiting(5, 20_000, open_transactions=1)
    assert states(at_work, at_work) == [OK, OK]
    assert states(waiting(5, 90_000, open_transactions=1), waiting(5, 90_000, open_transactions=1)) == [OK, STUCK]


def test_an_old_server_says_nothing_of_heads_and_its_queues_are_stuck_by_what_is_seen_of_them() -> None:
    looks = [figures(items=5, total_items=9, expired_items=0, discarded=0)] * 12
    assert states(*looks) == [OK] * 10 + [STUCK] * 2


def test_a_queue_that_rises_all_the_time_is_growing_until_it_does_not() -> None:
    rising = [waiting(10 * look, 0, total=100 + 11 * look) for look in range(14)]
    assert states(*rising, waiting(1, 0, total=300), interval_ms=100) == [OK] * 12 + [GROWING] * 2 + [OK]
    noisy = [waiting(1000 + 100 * (look % 2), 0, total=100 + 1000 * look) for look in range(20)]
    assert set(states(*noisy, interval_ms=100)) == {OK}


@pytest.mark.parametrize(
    ("known", "state"), [({"full": 1}, FULL), ({"journal_failed": 1, "full": 1}, FAILED), ({"stopped": 1}, STOPPED)]
)
def test_what_the_server_says_is_known_at_the_first_look(known: dict[str, int], state: str) -> None:
    assert states(waiting(5, 60_000, **known)) == [state]


def test_queues_of_a_server_that_is_gone_are_stale_and_of_several_servers_the_worst_counts() -> None:
    board = Board(["a:1", "b:1"])
    board.receive(snapshot(0, "a:1", work=waiting(5, 0), mail=waiting(1, 0, full=1)))
    board.receive(snapshot(0, "b:1", work=waiting(5, 0), mail=waiting(1, 0)))
    board.receive(Outage("b:1", NOW_MS, "gone", 1000))
    board.advance(0)
    assert {row.queue: row.state for row in board.rows(ALL_SERVERS)} == {"work": STALE, "mail": FULL}


def test_states_are_sorted_and_filtered_by_how_bad_they_are() -> None:
    board = Board(["a:1"])
    board.receive(
        snapshot(0, a=waiting(1, 0), b=waiting(1, 0, full=1), c=waiting(1, 0, stopped=1), d=waiting(1, 0, full=1))
    )
    board.advance(0)
    rows = board.rows(ALL_SERVERS)

    def names(found: list[QueueRow]) -> str:
        return "".join(row.queue for row in found)

    assert names(in_order(rows, "state", descending=True)) == "cbda"
    assert names(chosen(rows, "state=full")) == "bd"
    assert names(chosen(rows, "state>ok")) == "bcd"


def test_the_worst_queues_are_named_and_the_rest_are_counted() -> None:
    board = Board(["a:1"])
    queues = {f"full{number}": waiting(number + 1, 0, full=1) for number in range(9)}
    news = snapshot(0, **queues, broken=waiting(0, 0, stopped=1))
    news.reasons = {"broken": "corrupt x.seg: byte 17"}
    board.receive(news)
    board.advance(0)
    servers = list(board.servers.values())
    assert trouble_lines(board.rows(ALL_SERVERS), servers) == [
        "✖ broken  STOPPED (kestrelctl repair broken): corrupt x.seg: byte 17",
        "▲ 9 queues  FULL: 45 items, max_items or max_size is reached: full8, full7, full6, full5, full4, …",
    ]
    few = [row for row in board.rows(ALL_SERVERS) if row.queue in ("broken", "full0", "full1")]
    assert trouble_lines(few, servers) == [
        "✖ broken  STOPPED (kestrelctl repair broken): corrupt x.seg: byte 17",
        "▲ full1  FULL: 2 items, max_items or max_size is reached",
        "▲ full0  FULL: 1 item, max_items or max_size is reached",
    ]


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_a_full_disk_a_damaged_journal_a_full_queue_and_a_dead_server_are_on_the_first_screen(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await until(
            pilot,
            "✖ broken  STOPPED (kestrelctl repair broken): ",
            "checksum",
            "✖ jobs  NOT WRITTEN: ",
            "No space left",
            "▲ limited  FULL: 2 items, max_items",
        )
        await until(pilot, "▲ 127.0.0.1:1  stale for")
        await pilot.press("exclamation_mark")
        await until(pilot, "▼state")
        heading = lines(pilot).index(line_of(pilot, "▼state"))
        names = [line[2:].split()[0] for line in lines(pilot)[heading + 1 : heading + 5]]
        assert names == ["broken", "jobs", "limited", "other"]
        app = pilot.app
        assert isinstance(app, Console)
        app.open_queue("broken")
        await until_box_says(pilot, "STOPPED: items unknown", "run: kestrelctl repair broken")
        assert not any("no waiting items" in line for line in lines(pilot))

    settings = ("queues.limited.max_items=2", "max_journal_size=64KiB")
    with (
        small_disk(tmp_path / "spool", "400k"),
        running_daemon(tmp_path, *settings, admin="127.0.0.1:0") as daemon,
    ):
        put(daemon.address, "broken", b"x" * 1000, b"y" * 1000)
        put(daemon.address, "limited", b"a", b"b")
        put(daemon.address, "other", b"a")
        daemon.stop()
        (segment,) = (daemon.spool / "broken.journal").glob("*.seg")
        damaged = bytearray(segment.read_bytes())
        damaged[500] ^= 1
        segment.write_bytes(damaged)
        daemon.start()
        with QueueClient(daemon.port) as client:
            while client.offer("jobs", b"x" * 20_000) == b"STORED":
                pass
        drive(console(daemon.address, "127.0.0.1:1"), driving, size)
