"""A connection whose client has not shown yet who it is: the TLS handshake, then the protocol's login."""

from functools import partial
from typing import TYPE_CHECKING, Final

from kestreld import net
from kestreld.net import Connection
from kestreld.server.accounts import Account
from kestreld.server.wire_protocol import Login
from kestreld.tls import TlsConnection

if TYPE_CHECKING:
    from kestreld.server.admission import Admission, ListenerPolicy

RECEIVE_BYTES: Final = 16384  # a TLS record
WRONG_TRIES_MAX: Final = 3
LAST_ANSWER_DELAY_S: Final = 1.0
LEAVE_S: Final = 2.0  # how long a client that was hung up on may take to see it


class Handshake:
    """On the poller until it becomes a session. `since_ms` is when it began: there is a time-out."""

    def __init__(
        self,
        admission: "Admission",
        policy: "ListenerPolicy",
        connection: Connection,
        secured: TlsConnection | None,
        peer: str,
    ) -> None:
        self.admission = admission
        self.policy = policy
        self.connection = connection
        self.peer = peer
        self.fd = connection.fileno()
        self.since_ms = admission.state.clock.monotonic_ms
        self._shaking_hands = secured  # None = no TLS, or done with it
        self._login: Login = policy.protocol.login()
        self._wrong_tries = 0
        self._is_waiting = False  # for a password to be compared, or for the last answer to leave
        self._is_over = False
        self._is_leaving = False  # all is said; what the client still sends is thrown away
        self._interest = net.READ

    def begin(self) -> None:
        self.admission.handshakes[self.fd] = self
        self.admission.turn.acceptors[self.fd] = self
        self.admission.state.stats.curr_connections += 1
        self.admission.turn.poller.register(self.fd, self._interest)

    def _end(self) -> None:
        self._is_over = True
        del self.admission.handshakes[self.fd]
        del self.admission.turn.acceptors[self.fd]
        self.admission.state.stats.curr_connections -= 1
        self.admission.turn.poller.unregister(self.fd)

    def leave(self) -> None:
        """Hang up."""
        if not self._is_over:
            self._end()
            self.connection.close()

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            self._interest = interest
            self.admission.turn.poller.modify(self.fd, interest)

    def readable(self) -> None:
        """Something has happened on the connection."""
        if self._is_waiting:  # not polled for input: it is broken
            self.leave()
            return
        if self._shaking_hands is not None and not self._shake_hands(self._shaking_hands):
            return
        try:
            data = self.connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        if self._is_leaving:
            return
        self.admission.state.stats.bytes_read += len(data)
        self._login.rest += data
        self._go_on()

    def _shake_hands(self, secured: TlsConnection) -> bool:
        """Whether there is more to do than wait."""
        try:
            wanted = secured.shake_hands()
        except OSError:
            self._shaking_hands = None
            self._hang_up()
            return False
        if wanted:
            self._watch(wanted)
            return False
        self._shaking_hands = None
        self._watch(net.READ)
        if not self.admission.accounts:
            self._end()
            self.admission.admit_anybody(self.connection, self.policy)
            return False
        account = self.admission.accounts.of_certificate(secured.certificate_names())
        if account is not None:
            self._admit(account)
        return account is None

    def _hang_up(self) -> None:
        """Leave, but not with input unread: the connection would break before the client has read what is wrong."""
        self._is_leaving, self._is_waiting = True, False
        self._login.rest = b""
        self._watch(net.READ)
        try:
            self.connection.shutdown(net.END_OUTPUT)
        except OSError:
            self.leave()
        else:
            self.admission.loop.call_later(LEAVE_S, self.leave)

    # The login

    def _go_on(self) -> None:
        """Answer what has been received, up to a login that takes long to look into."""
        while not (self._is_waiting or self._is_over or self._is_leaving):
            step = self._login.next_step()
            if step is None:
                return
            if step.password is not None:
                self._log_in(step.name, step.password)
            else:
                self._say(step.answer, closes=step.closes)

    def _log_in(self, name: bytes, password: bytes) -> None:
        self._is_waiting = True
        compared = partial(self._compared, name)
        if not self.admission.authenticate(self.peer, name, password, lambda: not self._is_over, compared):
            self._is_waiting = False
            self._say(self._login.busy, closes=True)
        elif self._is_waiting:
            self._watch(0)  # a client that sends no more is still there; one whose connection breaks is not

    def _compared(self, name: bytes, account: Account | None) -> None:
        self._is_waiting = False
        if account is not None and not self._is_over:
            self._welcome(account)
        elif not self._is_over and self._may_try_again(name):
            self._watch(net.READ)
            self._go_on()

    def _welcome(self, account: Account) -> None:
        if self._say(self._login.welcome):
            self._admit(account)

    def _may_try_again(self, name: bytes) -> bool:
        """Answer a wrong password; whether that was not the last try."""
        self.admission.state.stats.failed_logins += 1
        self._wrong_tries += 1
        if self._wrong_tries < WRONG_TRIES_MAX:
            return self._say(self._login.wrong)
        # It hears of it late, and has to connect again.
        self._is_waiting = True
        self.admission.complain(
            self.policy.report, f"{self._wrong_tries} wrong passwords from {self.peer}, last for {name!r}"
        )
        self.admission.loop.call_later(LAST_ANSWER_DELAY_S, lambda: self._say(self._login.wrong, closes=True))
        return False

    def _admit(self, account: Account) -> None:
        self._end()
        self.admission.admit(self.connection, self.policy, account, self._login.rest)

    def _say(self, answer: bytes, *, closes: bool = False) -> bool:
        """Answer. Whoever does not take a line as short as that has to go; False when that is so."""
        if self._is_over or self._is_leaving:
            return False
        try:
            is_sent = self.connection.send(answer) == len(answer)
        except OSError:
            is_sent = False
        if is_sent:
            self.admission.state.stats.bytes_written += len(answer)
        if not is_sent:
            self.leave()
        elif closes:
            self._hang_up()
        return is_sent
