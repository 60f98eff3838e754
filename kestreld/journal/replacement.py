"""A folder of the spool that is built anew beside the damaged one, and takes its place when it is whole and on disk.

The damaged one is kept. A crash at any step leaves the one or the other, or what `finish_repairs` completes.
"""

from typing import Final

from kestreld.clock import Clock
from kestreld.files import FileLayer
from kestreld.journal.verify import FOLDER_SUFFIX

DAMAGED: Final = ".damaged"
BUILDING: Final = ".tmp"
BUILT: Final = ".repaired"  # ends the name of a folder that is whole and on disk, but not in its place yet


def finish_repairs(files: FileLayer, spool: str) -> list[str]:
    """Give what was repaired the names that a crash kept from it; which. Before anything else looks at the spool."""
    finished = []
    building = f"{spool}/{BUILDING}"
    for name in files.list_dir(building) if files.is_dir(building) else []:
        folder = f"{spool}/{name.removesuffix(BUILT)}"
        if name.endswith(BUILT) and not files.exists(folder):
            files.rename(f"{building}/{name}", folder)
            files.sync_dir(spool)
            finished.append(folder)
    return finished


class Replacement:
    """Of `folder`, which is in a spool. It is built in `building`; then come `publish`, `put_in_place`, `sync_names`.

    `built` is where it is from `publish` on.
    """

    def __init__(self, files: FileLayer, clock: Clock, folder: str) -> None:
        self._files = files
        self._clock = clock
        self._folder = folder
        self._spool, _, self._name = folder.rpartition("/")
        self.building = f"{self._spool}/{BUILDING}/{self._name}"
        self.built = self.building + BUILT

    def abandon(self) -> None:
        """Remove what was built, now or in an earlier attempt. Raises OSError."""
        for leftover in (self.building, self.built):
            if self._files.exists(leftover):
                self._files.remove_folder(leftover)

    def publish(self) -> None:
        """All of it is on disk: give it the name that `finish_repairs` looks for. Slow; raises OSError."""
        self._files.rename(self.building, self.built)
        self._files.sync_dir(f"{self._spool}/{BUILDING}")
        self._files.make_dir(f"{self._spool}/{DAMAGED}")
        self._files.sync_dir(self._spool)  # before the old one moves into a folder that a power cut may take away

    def put_in_place(self) -> str:
        """Let it take the place of the old one; where that is kept. Quick; raises OSError.

        A crash leaves the one or the other in place, or neither and the new one where `finish_repairs` looks.
        """
        files, encoded = self._files, self._name.removesuffix(FOLDER_SUFFIX)
        at_ms = self._clock.wall_ms
        while files.exists(kept_at := f"{self._spool}/{DAMAGED}/{encoded}.{at_ms}"):
            at_ms += 1
        files.rename(self._folder, kept_at)
        try:
            files.rename(self.built, self._folder)
        except OSError:
            files.rename(kept_at, self._folder)
            raise
        return kept_at

    def sync_names(self) -> None:
        """Slow; raises OSError."""
        for folder in (f"{self._spool}/{DAMAGED}", f"{self._spool}/{BUILDING}", self._spool):
            self._files.sync_dir(folder)
