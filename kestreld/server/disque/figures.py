"""Figures of jobs and their queues, from counters that the store keeps anyway, a few queues a step."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from typing import Final

from kestreld.figures import OF_JOB_QUEUES, OF_OWN_JOBS, compiled
from kestreld.jobs.job_queue import NOT_PAUSED, JobQueue
from kestreld.server.disque import cluster_figures
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.queue_commands import PAUSE_NAMES

# Of a queue, in the order of a `Row`.
COLUMNS: Final = ("queue", *(one.key for one in OF_JOB_QUEUES))
COUNTS: Final = COLUMNS[1:-3]
AT: Final = {column: place for place, column in enumerate(COLUMNS)}
STEP_QUEUES: Final = 64
STEP_ROWS: Final = 500
PIECE_BYTES: Final = 1 << 16
_ESCAPED: Final = re.compile(rb"[\x00-\x1f\x7f\\]")

Row = tuple[str | int, ...]
_read: Final[Callable[..., Row]] = compiled(
    "queue, waiting, blocked, import_rate, pause, drift_ms", (one.read for one in OF_JOB_QUEUES)
)
_read_own: Final[Callable[..., tuple[int, ...]]] = compiled("jobs, node, sums", (one.read for one in OF_OWN_JOBS))
Sees = Callable[[str], bool]  # of a queue's name, read as latin-1


def escaped(name: bytes) -> bytes:
    r"""Escape a name so that it ends no line: control characters and `\` are written as `\x0a`."""
    return _ESCAPED.sub(lambda found: b"\\x%02x" % found[0][0], name)


@dataclass(slots=True)
class _Sums:
    """Sums over the queues of a node."""

    queued: int = 0
    active: int = 0
    delayed: int = 0
    paused: int = 0
    jobs_in: int = 0
    jobs_out: int = 0
    import_rate: int = 0


class JobFigures:
    """Figures of a node's jobs for statistics, metrics and the admin port."""

    COLUMNS = COLUMNS
    NODE_COLUMNS = cluster_figures.NODE_COLUMNS

    def __init__(self, node: DisqueNode) -> None:
        self._node = node
        self.jobs = node.jobs
        self._sums = _Sums()

    def adding_up(self) -> Iterator[None]:
        """Bring `totals` up to date."""
        node, may_import = self._node, self._node.has_others
        sums = _Sums()
        for some in self._some_queues(None):
            for queue in some:
                sums.queued += queue.jobs.count
                sums.active += queue.active
                sums.delayed += queue.delayed
                sums.paused += queue.pause != NOT_PAUSED
                sums.jobs_in += queue.jobs_in
                sums.jobs_out += queue.jobs_out
                if may_import:
                    sums.import_rate += node.import_rate(queue)
            yield
        sums.jobs_in += self.jobs.collected_in
        sums.jobs_out += self.jobs.collected_out
        self._sums = sums

    @property
    def is_loading(self) -> bool:
        """True while jobs are being read and none is served yet."""
        return self._node.persistence.is_loading

    def totals(self) -> list[tuple[str, int]]:
        """Return the node's totals. Those that are sums over its queues are as of the last `adding_up`."""
        values = _read_own(self.jobs, self._node, self._sums)
        own = [(one.key, value) for one, value in zip(OF_OWN_JOBS, values, strict=True)]
        return [*own, *cluster_figures.totals(self._node)]

    def nodes(self) -> list[cluster_figures.NodeRow]:
        """Return a row for this node, and for each other node of the cluster."""
        return cluster_figures.node_rows(self._node)

    def commands(self) -> list[tuple[str, int, int]]:
        """Return name, number of executions and microseconds of each command, since CONFIG RESETSTAT."""
        return [(command.name.decode(), command.calls, command.spent_us) for command in self._node.commands.values()]

    # Queues

    def _some_queues(self, sees: Sees | None) -> Iterator[list[JobQueue]]:
        """Yield the queues that `sees` allows, None = all, a few at a time."""
        few: list[JobQueue] = []
        for part in self.jobs.queues.parts:
            if not part:
                continue
            few += part.values()
            if len(few) >= STEP_QUEUES:
                yield few if sees is None else [queue for queue in few if sees(queue.name.decode("latin-1"))]
                few = []
        yield few if sees is None else [queue for queue in few if sees(queue.name.decode("latin-1"))]

    def rows(self, sees: Sees | None = None) -> Iterator[list[Row]]:
        """Yield the rows of the queues that `sees` allows, None = all, a few at a time, in no order."""
        for some in self._some_queues(sees):
            if self.jobs.patterns.lines:  # clients that wait by a pattern are counted at each queue
                for queue in some:
                    yield [self.row(queue)]
            else:
                yield list(map(self.row, some))

    def row(self, queue: JobQueue) -> Row:
        """Return the figures of one queue."""
        jobs = self.jobs
        blocked = len(queue.waiters) + (jobs.patterns.count(queue.name) if jobs.patterns.lines else 0)
        pause, import_rate = PAUSE_NAMES[queue.pause].decode(), self._node.import_rate(queue)
        name = queue.name.decode("utf-8", "surrogateescape")
        return (name, *_read(queue, queue.jobs, blocked, import_rate, pause, jobs.drift_ms))

    def largest(self, most: int, sees: Sees | None = None) -> Iterator[list[Row] | None]:
        """Yield None at intervals, and last the rows of the queues with the most jobs, ties by name."""
        found: list[Row] = []
        more: list[Row] = []
        for some in self.rows(sees):
            more += some
            if len(more) >= STEP_ROWS:
                found, more = _largest(most, found + more), []
            yield None
        yield _largest(most, found + more)

    def report(self, sees: Sees | None) -> Iterator[bytes | None]:
        """Yield a block for each queue, in the format of DUMP_STATS, with `oldest_ms` instead of instants."""
        blocks: list[bytes] = []
        size_bytes, wall_ms = 0, self.jobs.clock.wall_ms
        for some in self.rows(sees):
            for name, *figures in some:
                lines = "".join([f"  {key}={value}\r\n" for key, value in zip(COUNTS, figures, strict=False)])
                oldest_at_ms = int(figures[AT["oldest_at_ms"] - 1])
                lines += f"  oldest_ms={max(wall_ms - oldest_at_ms, 0) if oldest_at_ms else 0}\r\n"
                shown = escaped(str(name).encode("utf-8", "surrogateescape"))
                blocks.append(b"queue '%b' {\r\n%b}\r\n" % (shown, lines.encode()))
                size_bytes += len(blocks[-1])
            if size_bytes >= PIECE_BYTES:
                yield b"".join(blocks)
                blocks, size_bytes = [], 0
            else:
                yield None
        if blocks:
            yield b"".join(blocks)


def _largest(most: int, rows: list[Row]) -> list[Row]:
    return nlargest(most, sorted(rows), key=itemgetter(AT["jobs"]))
