"""ResourceWarnings for queues that were not closed before they were garbage or the process ended.

Garbage is collected in the middle of anything: a thread warns, and the code that runs at that moment is in C.
"""

import atexit
import logging
import warnings
from typing import Any, Final
from weakref import ref

from kestreld.forks import call_in_child
from kestreld.library.afterwards import afterwards

_log: Final = logging.getLogger("kestreld.library")


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
    found = Watch(queue, afterwards.ready())
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
