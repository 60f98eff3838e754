"""SIGINT, SIGTERM and SIGHUP become `Interrupted`, where that can be borne."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kestrelctl.shell.exit_codes import Interrupted

_held: list[int] | None = None  # signals that came while they were held; None = they are not held


def catch_signals() -> None:
    """Stop in good order, unless whoever started us has a signal ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


@contextmanager
def signals_held() -> Iterator[None]:
    """A signal that comes in this block interrupts at its end. Unlike a mask, no child inherits it."""
    global _held
    _held = []
    try:
        yield
    finally:
        came, _held = _held, None
    if came:
        raise Interrupted(came[0])


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    if _held is None:
        raise Interrupted(signal_number)
    _held.append(signal_number)
