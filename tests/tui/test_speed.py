"""5,000 queues: what a tick costs."""

import json
import time
from collections.abc import Callable
from functools import partial

import pytest
from textual.pilot import Pilot

from kestrelctl.remote.admin import AdminConnection
from kestrelctl.remote.client import NOBODY
from tests.tui.sights import drive, until
from tui.admin_port import AdminPort
from tui.app import Console
from tui.feed import Feed
from tui.plain import ViewOptions
from tui.polling import Poller
from tui.session import Session
from tui.snapshots import KEYS, NO_HELD, Snapshot, parse_dump

QUEUES = 5000
# Measured 20 ms from /stats.json, 30 from DUMP_STATS; a table that draws what is out of sight costs ten times as much.
TICK_MS_MAX = 150


def dump(tick: int) -> bytes:
    """As kestreld answers, with figures that change."""
    blocks = [
        b"queue 'queue-%05d' {\r\n  items=%d\r\n  bytes=%d\r\n  total_items=%d\r\n  logsize=4096\r\n"
        b"  expired_items=0\r\n  mem_items=7\r\n  mem_bytes=700\r\n"
        b"  age=%d\r\n  discarded=0\r\n  waiters=0\r\n  open_transactions=0\r\n"
        b"  transactions=0\r\n  canceled_transactions=0\r\n  total_flushes=0\r\n  move_refused=0\r\n  oldest_ms=%d\r\n"
        b"  head_id=1\r\n  next_id=%d\r\n  segments=1\r\n  sync_us=0\r\n  full=0\r\n"
        b"  journal_failed=0\r\n  stopped=0\r\n}\r\n"
        % (number, (number * tick) % 997, number, number * tick, tick, tick, number)
        for number in range(QUEUES)
    ]
    return b"".join(blocks) + b"END\r\n"


COLUMNS = ("queue", "taken_items", *KEYS)


def changes(tick: int, changing: int) -> bytes:
    """As `/stats.json` answers, when the figures of so many queues have changed."""
    rows = [
        [
            f"queue-{number:05d}",
            0,
            (number * tick) % 997,
            number,
            number * tick,
            4096,
            0,
            7,
            700,
            tick,
            0,
            0,
            0,
            number,
            0,
            0,
            0,
            *NO_HELD,
        ]
        for number in range(QUEUES if tick == 1 else changing)
    ]
    head = {
        "is_full": tick == 1,
        "at": f"1-{tick}",
        "gone": [],
        "now_ms": 0,
        "columns": COLUMNS,
        "server": {"uptime": "100"},
    }
    return json.dumps({**head, "rows": rows}).encode()


def by_dump(answer: bytes, feed: Feed) -> Snapshot:
    return Snapshot("a:1", 0, 0, parse_dump(answer, 0), {})


def by_feed(answer: bytes, feed: Feed) -> Snapshot:
    feed.apply(json.loads(answer))
    return Snapshot("a:1", 0, 0, feed.queues, feed.counters)


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "answer_at", "read"),
    [
        ("DUMP_STATS, all of them busy", dump, by_dump),
        ("/stats.json, all of them busy", partial(changes, changing=QUEUES), by_feed),
        ("/stats.json, 500 of them busy", partial(changes, changing=500), by_feed),
    ],
    ids=["dump_stats", "all", "some"],
)
def test_a_tick_with_5000_queues_is_cheap(
    what: str, answer_at: Callable[[int], bytes], read: Callable[[bytes, Feed], Snapshot]
) -> None:
    answers = [answer_at(tick) for tick in range(1, 12)]
    app = Console([Poller("a:1", 1000, 60_000)], ViewOptions(), Session(["a:1"], interval_ms=60_000, timeout_ms=1000))
    app._pollers = []
    feed = Feed(AdminPort(AdminConnection("", 0, "", 1, None, NOBODY)))
    costs_ms = []

    async def driving(pilot: Pilot[None]) -> None:
        for tick, answer in enumerate(answers):
            started = time.process_time()
            look = read(answer, feed)
            look.at_ms = look.clock_ms = tick * 1000
            app.post_message(app.News(look))
            await pilot.pause()
            costs_ms.append((time.process_time() - started) * 1000)
        await until(pilot, "queues 5,000", "queue-00020")

    drive(app, driving, size=(130, 45))
    median_ms = sorted(costs_ms)[len(costs_ms) // 2]
    print(f"a tick with {QUEUES} queues by {what}: {median_ms:.0f} ms of processor time from the answer to the screen")
    assert median_ms < TICK_MS_MAX
