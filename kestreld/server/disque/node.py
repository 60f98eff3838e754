"""State that all sessions of Disque clients share: jobs, commands, clients, settings, slow commands."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.job import ACKED, ACTIVE, WAIT_REPL, Job
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.store import DELETED, RandomBytes, Watch
from kestreld.queues.agenda import TimedWait
from kestreld.queues.commit import Committed
from kestreld.queues.slices import Work
from kestreld.server.accounts import Account
from kestreld.server.disque import rights
from kestreld.server.disque.client import DisqueClient
from kestreld.server.disque.clustering import Clustering
from kestreld.server.disque.commands import FAST, Command
from kestreld.server.disque.latency import Latency
from kestreld.server.disque.persistence import Done, Persistence
from kestreld.server.disque.replies import quoted, shown
from kestreld.server.disque.settings import DisqueSettings
from kestreld.server.state import ServerState

LOOKED_AT_ONCE: Final = 400  # jobs examined for eviction without a pause
NEVER_US: Final = 1 << 62
WORDS_LOGGED_MAX: Final = 32
WORD_LOGGED_BYTES_MAX: Final = 128
LEAVING: Final = b"-LEAVING This node is leaving the cluster, please connect to a different one\r\n"
IDLE_MS: Final = (300_000, 10_000, 2_000)  # by level of memory: unused queues are collected after this time


class Nap(TimedWait):
    """A function to be called at a time."""

    __slots__ = ("_wake",)

    def __init__(self, due_at_ms: int, wake: Callable[[], None]) -> None:
        super().__init__(due_at_ms)
        self._wake = wake

    def leave(self) -> None:
        self.over = True

    def fall_due(self, now_ms: int) -> None:
        self.over = True
        self._wake()


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """An entry of SLOWLOG."""

    number: int
    at_s: int
    spent_us: int
    words: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts about the process for INFO. `cpu_s` returns the seconds used by the process and by the system for it."""

    process_id: int
    executable: str
    system: str
    resident_bytes: Callable[[], int]
    cpu_s: Callable[[], tuple[float, float]]


class Rates:
    """Rates of some counters, from samples taken once a second."""

    SAMPLES = 16

    def __init__(self) -> None:
        self._samples: deque[tuple[int, ...]] = deque(maxlen=self.SAMPLES)

    def sample(self, *counts: int) -> None:
        """Take a sample of the counters."""
        self._samples.append(counts)

    def per_s(self, number: int) -> int:
        """Return the increase per second of the counter with that number."""
        if len(self._samples) < 2:
            return 0
        return max(self._samples[-1][number] - self._samples[0][number], 0) // (len(self._samples) - 1)


