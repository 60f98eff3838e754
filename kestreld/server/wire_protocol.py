"""What a protocol brings to a listener: a parser and a handler for each session, and how its clients log in."""

from typing import Any

from kestreld.server.command_handler import CommandHandler, Parser


class LoginStep:
    """What a client has said before its session: a login, or something to answer."""

    def __init__(self, answer: bytes = b"", *, closes: bool = False, name: bytes = b"", password: bytes | None = None):
        self.answer = answer
        self.closes = closes
        self.name = name
        self.password = password


class Login:
    """How a client logs in before it has a session. `rest` is what it has sent behind that."""

    welcome = b""  # the answers: to the right password, to a wrong one,
    wrong = b""
    busy = b""  # and where too many logins of one origin are being looked into

    def __init__(self) -> None:
        self.rest = b""

    def next_step(self) -> LoginStep | None:
        """What to do about what is in `rest`, which loses it; None when more has to come first."""
        raise NotImplementedError


class WireProtocol:
    """A protocol, as listeners have it."""

    name = ""
    logs_in_inside = False  # by a command of the session: its handler's `authenticate`

    def open(self, account: Any) -> tuple[Parser, CommandHandler]:
        """What a new session needs. `account` is who has logged in, None where nobody has to."""
        raise NotImplementedError

    def login(self) -> Login:
        """How to log in before the session."""
        raise NotImplementedError

    def refusal(self, reason: str) -> bytes:
        """What a connection is told for which there is no room."""
        raise NotImplementedError
