"""Figures of queues and of the server for `stats`: Kestrel's keys first, in its order, then ours.

None of our own per-queue keys ends in _items _bytes _age _discarded or _logsize: clients find queue names by cutting
those endings off. With `compat: kestrel-1` there are Kestrel's keys only.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Final

from kestreld import __version__
from kestreld.config.config import Compat
from kestreld.figures import HELD, KESTREL, KESTREL_SERVER, OF_SERVER, OURS, TROUBLE, Figure, compiled
from kestreld.queues.collection import QueueCollection
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.stats import Figures, ServerStats, Totals

Sees = Callable[[str], bool]

STEP_QUEUES: Final = 32
OF_READER: Final = "reader, queue, journal, held, keys, items, head, now_ms"
_read_server: Final[Callable[..., tuple[int | str, ...]]] = compiled(
    "collection, commit, stats, sums, totals, queues, uptime_ms, now_ms, version", (one.read for one in OF_SERVER)
)


def reading(figures: Iterable[Figure]) -> Callable[[Reader], tuple[int, ...]]:
    """A function that reads these figures of a reader, in their order; instants are those of the wall clock."""
    read: Callable[..., tuple[int, ...]] = compiled(OF_READER, (one.read for one in figures))

    def values(reader: Reader) -> tuple[int, ...]:
        queue = reader.queue
        return read(reader, queue, queue.journal, reader.held, reader.keys, reader.items, reader.head(), 0)

    return values


def _shown(figures: Iterable[Figure]) -> Callable[..., tuple[tuple[str, int], ...]]:
    """Keys and values as `stats` shows them."""
    return compiled(OF_READER, (f"({one.key!r}, {one.shown})" for one in figures if one.key))


_KESTREL = _shown(KESTREL)
_PLAIN, _WITH_HELD = _shown((*KESTREL, *OURS, *TROUBLE)), _shown((*KESTREL, *OURS, *HELD, *TROUBLE))


def queue_figures(reader: Reader, now_ms: int, *, guide_only: bool = False, sees: Sees | None = None) -> Figures:
    """Figures of one queue. `oldest_ms` is known once `Reader.seek_head` has found the head."""
    queue, held, keys = reader.queue, reader.held, reader.keys
    if queue.dirty:  # if clean: a commit has counted everything
        queue.flush_counters()
    has_held = held is not None or keys is not None or reader.dead_letters
    shown = _KESTREL if guide_only else _WITH_HELD if has_held else _PLAIN
    figures: list[tuple[str, int | str]] = [
        *shown(reader, queue, queue.journal, held, keys, reader.items, reader.head(), now_ms)
    ]
    if guide_only and queue.stopped is not None:  # never the case in Kestrel: no client expects its figures
        figures.append(("stopped", 1))
    if not reader.label:
        children = sorted(child.name for child in queue.readers.values() if child.label and _is_seen(child.name, sees))
        if children:
            figures.append(("children", ",".join(children)))
    return figures


def _is_seen(name: str, sees: Sees | None) -> bool:
    return sees is None or sees(name)


@dataclass(slots=True)
class Sums:
    """Sums over all queues for the server's figures."""

    items: int = 0
    data_bytes: int = 0
    totals: Totals = field(default_factory=Totals)  # includes deleted queues
    journal_bytes: int = 0
    journals_failed: int = 0
    queues_stopped: int = 0

    def count(self, queue: Queue) -> None:
        """Add the figures that a family has once."""
        if queue.journal is not None:
            self.journal_bytes += queue.journal.disk_bytes
            self.journals_failed += queue.journal.failed is not None
        self.queues_stopped += queue.stopped is not None


def adding_up(collection: QueueCollection) -> Generator[None, None, Sums]:
    """Sum over all queues, a few per step. Each counts as it is at its step, or as it was if it has been deleted."""
    sums = Sums(queues_stopped=len(collection.broken))
    past, put, of_parents, fetched, expired = collection.past, 0, 0, 0, 0
    for place, queue in enumerate(list(collection.families.values())):
        sums.count(queue)
        if place % STEP_QUEUES == 0:
            yield
    for place, reader in enumerate(list(collection.readers.values())):
        if reader.queue.dirty:
            reader.queue.flush_counters()
        if not reader.deleted:
            sums.items += reader.items
            sums.data_bytes += reader.data_bytes
        totals = reader.totals()
        put += totals.put_items
        of_parents += totals.parent_items
        fetched += totals.fetched_items
        expired += totals.expired_items
        if place % STEP_QUEUES == 0:
            yield
    sums.totals = past + Totals(put, of_parents, fetched, expired)
    return sums


def read_server(collection: QueueCollection, stats: ServerStats, sums: Sums) -> tuple[int | str, ...]:
    """Values of the figures in OF_SERVER, in their order."""
    clock = collection.clock
    uptime_ms = clock.monotonic_ms - stats.started_at_ms
    queues = len(collection.readers) + sum(name not in collection.readers for name in collection.broken)
    found = (collection, collection.commit, stats, sums, sums.totals, queues)
    return _read_server(*found, uptime_ms, clock.wall_ms, __version__)


def server_figures(collection: QueueCollection, stats: ServerStats, sums: Sums) -> Figures:
    """Kestrel's global stats, then what operators need beyond them."""
    values = read_server(collection, stats, sums)
    shown = [(one.key, value) for one, value in zip(OF_SERVER, values, strict=True) if one.key]
    if collection.config.compat is Compat.KESTREL_1:
        return shown[: len(KESTREL_SERVER)]
    if collection.bindings:
        shown.append(("bindings", len(collection.bindings)))
    if stats.admin_address:
        shown.append(("admin", stats.admin_address))
    return [*shown, *stats.of_cache(), *stats.of_jobs()]
