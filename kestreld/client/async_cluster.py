"""AsyncKestrelCluster: several independent kestrelds used as one, from asyncio."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kestreld import checks
from kestreld.client.access import Login
from kestreld.client.async_servers import AsyncServer
from kestreld.client.calls import Pause, carry_out_in_loop, documented
from kestreld.client.cluster_face import ClusterFace
from kestreld.client.keeper_calls import Alive, Kept
from kestreld.client.lease_calls import SPAN_MS_MAX, LeaseCalls, LeaseFace, lease_span_ms
from kestreld.client.pool_calls import PoolCall, Step, talking
from kestreld.client.queue_calls import QueueCalls

P = ParamSpec("P")
T = TypeVar("T")
Carry = Callable[[PoolCall[AsyncServer, Any]], Coroutine[Any, Any, Any]]


class AsyncKestrelCluster(ClusterFace):
    """KestrelCluster for one event loop: its queues have the same methods, to be awaited.

    A task that is cancelled while it waits for an item takes none along: what comes for it nevertheless is given back.
    """

    def _server(self, address: str, login: Login, timeout_ms: int, chance: Random, alive: Alive | None) -> AsyncServer:
        return AsyncServer(address, login, timeout_ms, chance, alive)

    def _begin(self, chance: Random, *, is_ours: bool) -> None:
        self._closed = asyncio.Event()

    async def close(self) -> None:
        """Close all connections, once what came for cancelled tasks is given back. Reads that wait return None."""
        self._calls.close()
        self._closed.set()
        await self._carry_out(self._calls.settle())
        for server in self._calls.servers:
            await server.close()

    def queue(self, name: str) -> "AsyncClusterQueue":
        """Return the queue of this name. Raises BadQueueName."""
        return AsyncClusterQueue(QueueCalls(self._calls, name), self._carry_out)

    async def stats(self) -> dict[str, dict[str, int | str]]:
        """Return the counters of each server that can be reached, by address. Raises ServersAway if there is none."""
        return (await self._carry_out(self._calls.each(talking(lambda talks: talks.server_stats()))))[0]

    async def _carry_out(self, call: PoolCall[AsyncServer, T]) -> T:
        return await carry_out_in_loop(call, self._take)

    async def _take(self, step: Step[AsyncServer]) -> object:
        if not isinstance(step, Pause):
            return await step.server.asked(step)
        try:
            async with asyncio.timeout(step.seconds):
                await self._closed.wait()
        except TimeoutError:
            pass
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _in_loop(
    call: Callable[Concatenate[QueueCalls[AsyncServer], P], PoolCall[AsyncServer, T]],
) -> "Callable[Concatenate[AsyncClusterQueue, P], Coroutine[Any, Any, T]]":
    """Make a call a coroutine method, which carries it out."""

    async def method(self: "AsyncClusterQueue", /, *args: P.args, **options: P.kwargs) -> T:
        return await self._carry_out(call(self._calls, *args, **options))  # type: ignore[no-any-return]

    return documented(method, call)


class AsyncClusterQueue:
    """The queue of this name on all servers, for an event loop. See ClusterQueue; it has no open reads, but leases."""

    def __init__(self, calls: QueueCalls[AsyncServer], carry_out: Carry) -> None:
        self.name = calls.name
        self._calls = calls
        self._carry_out = carry_out

    put = _in_loop(QueueCalls[AsyncServer].put)
    cancel = _in_loop(QueueCalls[AsyncServer].cancel)
    get = _in_loop(QueueCalls[AsyncServer].get)
    peek = _in_loop(QueueCalls[AsyncServer].peek)
    flush = _in_loop(QueueCalls[AsyncServer].flush)
    flush_counted = _in_loop(QueueCalls[AsyncServer].flush_counted)
    delete = _in_loop(QueueCalls[AsyncServer].delete)
    stats = _in_loop(QueueCalls[AsyncServer].stats)

    async def lease(
        self,
        seconds: float,
        wait_ms: int | None = 0,
        *,
        timeout: float | None = None,
        heartbeat: bool = False,
        by: str | None = None,
    ) -> "AsyncClusterLease | None":
        """Lease a head item of any server for some seconds, as ClusterQueue.lease does. None = there is none.

        With `heartbeat` a task extends the lease while its `async with` block lasts.
        """
        checks.switch(heartbeat, "heartbeat")
        request, is_handed_over = self._calls.lease_request(by), False
        try:
            found = await self._carry_out(self._calls.lease(seconds, wait_ms, timeout, request))
            lease = None if found is None else AsyncClusterLease(found, has_heartbeat=heartbeat)
            is_handed_over = True
            return lease
        finally:
            if not is_handed_over:
                request.drop()


class AsyncClusterLease(LeaseFace[AsyncServer]):
    """ClusterLease for an event loop: its methods are awaited, and its block is `async with`."""

    def __init__(self, calls: LeaseCalls[AsyncServer], *, has_heartbeat: bool) -> None:
        super().__init__(calls)
        self._has_heartbeat = has_heartbeat
        self._kept: Kept | None = None

    async def confirm(self) -> bool:
        """Confirm the item: it is done."""
        return await self._ended(self._calls.confirm())

    async def give_back(self, delay: float = 0) -> bool:
        """Return the item, before others, or to be delivered after `delay` seconds. Not a failure."""
        return await self._ended(self._calls.give_back(checks.seconds_ms(delay, "delay", SPAN_MS_MAX)))

    async def fail(self, *, reason: str | None = None) -> bool:
        """Return the item as failed, and say why: see ClusterLease.fail."""
        return await self._ended(self._calls.fail(checks.reason(reason, "reason")))

    async def extend(self, seconds: float) -> bool:
        """Let the lease last `seconds` from now, even if that is shorter."""
        return await carry_out_in_loop(self._calls.extend(lease_span_ms(seconds)), _take)

    async def _ended(self, call: PoolCall[AsyncServer, T]) -> T:
        if self._kept is not None:
            await self._calls.server.keeper.stop(self._kept)
        return await carry_out_in_loop(call, _take)

    async def __aenter__(self) -> Self:
        if self._has_heartbeat:
            self._kept = Kept(self._calls)
            self._calls.server.keeper.keep(self._kept)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._ended(self._calls.end_block(kind))


async def _take(step: Step[AsyncServer]) -> object:
    """Do a step of a lease, which lives on when its cluster is closed."""
    if isinstance(step, Pause):
        await asyncio.sleep(step.seconds)
        return None
    return await step.server.asked(step)
