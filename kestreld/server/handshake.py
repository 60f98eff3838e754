"""A connection whose client has not shown yet who he is: the TLS handshake, then memcached's login in text.

The login is a `set` of any key whose data is `<user> <password>`. Nothing else is carried out, and nothing is kept of
what is refused.
"""

import re
from typing import TYPE_CHECKING, Final

from kestreld import net
from kestreld.net import Connection
from kestreld.passwords import PASSWORD_BYTES_MAX
from kestreld.protocol.memcache import BINARY_MAGIC, binary_refusal, not_text
from kestreld.server.accounts import Account
from kestreld.server.cpu_worker import origin_of
from kestreld.tls import TlsConnection

if TYPE_CHECKING:
    from kestreld.server.admission import Admission, ListenerPolicy

RECEIVE_BYTES: Final = 16384  # a TLS record
TOKEN_BYTES_MAX: Final = 256 + 1 + PASSWORD_BYTES_MAX
WRONG_TRIES_MAX: Final = 3
LAST_ANSWER_DELAY_S: Final = 1.0
LEAVE_S: Final = 2.0  # how long a client that was hung up on may take to see it

STORED: Final = b"STORED\r\n"
UNAUTHENTICATED: Final = b"CLIENT_ERROR unauthenticated\r\n"
WRONG: Final = b"CLIENT_ERROR authentication failure\r\n"
BAD_TOKEN: Final = b"CLIENT_ERROR bad authentication token format\r\n"
BUSY: Final = b"SERVER_ERROR too many logins\r\n"

_LENGTH_AT: Final = {b"set": 4, b"add": 4, b"replace": 4, b"append": 4, b"prepend": 4, b"cas": 4, b"ms": 2}
_HTTP: Final = re.compile(rb"[A-Za-z]+ \S+ HTTP/\d|Host:", re.IGNORECASE)


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
        self._received = b""
        self._to_skip = 0  # bytes of data that belong to a refused command
        self._wrong_tries = 0
        self._is_waiting = False  # for a password to be compared, or for the last answer to leave
        self._is_over = False
        self._is_first = True  # nothing has been answered or passed over yet
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
        self._received += data
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
        self._received = b""
        self._watch(net.READ)
        try:
            self.connection.shutdown(net.END_OUTPUT)
        except OSError:
            self.leave()
        else:
            self.admission.loop.call_later(LEAVE_S, self.leave)

    # The login

    def _go_on(self) -> None:
        """Answer what has been heard, up to a login that takes long to look into."""
        if self._is_first and self._received[:1] in BINARY_MAGIC:
            self._say(binary_refusal(self._received), closes=True)
        self._is_first = False
        while self._received and not self._is_waiting and not self._is_over:
            if self._to_skip:
                skipped = min(self._to_skip, len(self._received))
                self._received = self._received[skipped:]
                self._to_skip -= skipped
                continue
            line, line_end, rest = self._received.partition(b"\n")
            if problem := not_text(line + line_end):
                self._say(b"CLIENT_ERROR %b\r\n" % problem.encode(), closes=True)
                return
            if len(line) > self.admission.state.collection.config.max_line_bytes:
                self._say(b"CLIENT_ERROR line too long\r\n", closes=True)
                return
            if not line_end or not self._take(line.rstrip(b"\r").split(), line, rest):
                return

    def _take(self, words: list[bytes], line: bytes, rest: bytes) -> bool:
        """Answer a command line. False when more has to come first."""
        at = _LENGTH_AT.get(words[0], 0) if words else 0
        size_bytes = int(words[at]) if at and len(words) > at and re.fullmatch(rb"\d{1,10}", words[at]) else -1
        if size_bytes < 0 or words[0] != b"set":
            self._received = rest
            self._to_skip = size_bytes + 2 if size_bytes >= 0 else 0
            self._say(UNAUTHENTICATED, closes=_HTTP.match(line) is not None)
            return True
        if size_bytes > TOKEN_BYTES_MAX:
            self._received = rest
            self._to_skip = size_bytes + 2
            self._say(BAD_TOKEN)
            return True
        if len(rest) < size_bytes + 2:
            return False
        token, end, self._received = rest[:size_bytes], rest[size_bytes : size_bytes + 2], rest[size_bytes + 2 :]
        if end != b"\r\n":
            self._say(b"CLIENT_ERROR bad data chunk\r\n", closes=True)
            return True
        name, blank, password = token.partition(b" ")
        if blank:
            self._log_in(name, password)
        else:
            self._say(BAD_TOKEN)
        return True

    def _log_in(self, name: bytes, password: bytes) -> None:
        self.admission.state.stats.logins += 1
        account = self.admission.accounts.recognise(name, password)
        if account is not None:
            self._welcome(account)
            return
        compare, conclude = self.admission.accounts.compare(name, password)

        def compare_if_there() -> bool:
            return not self._is_over and compare()

        def compared(fits: bool) -> None:
            self._compared(name, conclude(fits))

        if self.admission.cpu_worker.run(origin_of(self.peer), compare_if_there, compared):
            self._is_waiting = True
            self._watch(0)  # a client that sends no more is still there; one whose connection breaks is not
        else:
            self._say(BUSY, closes=True)

    def _compared(self, name: bytes, account: Account | None) -> None:
        self._is_waiting = False
        if account is not None and not self._is_over:
            self._welcome(account)
        elif not self._is_over and self._may_try_again(name):
            self._watch(net.READ)
            self._go_on()

    def _welcome(self, account: Account) -> None:
        if self._say(STORED):
            self._admit(account)

    def _may_try_again(self, name: bytes) -> bool:
        """Answer a wrong password; whether that was not the last try."""
        self.admission.state.stats.failed_logins += 1
        self._wrong_tries += 1
        if self._wrong_tries < WRONG_TRIES_MAX:
            return self._say(WRONG)
        # It hears of it late, and has to connect again.
        self._is_waiting = True
        self.admission.complain(self.policy, f"{self._wrong_tries} wrong passwords from {self.peer}, last for {name!r}")
        self.admission.loop.call_later(LAST_ANSWER_DELAY_S, lambda: self._say(WRONG, closes=True))
        return False

    def _admit(self, account: Account) -> None:
        self._end()
        self.admission.admit(self.connection, self.policy, account, self._received)

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
