"""Tables of the figures of queues, server, cache, jobs and nodes: key, kind, meaning, metric, and its source.

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
    """`read` is an expression of what its table's `compiled` is given. `metric` "" = there is none.

    `column` is its name in `/stats.json`, None = `key`. Either name is "" where the figure is left out. `console`: the
    console asks for it. `by_commit`: it changes with commits only, so that rows of queues without one are still true.
    """

    key: str
    kind: Kind
    read: str
    help: str
    metric: str = ""
    column: str | None = None
    console: bool = False
    by_commit: bool = False

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
        divisor = {Kind.MS: 1000, Kind.US: 1_000_000}.get(self.kind)
        return [span / divisor for span in values] if divisor else values

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
    Figure("items", GAUGE, "items", "Items waiting; open reads are not among them.", "items", console=True,
           by_commit=True),
    Figure("bytes", BYTES, "reader.data_bytes", "Bytes of data waiting.", "bytes", console=True, by_commit=True),
    Figure("total_items", COUNTER, "reader.total_items", "Items put.", "puts_total", console=True, by_commit=True),
    Figure("logsize", BYTES, "journal.needed_bytes(head) if journal is not None and journal.segments else 0",
           "Bytes of the journal segments that the queue needs.", "logsize_bytes", console=True, by_commit=True),
    Figure("expired_items", COUNTER, "reader.expired_items", "Items that expired.", "expired_total", console=True,
           by_commit=True),
    Figure("mem_items", GAUGE, "len(reader.window)", "Items waiting in memory.", "mem_items", console=True),
    Figure("mem_bytes", BYTES, "reader.mem_bytes", "Bytes of data waiting in memory.", "mem_bytes", console=True,
           by_commit=True),
    Figure("age", MS, "reader.age_ms if items else 0",
           "How long the last fetched item had waited; 0 if the queue is empty.", "age_seconds", console=True,
           by_commit=True),
    Figure("discarded", COUNTER, "reader.discarded", "Items dropped to make room.", "discarded_total", console=True,
           by_commit=True),
    Figure("waiters", GAUGE, "reader.wait_queue.waiting", "Clients waiting for an item.", "waiters", console=True),
    Figure("open_transactions", GAUGE, "len(reader.open)", "Items opened and neither closed nor aborted.", "open_reads",
           console=True),
)
OURS: Final = (
    Figure("transactions", COUNTER, "reader.opened_items", "Items opened.", "opens_total"),
    Figure("canceled_transactions", COUNTER, "reader.aborted_items", "Open reads that were returned.", "aborts_total"),
    Figure("total_flushes", COUNTER, "reader.flushes", "Flushes.", "flushes_total"),
    Figure("move_refused", COUNTER, "reader.move_refused", "Items that move_expired_to or move_failed_to refused."),
    Figure("", COUNTER, "reader.taken_items", "Items taken by a plain get.", "gets_total", column="taken_items",
           by_commit=True),
    Figure("oldest_ms", SINCE, "reader.oldest_at_ms()", "How long the head item has waited; 0 if there is none.",
           "oldest_seconds", column="oldest_at_ms", console=True, by_commit=True),
    Figure("head_id", ID, "head", "Lowest item id that is not done.", by_commit=True),
    Figure("next_id", ID, "queue.next_id", "Id of the next item put."),
    Figure("segments", GAUGE, "len(journal.segments) if journal is not None else 0", "Files of the journal."),
    Figure("sync_us", US, "journal.sync_us if journal is not None else 0", "Duration of the last sync.", column="",
           by_commit=True),
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
           "Leased items; they count as open reads, too.", "leased", console=True),
    Figure("next_due_ms", UNTIL, "reader.next_due_at_ms()", "Time until the next item is due or lease ends; 0 if none.",
           "next_due_seconds", column="next_due_at_ms", console=True),
    Figure("leases_expired", COUNTER, "held.expired_leases if held is not None else 0",
           "Leases that expired.", "leases_expired_total"),
    Figure("confirms_late", COUNTER, "held.late_confirms if held is not None else 0",
           "Confirms after the end of the lease.", "confirms_late_total"),
    Figure("keys", GAUGE, "len(keys) if keys is not None else 0", "Keys remembered.", "keys"),
    Figure("keys_refused", COUNTER, "keys.refused if keys is not None else 0", "Puts with a key that was known.",
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
    Figure("", GAUGE, "len(collection.bindings)", "Bindings of exchanges to queues.", "bindings"),
)
OF_SERVER: Final = (*_MEASURED, *KESTREL_SERVER, *OUR_SERVER)
# Of the cache, of memcached's figures.
OF_CACHE: Final = (
    Figure("cache_items", GAUGE, "cache['curr_items']", "Values in the cache.", "cache_items"),
    Figure("cache_bytes", BYTES, "cache['bytes']", "Memory of the values in the cache, keys and overhead included.",
           "cache_bytes"),
    Figure("cache_limit_bytes", BYTES, "cache['limit_maxbytes']", "Memory for values: cache_memory.",
           "cache_limit_bytes"),
    Figure("cache_hits", COUNTER, "cache['get_hits']", "Keys requested and found.", "cache_hits_total"),
    Figure("cache_misses", COUNTER, "cache['get_misses']", "Keys requested and not found.", "cache_misses_total"),
    Figure("cache_sets", COUNTER, "cache['cmd_set']", "Values stored.", "cache_sets_total"),
    Figure("cache_evictions", COUNTER, "cache['evictions']", "Values dropped to make room.", "cache_evictions_total"),
    Figure("cache_expired", COUNTER, "cache['reclaimed']", "Values that expired.", "cache_expired_total"),
)
# Of jobs at one node,
OF_OWN_JOBS: Final = (
    Figure("jobs_registered", GAUGE, "jobs.table.count", "Jobs, whatever their state.", "registered"),
    Figure("jobs_queued", GAUGE, "sums.queued", "Jobs waiting in their queues.", "queued"),
    Figure("jobs_active", GAUGE, "sums.active", "Jobs delivered and not acknowledged yet.", "active"),
    Figure("jobs_delayed", GAUGE, "sums.delayed", "Delayed jobs, which are queued when due.", "delayed"),
    Figure("jobs_queues", GAUGE, "jobs.queues.count", "Queues of jobs.", "queues"),
    Figure("jobs_queues_paused", GAUGE, "sums.paused", "Queues of jobs that are paused.", "queues_paused"),
    Figure("jobs_in", COUNTER, "sums.jobs_in", "Jobs queued, for the first time or again.", "in_total"),
    Figure("jobs_out", COUNTER, "sums.jobs_out", "Jobs handed out.", "out_total"),
    Figure("jobs_import_rate", GAUGE, "sums.import_rate", "Jobs imported from other nodes per second.", "import_rate"),
    Figure("jobs_clients", GAUGE, "len(node.clients)", "Connections of clients of jobs.", "clients"),
    Figure("jobs_blocked_clients", GAUGE, "len(jobs.waiters)", "Clients waiting for a job.", "blocked_clients"),
    Figure("jobs_memory_bytes", BYTES, "jobs.memory.used_bytes",
           "Memory of the jobs, as maxmemory counts it.", "memory_bytes"),
    Figure("jobs_memory_limit_bytes", BYTES, "jobs.memory.max_bytes", "maxmemory.", "memory_limit_bytes"),
    Figure("jobs_memory_level", GAUGE, "jobs.memory.level_percent",
           "75, 95 or 100 if more than that percentage of maxmemory is used, else 0.",
           "memory_level"),
    Figure("jobs_log_bytes", BYTES, "node.persistence.disk_bytes", "Bytes of the log of jobs.", "log_bytes"),
    Figure("jobs_log_failed", STATE, "int(bool(node.persistence.failure))",
           "1 when writes to the log of jobs are failing.", "log_failed"),
    Figure("jobs_stopped", STATE, "int(node.persistence.is_stopped)",
           "1 when the log of jobs cannot be read: no job is served.", "stopped"),
    Figure("jobs_loading", STATE, "int(node.persistence.is_loading)",
           "1 while jobs are loaded from their log.", "loading"),
)
# of those it shares with others,
OF_SHARED_JOBS: Final = (
    Figure("jobs_acked", GAUGE, "shared.acks.count if shared else 0",
           "Acknowledgements not yet known to all nodes.", "acked"),
    Figure("jobs_being_added", GAUGE, "adding", "Jobs whose ADDJOB is waiting for copies.", "being_added"),
    Figure("jobs_default_copies", GAUGE, "default_copies",
           "Copies that ADDJOB without REPLICATE makes now.", "default_copies"),
    Figure("jobs_default_copies_below_three", COUNTER, "shared.replicating.default_below_three if shared else 0",
           "Jobs added without REPLICATE that got fewer than three copies, for want of nodes.",
           "default_copies_below_three_total"),
    Figure("jobs_async_copies_missed", COUNTER, "shared.replicating.async_copies_missed if shared else 0",
           "Copies of jobs added with ASYNC that no node could take.",
           "async_copies_missed_total"),
    Figure("jobs_given", COUNTER, "sum(shared.federating.jobs_given.values()) if shared else 0",
           "Jobs handed to other nodes for their waiting clients.", "given_total"),
    Figure("jobs_taken", COUNTER, "sum(shared.federating.jobs_taken.values()) if shared else 0",
           "Jobs taken from other nodes.", "taken_total"),
)
# and of the cluster.
OF_CLUSTER: Final = (
    Figure("jobs_cluster_size", GAUGE, "table.size",
           "Nodes of the cluster, this one included, up or not.", "cluster_size"),
    Figure("jobs_cluster_known", GAUGE, "len(table)",
           "Nodes known, this one and those being met included.", "cluster_known"),
    Figure("jobs_cluster_reachable", GAUGE, "reachable",
           "Other nodes that are neither down nor leaving.", "cluster_reachable"),
    Figure("jobs_cluster_down", GAUGE, "len([one for one in members if one.is_down])",
           "Other nodes that do not answer.", "cluster_down"),
    Figure("jobs_cluster_strangers", GAUGE, "len([one for one in members if one.is_stranger])",
           "Other nodes that do not know this one.", "cluster_strangers"),
    Figure("jobs_cluster_copied_spools", GAUGE, "len(copied_spools)", "Processes that have the id of another node.",
           "cluster_copied_spools"),
    Figure("jobs_cluster_leaving", STATE, "int(is_leaving)",
           "1 while this node leaves the cluster.", "cluster_leaving"),
)
OF_JOBS: Final = (*OF_OWN_JOBS, *OF_SHARED_JOBS, *OF_CLUSTER)
# Of a queue of jobs: columns of `/stats.json`, in this order.
OF_JOB_QUEUES: Final = (
    Figure("jobs", GAUGE, "queue.total", "All of its jobs: those queued, active and delayed."),
    Figure("queued", GAUGE, "waiting.count", "Jobs waiting in the queue.", "queued"),
    Figure("active", GAUGE, "queue.active", "Jobs delivered and not acknowledged yet.", "active"),
    Figure("delayed", GAUGE, "queue.delayed", "Delayed jobs, which are queued when due.", "delayed"),
    Figure("blocked_clients", GAUGE, "blocked", "Clients waiting for a job of the queue.", "blocked_clients"),
    Figure("import_rate", GAUGE, "import_rate", "Jobs imported from other nodes per second.", "import_rate"),
    Figure("jobs_in", COUNTER, "queue.jobs_in", "Jobs queued, for the first time or again.", "in_total"),
    Figure("jobs_out", COUNTER, "queue.jobs_out", "Jobs handed out.", "out_total"),
    Figure("pause", TEXT, "pause", "0 not paused, 1 in, 2 out, 3 both.", "paused"),
    Figure("oldest_at_ms", SINCE, "waiting.first().created_at_ms + drift_ms if waiting.count else 0",
           "How long ago the oldest job in the queue was added; 0 if none.", "oldest_seconds"),
    Figure("created_at_ms", SINCE, "queue.created_at_ms + drift_ms if queue.is_listed else 0",
           "Time since the queue was created; 0 if it was removed while workers still have jobs of it."),
    Figure("used_at_ms", SINCE, "queue.used_at_ms + drift_ms if queue.is_listed else 0",
           "Time since the queue was last used."),
)
# Of a node of a cluster: columns of `/stats.json`, in this order; null where there is none.
OF_NODES: Final = (
    Figure("id", TEXT, "node.id.decode()", "Id of the node."),
    Figure("address", TEXT, "address", "`HOST:PORT` for clients; empty if it is not known."),
    Figure("flags", TEXT, "node.flag_words().decode()",
           "As in `CLUSTER NODES`: `myself`, `fail?`, `fail`, `leaving`, `noflags`."),
    Figure("jobs", GAUGE, "None", "Jobs that it holds; of this node only."),
    Figure("link", STATE, "int(link is not None)", "1 when there is a link to it."),
    Figure("up", STATE, "int(node.is_up)", "1 when it accepts messages about jobs.", "up"),
    Figure("knows_us", STATE, "int(not node.is_stranger)", "1 when it lists this node as a member, too."),
    Figure("lag_us", US, "figures.lag_us if figures.lag_us >= 0 else None",
           "Round trip of the latest ping.", "lag_seconds"),
    Figure("queued_bytes", BYTES, "link.queued_bytes if link else 0",
           "Bytes waiting to be sent to it.", "queued_bytes"),
    Figure("messages_out", COUNTER, "figures.messages_out", "Messages sent to it.", "messages_sent_total"),
    Figure("messages_in", COUNTER, "figures.messages_in", "Messages received from it.", "messages_received_total"),
    Figure("messages_lost", COUNTER, "figures.messages_lost", "Messages to it that were dropped, for want of a link.",
           "messages_lost_total"),
    Figure("bytes_out", COUNTER, "figures.bytes_out", "Bytes sent to it.", "sent_bytes_total"),
    Figure("bytes_in", COUNTER, "figures.bytes_in", "Bytes received from it.", "received_bytes_total"),
    Figure("links", COUNTER, "figures.reconnects",
           "Links established to it; each but the first is a reconnect.", "links_total"),
    Figure("refused", COUNTER, "figures.refused", "Links that it or this node has refused.", "refused_total"),
    Figure("jobs_given", COUNTER, "given.get(node.id, 0)",
           "Jobs handed to it for its waiting clients.", "given_total"),
    Figure("jobs_taken", COUNTER, "taken.get(node.id, 0)", "Jobs taken from it.", "taken_total"),
    Figure("pong_age_ms", MS, "now_ms - node.pong_at_ms if node.pong_at_ms else None",
           "Time since it answered a ping."),
    Figure("problem", TEXT, "problem if link is None else ''", "Why there is no link."),
)
