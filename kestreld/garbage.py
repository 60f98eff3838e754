"""When Python collects cyclic garbage. A collection stops everything: a full one for a third of a second per million
objects.

Young objects are collected often, a few at a time. Full collections happen only while there are few old objects; what
is in no cycle is freed at once anyway.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 2_000  # allocated between two collections of the youngest generation
YOUNGEST_BEFORE_MIDDLE: Final = 4  # collections of the youngest before the middle one: 10,000 objects
MIDDLE_BEFORE_FULL: Final = 6_250  # collections of the middle generation before a full one
NEVER: Final = (1 << 31) - 1
OLD_OBJECTS_MAX: Final = 20_000  # a full collection of so many takes about 6 ms


def suspend() -> None:
    """Collect nothing until `resume`: what is loaded now stays, and traversing it would take as long again."""
    gc.collect()
    gc.disable()


def resume() -> None:
    """Exclude what has been loaded from every later collection, and collect again."""
    exclude_loaded()
    limit_full_collections(0)
    gc.enable()


def exclude_loaded() -> None:
    """Exclude what has been loaded so far from every later collection."""
    gc.freeze()


def collect_young() -> None:
    """Collect what the last slice of long work has left, before it is so much that a collection takes long.

    The collector counts allocations less deallocations: objects that replace others do not trigger it.
    """
    gc.collect(1)


def limit_full_collections(old_objects: int) -> None:
    """Allow full collections only where `old_objects`, those that were allocated since `exclude_loaded`, are few."""
    before_full = MIDDLE_BEFORE_FULL if old_objects <= OLD_OBJECTS_MAX else NEVER
    gc.set_threshold(YOUNG_OBJECTS, YOUNGEST_BEFORE_MIDDLE, before_full)
