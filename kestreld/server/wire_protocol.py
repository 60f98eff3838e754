"""Interface of a protocol to listeners: parser and handler of a session, and login before it."""

from typing import Any

from kestreld.server.command_handler import CommandHandler, Parser


class LoginStep:
    """A step of a login: credentials to check, or an answer to send."""

    def __init__(self, answer: bytes = b"", *, closes: bool = False, name: bytes = b"", password: bytes | None = None):
        self.answer = answer
        self.closes = closes
        self.name = name
        self.password = password


class Login:
    """Login of a client that has no session yet. `rest` is its input not parsed yet."""

    welcome = b""  # the answers: to a correct password, to a wrong one,
    wrong = b""
    busy = b""  # and if too many logins of one origin wait

    def __init__(self) -> None:
        self.rest = b""

    def next_step(self) -> LoginStep | None:
        """Remove a step from `rest` and return it; None if more input is needed first."""
        raise NotImplementedError


class WireProtocol:
    """A protocol that a listener serves."""

    name = ""
    logs_in_inside = False  # by a command of the session: its handler's `authenticate`

    def open(self, account: Any) -> tuple[Parser, CommandHandler]:
        """Make the parser and handler of a new session. `account` is the user logged in, None if there is none."""
        raise NotImplementedError

    def login(self) -> Login:
        """Make the login of a connection that has no session yet."""
        raise NotImplementedError

    def refusal(self, reason: str) -> bytes:
        """Return the answer to a connection refused for `reason`."""
        raise NotImplementedError
