"""Tables of all figures of queues, the server and the cache: key, kind, meaning, metric, and how each is read.

`stats`, DUMP_STATS, `/stats.json`, `/metrics`, the sums over several servers, the console's samples and the tables of
docs/protocol.md are made of them. A new figure is an attribute of its owner and a row here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final


class Kind(Enum):
    """Meaning of a number. `stats` shows an instant as the time since or until then, in ms."""

    COUNTER = auto()
    GAUGE = auto()
    BYTES = auto()
    STATE = auto()  # 1 or 0
    ID = auto()  # means something on one server only
    TEXT = auto()
    S = auto()
    MS = auto()
    US = auto()
    SINCE = auto()  # an instant of the wall clock that has passed, 0 = none
    UNTIL = auto()  # one that is to come, 0 = none

    @property
    def is_instant(self) -> bool:
        return self in (Kind.SINCE, Kind.UNTIL)


@dataclass(frozen=True, slots=True)
class Figure:
    """`read` is an expression of what `compiled` is given. `metric` "" = there is none.

    `column` is its name in `/stats.json`, None = `key`. Either name is "" where the figure is left out. `console`: the
    console asks for it.
    """

    key: str
    kind: Kind
    read: str
    help: str
    metric: str = ""
    column: str | None = None
    console: bool = False

    @property
    def shown(self) -> str:
        """An expression for its value in `stats`."""
        if not self.kind.is_instant:
            return self.read
        span = "now_ms - at_ms" if self.kind is Kind.SINCE else "at_ms - now_ms"
        return f"(max({span}, 0) if (at_ms := {self.read}) else 0)"

    @property
    def metric_type(self) -> str:
        return "counter" if self.kind is Kind.COUNTER else "gauge"

    def metric_values(self, values: Sequence[int], now_ms: int) -> Sequence[float]:
        """Values of the metric, in Prometheus' units: time in seconds."""
        if self.kind is Kind.SINCE:
            return [max(now_ms - at_ms, 0) / 1000 if at_ms else 0 for at_ms in values]
        if self.kind is Kind.UNTIL:
            return [max(at_ms - now_ms, 0) / 1000 if at_ms else 0 for at_ms in values]
        return [span_ms / 1000 for span_ms in values] if self.kind is Kind.MS else values

    @property
    def over_servers(self) -> Callable[[int, int], int] | None:
        """One figure of two servers'; None = it means nothing for several. Nor would a sum of ages or states."""
        if self.kind in (Kind.STATE, Kind.MS, Kind.US, Kind.SINCE):
            return max
        if self.kind is Kind.UNTIL:
            return _sooner
        return None if self.kind is Kind.ID else int.__add__


