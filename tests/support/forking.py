"""Forked children of the test's process: what they find, and that they end."""

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
CHILD_S = 30  # no child takes so long unless it hangs


def in_child(do: Callable[[], T]) -> T:
    """What `do` returns, or raises, in a child. A child that hangs fails the test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, pickle.dumps(_outcome(do)))
        os._exit(0)
    os.close(writing)
    try:
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(reading, select.POLLIN)
        is_over = bool(poll.poll(CHILD_S * 1000))
        if not is_over:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert is_over, "the child hangs"
        outcome, problem = pickle.loads(os.read(reading, 1 << 16))
    finally:
        os.close(reading)
    if problem is not None:
        raise AssertionError(f"in the child: {problem}")
    found: T = outcome
    return found


def _outcome(do: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return do(), None
    except BaseException as error:  # noqa: BLE001 - the child must not go on with the parent's test
        return None, repr(error)
