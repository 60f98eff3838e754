"""One turn: poll, read and execute every ready connection, commit the journals, send the answers.

All plain connections are on one epoll object of our own, which is itself registered with the event loop.
"""

from collections.abc import Callable
from typing import Protocol

from kestreld import net
from kestreld.clock import Clock
from kestreld.net import Events, Poller
from kestreld.queues.agenda import Agenda
from kestreld.queues.commit import GroupCommit
from kestreld.server.inflight import Inflight
from kestreld.server.session import Session


class Acceptor(Protocol):
    def readable(self) -> None: ...


class Turn:
    """The connections and what they have to do with one another at the end of a turn."""

    def __init__(
        self,
        poller: Poller,
        clock: Clock,
        commit: GroupCommit,
        agenda: Agenda,
        housekeep: Callable[[], None],
        again: Callable[[], None],
        inflight: Inflight,
    ) -> None:
        self.poller = poller
        self.clock = clock
        self.commit = commit
        self.agenda = agenda
        self.housekeep = housekeep
        self.again = again  # ask the loop for another turn although nothing may be readable
        self.inflight = inflight
        self.sessions: dict[int, Session] = {}
        self.acceptors: dict[int, Acceptor] = {}
        self.ready: list[Session] = []  # something may be done that had to wait
        self.outgoing: list[Session] = []
        self.senders: list[Callable[[], None]] = []  # of what else is to leave after a commit

    def run(self, events: Events) -> None:
        """One turn of the server."""
        self.clock.read()
        sessions = self.sessions
        for fd, mask in events:
            if mask != 1:
                self._unusual(fd, mask)
        due = self.agenda.heap
        if due and due[0][0] <= self.clock.monotonic_ms:
            self.agenda.fall_due(self.clock.monotonic_ms)
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

    def finish(self) -> None:
        """Commit, then send; also the end of what timers did outside a turn."""
        if self.commit.dirty:
            self.commit.run()
            if self.commit.failed:
                self._tell_failures()
        if self.senders:
            self._send_others()
        outgoing, self.outgoing = self.outgoing, []
        for session in outgoing:
            session.flush()
        if self.senders:
            self._send_others()  # what sessions have done since: the next piece of a long reply
        if self.commit.rolling:
            self.housekeep()
        if self.ready or self.commit.dirty:
            self.again()

    def _send_others(self) -> None:
        for send in self.senders:
            send()

    def _go_on(self) -> None:
        # One round only: what becomes ready by this has its turn after the commit.
        ready, self.ready = self.ready, []
        for session in ready:
            session.go_on()

    def _unusual(self, fd: int, mask: int) -> None:
        """Hang-ups and room to write, before anybody's commands: returned items are there for the others."""
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
        """A client that sends no more: run what it had sent, unless that is more than a turn should take."""
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
        """Whoever's answers depend on a failed commit is told that the outcome is unknown, and hung up on."""
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
