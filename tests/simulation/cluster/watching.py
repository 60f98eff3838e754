"""What the nodes really did with each job: which holds a copy and since when, who has it queued, when it was taken.

The checker compares that with what clients were told. Instants are on virtual time, in microseconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from kestreld.cluster.job_messages import GotAck, GotJob, JobMessage, Stored
from kestreld.cluster.nodes import Node
from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.job import ACKED, COPY, LET_GO, QUEUED, DeadLetter, Job, JobTerms
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.jobs.store import DELETED
from kestreld.jobs.table import Table
from tests.simulation.history import KILLED, POWER_CUT
from tests.simulation.schedule import Schedule

CRASHED: Final = "crashed"  # the end of a copy until the next start says what became of it
LOST: Final = "lost"  # a start did not find it
CLEARED: Final = "cleared"
LET_GO_OF: Final = "let go"
RELOADED: Final = "reloaded"
WRITTEN_US: Final = 1_000_000  # by then a log has what was to be written
DISK_LOST: Final = "disk lost"  # how a process ended


@dataclass(slots=True, eq=False)
class Copy:
    """A job at one node, from when it was there until it was acknowledged or gone. `crashed_us`: with its process."""

    host: str
    job_id: bytes
    since_us: int
    life: int
    until_us: int = -1
    end: str = ""
    crashed_us: int = -1
    crash: str = ""  # how the process ended
    is_owed_us: int = -1  # since when another node, or a client, relies on it being in the log


@dataclass(slots=True, eq=False)
class Take:
    """A job that was handed to a client."""

    host: str
    job_id: bytes
    queue: bytes
    at_us: int
    is_paused: bool
    life: int
    together: tuple[str, ...] = ()  # nodes that were up for this one for some time


@dataclass(slots=True, eq=False)
class Knowledge:
    """A node that knows of a job's acknowledgement, until it forgets: `end` says why."""

    host: str
    job_id: bytes
    since_us: int
    is_dummy: bool
    life: int
    until_us: int = -1
    end: str = ""
    crash: str = ""  # how the process ended that has lost it
    is_owed_us: int = -1  # since when another node, or a client, relies on it being in the log


@dataclass(slots=True)
class Placed:
    """Where a node has a job: by how many moves to the dead letters and back, and since when it knows."""

    moves: int
    since_us: int


@dataclass(slots=True, eq=False)
class Doubled:
    """A job that is in the queues of several nodes at once."""

    job_id: bytes
    hosts: tuple[str, ...]
    at_us: int
    until_us: int = -1


