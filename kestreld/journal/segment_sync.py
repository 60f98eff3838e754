"""One sync of a journal: the segments that it covers, oldest first, the folders, and how far it came."""

from collections.abc import Sequence

from kestreld.files import FileLayer
from kestreld.journal.segment import Segment


class SegmentSync:
    """A sync that `run` makes, in any thread. The other methods are for afterwards."""

    __slots__ = ("_covered", "_files", "_folders", "_is_begun", "_on_disk")

    def __init__(self, files: FileLayer, covered: Sequence[tuple[int, Segment]], folders: Sequence[str]) -> None:
        """`covered`: descriptors and their segments; -1 = to be opened by its name."""
        self._files = files
        self._covered = covered
        self._folders = folders
        self._is_begun = False
        self._on_disk = 0  # of the covered segments

    def run(self) -> None:
        """Sync everything. Raises OSError at the first failure."""
        self._is_begun = True
        for fd, segment in self._covered:
            if fd < 0:
                self._files.sync_by_name(segment.path)
            else:
                self._files.sync(fd)
            self._on_disk += 1
        for folder in self._folders:
            self._files.sync_dir(folder)

    @property
    def lost(self) -> list[Segment]:
        """Once it has failed: the segments that are not to be synced again, as their bytes may be lost.

        All of them, if it never ran because a sync of the whole file system took its place.
        """
        end = self._on_disk + 1 if self._is_begun else None
        return [segment for _, segment in self._covered[self._on_disk : end]]

    def left(self, segments: Sequence[Segment]) -> list[Segment]:
        """Once it has failed: those of the covered and of `segments` that nobody has asked the disk for, in order."""
        asked = {segment.number for _, segment in self._covered[: self._on_disk]} | {one.number for one in self.lost}
        known = {one.number: one for one in [*(segment for _, segment in self._covered), *segments]}
        return [known[number] for number in sorted(known) if number not in asked]
