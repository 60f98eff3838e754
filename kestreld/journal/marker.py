"""The marker of a journal: an empty file in its folder whose name says which segments have to be there.

<queue>.journal/<segment number, 10 digits>-<floor, 20 digits>.live

A segment of that number was on disk, name and all, before the marker got its name, and the live one has that number or
a higher one: the marker may lag, it never leads. Nobody needs an item with an id below the floor: only segments that
end there are removed, and only once the floor is on disk.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SUFFIX: Final = ".live"
_NAME: Final = re.compile(r"(\d{10})-(\d{20})\.live")


@dataclass(slots=True, frozen=True)
class Marker:
    number: int
    floor: int

    @property
    def name(self) -> str:
        return f"{self.number:010d}-{self.floor:020d}{SUFFIX}"

    def __str__(self) -> str:
        return f"the marker is {self.name}"


def find_marker(names: Iterable[str]) -> Marker | None:
    """The marker among the names in a folder; the highest of several, which somebody else must have put there."""
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    found = [Marker(int(match[1]), int(match[2])) for match in matches]
    return max(found, key=lambda marker: (marker.number, marker.floor), default=None)
