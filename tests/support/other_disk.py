"""A disk of which the archive is no part: nothing can be renamed from the one to the other."""

import errno
import os

from kestreld.files import FileLayer
from tests.support.engine import LateFiles, QuickFiles
from tests.support.mortal_files import MortalFiles


class OtherDisk(FileLayer):
    """Mixed in: the archive is on another disk, where nothing can be renamed to."""

    def rename(self, path: str, new_path: str) -> None:
        if "/archive/" in new_path and "/archive/" not in path:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename(path, new_path)


class OtherQuickDisk(OtherDisk, QuickFiles):
    pass


class OtherLateDisk(OtherDisk, LateFiles):
    pass


class OtherMortalDisk(OtherDisk, MortalFiles):
    pass
