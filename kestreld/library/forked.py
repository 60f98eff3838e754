"""Queues after a fork: they belong to the parent, and raise QueueForked in the child.

A child has copies of its parent's queues, of descriptors and of locks, which another thread may have held. No code asks
which process it runs in: in the child locks are other objects, and queues have another class.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn
from weakref import WeakSet

from kestreld.errors import KestrelError, QueueForked, ThreadDied
from kestreld.forks import call_in_child

_queues: Final[WeakSet[Any]] = WeakSet()


def refuse_in_child(queue: object) -> None:
    """Have all methods and properties of a queue raise QueueForked in each forked child."""
    _queues.add(queue)


class _RefusingLock:
    """Stands in for a lock that can never be acquired again: raises `reason()` instead."""

    def __init__(self, reason: Callable[[], KestrelError]) -> None:
        self._reason = reason

    def acquire(self, *_: object, **__: object) -> NoReturn:
        raise self._reason()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        """Do nothing: never reached."""


def forked_lock(queue: str) -> Any:
    """Return a stand-in for a lock that raises QueueForked with the name of the queue."""
    return _RefusingLock(lambda: QueueForked(queue))


def dead_lock(problem: ThreadDied) -> Any:
    """Return a stand-in for a lock that raises the problem."""
    return _RefusingLock(lambda: problem)


@cache
def _forked(kind: Any) -> Any:
    """Return the class that queues of this class have in a child."""

    def refuse(queue: object, *_: object) -> NoReturn:
        raise QueueForked(object.__getattribute__(queue, "__dict__")["_forked"])

    def attribute(queue: object, name: str) -> Any:
        # Dunder attributes, which `isinstance` and the like read, have no effects.
        return object.__getattribute__(queue, name) if name.startswith("__") else refuse(queue)

    def named(queue: object) -> str:
        name = object.__getattribute__(queue, "__dict__")["_forked"]
        return f"<{kind.__name__} {name}: of the parent process>"

    special = ("enter", "exit", "aenter", "aexit", "iter", "aiter", "len", "setattr")
    own = {**{f"__{name}__": refuse for name in special}, "__repr__": named}
    return type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": attribute, **own})


def _name(queue: Any) -> str:
    named = (getattr(queue, attribute, "") for attribute in ("full_name", "name"))
    return next(filter(None, named), type(queue).__name__)


@call_in_child
def _refuse() -> None:
    queues = list(_queues)
    _queues.clear()  # they refuse in a grandchild, too
    for queue in queues:
        name = _name(queue)
        for answer in getattr(queue, "awaited", ()):
            answer.refuse(name)
        vars(queue)["_forked"] = name
        queue.__class__ = _forked(queue.__class__)
