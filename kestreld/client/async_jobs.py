"""AsyncJobClient: the client for jobs with asyncio.

`jobs` has the same for threads.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from kestreld import checks
from kestreld.client import job_commands as commands
from kestreld.client.access import RECEIVE_BYTES, Login, ServerAddress, checked_addresses, checked_login
from kestreld.client.job_commands import Job, JobCommand, JobName, Shown
from kestreld.client.job_connection import JOBS_PORT_DEFAULT, NodeHello, introduce, read_values, result_of
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
from kestreld.client.jobs import IDLE_MAX
from kestreld.client.resp import RespReader, RespValue, Word, request
from kestreld.client.transport import reason_of
from kestreld.errors import ConnectionLost, JobRefused, KestrelError, ServersAway

J = TypeVar("J")
T = TypeVar("T")


class AsyncJobClient:
    """JobClient for one event loop: the same methods, to be awaited; JobClient documents them."""

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
        """The parameters are those of JobClient."""
        self._login = checked_login(user, password, tls=tls, ca=ca, cert=cert, key=key)
        self._timeout_ms = checks.seconds_ms(timeout, "timeout", checks.FAR_MS, 1)
        self._patience_ms = checks.seconds_ms(patience, "patience", checks.FAR_MS)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        addresses = checked_addresses(nodes, self._login, "nodes")
        discovers = checks.switch(discover, "discover")
        self._nodes = JobNodes(addresses, chance if chance is not None else Random(), discovers=discovers)
        self._idle: dict[str, list[AsyncJobConnection]] = {}
        self._waiting: set[AsyncJobConnection] = set()
        self._late: set[asyncio.Task[None]] = set()  # that give back jobs that arrived for a cancelled task
        self._is_closed = False

    # Jobs

    async def add(
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
        options = {"ttl": ttl, "retry": retry, "maxlen": maxlen, "retries": retries, "replicate": replicate}
        return await self._do(commands.add(queue, body, self._timeout_ms, delay=delay, key=key, **options))

    async def get(self, *queues: str | bytes, timeout: float | None = None, pattern: bool = False) -> Job | None:
        return next(iter(await self.get_many(*queues, count=1, timeout=timeout, pattern=pattern)), None)

    async def get_many(
        self, *queues: str | bytes, count: int, timeout: float | None = None, pattern: bool = False
    ) -> list[Job]:
        for wait_ms in turns(timeout):
            if found := await self._do(commands.get(queues, count, wait_ms, is_pattern=pattern)):
                self._nodes.fetched(found[0].node, found)
                return found
        return []

    async def ack(self, *jobs: JobName) -> int:
        return sum([await self._do(commands.ack(some)) for some in commands.by_node(jobs)])

    async def fastack(self, *jobs: JobName) -> int:
        return sum([await self._do(commands.fastack(some)) for some in commands.by_node(jobs)])

    async def nack(self, *jobs: JobName, delay: int | None = None) -> int:
        return sum([await self._do(commands.nack(some, delay)) for some in commands.by_node(jobs)])

    async def enqueue(self, *jobs: JobName) -> int:
        return sum([await self._do(commands.enqueue(some)) for some in commands.by_node(jobs)])

    async def dequeue(self, *jobs: JobName) -> int:
        return sum([await self._do(commands.dequeue(some)) for some in commands.by_node(jobs)])

    async def delete(self, *jobs: JobName) -> int:
        return sum([await self._do(commands.delete(some)) for some in commands.by_node(jobs)])

    async def working(self, job: JobName) -> int:
        return await self._do(commands.working(job))

    async def show(self, job: JobName) -> dict[str, Shown] | None:
        return await self._do(commands.show(job))

    async def wait(self, job: JobName, timeout: float | None = None) -> str | None:
        for wait_ms in turns(timeout):
            if (end := await self._do(commands.wait(job, wait_ms))) is not None:
                return end
        return None

    # Queues

    async def qlen(self, queue: str | bytes) -> int:
        return await self._do(commands.qlen(queue))

    async def qstat(self, queue: str | bytes) -> dict[str, Shown] | None:
        return await self._do(commands.qstat(queue))

    async def qpeek(self, queue: str | bytes, count: int = 1) -> list[Job]:
        return await self._do(commands.qpeek(queue, count))

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
        fetch = partial(self._until_closed, queues, pattern)
        while not self._is_closed:
            async with AsyncJobWork[Job | None](self, fetch, has_heartbeat=heartbeat, delay=delay) as job:
                if job is None:
                    return
                yield job

    async def _until_closed(self, queues: Sequence[str | bytes], pattern: bool) -> Job | None:
        try:
            return await self.get(*queues, pattern=pattern)
        except ServersAway:
            if self._is_closed:
                return None
            raise

    # Connections

    async def _do(self, command: JobCommand[T]) -> T:
        attempts = Attempts(self._nodes, command, self._patience_ms)
        while True:
            for address in attempts.addresses():
                try:
                    return await self._asked(address, command)
                except KestrelError as problem:
                    if self._is_closed:
                        raise ServersAway({address: CLOSED}) from problem
                    attempts.failed(address, problem)
            await asyncio.sleep(attempts.pause_s())

    async def _asked(self, address: str, command: JobCommand[T]) -> T:
        connection, is_done = await self._connection(address), False
        if command.wait_ms:
            self._waiting.add(connection)
        is_late = False
        try:
            result = await connection.ask(command)
            is_done = True
        except asyncio.CancelledError:
            is_late = command.hands_out and not self._is_closed
            raise
        finally:  # even if the task is cancelled: its reply would be taken for the next command's
            self._waiting.discard(connection)
            idle = self._idle.setdefault(address, [])
            if is_done and not self._is_closed and len(idle) < IDLE_MAX:
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
            await _give_back_to(self.enqueue, job)

    async def _connection(self, address: str) -> "AsyncJobConnection":
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        connection = await AsyncJobConnection.open(address, self._login, self._timeout_ms)
        self._nodes.met(address, connection.hello)
        return connection

    async def close(self) -> None:
        """Close all connections. Calls that wait raise ServersAway: the client is closed."""
        if self._late:
            await asyncio.wait(self._late)
        self._is_closed = True
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
                await self._give_back(self._client.enqueue)
        return job  # type: ignore[return-value]  # None is what `fetch` returns where J allows it

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        job = self._job
        if kind is None:
            await self._stop_beating()
            if job is not None:
                acknowledged(job, await self._client.ack(job))
        elif issubclass(kind, Exception):
            await self._give_back(partial(self._client.nack, delay=self._delay))
        else:
            await self._give_back(self._client.enqueue)

    async def _give_back(self, to_queue: Callable[[Job], Awaitable[int]]) -> None:
        await self._stop_beating()
        if self._job is not None:
            await _give_back_to(to_queue, self._job)

    async def _stop_beating(self) -> None:
        self._over.set()
        if self._heartbeat is not None:
            # No WORKING may be on its way: it would take a job that is given back out of its queue.
            await asyncio.wait([self._heartbeat])


async def _give_back_to(to_queue: Callable[[Job], Awaitable[int]], job: Job) -> None:
    """Give a job back. A failure is only logged: the exception that led here says more."""
    try:
        await to_queue(job)
    except KestrelError as problem:
        not_given_back(job, problem)


async def _beat(client: AsyncJobClient, job: Job, over: asyncio.Event) -> None:
    """Send WORKING until `over` is set."""
    pause_s: float | None = 0
    while pause_s is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await over.wait()
                return
        try:
            pause_s = beat_after_s(await client.working(job))
        except JobRefused as refusal:
            no_more_beats(job, refusal)
            return
        except KestrelError:
            pause_s = BEAT_AGAIN_S


class AsyncJobConnection:
    """JobConnection for an event loop."""

    def __init__(
        self, address: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], timeout_ms: int
    ) -> None:
        self.hello = NodeHello("")
        self._address = address
        self._incoming, self._outgoing = streams
        self._timeout_ms = timeout_ms
        self._reader = RespReader()
        self._values: deque[RespValue] = deque()

    @classmethod
    async def open(cls, address: str, login: Login, timeout_ms: int) -> Self:
        """Connect to a node and introduce this client. Raises ServersAway, LoginRefused or ServerUnfit."""
        place = ServerAddress.parse(address, JOBS_PORT_DEFAULT)
        connection: Self | None = None
        is_in = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if place.path:
                    streams = await asyncio.open_unix_connection(place.path)
                else:
                    context = login.context if login.uses_tls(place) else None
                    streams = await asyncio.open_connection(place.host, place.port, ssl=context)
                connection = cls(address, streams, timeout_ms)
                await connection._introduce(login)
            is_in = True
            return connection
        except OSError as error:
            raise ServersAway({address: _reason_of(error, timeout_ms)}) from error
        finally:
            if connection is not None and not is_in:
                connection.close()

    async def _introduce(self, login: Login) -> None:
        introduction = introduce(self._address, login)
        words = next(introduction)
        try:
            while True:
                words = introduction.send(await self._exchange(words))
        except StopIteration as ended:
            self.hello = ended.value

    @property
    def is_usable(self) -> bool:
        """True if, as far as can be told, the server is still at the other end."""
        return not self._incoming.at_eof() and not self._outgoing.is_closing()

    async def ask(self, command: JobCommand[T]) -> T:
        """Send a command and return its result."""
        wait_ms = self._timeout_ms + command.wait_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                reply = await self._exchange(command.words)
        except OSError as error:
            raise ConnectionLost(self._address, _reason_of(error, wait_ms)) from error
        return result_of(self._address, command, reply)

    async def last_result(self, command: JobCommand[list[Job]]) -> list[Job]:
        """Return jobs that the node may have sent before it learns that nobody waits, and close the connection."""
        try:
            if not self._outgoing.can_write_eof():
                return []
            async with asyncio.timeout(self._timeout_ms / 1000):
                self._outgoing.write_eof()
                while data := await self._incoming.read(RECEIVE_BYTES):
                    self._values += read_values(self._address, self._reader, data)
            return result_of(self._address, command, self._values.popleft()) if self._values else []
        except (OSError, KestrelError):
            return []
        finally:
            self.close()

    async def _exchange(self, words: Iterable[Word]) -> RespValue:
        self._outgoing.write(request(list(words)))
        await self._outgoing.drain()
        while not self._values:
            data = await self._incoming.read(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError(0, "it closed the connection")
            self._values += read_values(self._address, self._reader, data)
        return self._values.popleft()

    def close(self) -> None:
        """Close at once; bytes on their way are lost."""
        self._outgoing.transport.abort()


def _reason_of(error: OSError, timeout_ms: int) -> str:
    """Return the reason for an error, for which asyncio has texts of its own."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_ms} ms"
    return "connection refused" if isinstance(error, ConnectionRefusedError) else reason_of(error)