class DisqueNode:
    """A node of Disque. Its `cluster` has the others, if there are any.

    `needs_care` is True while anything must be checked before each command: a password, monitors, a pause, full
    memory, a failing log, or jobs that are not served. Otherwise the handler executes commands without these checks.
    """

    LEAVING = LEAVING

    def __init__(
        self, state: ServerState, jobs: ReplicatedJobs, random_bytes: RandomBytes, port: int, process: ProcessFacts
    ) -> None:
        self.process = process
        self.config_path = ""  # of the file that CONFIG REWRITE writes
        self.connections = 0
        self.state = state
        self.clock = state.clock
        self.jobs = jobs
        self.random_bytes = random_bytes
        self.port = port
        self.run_id = random_bytes(20).hex().encode()
        self.settings = DisqueSettings(port, state.collection.spool)
        self.persistence = Persistence()
        self.cluster = Clustering(
            jobs,
            state.clock,
            state.collection.agenda,
            random_bytes,
            lambda: self.persistence,
            self.run_id,
            port,
            lambda work: state.control.take_on(work),
        )
        self.save_settings: Callable[[], str] = lambda: "The server is running without a config file"
        self.change_id = self._change_id  # replaced if the id is kept on disk
        self.set_loglevel: Callable[[bytes], None] = lambda word: None
        self.commands: dict[bytes, Command] = {}  # by name,
        self.table: dict[bytes, Command] = {}  # and by name in lower and in upper case
        self.rates = Rates()
        self.counted_before = (0, 0, 0)  # CONFIG RESETSTAT: bytes read, bytes written, connections turned away
        self.clients: dict[int, DisqueClient] = {}
        self.monitors: list[DisqueClient] = []
        self.password = b""
        self.is_leaving = False
        self.shared: SharedJobs | None = None  # None = this node joins no cluster
        self.min_replicate = 1  # copies that a job without REPLICATE has, at least
        self._pause: Nap | None = None
        self.clients_max = 10_000
        self.idle_ms_max = 0  # after which a client that waits for nothing is disconnected; 0 = never
        self.noted_us = self.slow_us = 10_000
        self.slow_max = 128
        self.slow: deque[SlowCommand] = deque()
        self.latency = Latency()
        self.job_bytes_max: int | None = state.collection.config.defaults.max_item_size_bytes
        self.started_at_ms = state.clock.monotonic_ms
        self.needs_care = False
        self._slow_number = 0
        self._client_number = 0
        self._paused: dict[DisqueClient, Callable[[], None]] = {}  # clients that wait for the end of a pause
        self._eviction: Iterator[None] | None = None
        self._is_sweeping = False

    @property
    def log(self) -> Committed | None:
        """Log whose commits replies to changes wait for; None without a log."""
        return self.persistence.committed

    def persist(self, persistence: Persistence) -> None:
        """Keep jobs on disk from now on."""
        self.persistence = persistence

    def log_changed(self) -> None:
        """Handle a change of the log: it takes changes or not, jobs are served or not."""
        self.update_care()
        self.cluster.log_changed()

    def update_care(self) -> None:
        """Recompute `needs_care`."""
        self.needs_care = bool(
            self.monitors
            or self.password
            or self.is_paused
            or self.jobs.memory.is_full
            or self.persistence.failure
            or self.persistence.obstacle
        )

    def set(self, name: bytes, value: bytes) -> None:
        """Execute CONFIG SET for a checked value. The caller switches `appendonly`."""
        self.settings.set(name, value)
        if name == b"maxmemory":
            self.jobs.memory.set_max(int(value))
        elif name == b"requirepass":
            self.password = value
        elif name == b"slowlog-log-slower-than":
            self.slow_us = int(value) if int(value) >= 0 else NEVER_US
        elif name == b"maxclients":
            self.clients_max = int(value)
        elif name == b"timeout":
            self.idle_ms_max = int(value) * 1000
        elif name == b"slowlog-max-len":
            self.slow_max = int(value)
            self.trim_slow()
        elif name == b"loglevel":
            self.set_loglevel(value)
        elif name == b"cluster-node-timeout":
            self.cluster.set_timeout(int(value))
        elif name == b"latency-monitor-threshold":
            self.latency.threshold_ms = int(value)
        else:
            self.persistence.set_parameter(name, value)
        self.noted_us = min(self.slow_us, self.latency.threshold_ms * 1000 or NEVER_US)
        self.update_care()

    # Other nodes

    def join(self, shared: SharedJobs) -> None:
        """Become a node of a cluster, maybe its only one."""
        self.shared = shared
        self.cluster.attach_jobs(shared)
        if self.has_others:
            self.jobs.share(shared)

    @property
    def stores(self) -> bool:
        """True unless the log takes no changes, or jobs are not served."""
        return not (self.persistence.failure or self.persistence.obstacle)

    @property
    def has_others(self) -> bool:
        """True if the cluster has other nodes, up or not."""
        return self.shared is not None and self.shared.peers.has_members()

    def import_rate(self, queue: JobQueue) -> int:
        """Return the jobs per second that come to a queue from other nodes."""
        return 0 if self.shared is None else self.shared.federating.import_rate(queue)

    def import_sources(self, queue: JobQueue) -> list[bytes]:
        """Return the ids of the nodes that a queue's jobs come from."""
        return [] if self.shared is None else self.shared.federating.import_sources(queue)

    def unwatch(self, job_id: bytes, told: Watch) -> None:
        """Stop waiting for the end of a job, of this node or of another."""
        self.jobs.unwatch(job_id, told)
        if self.shared is not None:
            self.shared.watches.unwatch(job_id, told)

    def is_dummy(self, job: Job) -> bool:
        """Return True if a job is known to be acknowledged, and was never on this node."""
        return job.state == ACKED and self.shared is not None and self.shared.acks.is_dummy(job)

    def shown(self, job: Job) -> bytes:
        """Describe a job as SHOW does."""
        jobs, shared = self.jobs, self.shared
        delivered: tuple[bytes, ...] = (jobs.node_id,)
        confirmed: tuple[bytes, ...] = ()
        if shared is not None and (job.terms.owners or job.state == ACKED):
            delivered = jobs.node_sets.ids(shared.acks.owners_of(job) & (shared.peers.members | jobs.me))
            if job.state == ACKED:
                confirmed = jobs.node_sets.ids(shared.acks.confirmed_of(job))
            elif job.state == WAIT_REPL:
                confirmed = tuple(shared.replicating.confirmed_of(job.id))
        return shown(job, delivered, confirmed, jobs.now_ms)

    # Commands

    def know_commands(self, commands: list[Command]) -> None:
        """Set the table of commands."""
        for command in commands:
            self.commands[command.name] = command
            self.table[command.name] = self.table[command.name.upper()] = command

    def rename_command(self, name: bytes, new_name: bytes) -> bool:
        """Rename a command, b"" = remove it; returns False if it does not exist, or the new name is in use."""
        command = self.commands.get(name)
        if command is None or (new_name and new_name in self.commands):
            return False
        for word in (name, name.upper()):
            self.table.pop(word, None)
        del self.commands[name]
        if new_name:
            self.commands[new_name] = command
        return True

    def reset_statistics(self) -> None:
        """Execute CONFIG RESETSTAT."""
        for command in self.commands.values():
            command.calls = command.spent_us = 0
        self.connections = 0
        self.rates = Rates()
        stats = self.state.stats
        self.counted_before = (stats.bytes_read, stats.bytes_written, stats.rejected_connections)

    def find(self, name: bytes) -> Command | None:
        """Return the command of that name, in upper or lower case."""
        return self.table.get(name) or self.commands.get(name.lower())

    def forbidden(self, account: Account, command: Command, words: list[bytes]) -> bytes:
        """Return the reason why an account may not send this; b"" if it may."""
        return rights.forbidden(account, self.jobs, command, words)

    # Clients

    def new_number(self) -> int:
        self._client_number += 1
        return self._client_number

    def add(self, handler: DisqueClient) -> None:
        """Register a new client."""
        self.connections += 1
        self.clients[handler.number] = handler

    def remove(self, handler: DisqueClient) -> None:
        """Forget a client that is gone."""
        self.clients.pop(handler.number, None)
        self._paused.pop(handler, None)
        self.remove_monitor(handler)

    def add_monitor(self, handler: DisqueClient) -> None:
        self.monitors.append(handler)
        self.update_care()

    def remove_monitor(self, handler: DisqueClient) -> None:
        if handler in self.monitors:
            self.monitors.remove(handler)
            self.update_care()

    def tell_monitors(self, handler: DisqueClient, words: list[bytes]) -> None:
        """Show a command that is about to be executed to clients with MONITOR."""
        wall_ms = self.clock.wall_ms
        line = b"+%d.%06d [%b] %b\r\n" % (
            wall_ms // 1000,
            wall_ms % 1000 * 1000,
            handler.address.encode(),
            b" ".join([quoted(word) for word in words]),
        )
        for monitor in list(self.monitors):
            monitor.tell(line)

    def when_paused_no_more(self, handler: DisqueClient, then: Callable[[], None]) -> None:
        """Call `then` for a client at the end of a CLIENT PAUSE that holds its command."""
        self._paused[handler] = then

    def pause(self, span_ms: int) -> None:
        """Execute no commands for that time. A longer pause in effect is not shortened."""
        due_at_ms = self.clock.monotonic_ms + span_ms
        if self._pause is None or due_at_ms > self._pause.due_at_ms:
            if self._pause is not None:
                self._pause.leave()
            self._pause = Nap(due_at_ms, self._resume)
            self.state.collection.agenda.add(self._pause)
        self.update_care()

    @property
    def is_paused(self) -> bool:
        return self._pause is not None

    def _resume(self) -> None:
        self._pause = None
        self.update_care()
        paused, self._paused = self._paused, {}
        for then in paused.values():
            then()

    def soon(self, do: Callable[[], None]) -> None:
        """Call a function after this turn."""
        self.state.collection.agenda.add(Nap(self.clock.monotonic_ms, do))

    def set_leaving(self, *, leaving: bool, hands_over: bool = False) -> None:
        """Execute CLUSTER LEAVING: end clients' waits, and with `hands_over` give the jobs to other nodes."""
        self.is_leaving = leaving
        self.cluster.set_leaving(leaving=leaving)
        if self.shared is not None:
            self.shared.leave(hands_over=hands_over)
        if leaving:
            for handler in list(self.clients.values()):
                handler.send_away(LEAVING)

    # Logs of commands

    def note_slow(self, words: list[bytes], command: Command, spent_us: int) -> None:
        """Record a slow command in LATENCY and SLOWLOG."""
        self.latency.note(
            b"fast-command" if command.flags & FAST else b"command", self.clock.wall_ms // 1000, spent_us // 1000
        )
        if spent_us < self.slow_us or command.name in rights.WITH_SECRETS:
            return
        shown = [
            word
            if len(word) <= WORD_LOGGED_BYTES_MAX
            else b"%b... (%d more bytes)" % (word[:WORD_LOGGED_BYTES_MAX], len(word) - WORD_LOGGED_BYTES_MAX)
            for word in words[:WORDS_LOGGED_MAX]
        ]
        if len(words) > WORDS_LOGGED_MAX:
            shown[-1] = b"... (%d more arguments)" % (len(words) - WORDS_LOGGED_MAX + 1)
        self.slow.appendleft(SlowCommand(self._slow_number, self.clock.wall_ms // 1000, spent_us, tuple(shown)))
        self._slow_number += 1
        self.trim_slow()

    def trim_slow(self) -> None:
        """Drop the oldest entries of SLOWLOG beyond its maximum."""
        while len(self.slow) > self.slow_max:
            self.slow.pop()

    # Memory

    def make_room(self) -> bool:
        """Evict some jobs that are acknowledged, or delivered and not to be retried.

        Returns True if memory is no longer full.
        """
        jobs = self.jobs
        acks = 0 if self.shared is None else self.shared.acks.count
        if (jobs.memory.delivered_once or acks) and self.settings.evicts:
            if self._eviction is None:
                self._eviction = self._evict()
            if next(self._eviction, self) is self:
                self._eviction = None
        if not jobs.memory.is_full:
            self.update_care()
            return True
        return False

    def _evict(self) -> Iterator[None]:
        for looked, job in enumerate(self.jobs.table, 1):
            is_over = job.state == ACKED or (job.state == ACTIVE and not job.terms.retry_ms)
            if is_over and self.jobs.find(job.id) is job:
                self.jobs.remove(job, DELETED)
                if not self.jobs.memory.is_full:
                    return
            if looked % LOOKED_AT_ONCE == 0:
                yield

    def look_after(self) -> None:
        """Run each second: limits changed by a reload, samples, idle clients, and queues unused for long."""
        config = self.state.collection.config
        self.job_bytes_max = config.defaults.max_item_size_bytes
        self.jobs.limit_queues(config.max_queues)
        self.update_care()
        stats = self.state.stats
        executed = sum([command.calls for command in self.commands.values()])
        self.rates.sample(executed, stats.bytes_read, stats.bytes_written)
        if (self.jobs.listed or self.clients) and not self._is_sweeping:
            self._is_sweeping = True
            self.state.control.take_on(self._collect())

    def _collect(self) -> Work:
        jobs, config = self.jobs, self.state.collection.config
        for client in list(self.clients.values()):
            idle_ms = self.clock.monotonic_ms - client.active_at_ms
            is_late = bool(config.request_timeout_ms) and not client.is_known and idle_ms > config.request_timeout_ms
            if is_late or (0 < self.idle_ms_max < idle_ms and not (client.is_busy or client in self.monitors)):
                client.hang_up()
            yield None
        for queue in jobs.queues:
            idle_ms = jobs.now_ms - queue.used_at_ms
            if idle_ms > IDLE_MS[jobs.memory.level] and queue.is_listed and queue.is_idle and jobs.has(queue):
                jobs.unlist(queue)
            yield None
        self._is_sweeping = False

    # All of it

    def end(self) -> None:
        """End all waits, because the server stops."""
        for handler in list(self.clients.values()):
            handler.send_away(b"")

    def take_new_id(self, done: Done) -> None:
        """Execute CLUSTER RESET HARD: take a new node id, once it is on disk."""
        self.change_id(self.random_bytes(20).hex().encode(), done)

    def _change_id(self, node_id: bytes, done: Done) -> None:
        self.jobs.use_node_id(node_id)
        self.cluster.use_id()
        done("")

    def rewrite_settings(self) -> str:
        """Execute CONFIG REWRITE; returns the reason for a failure, "" if it is done."""
        return self.save_settings()

    def clear(self) -> Iterator[None]:
        """Delete every job and queue; see `Jobs.clear`."""
        work = self.jobs.clear()
        self.update_care()
        return work
