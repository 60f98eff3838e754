"""AsyncJobClient: the client for jobs with asyncio.

`jobs` has the same for threads, and `job_calls` what both do.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from kestreld.client.access import Login
from kestreld.client.async_transport import AsyncTransport
from kestreld.client.calls import Pause, carry_out_in_loop, documented
from kestreld.client.job_calls import IDLE_MAX, Ask, JobCall, JobCalls, JobFace, JobStep
from kestreld.client.job_commands import Job, JobCommand
from kestreld.client.job_connection import JOBS_PORT_DEFAULT, NodeHello, introduce, read_values, result_of
from kestreld.client.resp import RespReader, RespValue, request
from kestreld.errors import KestrelError

J = TypeVar("J")
T = TypeVar("T")
P = ParamSpec("P")


def _in_loop(
    call: Callable[Concatenate[JobCalls, P], JobCall[T]],
) -> "Callable[Concatenate[AsyncJobClient, P], Coroutine[Any, Any, T]]":
    """Make a call a coroutine method, which carries it out."""

    async def method(self: "AsyncJobClient", /, *args: P.args, **options: P.kwargs) -> T:
        return await carry_out_in_loop(call(self._calls, *args, **options), self._take)

    return documented(method, call)


class AsyncJobClient(JobFace):
    """JobClient for one event loop: the same methods, to be awaited."""

    def _begin(self) -> None:
        self._idle: dict[str, list[AsyncJobConnection]] = {}
        self._waiting: set[AsyncJobConnection] = set()
        self._late: set[asyncio.Task[None]] = set()  # that give back jobs that arrived for a cancelled task

    # Jobs

    add = _in_loop(JobCalls.add)
    get = _in_loop(JobCalls.get)
    get_many = _in_loop(JobCalls.get_many)
    ack = _in_loop(JobCalls.ack)
    fastack = _in_loop(JobCalls.fastack)
    nack = _in_loop(JobCalls.nack)
    enqueue = _in_loop(JobCalls.enqueue)
    dequeue = _in_loop(JobCalls.dequeue)
    delete = _in_loop(JobCalls.delete)
    working = _in_loop(JobCalls.working)
    show = _in_loop(JobCalls.show)
    wait = _in_loop(JobCalls.wait)

    # Queues

    qlen = _in_loop(JobCalls.qlen)
    qstat = _in_loop(JobCalls.qstat)
    qpeek = _in_loop(JobCalls.qpeek)

    # Work

    @overload
    def work(
        self,
        *queues: str | bytes,
        timeout: None = None,
        pattern: bool = False,
        heartbeat: bool = True,
        delay: int | None = None,
    ) -> "AsyncJobWork[Job]": ...

    @overload
    def work(
        self,
        *queues: str | bytes,
        timeout: float,
        pattern: bool = False,
        heartbeat: bool = True,
        delay: int | None = None,
    ) -> "AsyncJobWork[Job | None]": ...

    def work(
        self,
        *queues: str | bytes,
        timeout: float | None = None,
        pattern: bool = False,
        heartbeat: bool = True,
        delay: int | None = None,
    ) -> "AsyncJobWork[Any]":
        """Fetch a job for an `async with` block, as JobClient.work does for `with`; a task sends WORKING."""
        fetch = partial(self.get, *queues, timeout=timeout, pattern=pattern)
        return AsyncJobWork(self, fetch, has_heartbeat=heartbeat, delay=delay)

    async def jobs(
        self, *queues: str | bytes, pattern: bool = False, heartbeat: bool = True, delay: int | None = None
    ) -> AsyncIterator[Job]:
        fetch = partial(self._get_until_closed, queues, pattern)
        while not self._calls.is_closed:
            async with AsyncJobWork[Job | None](self, fetch, has_heartbeat=heartbeat, delay=delay) as job:
                if job is None:
                    return
                yield job

    _do = _in_loop(JobCalls.do)
    _get_until_closed = _in_loop(JobCalls.get_until_closed)
    _beat = _in_loop(JobCalls.beat)
    _end_work = _in_loop(JobCalls.end_work)

    # Connections

    async def _take(self, step: JobStep) -> object:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        return await self._asked(step)

    async def _asked(self, step: Ask[T]) -> T:
        command = step.command
        connection, is_done = await self._connection(step.address), False
        if command.wait_ms:
            self._waiting.add(connection)
        is_late = False
        try:
            result = await connection.ask(command)
            is_done = True
        except asyncio.CancelledError:
            is_late = command.hands_out and not self._calls.is_closed
            raise
        finally:  # even if the task is cancelled: its reply would be taken for the next command's
            self._waiting.discard(connection)
            idle = self._idle.setdefault(step.address, [])
            if is_done and not self._calls.is_closed and len(idle) < IDLE_MAX:
                idle.append(connection)
            elif is_late:
                task = asyncio.create_task(self._give_back(connection, command))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
            else:
                connection.close()
        return result

    async def _give_back(self, connection: "AsyncJobConnection", command: JobCommand[Any]) -> None:
        """Put jobs back into their queues that a node may have handed out after their caller was gone."""
        for job in await connection.last_result(command):
            await self._end_work(job, asyncio.CancelledError, None)

    async def _connection(self, address: str) -> "AsyncJobConnection":
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        connection = await AsyncJobConnection.open(address, self._login, self._timeout_ms)
        self._calls.nodes.met(address, connection.hello)
        return connection

    async def close(self) -> None:
        """Close all connections. Calls that wait raise ServersAway: the client is closed."""
        if self._late:
            await asyncio.wait(self._late)
        self._calls.close()
        for connection in [*self._waiting, *[one for some in self._idle.values() for one in some]]:
            connection.close()
        self._idle.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncJobWork(Generic[J]):
    """A job for the duration of an `async with` block."""

    def __init__(
        self,
        client: AsyncJobClient,
        fetch: Callable[[], Awaitable[Job | None]],
        *,
        has_heartbeat: bool,
        delay: int | None,
    ) -> None:
        self._client = client
        self._fetch = fetch
        self._has_heartbeat = has_heartbeat
        self._delay = delay
        self._job: Job | None = None
        self._over = asyncio.Event()
        self._heartbeat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> J:
        is_begun = False
        try:
            job = self._job = await self._fetch()
            if job is not None and self._has_heartbeat:
                self._heartbeat = asyncio.create_task(_beat(self._client, job, self._over))
            is_begun = True
        finally:
            if not is_begun:
                await self.__aexit__(asyncio.CancelledError, None, None)  # it has not failed
        return job  # type: ignore[return-value]  # None is what `fetch` returns where J allows it

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._heartbeat is not None:
            # No WORKING may be on its way: it would take a job that is given back out of its queue.
            await asyncio.wait([self._heartbeat])
        if self._job is not None:
            await self._client._end_work(self._job, kind, self._delay)


async def _beat(client: AsyncJobClient, job: Job, over: asyncio.Event) -> None:
    """Send WORKING until `over` is set."""
    pause_s: float | None = 0
    while pause_s is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await over.wait()
                return
        pause_s = await client._beat(job)


class AsyncJobConnection(AsyncTransport[RespValue]):
    """JobConnection for an event loop."""

    port_default = JOBS_PORT_DEFAULT

    def _begin(self) -> None:
        self.hello = NodeHello("")
        self._reader = RespReader()

    def _read(self, data: bytes) -> list[RespValue]:
        return read_values(self.address, self._reader, data)

    async def _enter(self, login: Login) -> None:
        introduction = introduce(self.address, login)
        words = next(introduction)
        try:
            while True:
                words = introduction.send(await self._exchange(request(words)))
        except StopIteration as ended:
            self.hello = ended.value

    async def ask(self, command: JobCommand[T]) -> T:
        """Send a command and return its result."""
        return result_of(self.address, command, await self.answer(request(command.words), command.wait_ms))

    async def last_result(self, command: JobCommand[list[Job]]) -> list[Job]:
        """Return jobs that the node may have sent before it learns that nobody waits, and close the connection."""
        try:
            values = await self.last_values()
            return result_of(self.address, command, values[0]) if values else []
        except KestrelError:
            return []
