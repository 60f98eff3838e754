"""Base classes of a protocol's parser and command handler, as sessions and turns use them.

Base classes rather than typing.Protocols: attribute access through one of those is slow in the compiled build.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from kestreld import net
from kestreld.queues.agenda import TimedWait
from kestreld.queues.commit import Committed, PendingCommit
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.reports import Pieces
from kestreld.queues.slices import Work
from kestreld.server.state import ServerState

READ_BYTES: Final = 16384  # a TLS record, and no more commands than a turn can take
DATA_READ_BYTES: Final = 1 << 18  # inside of large items
OUTPUT_BYTES_MAX: Final = 1 << 20  # answers a session may have waiting before its commands wait too
TURN_MS_MAX: Final = 2  # rounded up; then slow commands wait for the next turn, as their commit takes as long again
_join: Final = b"".join

# Name, password, and a callback for the account, None = wrong password. False if too many logins wait.
Authenticate = Callable[[bytes, bytes, Callable[[Any], None]], bool]


class Parser:
    """Parser of one connection's input: `feed` takes bytes and returns what the handler executes.

    Errors are commands too, with the reply to send, so that replies are in the order of commands.
    """

    def __init__(self) -> None:
        self.wanted_bytes = READ_BYTES  # how much to read at a time; more only inside of what `held_bytes` counts

    def feed(self, data: bytes) -> list[Any]:
        """Return the commands that `data` completes; none after one that closes the connection."""
        raise NotImplementedError

    @property
    def mid_command(self) -> bool:
        """True if a command has begun and not ended."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """Bytes held of an unfinished large item."""
        return 0

    def close(self) -> None:
        """Accept no more input, and hold none."""


def _nobody_is_there() -> None:
    """Do nothing: the session has not begun, or has ended."""


class Unsettled(Exception):
    """A command must wait for the replies before it: if these fail, it must not have been executed."""


class NextTurn(Exception):
    """A command must wait for the next turn, as this one has lasted long. `rest` is executed in its place then."""

    def __init__(self, rest: Any = None) -> None:
        super().__init__()
        self.rest = rest


class CommandHandler:
    """Executor of one session's commands, which knows the commits that their replies depend on.

    It never waits. `out` has the replies to send once the turn's commit is written. A protocol implements `execute`
    and `commit_failure`, and extends `disconnect` if a session holds something.
    """

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.stats = state.stats
        self.ready: Callable[[], None] = _nobody_is_there  # the session's: a wait is over, continue
        self.out: list[bytes] = []
        self.room_bytes = OUTPUT_BYTES_MAX
        self.closing = False  # hang up once `out` is sent
        self.has_quit = False  # at the client's request
        self.waiter: TimedWait | None = None
        self.held = False  # waits for the server itself: long work, room on the disk
        self.is_at_work = False  # on a command that takes many slices
        self.telling: Pieces | None = None  # the rest of a long reply, while the client has not taken the last piece
        self.crowded = state.collection.crowded
        self.last_queue: Committed | None = None  # whose commit `out` depends on,
        self.earlier_queues: list[Committed] = []  # and those before it;
        self.earlier_starts: list[int] = []  # the first reply that depends on each, except for the first queue
        self.unsettled: frozenset[Committed] = frozenset()  # those that held replies depend on
        self.take_queue: Committed | None = None  # the only one, once a get took an item: that returns if it fails
        self.put_off: Any = None  # a command postponed because it would take from another queue
        self.gone = False
        self.promised: list[tuple[int, Reader, int]] | None = None  # leases: index of the reply, reader, token
        self.fd = -1  # of the session's connection
        self._holder: str | None = None
        self.authenticate: Authenticate | None = None  # set if a login is a command of the session

    @property
    def blocked(self) -> bool:
        """True if the next command has to wait."""
        return self.waiter is not None or self.held or self.closing or self.room_bytes < 0

    @property
    def is_busy(self) -> bool:
        """True if the session waits or holds something, and is therefore not idle."""
        return self.waiter is not None or self.held

    @property
    def holder(self) -> str:
        """The session's name as holder of leases: its client's address."""
        if self._holder is None:
            self._holder = net.peer_of(self.fd) if self.fd >= 0 else ""
        return self._holder

    def waits_since_ms(self) -> int | None:
        """Monotonic time at which `waiter` began to wait, in ms; None if there is none."""
        return None

    def reads_held(self) -> Sequence[tuple[Reader, int, int]]:
        """Open reads: reader, item id, and monotonic time of the read. Not a copy."""
        return ()

    def expect_login(self, authenticate: Authenticate) -> None:
        """Require a login by a command of the session."""
        self.authenticate = authenticate

    # Commands

    def execute(self, commands: Iterator[Any]) -> bool:
        """Execute commands until they end; returns True if one has to wait and `commands` has the rest."""
        raise NotImplementedError

    def go_on(self, commands: Iterator[Any]) -> bool:
        """`execute` for commands behind one that had to wait."""
        if self.put_off is not None:
            commands, self.put_off = chain((self.put_off,), commands), None
        return self.execute(commands)

    @property
    def is_turn_long(self) -> bool:
        """True if this turn has lasted so long that what takes a while should wait for the next one."""
        clock = self.state.clock
        return clock.monotonic_up_ms() - clock.monotonic_ms > TURN_MS_MAX

    def commit_failure(self, reason: str) -> bytes:
        """Return the reply after a commit that replies depend on has failed: the outcome is unknown."""
        raise NotImplementedError

    def lose_sight(self) -> None:
        """Take note that the connection has ended without a word from the client: it may be alive, and cut off."""

    def quit(self) -> None:
        """End the session at the client's request."""
        self.closing = self.has_quit = True

    # Which commits `out` depends on

    def _depend_on(self, queue: Committed) -> None:
        """Make replies depend on this queue's commit from now on."""
        if self.last_queue is not None:
            self.earlier_queues.append(self.last_queue)
            self.earlier_starts.append(len(self.out))
            self.take_queue = None
        self.last_queue = queue

    def _may_take(self, queue: Queue | None) -> None:
        """`_depend_on` for a get that takes an item for good; None for one of several queues.

        Raises Unsettled while replies are unsent that depend on other queues.
        """
        if self.earlier_queues or (self.last_queue is not None and self.last_queue is not queue):
            raise Unsettled
        if self.unsettled and (len(self.unsettled) > 1 or queue not in self.unsettled):
            raise Unsettled
        self.last_queue = self.take_queue = queue

    def depends_on(self) -> list[Committed]:
        """Return the queues whose commits `out` depends on."""
        return self.earlier_queues if self.last_queue is None else [*self.earlier_queues, self.last_queue]

    def _hold_back(self) -> None:
        """Hold the session if it fills a journal that is being compacted; its further commands run afterwards."""
        for queue in self.depends_on():
            if isinstance(queue, Queue) and queue in self.crowded and queue.pending and not self.held:
                self.held = True
                self.crowded[queue].append(self._let_go)

    # Long work, done between turns while the commands behind it wait

    def _tell(self, pieces: Pieces) -> None:
        """Send a long reply, each piece made when the client has taken the one before."""
        self.held = self.is_at_work = True
        self.telling = pieces
        self.tell_on()

    def tell_on(self) -> None:
        """Continue a long reply: the client has taken the piece before."""
        pieces, self.telling = self.telling, None
        if pieces is not None:
            self.state.control.take_on(self._next_piece(pieces))

    def _next_piece(self, pieces: Pieces) -> Work:
        for piece in pieces:
            if self.gone:
                return
            if piece is not None:
                self.out.append(piece)
                self.telling = pieces
                self.ready()
                return
            yield None
        self._let_go()

    def _let_go(self) -> None:
        """Continue the session: the work that it was held for is done."""
        self.held = self.is_at_work = False
        self.ready()

    # The end of a turn, and of the session

    def sent(self) -> None:
        """Reset the dependencies and the room for output, because `out` has been sent."""
        self.room_bytes = OUTPUT_BYTES_MAX
        if self.unsettled:
            self.unsettled = frozenset()
        # As turn_over does, without the call: each turn comes here.
        self.last_queue = self.take_queue = None
        if self.earlier_queues:
            self.earlier_queues, self.earlier_starts = [], []

    def pending_commits(self) -> list[PendingCommit]:
        """Return the commits, not on disk yet, that `out` has to wait for."""
        found = [queue.pending_commit for queue in self.depends_on()]
        return [commit for commit in found if commit is not None and commit.pending]

    def held_back(self) -> list[tuple[bytes, list[PendingCommit]]]:
        """Take `out` in parts, each with the commits that it waits for besides those of earlier parts."""
        parts: list[tuple[bytes, list[PendingCommit]]] = []
        begin, commits = 0, list[PendingCommit]()
        for start, queue in zip([0, *self.earlier_starts], self.depends_on(), strict=False):
            if queue.pending_commit is not None and queue.pending_commit.pending:
                if start > begin:
                    parts.append((_join(self.out[begin:start]), commits))
                    begin, commits = start, []
                commits.append(queue.pending_commit)
        parts.append((_join(self.out[begin:]), commits))
        self.out.clear()
        self.unsettled = self.unsettled.union(self.depends_on())
        self.turn_over()
        return parts

    def piled_up(self, unsent_bytes: int) -> None:
        """Called when output is added to `unsent_bytes`; for clients that are sent unrequested output."""

    def turn_over(self) -> None:
        """Forget dependencies: later replies depend on no commit so far."""
        self.last_queue = self.take_queue = None
        if self.earlier_queues:
            self.earlier_queues, self.earlier_starts = [], []

    def failed(self, reason: str, queues: Container[Committed] | None = None) -> None:
        """Replace replies by an error, from the first that depends on a failed commit, and disconnect.

        `queues` are those whose commits failed; None = an earlier commit, so that no reply of `out` is sent. The error
        says that the outcome is unknown.
        """
        kept = 0
        if queues is not None:
            starts = zip([0, *self.earlier_starts], self.depends_on(), strict=False)
            kept = min(start for start, queue in starts if queue in queues)
        del self.out[kept:]
        promised = self.promised or []
        self.promised = [one for one in promised if one[0] < kept]
        for place, reader, token in promised:
            if place >= kept:
                self.undelivered(reader, token)
        self.out.append(self.commit_failure(reason))
        self.closing = True

    def undelivered(self, reader: Reader, token: int) -> None:
        """End a lease whose reply never left the server."""
        raise NotImplementedError

    def close(self) -> None:
        """End the session: no reference to it remains."""
        self.disconnect()
        self.ready = _nobody_is_there

    def disconnect(self) -> None:
        """End the client's wait, and return its open items."""
        self.gone, self.telling = True, None
        if self.waiter is not None:
            self.waiter.leave()
            self.waiter = None


class ParsedCommands:
    """Command lines that a protocol has parsed, and checked against an account's rights, until those change."""

    def clear(self) -> None:
        """Forget all of them."""
        raise NotImplementedError
