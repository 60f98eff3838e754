"""Every disk that a crash may leave: which changes of names had got there, and which parts of which writes."""

import itertools
from collections.abc import Iterator
from typing import Final

from tests.simulation.disk import SECTOR_BYTES, Change, Disk, File, NameChange, Pieces

NAMES_MAX: Final = 6  # with more changes of names than this, not every set of them is tried
CHOICES_MAX: Final = 200  # with more ways than this to keep parts of writes, one write at a time is odd
Kept = dict[Change, Pieces | None]


def crash_states(disk: Disk) -> Iterator[Disk]:
    """Every different disk that a power cut now may leave."""
    seen: set[frozenset[tuple[str, bytes]]] = set()
    for names in kept_names(disk.name_changes):
        for kept in kept_writes(disk.loose_files()):
            state = disk.after_power_cut(names, lambda file, change, kept=kept: kept[id(change)])  # type: ignore[misc]
            signature = frozenset(state.content().items())
            if signature not in seen:
                seen.add(signature)
                yield state


def kept_names(changes: list[NameChange]) -> Iterator[list[NameChange]]:
    """The sets of changes that may have got there: of each name, none after one that has not."""
    if len(changes) > NAMES_MAX:
        for end in range(len(changes) + 1):
            yield changes[:end]
        for lost in changes:
            yield _without(changes, lost)
        return
    for chosen in itertools.product((False, True), repeat=len(changes)):
        lost: set[object] = set()
        for change, is_kept in zip(changes, chosen, strict=True):
            if not is_kept:
                lost.update(change.places())
            elif not lost.isdisjoint(change.places()):
                break
        else:
            yield list(itertools.compress(changes, chosen))


def _without(changes: list[NameChange], lost: NameChange) -> list[NameChange]:
    """All but one, and what came of it."""
    places = set(lost.places())
    kept = []
    for change in changes:
        if change is lost or not places.isdisjoint(change.places()):
            places.update(change.places())
        else:
            kept.append(change)
    return kept


def kept_writes(files: list[File]) -> Iterator[dict[int, Pieces | None]]:
    """What of each change to a file may have got there, by the change's `id`."""
    changes = [change for file in files for change in file.loose()]
    ways = [_ways(change) for change in changes]
    count = 1
    for one in ways:
        count *= len(one)
    if count <= CHOICES_MAX:
        for chosen in itertools.product(*ways):
            yield {id(change): pieces for change, pieces in zip(changes, chosen, strict=True)}
        return
    for usual in (0, 1):
        for odd, own in enumerate(ways):
            for pieces in own:
                kept = {id(change): one[usual] for change, one in zip(changes, ways, strict=True)}
                kept[id(changes[odd])] = pieces
                yield kept


def _ways(change: Change) -> list[Pieces | None]:
    """Not at all, whole, up to the middle, all but the first sector, or nothing but the length."""
    if change.data is None:
        return [None, []]
    size = len(change.data)
    hole = min(SECTOR_BYTES - change.offset % SECTOR_BYTES, size)
    return [None, [(0, size)], [(0, size // 2)], [(hole, size)]]
