"""SIGINT, SIGTERM and SIGHUP become `Interrupted`, where that can be borne."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kestrelctl.shell.exit_codes import Interrupted

_last = 0  # the last signal that came; 0 = none has
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


def raise_lost() -> None:
    """Raise Interrupted for a signal that came where Python swallows what a handler raises, in a finalizer say."""
    if _last:
        raise Interrupted(_last)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    global _last
    _last = signal_number
    if _held is None:
        raise Interrupted(signal_number)
    _held.append(signal_number)
