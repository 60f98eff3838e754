"""What sessions and turns know of a protocol: a parser, and a handler of its commands.

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
_join: Final = b"".join

# Name, password, and who is told whose account that is, None = nobody's. False when too many logins wait.
Authenticate = Callable[[bytes, bytes, Callable[[Any], None]], bool]


class Parser:
    """The input of one connection. Push bytes into `feed`, get what the handler executes.

    Mistakes come as commands too, with the answer to give, so that the order of answers is the order of commands.
    """

    def __init__(self) -> None:
        self.wanted_bytes = READ_BYTES  # how much to read at a time; more only inside of what `held_bytes` counts

    def feed(self, data: bytes) -> list[Any]:
        """The commands that `data` completes. After one that closes the connection, nothing."""
        raise NotImplementedError

    @property
    def mid_command(self) -> bool:
        """Whether a command has begun and not ended."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """What it holds of an unfinished item that is not small."""
        return 0

    def close(self) -> None:
        """Take nothing more, and hold nothing."""


def _nobody_is_there() -> None:
    """In the place of a session that has not begun, or has ended."""


class Unsettled(Exception):
    """A command has to wait for the answers before it: they may fail, and then it must not have been carried out."""


class CommandHandler:
    """One session's commands, and which commits their answers depend on.

    It never waits. `out` is what to send once the turn's commit is written. A protocol fills in `execute` and
    `commit_failure`, and extends `disconnect` where a session holds something.
    """

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.stats = state.stats
        self.ready: Callable[[], None] = _nobody_is_there  # the session's: a wait is over, there may be more to do
        self.out: list[bytes] = []
        self.room_bytes = OUTPUT_BYTES_MAX
        self.closing = False  # hang up once `out` is sent
        self.has_quit = False  # the client has asked for that
        self.waiter: TimedWait | None = None
        self.held = False  # waits for the server itself: long work, room on the disk
        self.is_at_work = False  # on a command that takes many slices
        self.telling: Pieces | None = None  # the rest of a long answer, while the client has yet to take what is there
        self.crowded = state.collection.crowded
        self.last_queue: Committed | None = None  # whose commit `out` depends on,
        self.earlier_queues: list[Committed] = []  # and those before it;
        self.earlier_starts: list[int] = []  # from which answer on it does so, but for the first of them
        self.unsettled: frozenset[Committed] = frozenset()  # those that answers depend on which are held back
        self.take_queue: Committed | None = None  # all of these are this one: what a get takes is back if they fail
        self.put_off: Any = None  # a command not carried out yet, for it would take from another
        self.gone = False
        self.promised: list[tuple[int, Reader, int]] | None = None  # leases: of which answer, where, and tokens
        self.fd = -1  # of the session's connection
        self._holder: str | None = None
        self.authenticate: Authenticate | None = None  # where a login is a command of the session

    @property
    def blocked(self) -> bool:
        """Whether the next command has to wait."""
        return self.waiter is not None or self.held or self.closing or self.room_bytes < 0

    @property
    def is_busy(self) -> bool:
        """Whether the session waits or holds something: it is not idle."""
        return self.waiter is not None or self.held

    @property
    def holder(self) -> str:
        """Whose leases are those of this session: its client's address."""
        if self._holder is None:
            self._holder = net.peer_of(self.fd) if self.fd >= 0 else ""
        return self._holder

    def waits_since_ms(self) -> int | None:
        """Since when `waiter` waits, on the monotonic clock; None when there is none."""
        return None

    def reads_held(self) -> Sequence[tuple[Reader, int, int]]:
        """The open reads: of which reader, the item's id, and since when, on the monotonic clock. Not a copy."""
        return ()

    def expect_login(self, authenticate: Authenticate) -> None:
        """The client has to log in by a command of the session."""
        self.authenticate = authenticate

    # Commands

    def execute(self, commands: Iterator[Any]) -> bool:
        """Carry out commands until they end; True when one has to wait first and `commands` holds the rest."""
        raise NotImplementedError

    def go_on(self, commands: Iterator[Any]) -> bool:
        """`execute` for commands behind one that had to wait."""
        if self.put_off is not None:
            commands, self.put_off = chain((self.put_off,), commands), None
        return self.execute(commands)

    def commit_failure(self, reason: str) -> bytes:
        """The answer when a commit that answers depend on has failed: the outcome is unknown."""
        raise NotImplementedError

    # Which commits `out` depends on

    def _depend_on(self, queue: Committed) -> None:
        """`out` depends on this queue's commit from now on."""
        if self.last_queue is not None:
            self.earlier_queues.append(self.last_queue)
            self.earlier_starts.append(len(self.out))
            self.take_queue = None
        self.last_queue = queue

    def _may_take(self, queue: Queue | None) -> None:
        """As `_depend_on`, for a get that takes an item for good; None for one of several queues.

        Raises Unsettled while answers have yet to be sent that depend on other queues.
        """
        if self.earlier_queues or (self.last_queue is not None and self.last_queue is not queue):
            raise Unsettled
        if self.unsettled and (len(self.unsettled) > 1 or queue not in self.unsettled):
            raise Unsettled
        self.last_queue = self.take_queue = queue

    def depends_on(self) -> list[Committed]:
        """The queues whose commits `out` depends on."""
        return self.earlier_queues if self.last_queue is None else [*self.earlier_queues, self.last_queue]

    def _hold_back(self) -> None:
        """Who fills a journal that is being compacted waits: what it has sent meanwhile is carried out afterwards."""
        for queue in self.depends_on():
            if isinstance(queue, Queue) and queue in self.crowded and queue.pending and not self.held:
                self.held = True
                self.crowded[queue].append(self._let_go)

    # Long work, done between turns while the commands behind it wait

    def _tell(self, pieces: Pieces) -> None:
        """Give a long answer, each piece made when the client has taken the one before."""
        self.held = self.is_at_work = True
        self.telling = pieces
        self.tell_on()

    def tell_on(self) -> None:
        """The client has taken what there was of a long answer."""
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
        """The server has done what this session was held for."""
        self.held = self.is_at_work = False
        self.ready()

    # The end of a turn, and of the session

    def sent(self) -> None:
        """What was in `out` has left."""
        self.room_bytes = OUTPUT_BYTES_MAX
        if self.unsettled:
            self.unsettled = frozenset()
        # As turn_over does, without the call: each turn comes here.
        self.last_queue = self.take_queue = None
        if self.earlier_queues:
            self.earlier_queues, self.earlier_starts = [], []

    def pending_commits(self) -> list[PendingCommit]:
        """The commits on their way to the disk that `out` has to wait for."""
        found = [queue.pending_commit for queue in self.depends_on()]
        return [commit for commit in found if commit is not None and commit.pending]

    def held_back(self) -> list[tuple[bytes, list[PendingCommit]]]:
        """What is in `out`, in the parts that each wait for another commit, until that and those before it are over."""
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
        """The client has yet to take so much, and is sent more: for who is sent what it does not ask for."""

    def turn_over(self) -> None:
        """What comes next depends on nothing so far."""
        self.last_queue = self.take_queue = None
        if self.earlier_queues:
            self.earlier_queues, self.earlier_starts = [], []

    def failed(self, reason: str, queues: Container[Committed] | None = None) -> None:
        """Commits that `out` depends on have failed, those of `queues` or one before them all.

        The outcome is unknown to the client, who is told just that in the place of the first answer it is unknown of.
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
        """An answer with a lease never left the server."""
        raise NotImplementedError

    def close(self) -> None:
        """The session ends: nothing leads back to it."""
        self.disconnect()
        self.ready = _nobody_is_there

    def disconnect(self) -> None:
        """The client has gone: its wait ends, and what it holds goes back."""
        self.gone, self.telling = True, None
        if self.waiter is not None:
            self.waiter.leave()
            self.waiter = None


class ParsedCommands:
    """Command lines that a protocol has parsed, and checked against an account's rights, kept until those change."""

    def clear(self) -> None:
        """Forget them all."""
        raise NotImplementedError
