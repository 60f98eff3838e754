"""Which journals hold descriptors: as many as others leave, the least recently used let go of theirs."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kestreld.journal.journal import Journal


class OpenFiles:
    """The journals with open files, the most recently used last, and how many descriptors they hold."""

    def __init__(self, descriptors_max: int = 2000) -> None:
        self.descriptors_max = descriptors_max
        self.lent: Callable[[], int] = lambda: 0  # how many of these somebody else has just now
        self.held = 0
        self._open: OrderedDict[Journal, None] = OrderedDict()

    def use(self, journal: "Journal") -> None:
        """`journal` is about to use its files."""
        self._open[journal] = None
        self._open.move_to_end(journal)

    def make_room(self, wanted: int = 0) -> None:
        """Have journals close their files until there are `wanted` descriptors to be had, if that can be."""
        while self._open and self.held + wanted > self.descriptors_max - self.lent():
            idle = next((journal for journal in self._open if not journal.is_borrowed), None)
            if idle is None:
                return
            idle.close()

    def forget(self, journal: "Journal") -> None:
        """`journal` has closed its files."""
        self._open.pop(journal, None)
