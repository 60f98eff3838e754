"""When Python looks for cyclic garbage. It holds everybody up meanwhile: for each million objects a third of a second.

What few objects make is looked at often and is cheap; what has been there for long is looked at only while it is
little. Everything else goes as soon as nobody refers to it.
"""

import gc
from typing import Final

NEW_OBJECTS: Final = 2_000  # between two looks at what came since the last
LOOKS_AT_NEW: Final = 4  # between two looks at what these have left: at ten thousand objects
LOOKS_AT_YOUNG: Final = 6_250  # between two looks at everything
NEVER: Final = (1 << 31) - 1
OLD_OBJECTS_MAX: Final = 20_000  # looking through so many takes some 6 ms


def load() -> None:
    """Not until `settle`: all that is made now stays, and looking through it takes as long again."""
    gc.collect()
    gc.disable()


def settle() -> None:
    """What has been loaded so far stays: it is left out of every later look."""
    leave_out()
    there_are(0)
    gc.enable()


def leave_out() -> None:
    """As `settle` for what is loaded while clients are served."""
    gc.freeze()


def collect_new() -> None:
    """Look at what the last slice of long work has left, before it is so much that a look takes long.

    The collector counts objects less those that have gone: what is made in the place of others does not bring it about.
    """
    gc.collect(1)


def there_are(old_objects: int) -> None:
    """So many objects have come with use, and stay for long. Where they are many, nobody looks at everything."""
    looks = LOOKS_AT_YOUNG if old_objects <= OLD_OBJECTS_MAX else NEVER
    gc.set_threshold(NEW_OBJECTS, LOOKS_AT_NEW, looks)