class Watch:
    """All that was seen in a run. `say` is told each step of a job, for a trace."""

    def __init__(self, schedule: Schedule, complain: Callable[[str], None]) -> None:
        self.schedule = schedule
        self.say: Callable[[str, str], None] | None = None
        self.copies: dict[bytes, list[Copy]] = {}
        self.open: dict[tuple[str, bytes], Copy] = {}
        self.takes: dict[bytes, list[Take]] = {}
        self.known: dict[bytes, list[Knowledge]] = {}
        self.replicate: dict[bytes, int] = {}  # how many copies ADDJOB was to make
        self.doubled: list[Doubled] = []
        self.stores: dict[str, WatchedJobs] = {}  # of the process that runs on each host
        self.lives: dict[str, int] = {}
        self.hosts: dict[bytes, str] = {}  # by node id, also of those that are no more
        self.messages: dict[str, int] = {}  # by type, how many have been received
        self.is_reloading: Callable[[str], bool] = lambda host: False
        self.keeps: Callable[[str, str], bool] = lambda host, crash: False
        self.placed: dict[tuple[str, bytes], Placed] = {}
        self.ended: dict[str, tuple[int, str]] = {}  # host -> since when it waits for a start, and why
        self.moved: dict[str, int] = {}  # by what has moved them, how many jobs
        self.woken: Callable[[WatchedJobs, Job], None] | None = None
        self.taken: Callable[[Take], None] | None = None
        self.received: Callable[[str, str, JobMessage], None] | None = None
        self._complain = complain

    # What stores tell

    def note(self, host: str, job_id: bytes, what: str) -> None:
        if self.say is not None:
            self.say(host, f"{job_id[11:17].decode()} {what}")

    def held(self, store: "WatchedJobs", job: Job) -> None:
        host = store.host
        copy = Copy(host, job.id, self.schedule.now_us, self.lives[host])
        if (host, job.id) in self.open:
            self._complain(f"{host} holds {job.id!r} twice")
        self.open[host, job.id] = copy
        self.copies.setdefault(job.id, []).append(copy)
        self.note(host, job.id, f"held state {job.state} requeue in {_in_ms(store, job)}")

    def dropped(self, store: "WatchedJobs", job_id: bytes, end: str) -> None:
        copy = self.open.pop((store.host, job_id), None)
        if copy is not None:
            copy.until_us, copy.end = self.schedule.now_us, end
            self.note(store.host, job_id, f"dropped: {end}")

    def knows_ack(self, store: "WatchedJobs", job: Job, *, is_dummy: bool) -> None:
        known = Knowledge(store.host, job.id, self.schedule.now_us, is_dummy, self.lives[store.host])
        self.known.setdefault(job.id, []).append(known)
        self.note(store.host, job.id, "knows the ack" + (" (dummy)" if is_dummy else ""))

    def forgets_ack(self, host: str, job_id: bytes, end: str) -> None:
        for known in self.known.get(job_id, []):
            if known.host == host and known.until_us < 0:
                known.until_us, known.end = self.schedule.now_us, end
                self.note(host, job_id, f"forgets the ack: {end}")

    def took(self, store: "WatchedJobs", job: Job, queue: JobQueue) -> None:
        host = store.host
        take = Take(host, job.id, queue.name, self.schedule.now_us, bool(queue.pause & 2), self.lives[host])
        self.takes.setdefault(job.id, []).append(take)
        if self.taken is not None:
            self.taken(take)
        self.note(host, job.id, f"taken from {queue.name.decode()}, requeue in {_in_ms(store, job)}")

    def put_in(self, store: "WatchedJobs", job: Job) -> None:
        self.note(store.host, job.id, f"queued {job.nacks} {job.deliveries} by move {job.terms.moves}")
        if store.is_waking and self.woken is not None:
            self.woken(store, job)
        hosts = [host for host, other in self.stores.items() if other is not store and other.has_queued(job.id)]
        if hosts:
            doubled = Doubled(job.id, (store.host, *hosts), self.schedule.now_us)
            self.doubled.append(doubled)
            self._look_again(doubled)

    def _look_again(self, doubled: Doubled) -> None:
        queued = [
            host for host in doubled.hosts if host in self.stores and self.stores[host].has_queued(doubled.job_id)
        ]
        if len(queued) < 2:
            doubled.until_us = self.schedule.now_us
        else:
            self.schedule.after(10_000, self._look_again, doubled)

    def cleared(self, store: "WatchedJobs") -> None:
        end = RELOADED if self.is_reloading(store.host) else CLEARED
        for host, job_id in [key for key in self.open if key[0] == store.host]:
            self.dropped(self.stores[host], job_id, end)
        for job_id in self.known:
            self.forgets_ack(store.host, job_id, end)

    def place(self, store: "WatchedJobs", job: Job) -> None:
        """Note since when a node knows where a job is."""
        placed = self.placed.get((store.host, job.id))
        if placed is None or placed.moves != job.terms.moves:
            self.placed[store.host, job.id] = Placed(job.terms.moves, self.schedule.now_us)

    # Processes

    def begins(self, host: str, store: "WatchedJobs", life: int) -> None:
        store.host, store.sight = host, self
        self.stores[host], self.lives[host] = store, life
        self.hosts[store.node_id] = host

    def ends(self, host: str, how: str) -> None:
        """Its process is dead; what it has on disk shows at the next start."""
        self.stores.pop(host, None)
        ended_us, before = self.ended.get(host, (self.schedule.now_us, ""))
        if not before or how in (POWER_CUT, DISK_LOST):
            self.ended[host] = ended_us, how
        for some in self.known.values():
            for known in some:
                if known.host == host and known.until_us < 0 and (not known.crash or how in (POWER_CUT, DISK_LOST)):
                    known.crash = how
        for (one, _), copy in self.open.items():
            if one == host and copy.crashed_us < 0:
                copy.crashed_us, copy.crash = self.schedule.now_us, how
            elif one == host and how in (POWER_CUT, DISK_LOST):
                copy.crash = how  # before it could be read again

    def restored(self, store: "WatchedJobs", table: Table[Job] | None) -> None:
        """A start has found these on disk."""
        host = store.host
        found = {job.id: job for job in table} if table is not None else {}
        for (one, job_id), copy in list(self.open.items()):
            if one != host or copy.crashed_us < 0:
                continue
            job = found.get(job_id)
            if job is not None and job.state not in (ACKED, LET_GO):
                self._check_moves(store, job)
                copy.crashed_us, copy.crash = -1, ""
                self.note(host, job_id, f"restored: state {job.state} requeue in {_in_ms(store, job)}")
            else:
                del self.open[host, job_id]
                copy.until_us, copy.end = copy.crashed_us, LOST
                self.note(host, job_id, "is not restored")
        for job_id in self.known:
            job = found.get(job_id)
            if job is None or job.state != ACKED:
                self.forgets_ack(host, job_id, LOST)
            else:
                for known in self.known[job_id]:
                    if known.host == host and known.until_us < 0:
                        known.crash = ""
        for job in found.values():
            if job.state == ACKED:
                if not any(known.host == host and known.until_us < 0 for known in self.known.get(job.id, [])):
                    self.knows_ack(store, job, is_dummy=not job.terms.owners)
            elif job.state != LET_GO and (host, job.id) not in self.open:
                self._check_moves(store, job)
                self.held(store, job)  # what the log says of its end was lost
        self.ended.pop(host, None)

    def _check_moves(self, store: "WatchedJobs", job: Job) -> None:
        """A start must know of every move to the dead letters and back that was written before.

        What it knows less after a power cut is what the next start has to know.
        """
        placed = self.placed.get((store.host, job.id))
        ended_us, how = self.ended.get(store.host, (self.schedule.now_us, KILLED))  # or the log is read once more
        is_owed = placed is not None and placed.since_us <= ended_us - WRITTEN_US and self.keeps(store.host, how)
        if placed is not None and placed.moves != job.terms.moves and job.terms.owners and is_owed:
            self._complain(
                f"{store.host} knew {placed.moves} moves of {job.id!r}, and {job.terms.moves} after its start"
            )
        self.place(store, job)

    def got(self, host: str, sender: str, message: JobMessage) -> None:
        """A node has received a message."""
        name = type(message).__name__
        self.messages[name] = self.messages.get(name, 0) + 1
        if isinstance(message, (GotJob, Stored)):
            copy = self.open.get((sender, message.job_id))
            if copy is not None and copy.is_owed_us < 0:
                copy.is_owed_us = self.schedule.now_us
        elif isinstance(message, GotAck) and message.is_known:
            for known in self.known.get(message.job_id, []):
                if known.host == sender and known.until_us < 0 and known.is_owed_us < 0:
                    known.is_owed_us = self.schedule.now_us
        if self.received is not None:
            self.received(host, sender, message)


