"""JobClient: the client for jobs with threads.

`async_jobs` has the same for asyncio. docs/jobs.md describes its use.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from threading import Event, Lock
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from kestreld import checks
from kestreld.client import job_commands as commands
from kestreld.client.access import checked_addresses, checked_login
from kestreld.client.heartbeat import Heartbeat
from kestreld.client.job_commands import Job, JobCommand, JobName, Shown
from kestreld.client.job_connection import JOBS_PORT_DEFAULT, JobConnection
from kestreld.client.job_nodes import (
    BEAT_AGAIN_S,
    CLOSED,
    Attempts,
    JobNodes,
    acknowledged,
    beat_after_s,
    no_more_beats,
    not_given_back,
    turns,
)
from kestreld.client.server import Waiting, event_in_child
from kestreld.errors import JobRefused, KestrelError, ServersAway
from kestreld.forks import restart_in_child

J = TypeVar("J")
T = TypeVar("T")
IDLE_MAX: Final = 64  # free connections to a node beyond these are closed


class JobClient:
    """A client of nodes of jobs. Threads may share it, and so may forked processes: each has connections of its own.

    It asks one of the nodes, chosen at random, and the others while that one is away or leaves its cluster. Commands
    about a job go to the node that has handed it out, or else to the one in its id. Nodes name the others of their
    cluster, which are asked if none of `nodes` answers; if most jobs come from one of them, that node is asked from
    then on.

    Every method raises ServersAway once all nodes have been away for `patience` seconds, ConnectionLost if a node was
    lost before it had answered and the command cannot be repeated, and JobRefused if a node refuses the command.
    """

    def __init__(
        self,
        nodes: Iterable[str] = (f"127.0.0.1:{JOBS_PORT_DEFAULT}",),
        *,
        user: str = "",
        password: str = "",
        tls: bool = False,
        ca: str = "",
        cert: str = "",
        key: str = "",
        timeout: float = 5,
        patience: float = 5,
        chance: Random | None = None,
        discover: bool = True,
    ) -> None:
        """`nodes`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Does not connect yet.

        With `discover` False only these nodes are asked. A node may take `timeout` seconds to answer. A password
        without a user is the node's `requirepass`. Raises ValueError for an invalid address, OSError for certificate
        files that cannot be used.
        """
        self._login = checked_login(user, password, tls=tls, ca=ca, cert=cert, key=key)
        self._timeout_ms = checks.seconds_ms(timeout, "timeout", checks.FAR_MS, 1)
        self._patience_ms = checks.seconds_ms(patience, "patience", checks.FAR_MS)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        addresses = checked_addresses(nodes, self._login, "nodes")
        discovers = checks.switch(discover, "discover")
        self._nodes = JobNodes(addresses, chance if chance is not None else Random(), discovers=discovers)
        self._waiting = Waiting()
        self._closed = Event()
        self.after_fork()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Start without connections, and with a new lock, because a thread of the parent may hold the old one."""
        self._lock = Lock()
        self._idle: dict[str, list[JobConnection]] = {}
        self._closed = event_in_child(self._closed)
        self._waiting.after_fork()
        self._nodes.after_fork()

    # Jobs

    def add(
        self,
        queue: str | bytes,
        body: bytes,
        *,
        delay: int = 0,
        ttl: int | None = None,
        retry: int | None = None,
        maxlen: int | None = None,
        retries: int | None = None,
        replicate: int | None = None,
        key: str | bytes | None = None,
    ) -> str:
        """Add a job and return its id. Spans are whole seconds, None = the server's default.

        If the queue knows the `key`, no second job is added, so the call can be repeated. Without a key, ConnectionLost
        means that the job may or may not have been added.
        """
        options = {"ttl": ttl, "retry": retry, "maxlen": maxlen, "retries": retries, "replicate": replicate}
        return self._do(commands.add(queue, body, self._timeout_ms, delay=delay, key=key, **options))

    def get(self, *queues: str | bytes, timeout: float | None = None, pattern: bool = False) -> Job | None:
        """Take the oldest job of the first queue that has one, or wait for one.

        Returns None after `timeout` seconds; `timeout` None = wait forever. With `pattern` the names are patterns such
        as `mail.*`.
        """
        return next(iter(self.get_many(*queues, count=1, timeout=timeout, pattern=pattern)), None)

    def get_many(
        self, *queues: str | bytes, count: int, timeout: float | None = None, pattern: bool = False
    ) -> list[Job]:
        """Take the available jobs, `count` at most, or wait for one, as `get`. Empty after `timeout` seconds."""
        for wait_ms in turns(timeout):
            if found := self._do(commands.get(queues, count, wait_ms, is_pattern=pattern)):
                self._nodes.fetched(found[0].node, found)
                return found
        return []

    def ack(self, *jobs: JobName) -> int:
        """Acknowledge jobs (Jobs, or their ids): they are done. Return how many of them existed."""
        return sum(self._do(commands.ack(some)) for some in commands.by_node(jobs))

    def fastack(self, *jobs: JobName) -> int:
        """Acknowledge jobs like `ack`, but without confirmation between the nodes."""
        return sum(self._do(commands.fastack(some)) for some in commands.by_node(jobs))

    def nack(self, *jobs: JobName, delay: int | None = None) -> int:
        """Give failed jobs back, to be queued now or after `delay` seconds. Return how many of them existed."""
        return sum(self._do(commands.nack(some, delay)) for some in commands.by_node(jobs))

    def enqueue(self, *jobs: JobName) -> int:
        """Queue jobs now, which does not count as a failure. Return how many were not queued before."""
        return sum(self._do(commands.enqueue(some)) for some in commands.by_node(jobs))

    def dequeue(self, *jobs: JobName) -> int:
        """Take jobs out of their queues until their retry times are over. Return how many were queued."""
        return sum(self._do(commands.dequeue(some)) for some in commands.by_node(jobs))

    def delete(self, *jobs: JobName) -> int:
        """Delete jobs, whatever their states. Return how many of them existed."""
        return sum(self._do(commands.delete(some)) for some in commands.by_node(jobs))

    def working(self, job: JobName) -> int:
        """Restart a job's retry time, and return it in seconds.

        Raises JobRefused once half of the job's TTL is over, or if there is no such job.
        """
        return self._do(commands.working(job))

    def show(self, job: JobName) -> dict[str, Shown] | None:
        """Return SHOW's fields of a job; `body` is bytes. None if there is no such job."""
        return self._do(commands.show(job))

    def wait(self, job: JobName, timeout: float | None = None) -> str | None:
        """Wait until a job is `acked`, `deleted` or `expired`, and return which. None after `timeout` seconds."""
        for wait_ms in turns(timeout):
            if (end := self._do(commands.wait(job, wait_ms))) is not None:
                return end
        return None

    # Queues

    def qlen(self, queue: str | bytes) -> int:
        """Return the number of queued jobs."""
        return self._do(commands.qlen(queue))

    def qstat(self, queue: str | bytes) -> dict[str, Shown] | None:
        """Return QSTAT's fields of a queue. None if there is no such queue."""
        return self._do(commands.qstat(queue))

    def qpeek(self, queue: str | bytes, count: int = 1) -> list[Job]:
        """Return the oldest jobs without taking them; the newest if `count` is negative."""
        return self._do(commands.qpeek(queue, count))

    # Work

    @overload
    def work(
        self,
        *queues: str | bytes,
        timeout: None = None,
        pattern: bool = False,
        heartbeat: bool = True,
        delay: int | None = None,
    ) -> "JobWork[Job]": ...

    @overload
    def work(
        self,
        *queues: str | bytes,
        timeout: float,
        pattern: bool = False,
        heartbeat: bool = True,
        delay: int | None = None,
    ) -> "JobWork[Job | None]": ...

    def work(
        self,
        *queues: str | bytes,
        timeout: float | None = None,
        pattern: bool = False,
        heartbeat: bool = True,
        delay: int | None = None,
    ) -> "JobWork[Any]":
        """Fetch a job for a `with` block; None if there is none within `timeout` seconds.

        The job is acknowledged if the block succeeds. If it fails, the job is given back, to be queued after `delay`
        seconds or the server's default. A BaseException that is not an Exception, such as KeyboardInterrupt, does not
        count as a failure. During the block a thread sends WORKING, at once and whenever 80 % of the retry time are
        over.
        """
        fetch = partial(self.get, *queues, timeout=timeout, pattern=pattern)
        return JobWork(self, fetch, has_heartbeat=heartbeat, delay=delay)

    def jobs(
        self, *queues: str | bytes, pattern: bool = False, heartbeat: bool = True, delay: int | None = None
    ) -> Iterator[Job]:
        """Iterate over jobs forever, or until the client is closed. A job is acknowledged when the next is requested.

        Leaving the loop gives the last job back.
        """
        fetch = partial(self._until_closed, queues, pattern)
        while not self._closed.is_set():
            with JobWork[Job | None](self, fetch, has_heartbeat=heartbeat, delay=delay) as job:
                if job is None:
                    return
                yield job

    def _until_closed(self, queues: Sequence[str | bytes], pattern: bool) -> Job | None:
        try:
            return self.get(*queues, pattern=pattern)
        except ServersAway:
            if self._closed.is_set():
                return None
            raise

    # Connections

    def _do(self, command: JobCommand[T]) -> T:
        attempts = Attempts(self._nodes, command, self._patience_ms)
        while True:
            for address in attempts.addresses():
                try:
                    return self._asked(address, command)
                except KestrelError as problem:
                    if self._closed.is_set():
                        raise ServersAway({address: CLOSED}) from problem
                    attempts.failed(address, problem)
            self._closed.wait(attempts.pause_s())

    def _asked(self, address: str, command: JobCommand[T]) -> T:
        connection, is_done = self._connection(address), False
        try:
            # `close` ends commands that wait; others may still finish.
            with self._waiting.on(connection) if command.wait_ms else nullcontext():
                result = connection.ask(command)
            is_done = True
        finally:
            self._give_back(address, connection, is_usable=is_done)
        return result

    def _give_back(self, address: str, connection: JobConnection, *, is_usable: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if is_usable and not self._closed.is_set() and len(idle) < IDLE_MAX:
                idle.append(connection)
                return
        connection.close()

    def _connection(self, address: str) -> JobConnection:
        """Return a connection that nobody else uses."""
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None:
                break
            if connection.is_usable:
                return connection
            connection.close()
        connection = JobConnection(address, self._login, self._timeout_ms)
        connection.connect()
        self._nodes.met(address, connection.hello)
        return connection

    def close(self) -> None:
        """Close all connections. Calls that wait raise ServersAway: the client is closed."""
        self._closed.set()
        self._waiting.end()
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in [one for some in idle.values() for one in some]:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JobWork(Generic[J]):
    """A job for the duration of a `with` block."""

    def __init__(
        self, client: JobClient, fetch: Callable[[], Job | None], *, has_heartbeat: bool, delay: int | None
    ) -> None:
        self._client = client
        self._fetch = fetch
        self._has_heartbeat = has_heartbeat
        self._delay = delay
        self._job: Job | None = None
        self._heartbeat: Heartbeat | None = None

    def __enter__(self) -> J:
        is_begun = False
        try:
            job = self._job = self._fetch()
            if job is not None and self._has_heartbeat:
                self._heartbeat = Heartbeat(f"heartbeat of {job.id}", partial(_beat, self._client, job))
                self._heartbeat.start()
            is_begun = True
        finally:
            if not is_begun:
                self._give_back(self._client.enqueue)
        return job  # type: ignore[return-value]  # None is what `fetch` returns where J allows it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        job = self._job
        if kind is None:
            self._stop_beating()
            if job is not None:
                acknowledged(job, self._client.ack(job))
        elif issubclass(kind, Exception):
            self._give_back(partial(self._client.nack, delay=self._delay))
        else:
            self._give_back(self._client.enqueue)

    def _give_back(self, to_queue: Callable[[Job], int]) -> None:
        job = self._job
        self._stop_beating()
        if job is not None:
            try:
                to_queue(job)
            except KestrelError as problem:
                not_given_back(job, problem)

    def _stop_beating(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()


def _beat(client: JobClient, job: Job) -> float | None:
    """Send WORKING. Return the seconds until the next one is due; None = none."""
    try:
        return beat_after_s(client.working(job))
    except JobRefused as refusal:
        no_more_beats(job, refusal)
        return None
    except KestrelError:
        return BEAT_AGAIN_S
