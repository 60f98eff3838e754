"""Parsing and formatting of instants and durations, in UTC unless another zone is given."""

import datetime
import re
import time
from typing import Final

from kestreld.config.units import parse_duration_ms

UTC: Final = datetime.UTC
DAY_MS: Final = 86_400_000
LATEST_MS: Final = 253_402_300_799_999  # the end of the year 9999


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_instant_ms(words: str, now_ms: int) -> int:
    """Parse `2025-01-31T12:00`, `10:32` (the latest), `24h` (ago), `now`, or ms since 1970. Raises ValueError."""
    if words == "now":
        return now_ms
    if words.isdecimal() and words.isascii() and int(words) <= LATEST_MS:
        return int(words)
    if re.fullmatch(r"(\d+(d|h|m|s|ms))+", words, re.ASCII):
        return now_ms - parse_duration_ms(words, 1000)
    if re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", words, re.ASCII):
        clock = datetime.time.fromisoformat(words)
        today = datetime.datetime.fromtimestamp(now_ms / 1000, UTC).date()
        at_ms = _to_ms(datetime.datetime.combine(today, clock, UTC))
        return at_ms if at_ms <= now_ms else at_ms - DAY_MS
    at = datetime.datetime.fromisoformat(words)
    return _to_ms(at.replace(tzinfo=UTC) if at.tzinfo is None else at)


def _to_ms(at: datetime.datetime) -> int:
    return (at - datetime.datetime.fromtimestamp(0, UTC)) // datetime.timedelta(milliseconds=1)


def parse_span_ms(words: str) -> int:
    """Parse `250ms`, `30s`, `1h30m`; a plain number is milliseconds. Raises ValueError."""
    return parse_duration_ms(words, 1)


def written_instant(at_ms: int) -> str:
    """`2025-01-31T12:00:00.250Z`, or the number if it is out of the calendar's range."""
    if not 0 <= at_ms <= LATEST_MS:
        return str(at_ms)
    at = datetime.datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def written_span(span_ms: int) -> str:
    """A duration in its two largest units: `3d4h`, `2h5m`, `40s`, `250ms`."""
    parts = []
    for unit, unit_ms in (("d", DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, span_ms = divmod(span_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
        if parts and (len(parts) == 2 or not count or unit == "s"):
            break
    return "".join(parts) or "0s"
