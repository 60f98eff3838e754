"""What a console shows, and how: the board, requests to its servers, a recording, pauses. Knows no screens."""

import time
from collections.abc import Sequence

from kestrelctl.remote.client import NOBODY
from kestreld.client.access import Login
from tui.board import Board
from tui.recording import Player, Recorder
from tui.requests import Requests
from tui.snapshots import Outage, Snapshot


class Session:
    def __init__(
        self,
        addresses: Sequence[str],
        *,
        interval_ms: int,
        timeout_ms: int,
        login: Login = NOBODY,
        is_read_only: bool = False,
        recorder: Recorder | None = None,
        player: Player | None = None,
    ) -> None:
        """With a `player`, a recording is shown, and no server is asked."""
        self.board = Board(player.servers if player is not None else addresses)
        self.requests = Requests(self.board, timeout_ms, login)
        self.interval_ms = interval_ms
        self.is_read_only = is_read_only
        self.is_paused = False
        self.recorder = recorder
        self.player = player
        self._sampled: set[str] = set()  # servers, since the board advanced last

    @property
    def may_act(self) -> bool:
        return not self.is_read_only and self.player is None

    def now_ms(self) -> int:
        """The wall clock, or the current time of a recording."""
        return self.player.at_ms if self.player is not None else time.time_ns() // 1_000_000

    # Samples

    def receive(self, news: Snapshot | Outage) -> bool:
        """Take a sample. Return True once there is one of every server that answers."""
        self.board.receive(news)
        self._sampled.add(news.server)
        return {state.address for state in self.board.servers.values() if state.outage is None} <= self._sampled

    def advance(self) -> bool:
        """Put the samples on the board unless paused. Return True if anything changed."""
        if self.is_paused:
            return False
        self._sampled.clear()
        return self.board.advance(self.now_ms())

    def pause(self) -> None:
        """Pause, or resume."""
        self.is_paused = not self.is_paused

    def refresh_every(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms

    # Recordings

    def seek(self, samples: int) -> None:
        """Go ahead in a recording; a negative number goes back."""
        if self.player is not None:
            self.player.seek(self.player.position + samples, self.board)

    def start_recording(self, path: str) -> None:
        """Raises OSError."""
        self.recorder = Recorder(path, self.interval_ms)

    def record(self, news: Snapshot | Outage) -> None:
        """Write a sample if there is a recording, which ends with an OSError."""
        if self.recorder is not None:
            try:
                self.recorder.write(news)
            except OSError:
                self.recorder = None
                raise

    def stop_recording(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
