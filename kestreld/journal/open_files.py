"""File descriptors of journals: a limit for all, beyond which the least recently used are closed.

A descriptor that a background sync has borrowed stays open until it is given back.
"""

from collections import OrderedDict
from collections.abc import Callable

from kestreld.files import FileLayer


class OpenFiles:
    """Journals with open files, the most recently used last, and the number of descriptors they hold."""

    def __init__(self, descriptors_max: int = 2000) -> None:
        self.descriptors_max = descriptors_max
        self.lent: Callable[[], int] = lambda: 0  # number of these that are in use elsewhere
        self.held = 0
        self._open: OrderedDict[Descriptors, None] = OrderedDict()

    def use(self, journal: "Descriptors") -> None:
        """Mark `journal` as the most recently used."""
        self._open[journal] = None
        self._open.move_to_end(journal)

    def make_room(self, wanted: int = 0) -> None:
        """Have journals close their files until `wanted` descriptors are free, if possible."""
        while self._open and self.held + wanted > self.descriptors_max - self.lent():
            idle = next((journal for journal in self._open if not journal.is_borrowed), None)
            if idle is None:
                return
            idle.close()

    def forget(self, journal: "Descriptors") -> None:
        """Remove `journal`, which has closed its files."""
        self._open.pop(journal, None)


class Descriptors:
    """Descriptors of one journal: at most one for writing and one for reading, and those lent to background syncs."""

    __slots__ = ("_borrowed", "_read_fd", "_read_number", "_write_fd", "files", "open_files")

    def __init__(self, files: FileLayer, open_files: OpenFiles) -> None:
        self.files = files
        self.open_files = open_files
        self._borrowed: dict[int, int] = {}  # descriptor -> number of background syncs that use it
        self._write_fd = -1
        self._read_fd = -1
        self._read_number = -1  # segment that `_read_fd` is of

    def _open(self, opening: Callable[[str], int], path: str) -> int:
        self.open_files.make_room(1)
        fd = opening(path)
        self.open_files.held += 1
        return fd

    def _ensure_open(self, path: str) -> int:
        """Descriptor for writing; opens the file at `path` if there is none. Raises OSError."""
        self.open_files.use(self)
        if self._write_fd < 0:
            self._write_fd = self._open(self.files.open_append, path)
        return self._write_fd

    def _close(self, fd: int) -> None:
        self.files.close(fd)
        self.open_files.held -= 1

    @property
    def is_borrowed(self) -> bool:
        """True while a background sync uses a descriptor."""
        return bool(self._borrowed)

    def _borrow(self, fd: int) -> int:
        self._borrowed[fd] = self._borrowed.get(fd, 0) + 1
        return fd

    def give_back(self, fd: int) -> None:
        """End the use of a borrowed descriptor, and close it if it is no longer the one for writing."""
        self._borrowed[fd] -= 1
        if not self._borrowed[fd]:
            del self._borrowed[fd]
            if fd != self._write_fd:
                self._close(fd)

    # Forgotten first: a descriptor closed twice may be another file's by then.

    def _close_write(self) -> None:
        fd, self._write_fd = self._write_fd, -1
        if fd >= 0 and fd not in self._borrowed:
            self._close(fd)

    def _close_read(self) -> None:
        fd, self._read_fd = self._read_fd, -1
        self._read_number = -1
        if fd >= 0:
            self._close(fd)

    def close(self) -> None:
        """Close the descriptors; the next write or read opens them again."""
        self.open_files.forget(self)
        self._close_read()
        self._close_write()
