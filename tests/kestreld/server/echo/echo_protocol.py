"""A protocol of lines: each comes back; `put QUEUE LINE` puts it, `take QUEUE` takes, `auth NAME PASSWORD` logs in."""

from collections.abc import Iterator
from typing import Any

from kestreld.config.users import Right
from kestreld.server.accounts import Account
from kestreld.server.command_handler import CommandHandler, Parser
from kestreld.server.state import ServerState
from kestreld.server.wire_protocol import WireProtocol


class EchoParser(Parser):
    def __init__(self) -> None:
        super().__init__()
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    @property
    def mid_command(self) -> bool:
        return bool(self._rest)


class EchoHandler(CommandHandler):
    def __init__(self, state: ServerState, *, is_closed: bool) -> None:
        super().__init__(state)
        self._is_closed = is_closed  # to whoever has not logged in
        self._account: Account | None = None

    def execute(self, commands: Iterator[Any]) -> bool:
        for line in commands:
            word, _, rest = line.partition(b" ")
            if word in (b"put", b"take"):
                self.out.append(self._on_queue(word, rest))
            elif word == b"auth":
                self._log_in(*rest.split())
            else:
                self.out.append(line + b"\n")
            if self.blocked:
                return True
        return False

    def _on_queue(self, word: bytes, rest: bytes) -> bytes:
        name, _, data = rest.decode().partition(" ")
        right = Right.PUT if word == b"put" else Right.GET
        if self._is_closed and not (self._account is not None and self._account.may(right, name)):
            return b"no\n"
        reader = self.state.collection.reader(name)
        self._depend_on(reader.queue)
        if word == b"put":
            return b"ok\n" if reader.queue.put(data.encode()) else b"full\n"
        record = reader.take(self.state.clock.wall_ms)
        return b"nothing\n" if record is None else record[-1:] + b"\n"

    def _log_in(self, name: bytes, password: bytes) -> None:
        def compared(account: Account | None) -> None:
            self._account = account
            self.out.append(b"welcome\n" if account is not None else b"wrong\n")
            self._let_go()

        self.held = True
        assert self.authenticate is not None
        self.authenticate(name, password, compared)

    def commit_failure(self, reason: str) -> bytes:
        return b"lost: " + reason.encode() + b"\n"


class Echo(WireProtocol):
    name = "echo"
    logs_in_inside = True

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def open(self, account: Account | None) -> tuple[EchoParser, EchoHandler]:
        is_closed = bool(self._state.collection.config.users)
        return EchoParser(), EchoHandler(self._state, is_closed=is_closed)

    def refusal(self, reason: str) -> bytes:
        return reason.encode() + b"\n"
