"""Wait for an event elsewhere, with a limit that a busy machine does not reach and that says what was awaited."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
LIMIT_S: Final = 60.0
STEP_S: Final = 0.005


def wait_until(what: str, happened: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """The first true value of `happened`. `what` is a sentence that is true once it has."""
    until_s = time.monotonic() + limit_s
    while not (value := happened()):
        assert time.monotonic() < until_s, f"after {limit_s:.0f} s it is still not so that {what}"
        time.sleep(STEP_S)
    return value
