"""Registry of objects and functions that are reinitialised in a forked child."""

import os
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet


class Restarted(Protocol):
    """An object that a child may use once its threads, locks and connections, the parent's, are replaced."""

    def after_fork(self) -> None:
        """Reinitialise the object; called in the child before its other code runs."""


_restarted: Final[WeakSet[Restarted]] = WeakSet()


def restart_in_child(one: Restarted) -> None:
    """Have `one.after_fork` called in each child, as long as the object exists."""
    _restarted.add(one)


def process_id() -> int:
    return os.getpid()


def call_in_child(call: Callable[[], None]) -> None:
    """Have a function called in each child, before its other code runs."""
    os.register_at_fork(after_in_child=call)


@call_in_child
def _restart() -> None:
    for one in list(_restarted):
        one.after_fork()
