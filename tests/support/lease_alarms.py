"""`python -m tests.support.lease_alarms ADDRESS ALARMS [SEED]`: leases with heartbeats in a storm of raising signals.

Ends with 0 when each item that was put is confirmed or there again, and nothing is leased or kept that nobody has.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
from typing import Final

from kestreld.client import ClusterQueue, KestrelCluster

HANGS_S: Final = 60
LEASE_S: Final = 0.5


class Alarm(BaseException):
    pass


class Storm:
    """What was put, and what became of it."""

    def __init__(self, queue: ClusterQueue, chance: random.Random) -> None:
        self._queue = queue
        self._chance = chance
        self._is_armed = False
        self.alarms = 0
        self.put: set[bytes] = set()
        self.done: set[bytes] = set()
        self.unsure: set[bytes] = set()  # putting or confirming them was cut short

    def ring(self, *_: object) -> None:
        if self._is_armed:
            self._is_armed = False
            self.alarms += 1
            raise Alarm

    def round(self, item: bytes) -> None:
        """Put an item and work on one, with an alarm in the middle."""
        stage = item
        try:
            try:
                self._is_armed = True
                signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-5, 3e-3))
                self._queue.put(item)
                self.put.add(item)
                lease = self._queue.lease(LEASE_S, heartbeat=True)
                if lease is not None:
                    with lease:
                        stage = lease.item
                    self.done.add(stage)
                stage = b""
            finally:
                self._is_armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            self.unsure.add(stage)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def run(address: str, alarms: int, seed: int) -> str:
    had_threads = threads()
    with KestrelCluster([address], chance=random.Random(seed)) as cluster:
        queue = cluster.queue("storm")
        queue.delete()
        storm = Storm(queue, random.Random(seed))
        signal.signal(signal.SIGALRM, storm.ring)
        number = 0
        while storm.alarms < alarms:
            number += 1
            storm.round(b"%d" % number)
        gc.collect()
        left: set[bytes] = set()
        while (item := queue.get(timeout=1.5 * LEASE_S)) is not None:
            assert item not in storm.done, f"{item!r} was confirmed"
            left.add(item)
        missing = storm.put - storm.done - left - storm.unsure
        assert not missing, f"lost: {sorted(missing)}"
        assert left <= storm.put | storm.unsure
        (counters,) = queue.stats().values()
        assert counters["items"] == counters["leased"] == counters["open_transactions"] == 0, counters
        (server,) = cluster._pool.calls.servers
        assert not server.keeper._calls._kept
    end = time.monotonic() + HANGS_S
    while threads() > had_threads:
        assert time.monotonic() < end, f"{threads() - had_threads} threads are left"
        time.sleep(0.01)
    return f"alarms={storm.alarms} put={len(storm.put)} done={len(storm.done)} came again={len(left)}\n"


if __name__ == "__main__":
    watchdog = threading.Timer(float(sys.argv[2]) / 10 + HANGS_S, lambda: os._exit(3))
    watchdog.daemon = True
    watchdog.start()
    sys.stdout.write(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 7))
