"""The ends of a queue's life: a placeholder before it is opened, and a ResourceWarning if it is never closed.

Garbage is collected in the middle of anything: a thread warns, and the code that runs at that moment is in C.
"""

import atexit
import logging
import warnings
from typing import Any, Final, NoReturn
from weakref import ref

from kestreld.errors import QueueNotOpen
from kestreld.forks import call_in_child
from kestreld.library.cleanup import cleanup

_log: Final = logging.getLogger("kestreld.library")


class _Unopened:
    """Object whose every use raises QueueNotOpen."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def _refuse(self) -> NoReturn:
        raise QueueNotOpen(self._queue)

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()


def unopened(queue: str) -> Any:
    """Return a placeholder for any object. Its use raises QueueNotOpen with the name of the queue."""
    return _Unopened(queue)


class Watch(ref[Any]):
    """Reference to one queue, called once that is garbage."""

    what: str

    def __call__(self) -> None:
        if _watches.pop(id(self), None) is not None:
            try:
                warnings.warn(f"unclosed {self.what}", ResourceWarning, stacklevel=2)
            except ResourceWarning as warning:  # if warnings are errors: nobody here could catch them
                _log.error("%s", warning)


_watches: Final[dict[int, Watch]] = {}


def watch(queue: object, what: str) -> Watch:
    """Warn of a queue unless `unwatch` comes first."""
    found = Watch(queue, cleanup.ready())
    found.what = what
    _watches[id(found)] = found
    return found


def unwatch(found: Watch) -> None:
    _watches.pop(id(found), None)


@atexit.register
def _warn_of_all() -> None:
    for found in list(_watches.values()):
        found()


@call_in_child
def _leave_to_parent() -> None:
    _watches.clear()
