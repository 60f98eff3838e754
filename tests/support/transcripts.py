"""Recorded conversations with a server, played again: the same bytes in, the same bytes out. tests/golden/kestrel1."""

import json
import re
import socket
import time
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import PATIENCE_S

ANSWER_MS: Final = 60_000
SETTLE_S: Final = 0.02  # at the end of a conversation: whatever would come unasked has come by then


class Late(AssertionError):
    """The answer is right, and came later than it may."""


def play(path: Path, port: int, queue: str, answer_ms: int = ANSWER_MS) -> None:
    """Play a conversation, `{q}` being `queue`. AssertionError names the step that went otherwise."""
    steps = json.loads(path.read_text())[1:]
    connections: dict[str, _Party] = {}
    try:
        for number, step in enumerate(steps, 1):
            if "sleep_ms" in step:
                time.sleep(step["sleep_ms"] / 1000)
                continue
            if step.get("close"):
                connections.pop(step["conn"]).socket.close()
                continue
            party = connections.get(step["conn"]) or _Party(port, answer_ms)
            connections[step["conn"]] = party
            party.take(step, queue, f"{path.stem}, step {number}")
        for name, party in connections.items():
            party.has_heard_all(f"{path.stem}, {name} after the last step")
    finally:
        for party in connections.values():
            party.socket.close()


class _Party:
    """One connection of a conversation. `ended` = the server has hung up."""

    def __init__(self, port: int, answer_ms: int) -> None:
        self.answer_ms = answer_ms
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard = b""
        self.ended = False

    def take(self, step: dict[str, Any], queue: str, where: str) -> None:
        """Send what the step says and compare what comes."""
        if "expect_re" in step:
            wanted = re.compile(step["expect_re"].replace("{q}", re.escape(queue)).encode("latin-1"))
        else:
            wanted = re.compile(re.escape(step["expect"].replace("{q}", queue).encode("latin-1")))
        started = time.monotonic()
        self.socket.sendall(step["send"].replace("{q}", queue).encode("latin-1"))
        until, first_at = started + self.answer_ms / 1000, 0.0
        if "quiet_ms" in step:
            until = started + step["quiet_ms"] / 1000
        eof = step.get("eof", False)
        while "quiet_ms" in step or not wanted.fullmatch(self.heard) or (eof and not self.ended):
            if not self._hear(until):
                break
            first_at = first_at or time.monotonic()
        heard, self.heard = self.heard, b""
        assert wanted.fullmatch(heard), f"{where}: heard {heard!r}, not {wanted.pattern!r}"
        assert self.ended == eof, f"{where}: the server {'hangs up' if self.ended else 'does not hang up'}"
        took_ms = (first_at - started) * 1000
        if took_ms > step.get("max_ms", took_ms):
            raise Late(f"{where}: took {took_ms:.0f} ms")

    def has_heard_all(self, where: str) -> None:
        """Nothing more comes, and the server has not hung up unless it has been noticed."""
        ended = self.ended
        self._hear(time.monotonic() + SETTLE_S)
        assert (self.heard, self.ended) == (b"", ended), where

    def _hear(self, until: float) -> bool:
        """Wait for more; False when nothing more comes in time."""
        left_s = until - time.monotonic()
        if self.ended or left_s <= 0:
            return False
        self.socket.settimeout(left_s)
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return False
        except ConnectionResetError:
            data = b""
        self.heard += data
        self.ended = not data
        return True
