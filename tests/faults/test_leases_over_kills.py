"""kill -9 of the server under workers that lease: no item is lost, and none of them loses a lease that it keeps up.

Workers note when they got an item and when they last spoke, on the monotonic clock of this machine; deliveries are
judged as they come.
"""

import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from kestreld.client import ClusterLease, KestrelCluster
from kestreld.errors import KestrelError
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

KILLS: Final = int(os.environ.get("KILLS", "20"))  # of the long test
GRACE_S: Final = 2.0  # that a lease lasts at least after a start
LATE_S: Final = 1.0  # within which an item is somebody else's once its lease is over, on a machine that is not busy
DEATHS: Final = 0.15  # the share of items whose workers die
WAIT_S: Final = 2.0  # for an item, before a worker looks whether all is over


@dataclass
class Work:
    """An item, as the worker has it that got it last."""

    lease: ClusterLease
    spoke_at_s: float  # when the server's last answer to it came, as far as is known: not before it
    is_dead: bool = False
    is_ended: bool = False  # given up by the worker, or done


@dataclass
class Notes:
    """What all workers and the killer note."""

    lease_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    put: set[bytes] = field(default_factory=set)
    done: Counter[bytes] = field(default_factory=Counter)  # confirmed, as the server has answered
    unsure: set[bytes] = field(default_factory=set)  # perhaps confirmed: there was no answer
    working: dict[bytes, Work] = field(default_factory=dict)
    downs: list[tuple[float, float]] = field(default_factory=list)  # when it was killed, and when it was back
    deliveries: int = 0
    deaths: int = 0
    moved_on: int = 0  # items of the dead that somebody else has got
    # The longest time from a lease's end, or that of the grace behind a start, until somebody else had the item;
    latest_s: float = 0  # of that the part in which somebody asked for one who could have had it,
    latest_without_start_s: float = 0  # where no start lay between;
    latest_busy_s: float = 0  # and all of it: the others may have been at work
    taken: list[str] = field(default_factory=list)  # from workers that lived and could not speak for a whole lease
    stalled: list[str] = field(default_factory=list)  # from workers that could not speak although it was there
    wrong: list[str] = field(default_factory=list)

    def came(self, data: bytes, lease: ClusterLease, asked_at_s: float) -> Work:
        """Note a delivery to somebody who had asked since `asked_at_s`."""
        now_s = time.monotonic()
        with self.lock:
            self.deliveries += 1
            before = self.working.get(data)
            if data in self.done:
                self.wrong.append(f"{data!r} came again although it was confirmed")
            elif before is not None and before.is_dead:
                self._moves_on(before, now_s, asked_at_s)
            elif before is not None and not before.is_ended:
                self._is_taken(data, before, now_s)
            work = self.working[data] = Work(lease, now_s)
            passed_over = [other for other, its in self.working.items() if its.is_dead and number(other) < number(data)]
            for other in passed_over:
                late_s = asked_at_s - self._over(self.working[other])[0]
                if late_s > LATE_S:
                    self.wrong.append(f"{other!r} was passed over by {data!r}, {late_s:.2f} s after its lease was over")
            return work

    def _over(self, work: Work) -> tuple[float, bool]:
        """When a lease was over that nobody kept up, and whether a start lies between."""
        over_s = work.spoke_at_s + self.lease_s
        start_s = max([back_s for _, back_s in self.downs if work.spoke_at_s < back_s], default=0.0)
        return max(over_s, start_s + GRACE_S if start_s else 0), start_s > 0

    def _moves_on(self, before: Work, now_s: float, asked_at_s: float) -> None:
        self.moved_on += 1
        over_s, is_behind_start = self._over(before)
        late_s = now_s - max(over_s, asked_at_s)
        self.latest_busy_s = max(self.latest_busy_s, now_s - over_s)
        self.latest_s = max(self.latest_s, late_s)
        if not is_behind_start:
            self.latest_without_start_s = max(self.latest_without_start_s, late_s)

    def _is_taken(self, data: bytes, before: Work, now_s: float) -> None:
        silent_s = now_s - before.lease._calls.until_ms / 1000 + self.lease_s
        aways_s = [back_s - down_s for down_s, back_s in self.downs if back_s > now_s - silent_s]
        line = f"{data!r} came to a second worker; the first had last spoken {silent_s:.2f} s before, "
        line += f"and since then the server was away for {', '.join(f'{one:.2f}' for one in aways_s)} s"
        (self.wrong if silent_s <= self.lease_s else self.taken if aways_s else self.stalled).append(line)


def number(data: bytes) -> int:
    """The place of an item in the order of the puts."""
    return int(data.split()[1])


