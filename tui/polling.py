"""Polling of servers for their figures, with increasing intervals while one does not answer."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from kestrelctl.remote.client import NOBODY, KestrelClient
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.access import Login
from tui.admin_port import AdminLost, admin_port_of
from tui.admin_queries import Asked
from tui.feed import Feed
from tui.journals import ask_reasons
from tui.snapshots import JOB_KEYS, JobFigures, Outage, Snapshot, bad_queues, parse_dump

BACK_OFF_MS_MAX: Final = 5_000
# `stats` repeats every queue: with more queues than this, the server's own counters are polled less often.
QUEUES_FEW: Final = 200
COUNTERS_EVERY_MS: Final = 10_000
# The admin port is asked why queues are stopped or failing, for this many of each kind.
REASONS_MAX: Final = 4
REASONS_EVERY_MS: Final = 10_000


class Poller:
    """Polls one server and reconnects after an outage."""

    def __init__(self, address: str, timeout_ms: int, interval_ms: int, login: Login = NOBODY) -> None:
        self.address = address
        self.interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._login = login
        self._client: KestrelClient | None = None
        self._failures = 0
        self._counters: dict[str, int | str] = {}
        self._counted_at_ms = 0
        self._feed: Feed | None = None  # None = no usable admin port
        self._reasons: dict[str, str] = {}
        self._reasoned_at_ms = 0

    def poll(self) -> Snapshot | Outage:
        """Take one sample."""
        try:
            snapshot = self._sample()
        except Failure as failure:
            self.close()
            self._failures += 1
            back_off_ms = min(self.interval_ms << min(self._failures, 10), BACK_OFF_MS_MAX)
            return Outage(self.address, _wall_ms(), failure.words, max(back_off_ms, self.interval_ms), failure.code)
        self._failures = 0
        snapshot.reasons = self._reasons_for(snapshot)
        return snapshot

    def _sample(self) -> Snapshot:
        if self._feed is not None:
            try:
                self._feed.update()
            except AdminLost:
                self._feed = None
            else:
                feed, now_ms = self._feed, _wall_ms()
                ahead_ms = now_ms - feed.now_ms
                return Snapshot(
                    self.address,
                    now_ms,
                    _clock_ms(),
                    feed.queues,
                    feed.counters,
                    ahead_ms,
                    feed.jobs,
                    nodes=feed.nodes,
                )
        if self._client is None:
            self._client = KestrelClient(self.address, self._timeout_ms, self._login)
            self._counted_at_ms = 0
        is_first = not self._counted_at_ms
        answer = self._client.dump_stats()
        clock_ms, now_ms = _clock_ms(), _wall_ms()
        queues = parse_dump(answer, now_ms)
        if len(queues) <= QUEUES_FEW or not self._counted_at_ms or clock_ms - self._counted_at_ms >= COUNTERS_EVERY_MS:
            self._counters = self._client.server_stats()
            self._counted_at_ms = clock_ms
        if is_first and "admin" in self._counters:
            port = admin_port_of(self.address, str(self._counters["admin"]), self._timeout_ms, self._login)
            self._feed = Feed(port) if port is not None else None
        jobs = _jobs_of(self._client, now_ms) if "jobs_queues" in self._counters else {}
        return Snapshot(self.address, now_ms, clock_ms, queues, self._counters, 0, jobs)

    def _reasons_for(self, snapshot: Snapshot) -> dict[str, str]:
        """Reasons of stopped queues, asked again every REASONS_EVERY_MS and when other queues are affected."""
        if not (snapshot.counters.get("queues_stopped") or snapshot.counters.get("journals_failed")):
            self._reasons = {}
            return {}
        bad = bad_queues(snapshot.queues, REASONS_MAX)
        if not self._reasons.keys() >= set(bad) or snapshot.clock_ms - self._reasoned_at_ms >= REASONS_EVERY_MS:
            admin = str(snapshot.counters.get("admin", ""))
            self._reasons = ask_reasons(Asked(self.address, admin, self._timeout_ms, self._login), bad)
            self._reasoned_at_ms = snapshot.clock_ms
        return self._reasons

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._feed is not None:
            self._feed.close()
            self._feed = None


class PollThread(threading.Thread):
    """A daemon thread that polls one server, so that the screen does not block."""

    def __init__(self, poller: Poller, deliver: Callable[[Snapshot | Outage], object]) -> None:
        super().__init__(name=f"poll {poller.address}", daemon=True)
        self.address = poller.address
        self._poller = poller
        self._deliver = deliver
        self._is_stopping = False
        self._woken = threading.Event()

    def stop(self) -> None:
        self._is_stopping = True
        self._woken.set()

    def poll_now(self) -> None:
        """Poll at once, before the interval is over."""
        self._woken.set()

    def run(self) -> None:
        while not self._is_stopping:
            self._woken.clear()
            started_ms = _clock_ms()
            news = self._poller.poll()
            if self._is_stopping:
                break
            self._deliver(news)
            wait_ms = news.next_try_ms if isinstance(news, Outage) else self._poller.interval_ms
            self._woken.wait(max(1, started_ms + wait_ms - _clock_ms()) / 1000)
        self._poller.close()


def pollers(addresses: Sequence[str], timeout_ms: int, interval_ms: int, login: Login = NOBODY) -> list[Poller]:
    return [Poller(address, timeout_ms, interval_ms, login) for address in addresses]


def _jobs_of(client: KestrelClient, now_ms: int) -> dict[str, JobFigures]:
    """Figures of the job queues of a server that has jobs."""
    found = {}
    for block in client.job_queue_stats():
        oldest_ms = block.get("oldest_ms")
        block["oldest_at_ms"] = now_ms - oldest_ms if isinstance(oldest_ms, int) and block.get("queued") else 0
        found[str(block["queue"])] = tuple([block.get(key) for key in JOB_KEYS])
    return found


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000
