"""Which journals hold descriptors: only so many at a time, the least recently used let go of theirs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kestreld.journal.journal import Journal


class OpenFiles:
    """The journals with open files, the most recently used last. Each holds two descriptors at most."""

    def __init__(self, journals_max: int = 1000) -> None:
        self.journals_max = journals_max
        self._open: dict[Journal, None] = {}
        self._latest: Journal | None = None

    def __len__(self) -> int:
        return len(self._open)

    def use(self, journal: "Journal") -> None:
        """`journal` is about to use its files; another may have to close its own for it."""
        if journal is self._latest:
            return
        if self._open.pop(journal, self) is self and len(self._open) >= self.journals_max:
            self._let_one_go()
        self._open[journal] = None
        self._latest = journal

    def _let_one_go(self) -> None:
        for journal in self._open:
            if not journal.is_borrowed:
                journal.close()
                return

    def forget(self, journal: "Journal") -> None:
        """`journal` has closed its files."""
        self._open.pop(journal, None)
        if journal is self._latest:
            self._latest = None
