"""SIGINT, SIGTERM and SIGHUP become `Interrupted`, where that can be borne.

Python swallows what a handler raises while it calls a finalizer, or a callback of its own during an import. There it
is raised again a moment later.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from kestrelctl.shell.exit_codes import Interrupted

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_S: Final = 0.01

_last = 0  # the last signal that came; 0 = none has
_held: list[int] | None = None  # signals that came while they were held; None = they are not held


def catch_signals() -> None:
    """Stop in good order, unless whoever started us has a signal ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, lambda _, frame: _interrupt(_last, frame))
    sys.unraisablehook = _swallowed


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
    global _last
    _last = signal_number
    if _held is None:
        raise Interrupted(signal_number)
    _held.append(signal_number)


def _swallowed(what: "UnraisableHookArgs") -> None:
    if isinstance(what.exc_value, Interrupted):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(what)