def _in_ms(store: "WatchedJobs", job: Job) -> int:
    return job.requeue_at_ms - store.now_ms if job.requeue_at_ms else -1


class WatchedJobs(ReplicatedJobs):
    """A store that tells what becomes of its jobs."""

    host = ""
    sight: Watch | None = None
    is_waking = False  # a job's time has come: no client has asked for what is done

    def use_node_id(self, node_id: bytes) -> None:
        super().use_node_id(node_id)
        if self.sight is not None:
            self.sight.hosts[node_id] = self.host

    def has_queued(self, job_id: bytes) -> bool:
        job = self.find(job_id)
        return job is not None and job.state == QUEUED

    def add(self, body: bytes, terms: JobTerms) -> Job:
        sight = self.sight
        if sight is None:
            return super().add(body, terms)
        job = super().add(body, terms)
        sight.replicate[job.id] = 1
        return job

    def hold(self, body: bytes, terms: JobTerms, job_id: bytes = b"") -> Job:
        job = super().hold(body, terms, job_id)
        if self.sight is not None:
            self.sight.replicate[job.id] = terms.replicate
        return job

    def _plan(self, job: Job) -> None:
        # Called with each job that comes, before anything is done to it.
        if self.sight is not None and (self.host, job.id) not in self.sight.open and job.state not in (ACKED, LET_GO):
            self.sight.held(self, job)
        if self.sight is not None:
            self.sight.place(self, job)
        super()._plan(job)

    def _wake(self, job: Job, now_ms: int) -> None:
        self.is_waking = job.state == COPY
        super()._wake(job, now_ms)
        self.is_waking = False

    def _move(self, job: Job, to: bytes, dead: DeadLetter | None) -> bool:
        if self.sight is not None:
            why = "put back" if dead is None else dead.reason.decode()
            self.sight.moved[why] = self.sight.moved.get(why, 0) + 1
        return super()._move(job, to, dead)

    def remove(self, job: Job, why: str = DELETED) -> None:
        job_id, was_acked = job.id, job.state == ACKED
        super().remove(job, why)
        if self.sight is not None:
            if was_acked:
                self.sight.forgets_ack(self.host, job_id, why)
            else:
                self.sight.dropped(self, job_id, why)

    def remember_ack(self, job: Job) -> None:
        super().remember_ack(job)
        if self.sight is not None:
            self.sight.dropped(self, job.id, "acked")
            self.sight.knows_ack(self, job, is_dummy=False)

    def keep_dummy(self, job_id: bytes, terms: JobTerms) -> Job:
        job = super().keep_dummy(job_id, terms)
        if self.sight is not None:
            self.sight.knows_ack(self, job, is_dummy=True)
        return job

    def let_go(self, job: Job, owners: int) -> None:
        super().let_go(job, owners)
        if self.sight is not None:
            self.sight.dropped(self, job.id, LET_GO_OF)

    def take(self, queue: JobQueue) -> Job | None:
        job = super().take(queue)
        if job is not None and self.sight is not None:
            self.sight.took(self, job, queue)
        return job

    def _put_in(self, queue: JobQueue, job: Job, now_ms: int) -> None:
        if self.sight is not None:
            self.sight.put_in(self, job)
        super()._put_in(queue, job, now_ms)

    def clear(self) -> Iterator[None]:
        if self.sight is not None:
            self.sight.cleared(self)
        return super().clear()

    def adopt(self, table: Table[Job]) -> None:
        if self.sight is not None:
            self.sight.restored(self, table)
        super().adopt(table)


@contextmanager
def watched_messages() -> Iterator[None]:
    """Messages about jobs are counted as they are received."""
    receive = SharedJobs.receive

    def watched(self: SharedJobs, sender: Node, message: Any) -> None:
        store = self.jobs
        if isinstance(store, WatchedJobs) and store.sight is not None:
            store.sight.got(store.host, store.sight.hosts.get(sender.id, "?"), message)
        receive(self, sender, message)

    with patch.object(SharedJobs, "receive", watched):
        yield
