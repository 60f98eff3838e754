"""Figures of queues and of the server for `stats`: Kestrel's keys first, in its order, then ours.

None of our own per-queue keys ends in _items _bytes _age _discarded or _logsize: clients find queue names by cutting
those endings off. With `compat: kestrel-1` there are Kestrel's keys only.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from kestreld import __version__
from kestreld.config.config import Compat
from kestreld.queues.collection import QueueCollection
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.stats import Figures, ServerStats, Totals

Sees = Callable[[str], bool]

GUIDE_SERVER_KEYS: Final = 15
GUIDE_QUEUE_KEYS: Final = 11
STEP_QUEUES: Final = 32
HELD_KEYS: Final = (
    *("delayed", "retrying", "leased", "next_due_ms", "leases_expired", "confirms_late"),
    *("keys", "keys_refused", "keys_forgotten", "dead_letters"),
)


def queue_figures(reader: Reader, now_ms: int, *, guide_only: bool = False, sees: Sees | None = None) -> Figures:
    """Figures of one queue. `oldest_ms` is known once `Reader.seek_head` has found the head."""
    queue, journal = reader.queue, reader.queue.journal
    if queue.dirty:  # if clean: a commit has counted everything
        queue.flush_counters()
    items, oldest_at_ms = reader.items, reader.oldest_at_ms()
    figures: list[tuple[str, int | str]] = [
        ("items", items),
        ("bytes", reader.data_bytes),
        ("total_items", reader.total_items),
        ("logsize", journal.needed_bytes(reader.head()) if journal is not None and journal.segments else 0),
        ("expired_items", reader.expired_items),
        ("mem_items", len(reader.window)),
        ("mem_bytes", reader.mem_bytes),
        ("age", reader.age_ms if items else 0),
        ("discarded", reader.discarded),
        ("waiters", reader.wait_queue.waiting),
        ("open_transactions", len(reader.open)),
        ("transactions", reader.opened_items),
        ("canceled_transactions", reader.aborted_items),
        ("total_flushes", reader.flushes),
        ("move_refused", reader.move_refused),
        ("oldest_ms", max(now_ms - oldest_at_ms, 0) if oldest_at_ms else 0),
        ("head_id", reader.head()),
        ("next_id", queue.next_id),
        ("segments", len(journal.segments) if journal is not None else 0),
        ("sync_us", journal.sync_us if journal is not None else 0),
        ("full", int(reader.is_full())),
        *held_figures(reader),
        ("journal_failed", int(journal is not None and journal.failed is not None)),
        ("stopped", int(queue.stopped is not None)),
    ]
    if guide_only:
        del figures[GUIDE_QUEUE_KEYS:]
        if queue.stopped is not None:  # never the case in Kestrel: no client expects its figures
            figures.append(("stopped", 1))
    if not reader.label:
        children = sorted(child.name for child in queue.readers.values() if child.label and _is_seen(child.name, sees))
        if children:
            figures.append(("children", ",".join(children)))
    return figures


def held_figures(reader: Reader) -> list[tuple[str, int]]:
    """Figures of items with a time or an owner of their own; empty for a queue that never had any."""
    held, keys = reader.held, reader.keys
    if held is None and keys is None and not reader.dead_letters:
        return []
    now_ms = reader.queue.clock.monotonic_ms
    failed = len(held.failed) if held is not None else 0
    next_at_ms = held.next_at_ms() if held is not None else None
    return [
        ("delayed", len(held.later) - failed if held is not None else 0),
        ("retrying", failed),
        ("leased", held.leased if held is not None else 0),
        ("next_due_ms", max(next_at_ms - now_ms, 0) if next_at_ms is not None else 0),
        ("leases_expired", held.expired_leases if held is not None else 0),
        ("confirms_late", held.late_confirms if held is not None else 0),
        ("keys", len(keys) if keys is not None else 0),
        ("keys_refused", keys.refused if keys is not None else 0),
        ("keys_forgotten", keys.forgotten if keys is not None else 0),
        ("dead_letters", reader.dead_letters),
    ]


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


def server_figures(collection: QueueCollection, stats: ServerStats, sums: Sums) -> Figures:
    """Kestrel's global stats, then what operators need beyond them."""
    clock, commit, totals = collection.clock, collection.commit, sums.totals
    sets = totals.parent_items - collection.moved_in + stats.child_sets + stats.refused_sets
    figures: list[tuple[str, int | str]] = [
        ("uptime", (clock.monotonic_ms - stats.started_at_ms) // 1000),
        ("time", clock.wall_ms // 1000),
        ("version", __version__),
        ("curr_items", sums.items),
        ("total_items", totals.put_items),
        ("bytes", sums.data_bytes),
        ("curr_connections", stats.curr_connections),
        ("total_connections", stats.total_connections),
        ("cmd_get", totals.fetched_items + stats.missed_gets),
        ("cmd_set", sets),
        ("cmd_peek", stats.peeks),
        ("get_hits", totals.fetched_items),
        ("get_misses", stats.missed_gets),
        ("bytes_read", stats.bytes_read),
        ("bytes_written", stats.bytes_written),
        ("rejected_connections", stats.rejected_connections),
        ("auth_cmds", stats.logins),
        ("auth_errors", stats.failed_logins),
        ("queue_creates", collection.created),
        ("queue_deletes", collection.deleted),
        ("expired_items", totals.expired_items),
        ("journal_bytes", sums.journal_bytes),
        ("journals_failed", sums.journals_failed),
        ("queues_stopped", sums.queues_stopped),
        ("syncs", commit.syncs),
        ("sync_us_mean", commit.sync_us_total // commit.syncs if commit.syncs else 0),
        ("sync_us_max", commit.sync_us_max),
    ]
    if stats.admin_address:
        figures.append(("admin", stats.admin_address))
    figures += [*stats.of_cache(), *stats.of_jobs()]
    strict = collection.config.compat is Compat.KESTREL_1
    return figures[:GUIDE_SERVER_KEYS] if strict else figures
