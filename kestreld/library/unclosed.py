"""A ResourceWarning for each queue that is garbage, or there at the end of the process, and was not closed.

Garbage is collected in the middle of anything: it is a thread that warns, and what is called at that moment is in C.
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
    """Of one queue. Called once that is garbage."""

    what: str

    def __call__(self) -> None:
        if _watches.pop(id(self), None) is not None:
            try:
                warnings.warn(f"unclosed {self.what}", ResourceWarning, stacklevel=2)
            except ResourceWarning as warning:  # where warnings are errors there is nobody here to have them
                _log.error("%s", warning)


_watches: Final[dict[int, Watch]] = {}


def watch(queue: object, what: str) -> Watch:
    """Warn of it unless `unwatch` comes first."""
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
