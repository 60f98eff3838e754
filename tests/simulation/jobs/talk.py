"""One connection of a Redis client: commands out, replies in."""

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.history import Life
from tests.simulation.network import SimulatedNetwork
from tests.simulation.schedule import Schedule
from tests.support.resp import reply_at, request

Told = Callable[[Any, int], None]  # of the reply, and when it had left the server


class RespTalk:
    """A connection. `moved_on` is called when all is answered, `ended` when the connection is over."""

    def __init__(
        self,
        schedule: Schedule,
        network: SimulatedNetwork,
        life: Life,
        moved_on: Callable[[], None],
        ended: Callable[[], None],
        trace: Callable[[str], None] | None,
    ) -> None:
        self.schedule = schedule
        self.life = life
        self._moved_on = moved_on
        self._ended_told = ended
        self._trace = trace
        self._received = b""
        self._heard_bytes = 0
        self._pieces: deque[tuple[int, int]] = deque()  # where each piece of it ended, and when it was sent
        self.pending: deque[Told] = deque()
        link = network.connect_client(self._hear, self._ended)
        self.over = link is None
        self.link = link

    def send(self, words: list[bytes | int], told: Told) -> None:
        assert self.link is not None
        self.pending.append(told)
        if self._trace is not None:
            self._trace("> " + " ".join(str(word if isinstance(word, int) else word[:44])[:48] for word in words))
        self.link.send(request(*words))

    def close(self, *, abruptly: bool) -> None:
        """Hang up. What is not answered stays so."""
        if self.over:
            return
        assert self.link is not None
        self.over = True
        self.pending.clear()
        if abruptly:
            self.link.reset()
        else:
            self.link.close()

    def _ended(self) -> None:
        self.over = True
        self.pending.clear()
        self._ended_told()

    def _hear(self, data: bytes, sent_us: int) -> None:
        if self.over:
            return
        self._received += data
        self._heard_bytes += len(data)
        self._pieces.append((self._heard_bytes, sent_us))
        has_moved = False
        while self._received.endswith(b"\r\n") and not self.over:  # a long reply comes in many pieces
            try:
                reply, end = reply_at(self._received, 0)
            except (ValueError, IndexError):
                break  # it is not all there
            self._received = self._received[end:]
            served_us = self._sent_at(self._heard_bytes - len(self._received))
            if self._trace is not None:
                self._trace(f"< {str(reply)[:160]}")
            assert self.pending, f"a reply to nothing: {reply!r}"
            self.pending.popleft()(reply, served_us)
            has_moved = True
        if has_moved and not self.pending and not self.over:
            self._moved_on()

    def _sent_at(self, byte: int) -> int:
        while self._pieces[0][0] < byte:
            self._pieces.popleft()
        return self._pieces[0][1]
