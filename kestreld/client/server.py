"""One server of several: its free connections, its open reads, and the times at which it is tried while away."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Event, Lock, Thread
from typing import Final, TypeVar
from weakref import WeakMethod, ref

from kestreld.client.absence import Absence, now_ms
from kestreld.client.access import Login
from kestreld.client.connection import ClientConnection
from kestreld.client.keeper import Keeper
from kestreld.client.keeper_calls import PING, PING_ANSWER_MS, PING_MS, Alive, is_silence
from kestreld.client.own_leases import OwnLeases
from kestreld.client.queue_talks import token_of
from kestreld.client.transport import Transport
from kestreld.client.unpatched import is_patched, original
from kestreld.errors import ConnectionLost, KestrelError, ServerRefused, ServersAway, ServerUnfit
from kestreld.forks import restart_in_child

T = TypeVar("T")

IDLE_MAX: Final = 256  # free connections beyond these are closed
LAST_WORDS_MS: Final = 500  # for which an interruption of a lease waits for what the server has sent meanwhile

_log: Final = logging.getLogger("kestreld.client")


def event_in_child(event: Event) -> Event:
    """Return a forked child's own event, because a thread of the parent may hold the lock of the old one."""
    own = Event()
    if event.is_set():
        own.set()
    return own


class Server:
    """One server. Any number of threads may use it at once: each has a connection to itself while it needs one."""

    def __init__(
        self,
        address: str,
        login: Login,
        timeout_ms: int,
        chance: Random | None = None,
        alive: Alive | None = None,
    ) -> None:
        """`alive`: asked before leases are extended."""
        self.address = address
        self._login = login
        self._timeout_ms = timeout_ms
        self._chance = chance if chance is not None else Random()
        self._closed = False
        self._waiting = Waiting()
        self.after_fork()
        restart_in_child(self)
        note = WeakMethod(self._note_of_keeper)  # its thread does not keep a server that nobody else has
        self.keeper = Keeper(
            address,
            login,
            timeout_ms,
            alive,
            is_waited_on=self._waiting.has_any,
            note=lambda problem, answer_ms: None if (noted := note()) is None else noted(problem, answer_ms),
        )

    def after_fork(self) -> None:
        """Start without connections and thread, and with new locks: a thread of the parent may hold the old ones."""
        self._lock = Lock()
        self._over = Event()  # ends the thread that tries the server
        self._idle: list[ClientConnection] = []
        self._waiting.after_fork()
        self._absence = Absence(self.address, self._timeout_ms, self._chance)
        self.own_leases = OwnLeases()

    @property
    def next_try_at_ms(self) -> int:
        """Time of the next try on the monotonic clock, ms; 0 = the server is not left out."""
        return self._absence.next_try_at_ms

    def connection(self, *, is_urgent: bool = False) -> ClientConnection:
        """Return a connection that nobody else uses: give it back, or close it. Raises ServersAway or ServerUnfit.

        `is_urgent` = connect also to a server that is left out.
        """
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_usable:
                    return connection
                connection.close()
            if not is_urgent and (absent := self._absence.problem()) is not None:
                raise absent
        connection = ClientConnection(self.address, self._login, self._timeout_ms)
        try:
            connection.connect()
            return connection
        except KestrelError as problem:
            self.note(problem)
            raise

    def note(self, problem: KestrelError, answer_ms: int = 0) -> None:
        """Note a failed command. A server that does not answer, or refuses everything, is left out: see Absence."""
        if not self._absence.is_due_to(problem):
            return
        self._close_idle()
        self._leave_out(problem, answer_ms)

    def _note_of_keeper(self, problem: KestrelError, answer_ms: int) -> None:
        """Note that the keeper has got no answer. If the server is silent, its other connections lead nowhere, too."""
        if not is_patched():  # no greenlet may be made in the keeper's thread
            self.note(problem, answer_ms)
        if is_silence(problem):
            for connection in self._idle.copy():  # some stay if that thread may not close them
                connection.hang_up()
            self._waiting.hang_up()

    def _leave_out(self, problem: KestrelError, answer_ms: int) -> None:
        """Leave the server out until it answers a thread that tries it: no operation waits for that."""
        is_tried = False
        try:
            with self._lock:
                if self._closed or not self._absence.begin(problem, answer_ms):
                    is_tried = True
                    return
            Thread(target=_try_again, args=(ref(self), self._over), name=f"trying {self.address}", daemon=True).start()
            is_tried = True
        finally:
            if not is_tried:
                self._absence.end()

    def is_back(self) -> bool:
        """Try the server. If it is not back, plan the next try at a longer interval."""
        connection = ClientConnection(self.address, self._login, self._timeout_ms)
        try:
            connection.must_be_known()
            connection.server_version()
        except (ServersAway, ServerUnfit, ConnectionLost):
            with self._lock:
                self._absence.go_on()
            return False
        except ServerRefused:  # it refuses to tell its version, but it answers
            pass
        with self._lock:
            self._absence.end()
        with suppress(KestrelError):
            connection.carry_out(self.own_leases.settle_all(connection.talks))
        if connection.is_connected:
            self.give_back(connection)
        return True

    def give_back(self, connection: ClientConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def waited_on(self, connection: ClientConnection, wait_ms: int) -> Iterator[None]:
        """Register a connection on which somebody waits in a block: it is hung up if the server falls silent."""
        with self._waiting.on(connection):
            if wait_ms > PING_MS and self.keeper.must_run():
                # It may have been silent before the keeper had a connection.
                connection.answers([PING], min(self._timeout_ms, PING_ANSWER_MS))
            yield

    def asked(self, do: Callable[[ClientConnection], T], *, is_urgent: bool = False) -> T:
        """Return the result of `do` with a connection, which is closed if `do` fails. Raises as `connection`."""
        connection, answer = self._asked_on(do, is_urgent=is_urgent)
        self.give_back(connection)
        return answer

    def leased(self, connection: ClientConnection, queue: bytes, lease: Callable[[ClientConnection], T]) -> T:
        """Return the outcome of `lease`. What comes for a caller that is interrupted meanwhile is given back."""
        before, is_over = connection.last_header, False
        try:
            outcome = lease(connection)
            is_over = True
            return outcome
        except KestrelError:
            is_over = True
            raise
        finally:
            if not is_over and (header := connection.hear_out(LAST_WORDS_MS)) != before:
                self._give_back_leased(queue, token_of(header))

    def _give_back_leased(self, queue: bytes, token: int) -> None:
        try:
            self.asked(lambda other: other.give_back(queue, token), is_urgent=True)
        except KestrelError as problem:
            _log.warning("an item leased for an interrupted caller comes again when its lease is over: %s", problem)

    def opened(self, key: bytes, fetch: Callable[[ClientConnection], bytes | None]) -> "OpenRead | None":
        """Return the item of queue `key` that `fetch` opens, with its connection. Raises as `connection`."""
        connection, item = self._asked_on(fetch)
        if item is not None:
            return OpenRead(self, connection, key, item)
        self.give_back(connection)
        return None

    def _asked_on(self, do: Callable[[ClientConnection], T], *, is_urgent: bool = False) -> tuple[ClientConnection, T]:
        connection = self.connection(is_urgent=is_urgent)
        succeeded = False
        try:
            answer = do(connection)
            succeeded = True
        except KestrelError as problem:
            self.note(problem)
            raise
        finally:
            if not succeeded:
                connection.close()
        return connection, answer

    def end_waits(self) -> None:
        """Have those who wait for the server find nothing, now and from now on."""
        self._waiting.end()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._over.set()
        self.end_waits()
        self._close_idle()
        self.keeper.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _try_again(left_out: "ref[Server]", over: Event) -> None:
    """Try a server until it is back or no longer wanted."""
    while (server := left_out()) is not None:
        left_ms = server.next_try_at_ms - now_ms()
        del server
        if over.wait(left_ms / 1000) or (server := left_out()) is None or server.is_back():
            return


class Waiting:
    """Connections on which somebody waits, until `end`."""

    def __init__(self) -> None:
        self._over = False
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the connections: threads of the parent wait on them."""
        self._lock = original("_thread", "allocate_lock")()  # keepers take it
        self._connections: set[Transport] = set()

    def is_over(self) -> bool:
        return self._over

    def has_any(self) -> bool:
        return bool(self._connections)

    @contextmanager
    def on(self, connection: Transport) -> Iterator[None]:
        """Register a connection for a block, in which commands raise ConnectionLost after `end`."""
        with self._lock:
            self._connections.add(connection)
            if self._over:
                connection.hang_up()
        try:
            yield
        finally:
            with self._lock:
                self._connections.remove(connection)

    def end(self) -> None:
        self._over = True
        self.hang_up()

    def hang_up(self) -> None:
        """Have those who wait now notice that their connections are lost."""
        with self._lock:
            for connection in self._connections:
                connection.hang_up()


class OpenRead:
    """An item that the server has set aside for us, on a connection that is used for nothing else until the end."""

    def __init__(self, server: Server, connection: ClientConnection, key: bytes, item: bytes) -> None:
        self.item = item
        self._server = server
        self._connection = connection
        self._key = key

    def close(self) -> None:
        """Confirm the item. Raises ConnectionLost: then it may be delivered again."""
        self._end(b"/close")

    def abort(self) -> None:
        """Return the item to the head of the queue; a lost connection has done so by itself."""
        with suppress(ConnectionLost):
            self._end(b"/abort")

    @contextmanager
    def used(self) -> Iterator[bytes]:
        """Yield the item for a block: returned to the head if the block fails, else to be closed by the caller."""
        succeeded = False
        try:
            yield self.item
            succeeded = True
        finally:
            if not succeeded:
                self.abort()

    def close_in_hand(self) -> None:
        """Confirm an item that its user already has; a failure is only logged."""
        try:
            self.close()
        except ConnectionLost as lost:
            _log.warning("an item of %s may be delivered again: %s", self._key.decode("utf-8", "replace"), lost)

    def hang_up(self) -> None:
        """Abort without waiting for the server."""
        self._connection.close()

    def _end(self, option: bytes) -> None:
        ended = False
        try:
            self._connection.fetch(self._key, option)
            ended = True
        except KestrelError as problem:
            self._server.note(problem)
            raise
        finally:
            if ended:
                self._server.give_back(self._connection)
            else:
                self._connection.close()
