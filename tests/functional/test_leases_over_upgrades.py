"""Leases over an upgrade, SIGTERM and a start, or a reboot: no worker notices but by its connection."""

import time
from pathlib import Path
from typing import Final

import pytest

from kestreld.queues import leases
from tests.support.clock import FakeClock
from tests.support.daemon import running_daemon
from tests.support.engine import Engine, QuickFiles
from tests.support.queue_client import QueueClient

LEASES: Final = 1000


def leased(client: QueueClient, count: int) -> dict[bytes, int]:
    """Lease so many items at once; tokens by their data."""
    client.send(b"gets work/open/lease=600000\r\n" * count)
    tokens = {}
    for _ in range(count):
        token = int(client.expect_line(b"VALUE work/open/lease=600000 ").split()[4])
        tokens[client.read_line()] = token
        client.expect(b"END\r\n")
    return tokens


@pytest.mark.long
def test_an_upgrade_under_a_thousand_leases_repeats_none_of_them(tmp_path: Path) -> None:
    items = [b"%d" % number for number in range(LEASES)]
    with running_daemon(tmp_path, "max_retries=1", "move_failed_to=dead") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", *items, b"waits")
            tokens = leased(client, LEASES)
            assert sorted(tokens) == sorted(items)
            for _ in range(2):  # the second time they are from before it already
                daemon.restart()
                with QueueClient(daemon.port) as later:
                    assert later.queue_stats("work")["open_transactions"] == str(LEASES)
                    assert later.get("work/peek") == b"waits", "nothing else waits"
        with QueueClient(daemon.port) as later:
            done, given_back = items[: LEASES // 2], items[LEASES // 2 :]
            later.send(b"".join(b"delete work/%d\r\n" % tokens[item] for item in done))
            later.expect(b"DELETED\r\n" * len(done))
            later.send(b"".join(b"touch work/%d 0\r\n" % tokens[item] for item in reversed(given_back)))
            later.expect(b"TOUCHED\r\n" * len(given_back))
            assert later.drain("work") == [*given_back, b"waits"]
            assert later.get("dead") is None, "no restart was a failure of anybody"


@pytest.mark.parametrize("is_clean", [False, True], ids=["kill", "stop"])
def test_a_server_that_was_down_for_longer_than_a_lease_repeats_nothing(tmp_path: Path, *, is_clean: bool) -> None:
    clock = FakeClock()
    clock.wall_ms = time.time_ns() // 1_000_000 - 3_600_000
    engine = Engine(tmp_path / "spool", QuickFiles(), clock)
    engine.put("work", b"job", b"waits")
    leased = leases.lease(engine.reader("work"), clock.wall_ms, 1000, "worker")
    assert leased is not None
    engine.end_turn()
    if is_clean:
        engine.collection.close()
    else:
        engine.abandon()
    with running_daemon(tmp_path, "lease_grace=1h") as daemon, QueueClient(daemon.port) as client:
        assert client.drain("work") == [b"waits"]
        client.do(b"delete work/%d" % leased[0], b"DELETED\r\n")