class Worker:
    """A thread that leases an item, works, beating, and confirms it; now and then it dies, and another takes over."""

    def __init__(
        self, notes: Notes, cluster: KestrelCluster, chance: random.Random, task_s: tuple[float, float]
    ) -> None:
        self._notes, self._queue, self._chance, self._task_s = notes, cluster.queue("work"), chance, task_s
        self._name = f"worker-{chance.randrange(1000)}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Work on what is left without a pause, from now on."""
        self._task_s = (0, 0)

    def stop(self) -> None:
        self._over.set()

    def join(self) -> None:
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.is_set():
            lease, asked_at_s = None, time.monotonic()
            with suppress(KestrelError):  # it is away
                lease = self._queue.lease(self._notes.lease_s, timeout=WAIT_S, heartbeat=True, by=self._name)
            if lease is not None:
                self._work(lease, self._notes.came(lease.item, lease, asked_at_s))

    def _work(self, lease: ClusterLease, work: Work) -> None:
        notes, time_s = self._notes, self._chance.uniform(*self._task_s)
        dies = self._chance.random() < DEATHS
        with lease.beating():
            time.sleep(time_s)
        if dies:
            with notes.lock:
                if not lease.is_lost:
                    notes.deaths += 1
                    work.is_dead, work.spoke_at_s = True, lease._calls.until_ms / 1000 - notes.lease_s
            return
        is_confirmed = False
        with suppress(KestrelError):
            is_confirmed = lease.confirm()
        with notes.lock:
            work.is_ended = True
            if is_confirmed:
                notes.done[lease.item] += 1
            elif lease.is_unsure:
                notes.unsure.add(lease.item)


def put_up_to(daemon: Daemon, notes: Notes, outstanding: int) -> None:
    """Put items until so many are not done."""
    missing = outstanding - (len(notes.put) - len(notes.done))
    with QueueClient(daemon.port) as client:
        for _ in range(missing):
            data = b"item %d" % len(notes.put)
            client.put("work", data)
            notes.put.add(data)


def is_over(daemon: Daemon, notes: Notes) -> bool:
    if notes.put <= notes.done.keys() | notes.unsure:
        with QueueClient(daemon.port) as client:
            stats = client.queue_stats("work")
            return stats["items"] == stats["open_transactions"] == "0"
    return False


def live_through(
    folder: Path,
    kills: int,
    workers: int,
    lease_s: float,
    task_s: tuple[float, float],
    up_s: tuple[float, float],
    away_s: float,
) -> Notes:
    """So many kills, each of which it is away after for up to `away_s`, or now and then for too long."""
    seed = int(os.environ.get("SEED", "0")) or random.randrange(1 << 32)
    print(f"SEED={seed}")
    chance, notes = random.Random(seed), Notes(lease_s)
    with running_daemon(folder, f"lease_grace={GRACE_S:.0f}") as daemon:
        with KestrelCluster([daemon.address]) as cluster:
            all_of_them = [Worker(notes, cluster, random.Random(chance.random()), task_s) for _ in range(workers)]
            for _ in range(kills):
                put_up_to(daemon, notes, 2 * workers)
                time.sleep(chance.uniform(*up_s))
                down_s = time.monotonic()
                daemon.kill()
                time.sleep(lease_s + 3 if chance.random() < 0.03 else chance.uniform(0, away_s))
                with notes.lock:  # whoever gets an item from then on knows of the start
                    daemon.start()
                    notes.downs.append((down_s, time.monotonic()))
            for worker in all_of_them:
                worker.hurry()
            until(lambda: is_over(daemon, notes), "the end of all work")
            for worker in all_of_them:
                worker.stop()
            for worker in all_of_them:
                worker.join()
        assert [line for line in daemon.log if "corrupt" in line or "stopped" in line] == []
    return notes


def judge(notes: Notes) -> None:
    away_s = [back_s - down_s for down_s, back_s in notes.downs]
    print(
        f"{len(away_s)} kills, away for {max(away_s):.2f} s at most; {len(notes.put)} items, {notes.deliveries}"
        f" deliveries, {notes.deaths} workers died, {notes.moved_on} of their items moved on,"
        f" {notes.latest_s:.2f} s late at most, {notes.latest_without_start_s:.2f} s without a start,"
        f" {notes.latest_busy_s:.2f} s with the time in which all were at work;"
        f" {len(notes.unsure)} unsure, {len(notes.taken)} taken, {len(notes.stalled)} stalled",
        *notes.taken,
        *notes.stalled,
        sep="\n",
    )
    assert notes.wrong == []
    assert notes.put <= notes.done.keys() | notes.unsure, "lost"
    assert notes.done.keys() <= notes.put
    assert max(notes.done.values()) == 1, "confirmed twice"
    assert notes.moved_on >= notes.deaths


@pytest.mark.long
@pytest.mark.timeout(120 + 8 * KILLS)
def test_workers_live_through_many_kills(tmp_path: Path) -> None:
    notes = live_through(tmp_path, KILLS, workers=64, lease_s=4.0, task_s=(0.1, 10.0), up_s=(0.3, 3.3), away_s=1)
    judge(notes)
    assert notes.deaths > 0
    assert notes.latest_s <= LATE_S
    assert notes.stalled == []


def test_workers_live_through_a_few_kills(tmp_path: Path) -> None:
    judge(live_through(tmp_path, kills=2, workers=16, lease_s=2.0, task_s=(0.05, 2.5), up_s=(0.5, 1.0), away_s=0.2))
