"""Clients that wait for jobs, of named queues or of queues that match a pattern."""

from typing import Protocol

from kestreld.jobs.globs import Glob
from kestreld.jobs.job import Job
from kestreld.queues.agenda import TimedWait


class JobConsumer(Protocol):
    """Owner of a waiter: called once, with the job, or with None if there will be none."""

    def served(self, waiter: "JobWaiter", job: Job | None) -> None: ...


class JobWaiter(TimedWait):
    """One blocked client. It waits in the lines of several queues at once, and leaves all of them when it is served."""

    __slots__ = ("consumer", "lines", "number")

    def __init__(self, consumer: JobConsumer, deadline_ms: int, number: int) -> None:
        super().__init__(deadline_ms)
        self.consumer = consumer
        self.number = number  # the lowest came first
        self.lines: list[dict[JobWaiter, None]] = []

    def join(self, line: "dict[JobWaiter, None]") -> None:
        """Wait in this line, too."""
        line[self] = None
        self.lines.append(line)

    def leave(self) -> None:
        if not self.over:
            self.over = True
            for line in self.lines:
                line.pop(self, None)

    def fall_due(self, now_ms: int) -> None:
        """Time out: leave all lines without a job."""
        self.leave()
        self.consumer.served(self, None)


class PatternWaiters:
    """Clients that wait for a job of any queue whose name matches a pattern, grouped by pattern."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: dict[bytes, tuple[Glob, dict[JobWaiter, None]]] = {}  # by pattern; empty: no such waiters

    def add(self, waiter: JobWaiter, glob: Glob) -> None:
        """Add a waiter to the line of a pattern."""
        _, line = self.lines.setdefault(glob.text, (glob, {}))
        waiter.join(line)

    def first(self, name: bytes) -> JobWaiter | None:
        """Return the client that has waited longest of those whose pattern matches this queue."""
        found: JobWaiter | None = None
        for text, (glob, line) in list(self.lines.items()):
            if not line:
                del self.lines[text]
            elif (found is None or next(iter(line)).number < found.number) and glob.matches(name):
                found = next(iter(line))
        return found

    def count(self, name: bytes) -> int:
        """Return the number of clients whose pattern matches this queue."""
        return sum([len(line) for glob, line in self.lines.values() if line and glob.matches(name)])
