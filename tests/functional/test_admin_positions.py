"""Positions by time and by size: what the admin port finds is what the items say."""

import threading
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.process import cpu_ms
from tests.support.queue_client import QueueClient

SMALL_SEGMENTS = ("max_journal_size=16KiB", "max_journal_overflow=1000")
RECORD_BYTES = 41  # beside the data


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    config = "queues:\n  memory: {journal: false}\n"
    with running_daemon(tmp_path, *SMALL_SEGMENTS, config=config, admin="127.0.0.1:0") as running:
        yield running


def position(daemon: Daemon, queue: str, query: str) -> Any:
    answer = ask(daemon, f"/queues/{queue}/position?{query}")
    assert answer.status == 200, answer
    return answer.json


def check_times(daemon: Daemon) -> int:
    """Every time of an item, and those beside it; how many segments there are."""
    lines = ask(daemon, "/queues/work/items?format=ndjson&limit=100000&bytes=16777216").lines
    ids, times = [line["id"] for line in lines], [line["add_ms"] for line in lines]
    family = ask(daemon, "/queues/work").json
    assert times == sorted(times)
    for at_ms in sorted({one + step for one in times for step in (-1, 0, 1)} | {0, times[-1] + 3_600_000}):
        place = bisect_left(times, at_ms)
        found = position(daemon, "work", f"at_ms={at_ms}")
        assert (found["id"], found["is_end"]) == (
            ids[place] if place < len(ids) else family["next_id"],
            place == len(ids),
        ), at_ms
    return int(family["segments"])


def test_the_first_item_of_a_time_is_found_in_any_segment_before_and_after_a_restart(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.get("work+audit")  # which keeps everything
        for _ in range(60):
            client.put("work", b"x" * 2000, b"y")
            client.put("work+audit", b"for the child only")
            client.get("work")
    assert check_times(daemon) > 5
    daemon.kill()
    daemon.start()
    assert check_times(daemon) > 5


def test_a_range_of_some_bytes_ends_where_the_next_item_is_too_much(daemon: Daemon) -> None:
    sizes = [10, 100, 5000, 1, 0, 300, 20_000, 7] * 10
    with QueueClient(daemon.port) as client:
        client.put("work", *(b"x" * size for size in sizes))
    for first in (1, 7, 40, len(sizes)):
        for bytes_max in (1, 60, 5300, 40_000, 1_000_000):
            end, total = first, 0
            while end <= len(sizes) and (end == first or total + sizes[end - 1] + RECORD_BYTES <= bytes_max):
                total += sizes[end - 1] + RECORD_BYTES
                end += 1
            found = position(daemon, "work", f"first={first}&bytes={bytes_max}")
            assert (found["id"], found["bytes"]) == (end, total)
            assert (found["is_end"], found["is_partial"]) == (end > len(sizes), False)


def test_the_range_of_a_large_journal_is_measured_in_pieces_while_others_are_served(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "max_journal_overflow=1000", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            for _ in range(150):
                client.put("work", *[b"x" * 50_000] * 10)
            client.put("other", b"x")
        longest_ms, ends = 0, threading.Event()

        def serve() -> None:
            nonlocal longest_ms
            with QueueClient(daemon.port) as client:
                while not ends.is_set():
                    begun_ms = cpu_ms(daemon.pid)  # the server's own time: the machine may be busy with other things
                    client.items("other")
                    longest_ms = max(longest_ms, cpu_ms(daemon.pid) - begun_ms)

        thread = threading.Thread(target=serve)
        thread.start()
        pieces, first, total = 0, 1, 0
        try:
            while True:
                found = position(daemon, "work", f"first={first}&bytes=1000000000")
                pieces, first, total = pieces + 1, found["id"], total + found["bytes"]
                if not found["is_partial"]:
                    break
        finally:
            ends.set()
            thread.join()
        for _ in range(2):
            (item,) = ask(daemon, "/queues/work/items?first=1234&limit=1&format=ndjson").lines
            id_of_time = position(daemon, "work", f"at_ms={item['add_ms']}")["id"]
            (before, begin) = ask(daemon, f"/queues/work/items?first={id_of_time - 1}&limit=2&format=ndjson").lines
            assert before["add_ms"] < item["add_ms"] == begin["add_ms"]
            daemon.kill()
            daemon.start()
        assert (pieces > 1, first, total, found["is_end"]) == (True, 1501, 1500 * 50_041, True)
        print(f"another client's longest wait: {longest_ms} ms of the server's processor time")
        assert longest_ms < 60


def test_positions_that_are_none_are_refused(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", b"x")
        client.put("memory", b"x")
    for path, status in (
        ("work/position", 400),
        ("work/position?at_ms=1&bytes=1", 400),
        ("work/position?at_ms=-1", 400),
        ("work/position?bytes=0", 400),
        ("work/position?bytes=1&first=9", 410),
        ("work/position?at_ms=1&journal_id=1", 410),
        ("nothing/position?at_ms=1", 404),
        ("memory/position?at_ms=1", 409),
    ):
        assert ask(daemon, f"/queues/{path}").status == status, path
    assert ask(daemon, "/queues/work/position?at_ms=1", "POST").status == 405
