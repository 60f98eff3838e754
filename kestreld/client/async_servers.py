"""One server of several in an event loop: its free connections, and the times at which it is tried while away."""

import asyncio
import logging
from collections.abc import Coroutine
from random import Random
from typing import Any, Final, TypeVar

from kestreld.client.absence import Absence, now_ms
from kestreld.client.access import Login
from kestreld.client.async_keeper import AsyncKeeper
from kestreld.client.async_transport import AsyncTransport
from kestreld.client.blocks import text
from kestreld.client.calls import carry_out_in_loop
from kestreld.client.keeper_calls import PING, PING_ANSWER_MS, PING_MS, Alive, is_silence
from kestreld.client.own_leases import OwnLeases
from kestreld.client.pool_calls import Ask, Take, talking
from kestreld.client.queue_talks import Answer, QueueTalks, Request, Talk, token_of
from kestreld.client.replies import ReplyParser, UnparsableReply
from kestreld.client.server import IDLE_MAX
from kestreld.errors import ConnectionLost, KestrelError, ServersAway, ServerUnfit, UnexpectedReply

T = TypeVar("T")
_log: Final = logging.getLogger("kestreld.client")


class AsyncQueueConnection(AsyncTransport[Answer]):
    """Connection to a server with queues."""

    def _begin(self) -> None:
        self.talks = QueueTalks(self.address)
        self._parser = ReplyParser()

    def _read(self, data: bytes) -> list[Answer]:
        try:
            return [Answer(reply, self._parser.header) for reply in self._parser.feed(data)]
        except UnparsableReply as error:
            raise UnexpectedReply(self.address, str(error)) from error

    async def _enter(self, login: Login) -> None:
        await carry_out_in_loop(self.talks.enter(login.user, lambda: login.secret), self._take)

    async def carry_out(self, talk: Talk[T]) -> T:
        return await carry_out_in_loop(talk, self._take)

    async def _take(self, request: Request) -> Answer:
        return await self.answer(request.data, request.wait_ms)

    async def last_token(self) -> int:
        """Return the token of an item that was leased for a task which is gone, and close the connection; 0 = none."""
        for answer in await self.last_values():
            if isinstance(answer.reply, tuple) and answer.reply:
                return token_of(answer.header)
        return 0


class AsyncServer:
    """One server. Each task has a connection to itself while it needs one."""

    def __init__(self, address: str, login: Login, timeout_ms: int, chance: Random, alive: Alive | None = None) -> None:
        """`alive`: asked before leases are extended."""
        self.address = address
        self._login = login
        self._timeout_ms = timeout_ms
        self._is_closed = False
        self._idle: list[AsyncQueueConnection] = []
        self._waiting: set[AsyncQueueConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # that give back what came for cancelled tasks
        self._trying: asyncio.Task[None] | None = None
        self._absence = Absence(address, timeout_ms, chance)
        self.keeper = AsyncKeeper(
            address,
            self._connect,
            timeout_ms,
            alive,
            is_waited_on=lambda: bool(self._waiting),
            note=self._note_of_keeper,
        )
        self.own_leases = OwnLeases()

    @property
    def next_try_at_ms(self) -> int:
        """Time of the next try on the monotonic clock, ms; 0 = the server is not left out."""
        return self._absence.next_try_at_ms

    async def asked(self, step: Ask["AsyncServer"]) -> Any:
        """Return the outcome of a step. Raises ServersAway, ServerUnfit, or what the step raises."""
        connection = await self._connection(is_urgent=step.is_urgent)
        if step.wait_ms:
            self._waiting.add(connection)
        is_done = is_late = False
        outcome: Any = None
        try:
            if step.wait_ms > PING_MS and self.keeper.must_run():
                # It may have been silent before the keeper had a connection.
                await connection.answers([PING], min(self._timeout_ms, PING_ANSWER_MS))
            outcome = await step.do(connection)
            is_done = True
        except KestrelError as problem:
            self._note(problem)
            raise
        except asyncio.CancelledError:
            is_late = bool(step.leases_from) and not self._is_closed
            raise
        finally:  # even if the task is cancelled: its reply would be taken for the next one's
            self._waiting.discard(connection)
            if is_done and outcome is not None and isinstance(step, Take):
                self._spawn(self._confirm(connection, step.key))
            elif is_done:
                self._keep(connection)
            elif is_late:
                self._spawn(self._give_back(connection, step.leases_from))
            else:
                connection.close()
        return outcome

    def _keep(self, connection: AsyncQueueConnection) -> None:
        if self._is_closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _confirm(self, connection: AsyncQueueConnection, queue: bytes) -> None:
        """Confirm an item that its task already has: nothing that is cancelled meanwhile can lose it."""
        try:
            await connection.carry_out(connection.talks.fetch(queue, b"/close"))
            self._keep(connection)
        except KestrelError as problem:
            connection.close()
            self._note(problem)
            _log.warning("an item of %s may be delivered again: %s", text(queue), problem)

    async def _give_back(self, connection: AsyncQueueConnection, queue: bytes) -> None:
        """Give back an item that was leased for a task which was cancelled meanwhile."""
        if token := await connection.last_token():
            talk = talking(lambda talks: talks.give_back(queue, token))
            try:
                await self.asked(Ask(self, talk, is_urgent=True))
            except KestrelError as problem:
                _log.warning("an item leased for a cancelled task comes again when its lease is over: %s", problem)

    async def _connection(self, *, is_urgent: bool) -> AsyncQueueConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        if not is_urgent and (absent := self._absence.problem()) is not None:
            raise absent
        try:
            return await self._connect()
        except KestrelError as problem:
            self._note(problem)
            raise

    async def _connect(self) -> AsyncQueueConnection:
        return await AsyncQueueConnection.open(self.address, self._login, self._timeout_ms)

    def _note_of_keeper(self, problem: KestrelError, answer_ms: int) -> None:
        """Note that the keeper has got no answer. If the server is silent, its other connections lead nowhere, too."""
        self._note(problem, answer_ms)
        if is_silence(problem):
            for connection in self._waiting:
                connection.close()

    def _note(self, problem: KestrelError, answer_ms: int = 0) -> None:
        """Note a failure. A server that does not answer, or refuses everything, is left out until a try succeeds."""
        if not self._absence.is_due_to(problem):
            return
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if not self._is_closed and self._absence.begin(problem, answer_ms):
            self._trying = asyncio.create_task(self._try_again(), name=f"trying {self.address}")

    async def _try_again(self) -> None:
        """Try the server until it is back."""
        while True:
            await asyncio.sleep(max(self._absence.next_try_at_ms - now_ms(), 0) / 1000)
            try:
                connection = await self._connect()
            except (ServersAway, ServerUnfit, ConnectionLost):
                self._absence.go_on()
                continue
            self._absence.end()
            is_settled = False
            try:
                await connection.carry_out(self.own_leases.settle_all(connection.talks))
                is_settled = True
            except KestrelError as problem:
                self._note(problem)
            finally:
                if is_settled:
                    self._keep(connection)
                else:
                    connection.close()
            return

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._is_closed = True
        if self._trying is not None:
            self._trying.cancel()
        for connection in [*self._idle, *self._waiting]:
            connection.close()
        self._idle.clear()
        await self.keeper.close()
