"""Waits for what a test cannot be told of."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 60.0  # longer than a busy machine takes for anything
PAUSE_S: Final = 0.002


def until(is_so: Callable[[], object], awaited: str) -> None:
    """Go on once it is so; fails, with what was awaited, where that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s for {awaited}"
        time.sleep(PAUSE_S)
