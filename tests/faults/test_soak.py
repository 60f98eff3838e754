"""A server that has worked for long is as small as one that has worked for a while. `SOAK_SECONDS` says how long.

What it keeps at hand fills up in the first minutes.
"""

import os
import threading
import time
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.process import resident_bytes
from tests.support.queue_client import QueueClient

SOAK_S: Final = int(os.environ.get("SOAK_SECONDS", "0"))
CLIENTS: Final = 3
PATIENCE_S: Final = 600  # a machine may stand still for minutes
SAMPLES: Final = 40
GROWTH_BYTES_MAX: Final = 2 << 20


class Work:
    """Clients that do a bit of everything, come and go, and leave nothing behind."""

    def __init__(self, daemon: Daemon) -> None:
        self._port = daemon.port
        self._over = threading.Event()
        self.rounds = 0
        self.problems: list[str] = []
        self._threads = [threading.Thread(target=self._go_on, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self, number: int) -> None:
        try:
            while not self._over.is_set():
                with QueueClient(self._port, PATIENCE_S) as client:
                    self._round(client, f"q{number}")
                self.rounds += 1
        except (AssertionError, OSError) as problem:
            self.problems.append(repr(problem))

    def _round(self, client: QueueClient, name: str) -> None:
        items = [b"%d" % number * 50 for number in range(100)]
        passing = f"{name}-{self.rounds % 10}"
        client.put(name, *items)
        client.put(f"{name}+kid", b"for the child")
        client.put(passing, b"x", expiry_s=1)
        for data in items[:50]:
            assert client.get(name) == data
        for data in items[50:]:
            assert client.get(f"{name}/open") == data
            client.do(b"get %b/close" % name.encode(), b"END\r\n")
        client.do(b"flush %b+kid" % name.encode(), b"END\r\n")
        client.do(b"delete %b" % passing.encode(), b"DELETED\r\n")
        client.stats()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.skipif(SOAK_S == 0, reason="takes as long as SOAK_SECONDS says")
@pytest.mark.long
@pytest.mark.timeout(SOAK_S * 2 + 120)
def test_it_does_not_grow_while_it_works(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "max_journal_size=100KiB", "expiration_timer_frequency_seconds=1") as daemon:
        work = Work(daemon)
        samples = []
        for _ in range(SAMPLES):
            time.sleep(SOAK_S / SAMPLES)
            samples.append((resident_bytes(daemon.pid), descriptors(daemon.pid)))
        work.end()
        assert work.problems == []
        middle, end = samples[SAMPLES // 2 : SAMPLES * 3 // 4], samples[SAMPLES * 3 // 4 :]
        grown_bytes = median(one for one, _ in end) - median(one for one, _ in middle)
        print(
            f"\n{SOAK_S} s, {work.rounds} rounds: {median(one for one, _ in end) / (1 << 20):.1f} MiB,"
            f" {grown_bytes / 1024:+.0f} KiB since the middle; {max(count for _, count in samples)} descriptors at most"
        )
        assert grown_bytes < GROWTH_BYTES_MAX
        assert max(count for _, count in end) <= max(count for _, count in middle) + CLIENTS
        journals = sum(path.stat().st_size for path in daemon.spool.rglob("*.seg"))
        assert journals < 10 * CLIENTS * (100 << 10)
        assert daemon.stop() == 0
