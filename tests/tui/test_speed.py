"""5,000 queues: what a tick costs."""

import time

from textual.pilot import Pilot

from tests.tui.sights import drive, until
from tui.app import Console
from tui.plain import Wanted
from tui.polling import Poller
from tui.snapshots import Snapshot, parse_dump

QUEUES = 5000
# Measured 30 to 40 ms; a table that draws what is out of sight costs ten times as much.
TICK_MS_MAX = 150


def dump(tick: int) -> bytes:
    """As kestreld answers, with figures that change."""
    blocks = [
        b"queue 'queue-%05d' {\r\n  items=%d\r\n  bytes=%d\r\n  total_items=%d\r\n  logsize=4096\r\n"
        b"  expired_items=0\r\n  mem_items=7\r\n  mem_bytes=700\r\n"
        b"  age=%d\r\n  discarded=0\r\n  waiters=0\r\n  open_transactions=0\r\n"
        b"  transactions=0\r\n  canceled_transactions=0\r\n  total_flushes=0\r\n  move_refused=0\r\n  oldest_ms=%d\r\n"
        b"  head_id=1\r\n  next_id=%d\r\n  segments=1\r\n  sync_us=0\r\n  journal_failed=0\r\n  stopped=0\r\n}\r\n"
        % (number, (number * tick) % 997, number, number * tick, tick, tick, number)
        for number in range(QUEUES)
    ]
    return b"".join(blocks) + b"END\r\n"


def test_a_tick_with_5000_queues_is_cheap() -> None:
    address = "a:1"
    app = Console([Poller(address, 1000, 60_000)], Wanted(), interval_ms=60_000, timeout_ms=1000)
    app._pollers = []
    dumps = [dump(tick) for tick in range(1, 9)]
    costs_ms = []

    async def driving(pilot: Pilot[None]) -> None:
        for tick, answer in enumerate(dumps):
            started = time.process_time()
            queues = parse_dump(answer)
            app.post_message(app.News(Snapshot(address, tick * 1000, tick * 1000, queues, {})))
            await pilot.pause()
            costs_ms.append((time.process_time() - started) * 1000)
        await until(pilot, "queues 5,000", "queue-00020")

    drive(app, driving, size=(130, 45))
    median_ms = sorted(costs_ms)[len(costs_ms) // 2]
    print(f"a tick with {QUEUES} queues: {median_ms:.0f} ms of processor time from DUMP_STATS to the screen")
    assert median_ms < TICK_MS_MAX
