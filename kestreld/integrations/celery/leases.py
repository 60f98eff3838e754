"""LeaseKeeper: what a transport has leased, kept by a thread with a connection of its own.

The thread extends leases in batches while the transport is alive, and repeats what ends a lease where the connection
that said so was lost. It goes on after the transport was closed, until nothing is leased any more.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kestreld.client.absence import now_ms
from kestreld.client.heartbeat import AGAIN_MS, AGAIN_MS_MAX
from kestreld.client.queue_talks import refusal
from kestreld.client.replies import Reply
from kestreld.errors import ConnectionLost, KestrelError
from kestreld.forks import restart_in_child
from kestreld.integrations.celery.wire import Wire, wait_for

BEATS: Final = 3  # extensions in the time of one lease
TURN_MS: Final = 500  # the most between two looks at what is due
FINISH_MS: Final = 5000  # how long a process that ends waits for a server that is away
BATCH: Final = 1000  # extensions that are sent together

_ENDED: Final = (b"DELETED", b"TOUCHED", b"NOT_FOUND")  # replies to what ends leases
_log: Final = logging.getLogger("kestreld.celery")


@dataclass(eq=False, slots=True)
class HeldItem:
    """An item that is leased to this process."""

    queue: bytes
    token: int
    since_ms: int  # on the monotonic clock: when it was leased or extended
    is_returned: bool = False  # it was given back

    @property
    def item(self) -> tuple[bytes, int]:
        """What all attempts at the item have in common: a token ends with a digest and the number of the attempt."""
        return self.queue, self.token >> 29


@dataclass(eq=False, slots=True)
class End:
    """The end of a lease: the command, and whether it may have been carried out without an answer."""

    held: HeldItem
    command: bytes
    was_sent: bool = False


class LeaseKeeper:
    """Keeper of the leases of one transport. `alive` says whether they are to be extended."""

    def __init__(
        self, wire: Wire, lease_ms: int, alive: Callable[[], bool], look: Callable[[], None], *, stays: bool = False
    ) -> None:
        """`look` is called in each turn of the thread. `stays`: its connection is open while anything is held."""
        self._wire = wire
        self._lease_ms = lease_ms
        self._alive = alive
        self._look = look
        self._stays = stays
        self._held: dict[int, HeldItem] = {}
        self._ending: dict[int, HeldItem] = {}  # what ends their lease was not answered yet
        self._ends: deque[End] = deque()
        self._orphans: deque[str] = deque()  # names under which items may be leased that never arrived
        self._is_running = False
        self._is_closed = False
        restart_in_child(self)

    def after_fork(self) -> None:
        """Leave everything to the parent."""
        self._held, self._ending, self._ends, self._orphans = {}, {}, deque(), deque()
        self._is_running, self._is_closed = False, True

    # What is held

    def hold(self, item: HeldItem) -> None:
        self._held[id(item)] = item
        if not self._is_running:
            self.start()

    def let_go(self, item: HeldItem) -> None:
        """Extend the lease of an item no longer: it is about to be ended, and that will be `answered`."""
        self._ending[id(item)] = item
        self._held.pop(id(item), None)

    def finish(self, end: End) -> None:
        """Carry out what ends a lease, repeating it until it is answered or the lease is over."""
        self._ends.append(end)
        self.start()

    def answered(self, end: End, reply: Reply | None) -> None:
        """Take in the reply to the end of a lease that was sent on some other connection; None = it was lost."""
        if reply is None:
            end.was_sent = True
            self.finish(end)
            return
        self._ending.pop(id(end.held), None)
        if reply == b"NOT_FOUND" and not end.was_sent:
            _log.warning(
                "%s: lease %d was over before it was ended: the message may have been delivered again",
                end.held.queue.decode("utf-8", "replace"),
                end.held.token,
            )
        elif reply not in _ENDED:
            _log.warning("%s answered: %r", self._wire.address, reply)

    def give_back_unknown(self, holder: str) -> None:
        """Give back what is leased under a name whose connection is gone, and not held here."""
        self._orphans.append(holder)
        self.start()

    @property
    def is_connected(self) -> bool:
        """True if the server could be reached the last time."""
        return self._wire.is_open

    def close(self) -> None:
        """Let the thread end once nothing is held, and wait for what is to be said to the server before that."""
        self._is_closed = True
        until_ms = now_ms() + FINISH_MS
        while self._ends and self._is_running and now_ms() < until_ms:
            wait_for((), 0.005)

    # The thread

    def start(self) -> None:
        if not self._is_running:
            self._is_running = True
            start_thread(self._run)

    def _run(self) -> None:
        pause_ms = AGAIN_MS
        while not (self._is_closed and not self._held and not self._ends):
            try:
                self._turn()
                pause_ms = AGAIN_MS
            except KestrelError as problem:
                _log.debug("leases: %s", problem)
                self._look()
                wait_for((), pause_ms / 1000)
                pause_ms = min(2 * pause_ms, AGAIN_MS_MAX)
                continue
            self._look()
            if not self._ends:
                self._rest(min(TURN_MS, self._lease_ms // (2 * BEATS)) / 1000)
        self._wire.close()
        self._is_running = False
        if self._held or self._ends:  # since the loop has ended
            self.start()

    def _rest(self, seconds: float) -> None:
        """Pause, unless the connection is lost."""
        if not self._wire.is_open:
            wait_for((), seconds)
        elif wait_for((self._wire,), seconds):
            self._wire.receive_if_ready()

    def _turn(self) -> None:
        if self._stays and self._held:
            self._wire.open()
        self._extend()
        while self._ends:
            self._finish_batch()
        while self._orphans:
            self._give_back_of(self._orphans[0])
            self._orphans.popleft()

    def _extend(self) -> None:
        due_ms = now_ms() - self._lease_ms // BEATS
        due = [item for item in list(self._held.values()) if item.since_ms <= due_ms]
        if not due or not self._alive():
            return
        self._wire.open()
        for start in range(0, len(due), BATCH):
            self._extend_batch(due[start : start + BATCH])

    def _extend_batch(self, batch: list[HeldItem]) -> None:
        sent_at_ms = now_ms()
        batch = [item for item in batch if id(item) in self._held]
        lease = b"lease=%d 0\r\n" % self._lease_ms
        replies = self._replies_to([b"touch %b/%d/%b" % (item.queue, item.token, lease) for item in batch])
        for item, reply in zip(batch, replies, strict=True):
            if reply is None:
                raise ConnectionLost(self._wire.address, self._wire.why_lost)
            if reply == b"TOUCHED":
                item.since_ms = sent_at_ms
                if item.is_returned:  # if it was so before, it is leased again
                    self._ends.append(End(item, b"touch %b/%d 0" % (item.queue, item.token), was_sent=True))
            elif id(item) in self._held:
                del self._held[id(item)]
                _log.warning(
                    "%s: lease %d is over, and its message may be delivered again: %r",
                    item.queue.decode("utf-8", "replace"),
                    item.token,
                    reply,
                )

    def _finish_batch(self) -> None:
        """Carry out what ends leases, all of it at once: one after the other would be slower than tasks end."""
        self._wire.open()
        batch = [self._ends[index] for index in range(min(len(self._ends), BATCH))]
        replies = self._replies_to([end.command + b"\r\n" for end in batch])
        problem: KestrelError | None = None
        for end, reply in zip(batch, replies, strict=True):
            self._ends.popleft()
            if reply in _ENDED or (isinstance(reply, bytes) and reply.startswith(b"CLIENT_ERROR")):
                self.answered(end, reply)  # what is refused would be refused again
                continue
            if reply is None:
                end.was_sent = True
                problem = ConnectionLost(self._wire.address, self._wire.why_lost)
            else:
                problem = refusal(self._wire.address, reply, end.command.partition(b" ")[0])
            self._ends.append(end)
        if problem is not None:
            raise problem

    def _replies_to(self, commands: list[bytes]) -> list[Reply | None]:
        """Send commands together and return their replies; None = the connection was lost before."""
        replies: list[Reply | None] = []

        def answered(reply: Reply | None, header: bytes) -> None:
            replies.append(reply)

        for command in commands:
            self._wire.ask(command, answered)
        self._wire.flush()
        while len(replies) < len(commands):
            self._wire.receive()
        return replies

    def _give_back_of(self, holder: str) -> None:
        known = {(item.queue, item.token) for item in [*self._held.values(), *self._ending.values()]}
        for lease in self._wire.carry_out(self._wire.talks.leases(holder)):
            queue = lease.queue.encode("utf-8", "surrogateescape")
            if (queue, lease.token) not in known:
                self._wire.carry_out(self._wire.talks.give_back(queue, lease.token))


def start_thread(run: Callable[[], None]) -> None:
    """Start a thread of the system's, also where gevent has replaced threads by its own."""
    import sys

    start: Any = None
    if "gevent.monkey" in sys.modules:
        from gevent import monkey

        start = monkey.get_original("_thread", "start_new_thread")
    else:
        from _thread import start_new_thread as start
    start(run, ())
