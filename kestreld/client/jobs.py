"""JobClient: the client for jobs with threads.

`async_jobs` has the same for asyncio, and `job_calls` what both do. docs/jobs.md describes its use.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from threading import Event, Lock
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from kestreld.client.calls import Pause, carry_out, documented
from kestreld.client.heartbeat import Heartbeat, ThreadHeartbeat
from kestreld.client.job_calls import IDLE_MAX, Ask, JobCall, JobCalls, JobFace, JobStep
from kestreld.client.job_commands import Job
from kestreld.client.job_connection import JobConnection
from kestreld.client.server import Waiting, event_in_child
from kestreld.forks import restart_in_child

J = TypeVar("J")
T = TypeVar("T")
P = ParamSpec("P")


def _in_thread(call: Callable[Concatenate[JobCalls, P], JobCall[T]]) -> "Callable[Concatenate[JobClient, P], T]":
    """Make a call a method, which carries it out."""

    def method(self: "JobClient", /, *args: P.args, **options: P.kwargs) -> T:
        return carry_out(call(self._calls, *args, **options), self._take)

    return documented(method, call)


class JobClient(JobFace):
    """A client of nodes of jobs. Threads may share it, and so may forked processes: each has connections of its own.

    It asks one of the nodes, chosen at random, and the others while that one is away or leaves its cluster. Commands
    about a job go to the node that has handed it out, or else to the one in its id. Nodes name the others of their
    cluster, which are asked if none of `nodes` answers; if most jobs come from one of them, that node is asked from
    then on.

    Every method raises ServersAway once all nodes have been away for `patience` seconds, ConnectionLost if a node was
    lost before it had answered and the command cannot be repeated, and JobRefused if a node refuses the command.
    """

    def _begin(self) -> None:
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
        self._calls.nodes.after_fork()

    # Jobs

    add = _in_thread(JobCalls.add)
    get = _in_thread(JobCalls.get)
    get_many = _in_thread(JobCalls.get_many)
    ack = _in_thread(JobCalls.ack)
    fastack = _in_thread(JobCalls.fastack)
    nack = _in_thread(JobCalls.nack)
    enqueue = _in_thread(JobCalls.enqueue)
    dequeue = _in_thread(JobCalls.dequeue)
    delete = _in_thread(JobCalls.delete)
    working = _in_thread(JobCalls.working)
    show = _in_thread(JobCalls.show)
    wait = _in_thread(JobCalls.wait)

    # Queues

    qlen = _in_thread(JobCalls.qlen)
    qstat = _in_thread(JobCalls.qstat)
    qpeek = _in_thread(JobCalls.qpeek)

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
        fetch = partial(self._get_until_closed, queues, pattern)
        while not self._closed.is_set():
            with JobWork[Job | None](self, fetch, has_heartbeat=heartbeat, delay=delay) as job:
                if job is None:
                    return
                yield job

    _do = _in_thread(JobCalls.do)
    _get_until_closed = _in_thread(JobCalls.get_until_closed)
    _beat = _in_thread(JobCalls.beat)
    _end_work = _in_thread(JobCalls.end_work)

    # Connections

    def _take(self, step: JobStep) -> object:
        if isinstance(step, Pause):
            return self._closed.wait(step.seconds)
        return self._asked(step)

    def _asked(self, step: Ask[T]) -> T:
        connection, is_done = self._connection(step.address), False
        try:
            # `close` ends commands that wait; others may still finish.
            with self._waiting.on(connection) if step.command.wait_ms else nullcontext():
                result = connection.ask(step.command)
            is_done = True
        finally:
            self._give_back(step.address, connection, is_usable=is_done)
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
        self._calls.nodes.met(address, connection.hello)
        return connection

    def close(self) -> None:
        """Close all connections. Calls that wait raise ServersAway: the client is closed."""
        self._calls.close()
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
                self._heartbeat = ThreadHeartbeat(f"heartbeat of {job.id}", partial(self._client._beat, job))
                self._heartbeat.start()
            is_begun = True
        finally:
            if not is_begun:
                self.__exit__(KeyboardInterrupt, None, None)  # it has not failed
        return job  # type: ignore[return-value]  # None is what `fetch` returns where J allows it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()  # a WORKING on its way would take a job that is given back out of its queue
        if self._job is not None:
            self._client._end_work(self._job, kind, self._delay)