def _sooner(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def in_json(figures: Iterable[Figure]) -> dict[str, Figure]:
    """By the names of columns in `/stats.json`."""
    return {name: one for one in figures if (name := one.key if one.column is None else one.column)}


def compiled(names: str, parts: Iterable[str]) -> Callable[..., Any]:
    """A function of arguments with these names that gives the values of expressions, as a tuple.

    A call for each figure would take twice as long, of thousands of queues each second.
    """
    return eval(f"lambda {names}: ({', '.join(parts)},)", {})  # type: ignore[no-any-return]


COUNTER, GAUGE, BYTES, STATE, ID, TEXT, S, MS, US, SINCE, UNTIL = Kind
# fmt: off

# Of a queue: Kestrel's own in its order, all that there is with `compat: kestrel-1`.
KESTREL: Final = (
    Figure("items", GAUGE, "items", "Items waiting; open reads are not among them.", "items", console=True),
    Figure("bytes", BYTES, "reader.data_bytes", "Bytes of data waiting.", "bytes", console=True),
    Figure("total_items", COUNTER, "reader.total_items", "Items put.", "puts_total", console=True),
    Figure("logsize", BYTES, "journal.needed_bytes(head) if journal is not None and journal.segments else 0",
           "Bytes of the journal segments that the queue needs.", "logsize_bytes", console=True),
    Figure("expired_items", COUNTER, "reader.expired_items", "Items that expired.", "expired_total", console=True),
    Figure("mem_items", GAUGE, "len(reader.window)", "Items waiting in memory.", "mem_items", console=True),
    Figure("mem_bytes", BYTES, "reader.mem_bytes", "Bytes of data waiting in memory.", "mem_bytes", console=True),
    Figure("age", MS, "reader.age_ms if items else 0",
           "How long the last fetched item had waited; 0 if the queue is empty.", "age_seconds", console=True),
    Figure("discarded", COUNTER, "reader.discarded", "Items dropped to make room.", "discarded_total", console=True),
    Figure("waiters", GAUGE, "reader.wait_queue.waiting", "Clients waiting for an item.", "waiters", console=True),
    Figure("open_transactions", GAUGE, "len(reader.open)", "Items opened and neither closed nor aborted.", "open_reads",
           console=True),
)
OURS: Final = (
    Figure("transactions", COUNTER, "reader.opened_items", "Items opened.", "opens_total"),
    Figure("canceled_transactions", COUNTER, "reader.aborted_items", "Open reads that were returned.", "aborts_total"),
    Figure("total_flushes", COUNTER, "reader.flushes", "Flushes.", "flushes_total"),
    Figure("move_refused", COUNTER, "reader.move_refused", "Items that move_expired_to or move_failed_to refused."),
    Figure("", COUNTER, "reader.taken_items", "Items taken by a plain get.", "gets_total", column="taken_items"),
    Figure("oldest_ms", SINCE, "reader.oldest_at_ms()", "How long the head item has waited; 0 if there is none.",
           "oldest_seconds", column="oldest_at_ms", console=True),
    Figure("head_id", ID, "head", "Lowest item id that is not done."),
    Figure("next_id", ID, "queue.next_id", "Id of the next item put."),
    Figure("segments", GAUGE, "len(journal.segments) if journal is not None else 0", "Files of the journal."),
    Figure("sync_us", US, "journal.sync_us if journal is not None else 0", "Duration of the last sync.", column=""),
    Figure("full", STATE, "int(reader.is_full())", "1 when max_items or max_size is reached.", console=True),
)
TROUBLE: Final = (
    Figure("journal_failed", STATE, "int(journal is not None and journal.failed is not None)",
           "1 when journal writes are failing.", "journal_failed", console=True),
    Figure("stopped", STATE, "int(queue.stopped is not None)",
           "1 when the journal is damaged and the queue is stopped.", "stopped", console=True),
)
# `stats` leaves these out for a queue that never had a delayed, retrying or leased item, or a key.
HELD: Final = (
    Figure("delayed", GAUGE, "len(held.later) - len(held.failed) if held is not None else 0",
           "Items put for later that are not due yet.", "delayed", console=True),
    Figure("retrying", GAUGE, "len(held.failed) if held is not None else 0",
           "Items that have failed and are not due yet.", "retrying", console=True),
    Figure("leased", GAUGE, "held.leased if held is not None else 0",
           "Items leased to somebody; they count as open reads, too.", "leased", console=True),
    Figure("next_due_ms", UNTIL, "reader.next_due_at_ms()", "Time until the next item is due or lease ends; 0 if none.",
           "next_due_seconds", column="next_due_at_ms", console=True),
    Figure("leases_expired", COUNTER, "held.expired_leases if held is not None else 0",
           "Leases that ended by themselves.", "leases_expired_total"),
    Figure("confirms_late", COUNTER, "held.late_confirms if held is not None else 0", "Confirms that came too late.",
           "confirms_late_total"),
    Figure("keys", GAUGE, "len(keys) if keys is not None else 0", "Keys remembered.", "keys"),
    Figure("keys_refused", COUNTER, "keys.refused if keys is not None else 0", "Puts whose key was known.",
           "keys_refused_total"),
    Figure("keys_forgotten", COUNTER, "keys.forgotten if keys is not None else 0",
           "Keys forgotten early, beyond max_keys.", "keys_forgotten_total"),
    Figure("dead_letters", COUNTER, "reader.dead_letters", "Items sent to move_failed_to or move_expired_to.",
           "dead_letters_total"),
)
OF_QUEUES: Final = (*KESTREL, *OURS, *TROUBLE, *HELD)

# Of the server, of which `stats` shows the first ones only with `compat: kestrel-1`.
KESTREL_SERVER: Final = (
    Figure("uptime", S, "uptime_ms // 1000", "Time since the start."),
    Figure("time", S, "now_ms // 1000", "Time since 1970."),
    Figure("version", TEXT, "version", "The running version."),
    Figure("curr_items", GAUGE, "sums.items", "Items waiting.", "items"),
    Figure("total_items", COUNTER, "totals.put_items", "Items put, and again for each child queue.", "puts_total"),
    Figure("bytes", BYTES, "sums.data_bytes", "Bytes of data waiting.", "bytes"),
    Figure("curr_connections", GAUGE, "stats.curr_connections", "Memcache connections.", "connections"),
    Figure("total_connections", COUNTER, "stats.total_connections", "Memcache connections accepted.",
           "connections_total"),
    Figure("cmd_get", COUNTER, "totals.fetched_items + stats.missed_gets", "Gets, with an item and without."),
    Figure("cmd_set", COUNTER, "totals.parent_items - collection.moved_in + stats.child_sets + stats.refused_sets",
           "Sets, those refused included."),
    Figure("cmd_peek", COUNTER, "stats.peeks", "Peeks."),
    Figure("get_hits", COUNTER, "totals.fetched_items", "Items fetched.", "gets_total"),
    Figure("get_misses", COUNTER, "stats.missed_gets", "Gets that found nothing.", "missed_gets_total"),
    Figure("bytes_read", COUNTER, "stats.bytes_read", "Bytes read from clients of the data ports.", "read_bytes_total"),
    Figure("bytes_written", COUNTER, "stats.bytes_written", "Bytes sent to clients of the data ports.",
           "written_bytes_total"),
)
OUR_SERVER: Final = (
    Figure("rejected_connections", COUNTER, "stats.rejected_connections", "Memcache connections refused.",
           "rejected_connections_total"),
    Figure("auth_cmds", COUNTER, "stats.logins", "Password logins, failed ones included.", "logins_total"),
    Figure("auth_errors", COUNTER, "stats.failed_logins", "Failed password logins.", "failed_logins_total"),
    Figure("queue_creates", COUNTER, "collection.created", "Queues created."),
    Figure("queue_deletes", COUNTER, "collection.deleted", "Queues deleted."),
    Figure("expired_items", COUNTER, "totals.expired_items", "Items that expired.", "expired_total"),
    Figure("journal_bytes", BYTES, "sums.journal_bytes", "Bytes of all journals on disk.", "journal_bytes"),
    Figure("journals_failed", GAUGE, "sums.journals_failed", "Journals whose writes are failing.", "journals_failed"),
    Figure("queues_stopped", GAUGE, "sums.queues_stopped", "Queue families with a damaged journal.", "queues_stopped"),
    Figure("syncs", COUNTER, "commit.syncs", "Syncs that replies waited for."),
    Figure("sync_us_mean", US, "commit.sync_us_total // commit.syncs if commit.syncs else 0",
           "Mean duration of these syncs."),
    Figure("sync_us_max", US, "commit.sync_us_max", "The longest of these syncs."),
)
# In `/metrics` only.
_MEASURED: Final = (
    Figure("", MS, "uptime_ms", "Seconds since the start.", "uptime_seconds"),
    Figure("", GAUGE, "queues", "Queues, children included.", "queues"),
)
OF_SERVER: Final = (*_MEASURED, *KESTREL_SERVER, *OUR_SERVER)
# Of the cache, of memcached's figures.
OF_CACHE: Final = (
    Figure("cache_items", GAUGE, "cache['curr_items']", "Values in the cache.", "cache_items"),
    Figure("cache_bytes", BYTES, "cache['bytes']", "Memory of the values in the cache, keys and overhead included.",
           "cache_bytes"),
    Figure("cache_limit_bytes", BYTES, "cache['limit_maxbytes']", "Memory for values: cache_memory.",
           "cache_limit_bytes"),
    Figure("cache_hits", COUNTER, "cache['get_hits']", "Keys asked for that had a value.", "cache_hits_total"),
    Figure("cache_misses", COUNTER, "cache['get_misses']", "Keys asked for that had none.", "cache_misses_total"),
    Figure("cache_sets", COUNTER, "cache['cmd_set']", "Values stored.", "cache_sets_total"),
    Figure("cache_evictions", COUNTER, "cache['evictions']", "Values dropped to make room.", "cache_evictions_total"),
    Figure("cache_expired", COUNTER, "cache['reclaimed']", "Values that expired.", "cache_expired_total"),
)
