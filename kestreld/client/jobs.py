"""Jobs on a node elsewhere, for programs with threads. `async_jobs` has the same for asyncio.

docs/jobs.md says how it is used.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from kestreld import checks
from kestreld.client import job_commands as commands
from kestreld.client.access import checked_addresses, checked_login
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

    It asks one of the nodes, chosen at random, and the others while that is away or leaves its cluster; about a job the
    node that has handed it out, else the one of its id. Nodes tell of the others of their cluster, which are asked when
    none of `nodes` answers; and where most jobs come from one of them, that is asked from then on.

    Every method raises ServersAway once all have been away for `patience` seconds, ConnectionLost where a node was lost
    before it had answered and the command cannot be repeated, and JobRefused for what a node refuses.
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
        """`nodes`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Connects to none of them yet.

        With `discover` False no other nodes than these are asked. A node may take `timeout` seconds to answer. A
        password without a user is the node's `requirepass`. Raises ValueError for an address that is none, OSError for
        files of certificates that cannot be used.
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
        """Without connections, or a lock that a thread of the parent may have."""
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
        """Add a job; its id. Spans are whole seconds, None = as the server has it.

        With a `key` that the queue knows there is such a job already, so that the call can be repeated: without one
        it raises ConnectionLost where the job may be there or not.
        """
        options = {"ttl": ttl, "retry": retry, "maxlen": maxlen, "retries": retries, "replicate": replicate}
        return self._do(commands.add(queue, body, self._timeout_ms, delay=delay, key=key, **options))

    def get(self, *queues: str | bytes, timeout: float | None = None, pattern: bool = False) -> Job | None:
        """The oldest job of the first queue that has one. None once `timeout` seconds are over; None = wait forever.

        With `pattern` the names are patterns such as `mail.*`.
        """
        return next(iter(self.get_many(*queues, count=1, timeout=timeout, pattern=pattern)), None)

    def get_many(
        self, *queues: str | bytes, count: int, timeout: float | None = None, pattern: bool = False
    ) -> list[Job]:
        """As many as there are, `count` at most; one where it had to wait for it."""
        for wait_ms in turns(timeout):
            if found := self._do(commands.get(queues, count, wait_ms, is_pattern=pattern)):
                self._nodes.fetched(found[0].node, found)
                return found
        return []

    def ack(self, *jobs: JobName) -> int:
        """They are done; how many of them there were. A job, or its id."""
        return sum(self._do(commands.ack(some)) for some in commands.by_node(jobs))

    def fastack(self, *jobs: JobName) -> int:
        """As `ack`, but nodes do not make sure of it."""
        return sum(self._do(commands.fastack(some)) for some in commands.by_node(jobs))

    def nack(self, *jobs: JobName, delay: int | None = None) -> int:
        """They have failed, and are queued again now or after `delay` seconds; how many of them there were."""
        return sum(self._do(commands.nack(some, delay)) for some in commands.by_node(jobs))

    def enqueue(self, *jobs: JobName) -> int:
        """Queue them now, which is no failure; how many were not queued."""
        return sum(self._do(commands.enqueue(some)) for some in commands.by_node(jobs))

    def dequeue(self, *jobs: JobName) -> int:
        """Take them out of their queues until their retry times are over; how many were queued."""
        return sum(self._do(commands.dequeue(some)) for some in commands.by_node(jobs))

    def delete(self, *jobs: JobName) -> int:
        """Whatever their states; how many of them there were."""
        return sum(self._do(commands.delete(some)) for some in commands.by_node(jobs))

    def working(self, job: JobName) -> int:
        """The retry time begins again: its seconds. Raises JobRefused once half of the TTL is over, or it is gone."""
        return self._do(commands.working(job))

    def show(self, job: JobName) -> dict[str, Shown] | None:
        """What SHOW says; `body` is bytes. None = there is no such job."""
        return self._do(commands.show(job))

    def wait(self, job: JobName, timeout: float | None = None) -> str | None:
        """Until it is `acked`, `deleted` or `expired`. None = `timeout` seconds are over."""
        for wait_ms in turns(timeout):
            if (end := self._do(commands.wait(job, wait_ms))) is not None:
                return end
        return None

    # Queues

    def qlen(self, queue: str | bytes) -> int:
        """How many jobs are queued."""
        return self._do(commands.qlen(queue))

    def qstat(self, queue: str | bytes) -> dict[str, Shown] | None:
        """What QSTAT says. None = there is no such queue."""
        return self._do(commands.qstat(queue))

    def qpeek(self, queue: str | bytes, count: int = 1) -> list[Job]:
        """The oldest jobs, which stay; the newest where `count` is negative."""
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
        """A job for a `with` block; None if `timeout` seconds are over before there is one.

        It is acknowledged when the block succeeds, and given back when it fails, to be queued after `delay` seconds or
        as the server has it. An ending that is no Exception, Ctrl-C say, does not count as a failure. Until then a
        thread says WORKING, at once and whenever 80 % of the retry time are over.
        """
        fetch = partial(self.get, *queues, timeout=timeout, pattern=pattern)
        return JobWork(self, fetch, has_heartbeat=heartbeat, delay=delay)

    def jobs(
        self, *queues: str | bytes, pattern: bool = False, heartbeat: bool = True, delay: int | None = None
    ) -> Iterator[Job]:
        """Jobs forever, or until the client is closed. One is acknowledged when the next is asked for.

        Whoever leaves the loop gives the job back.
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
            # One that waits ends with the client; others may still come to their end.
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
        """One that nobody else uses."""
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
        """Let go of all nodes. Those who wait are told that the client is closed."""
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
    """A job for as long as a `with` block takes."""

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
                self._heartbeat = Heartbeat(self._client, job)
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


class Heartbeat:
    """A thread that says WORKING until it is stopped."""

    def __init__(self, client: JobClient, job: Job) -> None:
        self._client = client
        self._job = job
        self._over = Event()
        self._beating = Lock()  # one beat at a time, and none once it is over
        self._thread = Thread(target=self._beat, name=f"heartbeat of {job.id}", daemon=True)

    def start(self) -> None:
        """Whatever this raises the thread may run."""
        self._thread.start()

    def stop(self) -> None:
        """Returns once none is on its way: it would take a job that is given back out of its queue."""
        self._over.set()
        with self._beating:
            pass  # it may run although `start` was interrupted, and cannot be joined then
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        pause_s: float | None = 0
        while pause_s is not None and not self._over.wait(pause_s):
            with self._beating:
                pause_s = None if self._over.is_set() else self._beat_once()

    def _beat_once(self) -> float | None:
        """How many seconds later another is due; None = none."""
        try:
            return beat_after_s(self._client.working(self._job))
        except JobRefused as refusal:
            no_more_beats(self._job, refusal)
            return None
        except KestrelError:
            return BEAT_AGAIN_S
