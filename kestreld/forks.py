"""What a fork leaves to the child: the copies that it lets go of, and the objects that begin anew there."""

import os
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet


class Restarted(Protocol):
    """What a child may go on using, but for its threads, locks and connections, which are the parent's."""

    def after_fork(self) -> None:
        """In the child, before anything else of it runs."""


_restarted: Final[WeakSet[Restarted]] = WeakSet()


def restart_in_child(one: Restarted) -> None:
    """Have its `after_fork` called in each child, for as long as it lives."""
    _restarted.add(one)


def call_in_child(call: Callable[[], None]) -> None:
    """Have this called in each child, before anything else of it runs."""
    os.register_at_fork(after_in_child=call)


@call_in_child
def _restart() -> None:
    for one in list(_restarted):
        one.after_fork()
