"""Tuning of Python's cyclic garbage collector, so that collections do not delay turns.

A collection stops everything: a full one for a third of a second per million objects. So young objects are collected
often, a few at a time, and full collections happen only while there are few old objects. Objects in no cycle are freed
at once anyway.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 2_000  # allocated between two collections of the youngest generation
YOUNGEST_BEFORE_MIDDLE: Final = 4  # collections of the youngest before the middle one: 10,000 objects
MIDDLE_BEFORE_FULL: Final = 6_250  # collections of the middle generation before a full one
NEVER: Final = (1 << 31) - 1
OLD_OBJECTS_MAX: Final = 20_000  # a full collection of so many takes about 6 ms


def suspend() -> None:
    """Stop collecting until `resume`: objects loaded now stay, and traversing them would double the time."""
    gc.collect()
    gc.disable()


def resume() -> None:
    """Exclude all objects loaded so far from later collections, and collect again."""
    exclude_loaded()
    limit_full_collections(0)
    gc.enable()


def exclude_loaded() -> None:
    """Exclude all objects loaded so far from later collections."""
    gc.freeze()


def collect_young() -> None:
    """Collect the garbage of the last slice of long work, before there is so much that a collection takes long.

    The collector counts allocations less deallocations: objects that replace others do not trigger it.
    """
    gc.collect(1)


def limit_full_collections(old_objects: int) -> None:
    """Allow full collections only if `old_objects`, the number allocated since `exclude_loaded`, is small."""
    before_full = MIDDLE_BEFORE_FULL if old_objects <= OLD_OBJECTS_MAX else NEVER
    gc.set_threshold(YOUNG_OBJECTS, YOUNGEST_BEFORE_MIDDLE, before_full)
