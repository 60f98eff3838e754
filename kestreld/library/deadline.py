"""Until when somebody waits, as he says it."""

from typing import Final

FAR_AT_MS: Final = 1 << 53  # nobody waits longer


def checked_deadline(deadline_at_ms: float) -> int:
    """Ms since the epoch, not farther than can be waited for. Raises TypeError or ValueError for what is no instant."""
    if isinstance(deadline_at_ms, bool) or not isinstance(deadline_at_ms, (int, float)):
        raise TypeError(f"deadline must be an int in ms since the epoch, not {type(deadline_at_ms).__name__}")
    if deadline_at_ms != deadline_at_ms:
        raise ValueError(f"deadline must be in ms since the epoch, not {deadline_at_ms}")
    return int(min(max(0, deadline_at_ms), FAR_AT_MS))


def checked_end(deadline_at_ms: float | None) -> int | None:
    """`checked_deadline`, where None is forever."""
    return None if deadline_at_ms is None else checked_deadline(deadline_at_ms)
