"""Deadlines of waits: a time in ms since the epoch, or a number of seconds from now."""

from typing import Final

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import InvalidType, InvalidValue

FAR_AT_MS: Final = 1 << 53  # nobody waits longer
_INSTANT: Final = "an int in ms since the epoch"


def checked_deadline(deadline_at_ms: float | None, timeout: float | None = None) -> int:
    """Return the deadline in ms since the epoch from one of the two, limited to FAR_AT_MS. Raises InvalidArgument."""
    end_at_ms = checked_end(deadline_at_ms, timeout)
    if end_at_ms is None:
        raise InvalidType("deadline_at_ms", f"{_INSTANT}, unless there is a timeout", None)
    return end_at_ms


def checked_end(deadline_at_ms: float | None, timeout: float | None = None) -> int | None:
    """Return the deadline like `checked_deadline`; None of both = forever."""
    if timeout is not None:
        if deadline_at_ms is not None:
            raise InvalidValue("timeout", "None where there is a deadline_at_ms", timeout)
        return min(Clock().wall_ms + round(checks.span_s(timeout, "timeout") * 1000), FAR_AT_MS)
    if deadline_at_ms is None:
        return None
    if isinstance(deadline_at_ms, bool) or not isinstance(deadline_at_ms, (int, float)):
        raise InvalidType("deadline_at_ms", _INSTANT, deadline_at_ms)
    if deadline_at_ms != deadline_at_ms:
        raise InvalidValue("deadline_at_ms", _INSTANT, deadline_at_ms)
    return int(min(max(0, deadline_at_ms), FAR_AT_MS))
