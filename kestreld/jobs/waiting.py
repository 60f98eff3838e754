"""Clients that wait for jobs, in the order they came."""

from typing import Protocol

from kestreld.jobs.globs import Glob
from kestreld.jobs.job import Job
from kestreld.queues.agenda import TimedWait


class JobConsumer(Protocol):
    """Whoever waits: told once, of the job or with None when there will be none."""

    def served(self, waiter: "JobWaiter", job: Job | None) -> None: ...


class JobWaiter(TimedWait):
    """One blocked client. It stands in the lines of several queues at once, and leaves all when it is served."""

    __slots__ = ("consumer", "lines", "number", "since_ms")

    def __init__(self, consumer: JobConsumer, deadline_ms: int, since_ms: int, number: int) -> None:
        super().__init__(deadline_ms)
        self.consumer = consumer
        self.since_ms = since_ms  # on the monotonic clock
        self.number = number  # who came first has the lowest
        self.lines: list[dict[JobWaiter, None]] = []

    def join(self, line: "dict[JobWaiter, None]") -> None:
        """Stand in this line, too."""
        line[self] = None
        self.lines.append(line)

    def leave(self) -> None:
        if not self.over:
            self.over = True
            for line in self.lines:
                line.pop(self, None)

    def fall_due(self, now_ms: int) -> None:
        """It goes away with nothing."""
        self.leave()
        self.consumer.served(self, None)


class PatternWaiters:
    """Who waits for a job of any queue whose name is like a pattern, those of one pattern together."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: dict[bytes, tuple[Glob, dict[JobWaiter, None]]] = {}  # empty: nobody waits so

    def add(self, waiter: JobWaiter, glob: Glob) -> None:
        """One comes to wait."""
        _, line = self.lines.setdefault(glob.text, (glob, {}))
        waiter.join(line)

    def first(self, name: bytes) -> JobWaiter | None:
        """Who has waited longest of those that a job of this queue would serve."""
        found: JobWaiter | None = None
        for text, (glob, line) in list(self.lines.items()):
            if not line:
                del self.lines[text]
            elif (found is None or next(iter(line)).number < found.number) and glob.matches(name):
                found = next(iter(line))
        return found

    def count(self, name: bytes) -> int:
        """How many a job of this queue would serve."""
        return sum([len(line) for glob, line in self.lines.values() if line and glob.matches(name)])
