"""AsyncKeeper: the task that keeps the leases at one server, on one connection, and pings that.

See keeper_calls.py.
"""

import asyncio
from collections.abc import Awaitable, Callable

from kestreld.client.async_transport import AsyncTransport
from kestreld.client.calls import carry_out_in_loop
from kestreld.client.keeper_calls import Alive, KeeperCalls, KeeperStep, Kept, Rest
from kestreld.client.queue_talks import Answer
from kestreld.errors import KestrelError


class AsyncKeeper:
    """The task that keeps leases, as long as there are any."""

    def __init__(
        self,
        address: str,
        connect: Callable[[], Awaitable[AsyncTransport[Answer]]],
        timeout_ms: int,
        alive: Alive | None,
        *,
        is_waited_on: Callable[[], bool],
        note: Callable[[KestrelError, int], None],
    ) -> None:
        """See KeeperCalls."""
        self._bell = asyncio.Event()
        self._calls = KeeperCalls(address, timeout_ms, alive, is_waited_on=is_waited_on, ring=self._bell.set, note=note)
        self._connect = connect
        self._connection: AsyncTransport[Answer] | None = None
        self._task: asyncio.Task[None] | None = None

    def keep(self, kept: Kept) -> None:
        """Keep a lease."""
        self._calls.keep(kept)
        self.must_run()

    def must_run(self) -> bool:
        """Ping the server as long as somebody waits for it. True = that has just begun."""
        if self._task is not None and not self._task.done():
            return False
        self._task = asyncio.create_task(self._run(), name=f"keeper of leases at {self._calls.address}")
        return True

    async def stop(self, kept: Kept) -> None:
        """Keep a lease no longer. Returns once no extension of it is under way."""
        await carry_out_in_loop(self._calls.stop(kept), lambda step: asyncio.sleep(step.seconds))

    async def close(self) -> None:
        """Have the task end as soon as nobody needs it: leases outlive their cluster."""
        self._calls.close()
        if self._task is not None and not self._calls.is_needed:
            self._task.cancel()  # it may wait for an answer
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        is_needed = True
        try:
            while is_needed:
                await carry_out_in_loop(self._calls.run(), self._take)
                is_needed = self._calls.is_needed
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _take(self, step: KeeperStep) -> object:
        if isinstance(step, Rest):
            await self._rest(step.ms / 1000)
            return None
        if self._connection is None:
            self._connection = await self._connect()
        is_done = not step.requests
        answers: list[Answer] = []
        try:
            if step.requests:
                answers = await self._connection.answers(step.requests, step.answer_ms)
                is_done = True
        finally:
            if not is_done:
                self._hang_up()
        return answers

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            pass
        self._bell.clear()
