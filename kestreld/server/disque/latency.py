"""LATENCY: events that took longer than a threshold, in a ring of the latest samples of each."""

from collections import deque
from collections.abc import Iterator
from typing import Final

SAMPLES_MAX: Final = 160
EVENTS_MAX: Final = 64
BAR_CHARS: Final = 60


class Latency:
    """Samples of slow events. `threshold_ms` 0 = nothing is recorded."""

    def __init__(self) -> None:
        self.threshold_ms = 0
        self._events: dict[bytes, deque[tuple[int, int]]] = {}
        self._longest: dict[bytes, int] = {}

    def note(self, event: bytes, at_s: int, spent_ms: int) -> None:
        """Record the duration of an event. Of each second only the longest is kept."""
        if not self.threshold_ms or spent_ms < self.threshold_ms:
            return
        samples = self._events.get(event)
        if samples is None:
            if len(self._events) >= EVENTS_MAX:
                return
            samples = self._events[event] = deque(maxlen=SAMPLES_MAX)
        if samples and samples[-1][0] == at_s:
            samples[-1] = (at_s, max(spent_ms, samples[-1][1]))
        else:
            samples.append((at_s, spent_ms))
        self._longest[event] = max(self._longest.get(event, 0), spent_ms)

    def history(self, event: bytes) -> list[tuple[int, int]]:
        """Return the samples of an event: time in s, and duration in ms."""
        return list(self._events.get(event, ()))

    def latest(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield each event with the time and duration of its latest sample, and its longest duration."""
        for event, samples in self._events.items():
            at_s, spent_ms = samples[-1]
            yield event, at_s, spent_ms, self._longest[event]

    def graph(self, event: bytes, now_s: int) -> bytes:
        """Return a line with a bar for each sample, as plain text; b"" if there is none."""
        samples = self._events.get(event)
        if samples is None:
            return b""
        spans_ms = [spent_ms for _, spent_ms in samples]
        high_ms, low_ms, longest_ms = max(spans_ms), min(spans_ms), self._longest[event]
        lines = [b"%b - high %d ms, low %d ms (all time high %d ms)" % (event, high_ms, low_ms, longest_ms), b"-" * 80]
        for at_s, spent_ms in samples:
            bar = b"#" * max(spent_ms * BAR_CHARS // high_ms, 1)
            lines.append(b"%ds ago %b %d ms" % (max(now_s - at_s, 0), bar, spent_ms))
        return b"\n".join([*lines, b""])

    def reset(self, events: list[bytes]) -> int:
        """Forget these events, or all; returns the number forgotten."""
        gone = [event for event in (events or list(self._events)) if event in self._events]
        for event in gone:
            del self._events[event], self._longest[event]
        return len(gone)
