"""Signal handling: SIGINT, SIGTERM and SIGHUP raise `Interrupted`, delayed where a block holds them.

Python swallows an exception that a handler raises during a finalizer or one of its own import callbacks. In that case
it is raised again AGAIN_S later.
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

_last = 0  # the last signal received; 0 = none
_held: list[int] | None = None  # signals received while held; None = not held


def catch_signals() -> None:
    """Install the handlers, except for signals that the parent process has set to be ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    signal.signal(signal.SIGALRM, lambda _, frame: _interrupt(_last, frame))
    sys.unraisablehook = _swallowed


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals to the end of this block. Unlike a mask, this is not inherited by children."""
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
