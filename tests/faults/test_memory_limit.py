"""A process that gets no more memory from the kernel: it may end, as by kill -9, but what it had answered is there."""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import running_daemon
from tests.support.process import PAGE_BYTES, resident_bytes
from tests.support.queue_client import QueueClient
from tests.support.wire import HungUp

MIB: Final = 1 << 20
ROOM_BYTES: Final = 40 * MIB
ITEM_BYTES: Final = MIB
MORE_THAN_FITS: Final = 3 * ROOM_BYTES // ITEM_BYTES


def address_space_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * PAGE_BYTES


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_without_more_memory_nothing_stored_is_lost(tmp_path: Path) -> None:
    stored: list[bytes] = []
    with running_daemon(tmp_path, "max_memory_size=1GiB") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("other", b"x")
            limit_bytes = address_space_bytes(daemon.pid) + ROOM_BYTES
            resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
            with suppress(ConnectionError, HungUp):
                for number in range(MORE_THAN_FITS):
                    data = (b"%d " % number).ljust(ITEM_BYTES, b"x")
                    if client.offer("q", data) != b"STORED":
                        break
                    stored.append(data)
        assert 0 < len(stored) < MORE_THAN_FITS, "the limit was met"
        daemon.kill()  # if it has not ended by itself
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.get("other") == b"x"
            left = client.drain("q")
        assert left[: len(stored)] == stored
        assert len(left) <= len(stored) + 1, "at most what was not answered"


def test_with_max_memory_a_backlog_of_many_times_that_takes_no_more(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    items = [(b"%d " % number).ljust(ITEM_BYTES, b"x") for number in range(MORE_THAN_FITS // len(names))]
    settings = (f"max_memory={10 * MIB}", "queues.memo.journal=false")
    with running_daemon(tmp_path, *settings) as daemon, QueueClient(daemon.port) as client:
        client.put("other", b"x")
        before_bytes = resident_bytes(daemon.pid)
        for item in items:
            for name in names:
                client.put(name, item)
        assert client.offer("memo", items[0]) == b"NOT_STORED"
        assert resident_bytes(daemon.pid) - before_bytes < 10 * MIB + len(names) * ITEM_BYTES + 10 * MIB
        daemon.logged("max_memory reached")
        for name in names:
            assert client.drain(name) == items
