"""One client connection: runs its commands in order, and sends replies once their commits are written.

Parser and handler know the protocol and the queues, a session neither. Invariants: commands are executed, and
their replies sent, in the order received. A reply leaves only after the commits that it and earlier replies depend on
(`held` has those that wait for a sync). Input behind a command that waits, and output that the client does not read,
are bounded, because the client is then not read. A lease whose reply does not leave (`promised`) ends.
"""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from kestreld import net
from kestreld.net import Connection
from kestreld.queues.commit import Committed, Tally
from kestreld.queues.reader import Reader
from kestreld.server.command_handler import READ_BYTES, CommandHandler, Parser

# Session, Turn and Inflight import one another: turns read, resume and flush sessions, which put themselves on their
# lists. They are compiled together, and a base class between them would cost a lookup for each command.
if TYPE_CHECKING:
    from kestreld.server.turn import Turn

WAITING_BYTES_MAX: Final = 65536  # commands read ahead of one that waits


class Session:
    """A client connection. Its unprocessed input and its unread output are both bounded."""

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
        self.promised: Sequence[tuple[int, Reader, int]] = ()  # leases in unsent replies: end, reader, token
        self.sent_bytes = 0  # counted only while there are `promised` ones
        self.input_closed = False  # the client sends no more
        self.closed = False
        self.leaving_since_ms: int | None = None  # the output has ended; further input is discarded
        self.executed = 0  # batches of commands, to tell a slow command from a busy client
        self.active = True  # input since maintenance last looked; the time of that, for idle time-outs:
        self.active_at_ms = self.clock.monotonic_ms
        self._recv = connection.recv
        self._send = connection.send
        handler.ready = self._ready
        handler.fd = self.fd

    @property
    def half_sent(self) -> bool:
        """True if the client owes the rest of a command, and nothing else delays that command."""
        return self.parser.mid_command and self.interest == net.READ and not self.handler.blocked

    # In

    def readable(self) -> None:
        """Read input and execute it, or keep it behind a command that waits."""
        wanted_bytes = self.parser.wanted_bytes
        if wanted_bytes > READ_BYTES and not self._may_read_on():
            return
        try:
            data = self._recv(wanted_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(error)
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
        """Return True if there is memory for more of an unfinished item; else stop reading until there is."""
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
        """Read again: there is memory for more of the item."""
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
        """Execute commands that waited, if nothing delays them any longer."""
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
        """Return True if commands that could not be answered now must be continued after the commit."""
        handler = self.handler
        if handler.put_off is not None:
            return True
        return handler.waiter is not None and bool(self.commit.dirty or self.commit.pending_commits)

    def _ready(self) -> None:
        self.turn.ready.append(self)
        self.turn.outgoing.append(self)

    # The end

    def _end_of_input(self) -> None:
        """Handle the end of the client's output; it may still read the replies to its commands."""
        self.input_closed = True
        if self.handler.waiter is not None:
            self.waiting, self.later = None, []  # the client would not receive what the wait brings
            self._leave()
        elif self.waiting is None and not self.handler.held:
            self._leave()
        else:
            self._watch(0)

    def _leave(self) -> None:
        """Return the client's open items now, before other clients' commands; disconnect once replies are sent."""
        self.handler.disconnect()
        self.handler.closing = True
        self.turn.outgoing.append(self)

    def not_heard_out(self, *, broken: bool) -> None:
        """Handle a hang-up, or the end of the input, of a client that is not being read."""
        if broken or self.handler.waiter is not None:
            self.hung_up()
        else:
            self._watch(self.interest & ~net.HANG_UP_ONLY)  # it may still read replies; its input is handled afterwards

    def _hang_up(self) -> None:
        """End the output, and discard input until the client closes the connection or LEAVE_MS have passed.

        Closing it with unread input would break it, and lose the last replies.
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

    def _broken(self, error: OSError) -> None:
        if error.errno in net.WITHOUT_A_WORD:
            self.handler.lose_sight()
        self.hung_up()

    def hung_up(self) -> None:
        """Close a broken connection: no reply can be sent."""
        if not self.closed:
            self.handler.disconnect()
            self.unsent = b""
            self.close()

    def close(self) -> None:
        """Close the connection; its input is dropped, and no references to the session remain."""
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
        """Send the replies of this turn; the rest follows when the client reads."""
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
            self._must_hold()  # confirmations before the wait must be on disk before its reply
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
        """Hold replies back if commits that they, or replies before them, depend on are not on disk; True if so."""
        if not self.handler.pending_commits() and not self.held:
            return False
        for data, pending_commits in self.handler.held_back():
            tally = Tally(self._settled)
            self.held.append((data, tally))
            for pending_commit in pending_commits:
                tally.wait_for(pending_commit)
        return True

    def _settled(self) -> None:
        """Send the held replies that wait for no commit; called when their commits are on disk or have failed."""
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
        """Report the failure of commits that replies depend on, and disconnect. No more commands are executed."""
        self.handler.failed(reason, queues)
        self.handler.disconnect()
        self.waiting, self.later = iter(()), []

    def _put_out(self, data: bytes | memoryview) -> bool:
        """Send as much as the client accepts now; returns True if that is everything."""
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(error)
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
        """`_put_out` for output with leases. Mostly all is taken, and their positions need not be computed."""
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
        """Record the positions in the output at which replies with leases end."""
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
        """End the leases in output beyond `sent_bytes`, which will not be sent."""
        promised, self.promised = self.promised, [one for one in self.promised if one[0] <= sent_bytes]
        for end, reader, token in promised:
            if end > sent_bytes:
                self.handler.undelivered(reader, token)

    def writable(self) -> None:
        """Continue to send: the client reads again."""
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
