"""Replacement of a damaged folder in the spool by a new one, built beside it, once that is whole and on disk.

The damaged one is kept. A crash at any step leaves the one or the other, or what `finish_repairs` completes.
"""

from collections.abc import Callable
from typing import Final

from kestreld.clock import Clock
from kestreld.files import FileLayer, must_be_the_systems, naming
from kestreld.journal.segment import FOLDER_SUFFIX

DAMAGED: Final = ".damaged"
BUILDING: Final = ".tmp"
BUILT: Final = ".repaired"  # ends the name of a folder that is whole and on disk, but not in its place yet


def _must_not_fail(path: str, error: OSError) -> None:
    raise error


def finish_repairs(files: FileLayer, spool: str, failed: Callable[[str, OSError], None] = _must_not_fail) -> list[str]:
    """Finish replacements that a crash interrupted; returns the folders. Call it before anything else reads the spool.

    `failed` is called with a folder that cannot be moved into place, and why. Raises OSError.
    """
    finished = []
    for built in _unfinished(files, spool):
        folder = f"{spool}/{built.rpartition('/')[2].removesuffix(BUILT)}"
        try:
            files.rename(built, folder)
            files.sync_dir(spool)
        except OSError as error:
            must_be_the_systems(error)
            failed(built, error)
        else:
            finished.append(folder)
    return finished


def _unfinished(files: FileLayer, spool: str) -> list[str]:
    """Folders that are whole and on disk, and whose place is free."""
    building = f"{spool}/{BUILDING}"
    with naming(building):
        names = files.list_dir(building) if files.is_dir(building) else []
    return [
        f"{building}/{name}"
        for name in names
        if name.endswith(BUILT) and not files.exists(f"{spool}/{name.removesuffix(BUILT)}")
    ]


def remove_abandoned(files: FileLayer, spool: str) -> None:
    """Remove unfinished journals left by crashes. Raises OSError."""
    building = f"{spool}/{BUILDING}"
    if not files.exists(building):
        return
    if not files.is_dir(building):
        files.unlink(building)
        return
    kept = _unfinished(files, spool)
    for name in files.list_dir(building):
        if (path := f"{building}/{name}") not in kept:
            remove_all(files, path)
    if not kept:
        files.remove_dir(building)


def remove_all(files: FileLayer, path: str) -> None:
    """Remove a file, or a folder with everything in it. Raises OSError."""
    try:
        files.unlink(path)
    except IsADirectoryError:
        for name in files.list_dir(path):
            remove_all(files, f"{path}/{name}")
        files.remove_dir(path)


class Replacement:
    """Replacement of `folder`, in a spool. Build it in `building`, then `publish`, `put_in_place`, `sync_names`.

    `built` is its path from `publish` on.
    """

    def __init__(self, files: FileLayer, clock: Clock, folder: str) -> None:
        self._files = files
        self._clock = clock
        self._folder = folder
        self._spool, _, self._name = folder.rpartition("/")
        self.building = f"{self._spool}/{BUILDING}/{self._name}"
        self.built = self.building + BUILT

    def abandon(self) -> None:
        """Remove the new journal of this or an earlier attempt. Raises OSError."""
        for leftover in (self.building, self.built):
            if self._files.exists(leftover):
                self._files.remove_folder(leftover)

    def publish(self) -> None:
        """Rename the new folder, now on disk, to the name that `finish_repairs` looks for. Slow; raises OSError."""
        self._files.rename(self.building, self.built)
        self._files.sync_dir(f"{self._spool}/{BUILDING}")
        self._files.make_dir(f"{self._spool}/{DAMAGED}")
        self._files.sync_dir(self._spool)  # before the old one moves into a folder that a power cut may take away

    def put_in_place(self) -> str:
        """Replace the old folder by the new one; returns the path of the old one. Quick; raises OSError.

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
        """Sync the names of both folders. Slow; raises OSError."""
        for folder in (f"{self._spool}/{DAMAGED}", f"{self._spool}/{BUILDING}", self._spool):
            self._files.sync_dir(folder)
