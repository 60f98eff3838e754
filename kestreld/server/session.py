"""One connection: bytes in, bytes out, and what waits in between. No protocol word, no queue word."""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from kestreld import net
from kestreld.net import Connection
from kestreld.queues.commit import Committed, Tally
from kestreld.queues.reader import Reader
from kestreld.server.command_handler import READ_BYTES, CommandHandler, Parser

# Session, Turn and Inflight import one another: a session is read, resumed and sent to by the turn that it tells what
# it has to do. They are compiled together, and a base class between them would cost a lookup for each command.
if TYPE_CHECKING:
    from kestreld.server.turn import Turn

WAITING_BYTES_MAX: Final = 65536  # commands read ahead of one that waits


class Session:
    """A client. What it may read ahead and what it may leave unread are both bounded."""

    def __init__(self, turn: "Turn", connection: Connection, parser: Parser, handler: CommandHandler) -> None:
        self.turn = turn
        self.connection = connection
        self.fd = connection.fileno()
        self.parser = parser
        self.handler = handler
        self.clock = handler.state.clock
        self.stats = handler.stats
        self.interest = net.READ
        self.waiting: Iterator[Any] | None = None  # commands behind one that waits,
        self.later: list[Any] = []  # and those that came since
        self.waiting_bytes = 0
        self.commit = turn.commit
        self.held: deque[tuple[bytes, Tally]] = deque()  # answers, and the commits they wait for
        self.unsent: bytes | memoryview = b""
        self.promised: Sequence[tuple[int, Reader, int]] = ()  # leases whose answers have yet to leave, where they end,
        self.sent_bytes = 0  # and what has left: counted as `unsent` goes, as long as there are any
        self.input_closed = False  # the client sends no more
        self.closed = False
        self.leaving_since_ms: int | None = None  # all is said: what the client still sends is thrown away
        self.executed = 0  # batches of commands, to tell a slow command from a busy client
        self.active = True  # since somebody last looked; when that was, for idle time-outs:
        self.active_at_ms = self.clock.monotonic_ms
        self._recv = connection.recv
        self._send = connection.send
        handler.ready = self._ready
        handler.fd = self.fd

    @property
    def half_sent(self) -> bool:
        """Whether the client owes the rest of a command: nothing else keeps it from being read and carried out."""
        return self.parser.mid_command and self.interest == net.READ and not self.handler.blocked

    # In

    def readable(self) -> None:
        """Read what has come and carry it out, or keep it behind a command that waits."""
        wanted_bytes = self.parser.wanted_bytes
        if wanted_bytes > READ_BYTES and not self._may_read_on():
            return
        try:
            data = self._recv(wanted_bytes)
        except BlockingIOError:
            return
        except OSError:
            self.hung_up()
            return
        if not data:
            self._end_of_input()
            return
        handler = self.handler
        self.stats.bytes_read += len(data)
        self.active = True
        batch = self.parser.feed(data)
        if wanted_bytes > READ_BYTES:
            self._has_read_on(bool(batch))
        if self.waiting is not None or handler.waiter is not None or handler.held:
            self._keep(batch, len(data))
        elif batch:
            self.executed += 1
            commands = iter(batch)
            if handler.execute(commands):
                self.waiting = commands
                self.waiting_bytes = len(data)
        if handler.out or handler.closing or self._has_to_go_on():
            self.turn.outgoing.append(self)

    def _may_read_on(self) -> bool:
        """Whether there is room for more of an unfinished item. If not, the client is not read until there is."""
        held_bytes = self.parser.held_bytes
        if not held_bytes or self.turn.inflight.may_read(self, held_bytes):
            return True
        if not self.unsent:
            self._watch(net.HANG_UP_ONLY)
        return False

    def _has_read_on(self, is_finished: bool) -> None:
        if is_finished:
            self.turn.inflight.finished(self)
        elif held_bytes := self.parser.held_bytes:
            self.turn.inflight.was_read(self, held_bytes)

    def resume(self) -> None:
        """There is room for more of the item."""
        if not self.unsent and self.waiting_bytes <= WAITING_BYTES_MAX:
            self._watch(net.READ)

    def _keep(self, batch: list[Any], size_bytes: int) -> None:
        self.later += batch
        if self.waiting is None:
            self._next_waiting()
        self.waiting_bytes += size_bytes
        if self.waiting_bytes > WAITING_BYTES_MAX:
            self._watch(net.HANG_UP_ONLY)

    def _next_waiting(self) -> None:
        self.waiting, self.later = iter(self.later), []

    def go_on(self) -> None:
        """Carry out what waited, now that nothing stands before it."""
        handler = self.handler
        if self.closed:
            return
        if not (handler.blocked or self.unsent):
            self._carry_on()
        if self.input_closed and handler.waiter is not None:
            self._end_of_input()

    def _carry_on(self) -> None:
        handler = self.handler
        while self.waiting is not None and not handler.held and not handler.go_on(self.waiting):
            self.waiting = None
            if self.later:
                self._next_waiting()
        if self.waiting is None:
            self.waiting_bytes = 0
            self.executed += 1
            if self.input_closed:
                self._leave()
            elif self.interest != net.READ:
                self._watch(net.READ)
        if handler.out or handler.closing or self._has_to_go_on():
            self.turn.outgoing.append(self)

    def _has_to_go_on(self) -> bool:
        """Whether to look after the commit at what could not be answered now."""
        handler = self.handler
        if handler.put_off is not None:
            return True
        return handler.waiter is not None and bool(self.commit.dirty or self.commit.pending_commits)

    def _ready(self) -> None:
        self.turn.ready.append(self)
        self.turn.outgoing.append(self)

    # The end

    def _end_of_input(self) -> None:
        """The client sends no more; it may still read what its commands answer."""
        self.input_closed = True
        if self.handler.waiter is not None:
            self.waiting, self.later = None, []  # nobody is there for what the wait would bring
            self._leave()
        elif self.waiting is None and not self.handler.held:
            self._leave()
        else:
            self._watch(0)

    def _leave(self) -> None:
        """Give back what this client holds now, before other clients' commands; hang up once the answers are out."""
        self.handler.disconnect()
        self.handler.closing = True
        self.turn.outgoing.append(self)

    def not_heard_out(self, *, broken: bool) -> None:
        """The client has hung up, or ended its input, while it is not being read."""
        if broken or self.handler.waiter is not None:
            self.hung_up()
        else:
            self._watch(self.interest & ~net.HANG_UP_ONLY)  # it may still read; what it sent comes after that

    def _hang_up(self) -> None:
        """Close, but not with input unread: the connection would break, and its last answers be lost. What the client
        sends before it has seen the end is thrown away.
        """
        if self.input_closed or self.handler.has_quit:
            self.close()
        elif self.leaving_since_ms is None:
            self.leaving_since_ms = self.clock.monotonic_ms
            self.handler.disconnect()
            self.waiting, self.later = None, []
            self.parser.close()
            self.turn.inflight.abandoned(self)
            try:
                self.connection.shutdown(net.END_OUTPUT)
            except OSError:
                self.close()
            else:
                self._watch(net.READ)

    def hung_up(self) -> None:
        """The connection is broken: nothing can be answered any more."""
        if not self.closed:
            self.handler.disconnect()
            self.unsent = b""
            self.close()

    def close(self) -> None:
        """Hang up. Nothing that the client has sent is held any longer, nor does anything lead back here."""
        if not self.closed:
            self.closed = True
            self._note_promised()
            self._take_back_behind(self.sent_bytes)
            self.handler.close()
            self.parser.close()
            self.waiting, self.later = None, []
            self.turn.forget(self)
            self.connection.close()

    # Out

    def flush(self) -> None:
        """Send the answers of this turn; what the client does not take now is sent when it does."""
        if self.closed:
            return
        handler = self.handler
        out = handler.out
        all_sent = not self.unsent
        if out:
            if handler.promised and (self.commit.pending_commits or self.held or not all_sent):
                self._note_promised()
            if self.commit.pending_commits and self._must_hold():
                return
            data = b"".join(out) if len(out) > 1 else out[0]
            if handler.promised:
                all_sent = self._put_out_promised(data)
                out.clear()
            elif all_sent:
                out.clear()
                all_sent = self._put_out(data)
            else:
                out.clear()
                self.unsent = bytes(self.unsent) + data
                handler.piled_up(len(self.unsent))
        elif handler.waiter is not None and self.commit.pending_commits and handler.pending_commits():
            self._must_hold()  # what it confirmed before it waits has to be on disk before any answer to that
            return
        if self.held:
            handler.turn_over()
            return
        handler.sent()
        if all_sent:
            if handler.closing:
                self._hang_up()
            elif self.waiting is not None:
                if not handler.blocked:
                    self.turn.ready.append(self)
                elif handler.telling is not None:
                    handler.tell_on()

    def _must_hold(self) -> bool:
        """Keep answers back while commits they depend on, or answers before them do, are not on disk."""
        if not self.handler.pending_commits() and not self.held:
            return False
        for data, pending_commits in self.handler.held_back():
            tally = Tally(self._settled)
            self.held.append((data, tally))
            for pending_commit in pending_commits:
                tally.wait_for(pending_commit)
        return True

    def _settled(self) -> None:
        """The commits that some answers wait for are on disk, or have failed to get there: send what waits for none."""
        if self.closed:
            return
        ready: list[bytes] = []
        while self.held and not self.held[0][1].pending:
            data, tally = self.held.popleft()
            if tally.failure is not None:
                self.held.clear()
                self._take_back_behind(self.sent_bytes + len(self.unsent) + sum(map(len, ready)))
                self.fail(tally.failure.reason)
                break
            if data:
                ready.append(data)
        if ready:
            if self.unsent:
                self.unsent = b"".join((self.unsent, *ready))
            else:
                self._put_out(b"".join(ready))
        self.flush()
        if self.turn.ready:
            self.commit.wake()

    def fail(self, reason: str, queues: Container[Committed] | None = None) -> None:
        """Commits that answers depend on have failed: say so, and hang up. Nothing more is carried out."""
        self.handler.failed(reason, queues)
        self.handler.disconnect()
        self.waiting, self.later = iter(()), []

    def _put_out(self, data: bytes | memoryview) -> bool:
        """Send what the client takes now; whether that is all of it."""
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.hung_up()
            return False
        self.stats.bytes_written += sent
        if self.promised:
            self._has_sent(sent)
        if sent == len(data):
            return True
        self.unsent = memoryview(data)[sent:]  # not copied: a slow client takes a large item in many pieces
        self._watch(net.WRITE)
        return False

    # Leases whose answers may never leave

    def _put_out_promised(self, data: bytes) -> bool:
        """`_put_out` of what the handler has, leases among it. Mostly all is taken, wherever in it each of them is."""
        handler, all_sent = self.handler, self._put_out(data)
        if all_sent:
            handler.promised = None
        elif handler.promised:
            rest, self.unsent = self.unsent, b""
            self._note_promised()
            self.unsent = rest
            self._has_sent(len(data) - len(rest))
        return all_sent

    def _note_promised(self) -> None:
        """Know where the answers end, in what is sent, that have leases in them."""
        handler = self.handler
        before = self.sent_bytes + len(self.unsent) + sum([len(data) for data, _ in self.held])
        ends = list(accumulate(map(len, handler.out), initial=before))
        told = [(ends[place + 1], reader, token) for place, reader, token in handler.promised or ()]
        self.promised = [*self.promised, *told]
        handler.promised = None

    def _has_sent(self, sent: int) -> None:
        self.sent_bytes += sent
        if self.promised[-1][0] <= self.sent_bytes:
            self.promised = ()
            self.sent_bytes = 0
        else:
            self.promised = [one for one in self.promised if one[0] > self.sent_bytes]

    def _take_back_behind(self, sent_bytes: int) -> None:
        """No more than that is sent of what there was to send: leases behind it end."""
        promised, self.promised = self.promised, [one for one in self.promised if one[0] <= sent_bytes]
        for end, reader, token in promised:
            if end > sent_bytes:
                self.handler.undelivered(reader, token)

    def writable(self) -> None:
        """The client reads again."""
        data, self.unsent = self.unsent, b""
        if not data or self._put_out(data):
            self._watch(net.HANG_UP_ONLY if self.input_closed or self.waiting_bytes > WAITING_BYTES_MAX else net.READ)
            if self.input_closed:
                self._watch(0)
            self.turn.ready.append(self)
            self.turn.outgoing.append(self)

    def _watch(self, interest: int) -> None:
        if interest != self.interest and not self.closed:
            self.interest = interest
            self.turn.poller.modify(self.fd, interest)
