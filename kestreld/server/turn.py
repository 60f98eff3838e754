"""One turn of the server: run the commands of every ready connection, commit, send the replies.

Hang-ups and writable connections come first, so that the items they return are there for others' commands; then what
is due, sessions that can continue, and new input. If the server did not run for a while, input comes first for some
turns: it may extend a lease that is due. A reply leaves only after the commit that it depends on is written. All
connections are on one poller, which also has asyncio's selector as a descriptor (`loop`).
"""

from collections.abc import Callable
from typing import Final, Protocol

from kestreld import net
from kestreld.clock import Clock
from kestreld.net import Events, Poller
from kestreld.queues.agenda import Agenda
from kestreld.queues.commit import GroupCommit
from kestreld.server.partial_items import PartialItems
from kestreld.server.session import Session

LATE_MS: Final = 100  # what is due for so long was so while the server did not run
TURNS_BEFORE: Final = 6  # until then; not every one polls, and what a new connection has to say takes two that do


class Acceptor(Protocol):
    def readable(self) -> None: ...


class Turn:
    """The server's connections, and the steps of a turn over all of them."""

    def __init__(
        self,
        poller: Poller,
        clock: Clock,
        commit: GroupCommit,
        agenda: Agenda,
        housekeep: Callable[[], None],
        again: Callable[[], None],
        inflight: PartialItems,
    ) -> None:
        self.poller = poller
        self.clock = clock
        self.commit = commit
        self.agenda = agenda
        self.housekeep = housekeep
        self.again = again  # asks the loop for another turn even if nothing is readable
        self.inflight = inflight
        self.sessions: dict[int, Session] = {}
        self.acceptors: dict[int, Acceptor] = {}
        self.ready: list[Session] = []  # those whose waiting commands may continue
        self.outgoing: list[Session] = []
        self.senders: list[Callable[[], None]] = []  # of other output that leaves after a commit
        self._looked_at_ms = clock.monotonic_ms  # on the agenda
        self._turns_before = 0  # that are to come before what is due

    def run(self, events: Events) -> None:
        """Run one turn with the poller's events."""
        self.clock.read()
        sessions = self.sessions
        for fd, mask in events:
            if mask != 1:
                self._unusual(fd, mask)
        due, now_ms = self.agenda.heap, self.clock.monotonic_ms
        if due and due[0][0] <= now_ms and self._is_time_for(due[0][0], now_ms):
            self.agenda.fall_due(now_ms)
        self._looked_at_ms = now_ms
        if self.ready:
            self._go_on()
        for fd, mask in events:
            if mask == 1:
                session = sessions.get(fd)
                if session is not None:
                    session.readable()
                else:
                    self._accept(fd)
        if self.ready:
            self._go_on()
        self.finish()

    def _is_time_for(self, due_at_ms: int, now_ms: int) -> bool:
        """Return whether what is due may happen, or clients are to be heard first, who could not be for a while."""
        if self._turns_before:
            self._turns_before -= 1
        elif now_ms - due_at_ms > LATE_MS and self._looked_at_ms < due_at_ms:
            self._turns_before = TURNS_BEFORE
        if self._turns_before:
            self.again()
        return not self._turns_before

    def finish(self) -> None:
        """Commit, then send; also called after timers, which run outside a turn."""
        if self.commit.dirty:
            self.commit.run()
            if self.commit.failed:
                self._tell_failures()
            if self.commit.untold:
                self.commit.tell()
        if self.senders:
            self._send_others()
        outgoing, self.outgoing = self.outgoing, []
        for session in outgoing:
            session.flush()
        if self.senders:
            self._send_others()  # output that sessions have caused since: the next piece of a long reply
        if self.commit.rolling:
            self.housekeep()
        if self.ready or self.commit.dirty:
            self.again()

    def _send_others(self) -> None:
        for send in self.senders:
            send()

    def _go_on(self) -> None:
        # One round only: sessions that become ready by this continue after the commit.
        ready, self.ready = self.ready, []
        for session in ready:
            session.go_on()

    def _unusual(self, fd: int, mask: int) -> None:
        """Handle hang-ups and room for output before any commands, which can then have the items returned."""
        session = self.sessions.get(fd)
        if session is None:
            self._accept(fd)
            return
        if mask & net.WRITABLE:
            session.writable()
        if mask & net.HANG_UP:
            self._drain(session, mask)
        elif mask & net.READABLE:
            session.readable()

    def _drain(self, session: Session, mask: int) -> None:
        """Run the commands of a client that has ended its output, unless that is too much for one turn."""
        if not session.interest & net.READABLE:
            session.not_heard_out(broken=bool(mask & net.BROKEN))
            return
        for _ in range(8):
            if session.closed or session.input_closed:
                return
            session.readable()
        if mask & net.BROKEN and session.input_closed:
            session.hung_up()

    def _accept(self, fd: int) -> None:
        acceptor = self.acceptors.get(fd)
        if acceptor is not None:
            acceptor.readable()

    def _tell_failures(self) -> None:
        """Tell clients whose replies depend on a failed commit that the outcome is unknown, and disconnect them."""
        failed = self.commit.failed
        for session in list(self.sessions.values()):
            for queue in session.handler.depends_on():
                if queue in failed:
                    session.fail(failed[queue].reason, failed)
                    self.outgoing.append(session)
                    break

    def add(self, session: Session) -> None:
        self.sessions[session.fd] = session
        session.stats.curr_connections += 1
        self.poller.register(session.fd, net.READ)

    def forget(self, session: Session) -> None:
        if self.sessions.pop(session.fd, None) is not None:
            self.poller.unregister(session.fd)
            self.inflight.abandoned(session)
            session.stats.curr_connections -= 1
