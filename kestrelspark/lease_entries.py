"""Leases as LEASE records tell them one after the other: who has each, and whether it was there already.

A LEASE of an item with the attempt of its latest one extends that; any other begins one. An attempt's number does not
come back once the lease has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kestreld.journal.records import HOLDERS_MAX

UNKNOWN: Final = 0  # code of a holder
ATTEMPT_MASK: Final = 0xFFF


@dataclass(slots=True)
class Latest:
    """The latest lease of each item of one reader that is not done: ids in order, and attempts."""

    ids: Any = field(default_factory=lambda: np.empty(0, np.int64))
    attempts: Any = field(default_factory=lambda: np.empty(0, np.int64))

    def extend(self, ids: Any, attempts: Any) -> Any:
        """Take in leases in the order of the journal; returns a mask of those that extend one."""
        order = np.argsort(ids, kind="stable")
        ids, attempts = ids[order], attempts[order]
        is_same = np.zeros(len(ids), bool)
        is_first = np.ones(len(ids), bool)
        is_first[1:] = ids[1:] != ids[:-1]
        is_same[1:] = ~is_first[1:] & (attempts[1:] == attempts[:-1])
        places, is_known = self._find(ids)
        is_same |= is_first & is_known & (self._attempts_at(places) == attempts)
        is_last = np.ones(len(ids), bool)
        is_last[:-1] = is_first[1:]
        self.replace(ids[is_last], attempts[is_last])
        extends = np.empty(len(ids), bool)
        extends[order] = is_same
        return extends

    def _find(self, ids: Any) -> tuple[Any, Any]:
        places = np.searchsorted(self.ids, ids)
        is_known = np.zeros(len(ids), bool)
        inside = places < len(self.ids)
        is_known[inside] = self.ids[places[inside]] == ids[inside]
        return places, is_known

    def _attempts_at(self, places: Any) -> Any:
        return np.append(self.attempts, -1)[places]

    def replace(self, ids: Any, attempts: Any) -> None:
        """Set the latest leases of items in order of their ids."""
        places, is_known = self._find(ids)
        self.attempts[places[is_known]] = attempts[is_known]
        is_new = ~is_known
        self.ids = np.insert(self.ids, places[is_new], ids[is_new])
        self.attempts = np.insert(self.attempts, places[is_new], attempts[is_new])

    def end(self, firsts: Any, lasts: Any) -> None:
        """Forget the items of ranges of ids: they are done."""
        begins, ends = np.searchsorted(self.ids, firsts), np.searchsorted(self.ids, lasts, "right")
        some = begins < ends
        if some.any():
            depth = np.zeros(len(self.ids) + 1, np.int64)
            np.add.at(depth, begins[some], 1)
            np.add.at(depth, ends[some], -1)
            stays = np.cumsum(depth[:-1]) == 0
            self.ids, self.attempts = self.ids[stays], self.attempts[stays]


@dataclass(slots=True)
class LatestLeases:
    """The latest lease of each item of a journal that is not done, by reader.

    `earlier` reads those of segments before the first one, once it is needed; None = there are none.
    """

    of: dict[int, Latest] = field(default_factory=dict)
    earlier: "Callable[[], LatestLeases] | None" = None

    def extend(self, readers: Any, ids: Any, attempts: Any, first_id: int = 0) -> Any:
        """Take in leases in the order of the journal; returns a mask of those that extend one.

        `first_id` is that of their segment.
        """
        if self.earlier is not None and (ids < first_id).any():
            earlier, self.earlier = self.earlier(), None
            for reader, latest in self.of.items():
                earlier.of.setdefault(reader, Latest()).replace(latest.ids, latest.attempts)
            self.of = earlier.of
        extends = np.zeros(len(ids), bool)
        for reader in np.unique(readers).tolist():
            which = readers == reader
            extends[which] = self.of.setdefault(reader, Latest()).extend(ids[which], attempts[which])
        return extends

    def end(self, readers: Any, firsts: Any, lasts: Any) -> None:
        """Forget items that a reader is done with."""
        for reader, latest in self.of.items():
            if len(latest.ids):
                which = readers == reader
                latest.end(firsts[which], lasts[which])


@dataclass(slots=True)
class HolderNames:
    """Codes for the names of holders, and which number means which in the segment that is read; 0 = unknown."""

    names: list[str] = field(default_factory=lambda: [""])
    _codes: dict[str, int] = field(default_factory=dict)
    _by_number: Any = None

    def name(self, number: int, name: str) -> None:
        """Take in a HOLDER record."""
        code = self._codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        if self._by_number is None:
            self._by_number = np.zeros(HOLDERS_MAX + 1, np.int32)
        self._by_number[number] = code

    def codes(self, numbers: Any) -> Any:
        """Codes of holders by their numbers in LEASE records."""
        return np.zeros(len(numbers), np.int32) if self._by_number is None else self._by_number[numbers]

    def forget_numbers(self) -> None:
        """Forget the numbers: another segment has others, and damage may have had others of the same."""
        self._by_number = None
