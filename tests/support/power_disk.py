"""A disk whose power can be cut under a real process: the simulation's disk, mounted by FUSE.

What was not synced by then is lost, kept, torn or reordered, by a seed. The kernel calls it as it calls any disk.
"""

import errno
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.simulation.disk import Disk, File, Folder, random_power_cut
from tests.support.daemon import ROOT

CUT: Final = ".power-cut"  # removing the folder of this name, which no listing shows, cuts the power
BLOCK_BYTES: Final = 4096


class PowerDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cut(self) -> None:
        """What the next process finds is what had got to the disk, and of the rest whatever."""
        (self.folder / CUT).rmdir()


@contextmanager
def power_disk(folder: Path, seed: int) -> Iterator[PowerDisk]:
    """Mounted at `folder` while the block lasts. Skips the test where FUSE is not to be had."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("fusermount3") is None:
        pytest.skip("no disk can be mounted by FUSE: that takes /dev/fuse and fusermount3")
    if importlib.util.find_spec("mfusepy") is None:
        pytest.skip("mfusepy is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.support.power_disk", str(folder), str(seed)]
    mounted = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        while not folder.is_mount():
            if mounted.poll() is not None:
                pytest.skip(f"FUSE does not mount: {mounted.communicate()[1].strip()}")
            time.sleep(0.01)
        yield PowerDisk(folder)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", folder], check=False, capture_output=True)
        mounted.kill()
        mounted.communicate()


def main() -> None:
    import mfusepy  # only where it is installed

    class Mounted(mfusepy.Operations):  # type: ignore[misc]
        """FUSE's calls on a Disk. Descriptors are numbers of open files; a file that was unlinked stays readable."""

        def __init__(self, chance: Random) -> None:
            self.chance = chance
            self.disk = Disk()
            self.opened: dict[int, File] = {}
            self.numbers = count(1)

        def _node(self, path: str) -> File | Folder:
            node = Folder() if path == f"/{CUT}" else self.disk.find(path)
            if node is None:
                raise mfusepy.FuseOSError(errno.ENOENT)
            return node

        def _file(self, path: str) -> File:
            node = self._node(path)
            if not isinstance(node, File):
                raise mfusepy.FuseOSError(errno.EISDIR)
            return node

        def _open(self, file: File) -> int:
            number = next(self.numbers)  # none again: what was open before a cut is released after it
            self.opened[number] = file
            return number

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            node = self.opened[fh] if fh in self.opened else self._node(path)
            kind, size = (stat.S_IFREG | 0o600, len(node.data)) if isinstance(node, File) else (stat.S_IFDIR | 0o700, 0)
            return {"st_mode": kind, "st_size": size, "st_nlink": 1, "st_uid": os.getuid(), "st_gid": os.getgid()}

        def readdir(self, path: str, fh: int) -> list[str]:
            node = self._node(path)
            return [".", "..", *node.names] if isinstance(node, Folder) else []

        def mkdir(self, path: str, mode: int) -> int:
            self.disk.change_names([], [(*self.disk.place(path), Folder())])
            return 0

        def create(self, path: str, mode: int, fi: object = None) -> int:
            file = File()
            self.disk.change_names([], [(*self.disk.place(path), file)])
            return self._open(file)

        def open(self, path: str, flags: int) -> int:
            return self._open(self._file(path))

        def release(self, path: str, fh: int) -> int:
            self.opened.pop(fh, None)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return bytes(self.opened[fh].data[offset : offset + size])

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            self.opened[fh].write(offset, data)
            return len(data)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            (self.opened[fh] if fh in self.opened else self._file(path)).truncate(length)
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            self.opened[fh].sync()
            return 0

        def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
            node = self._node(path)
            assert isinstance(node, Folder)
            self.disk.sync_folder(node)
            return 0

        def rename(self, old: str, new: str) -> int:
            self.disk.change_names([self.disk.place(old)], [(*self.disk.place(new), self._node(old))])
            return 0

        def unlink(self, path: str) -> int:
            self._file(path)
            self.disk.change_names([self.disk.place(path)], [])
            return 0

        def rmdir(self, path: str) -> int:
            if path == f"/{CUT}":
                self.disk = random_power_cut(self.disk, self.chance)
                return 0
            node = self._node(path)
            if isinstance(node, Folder) and node.names:
                raise mfusepy.FuseOSError(errno.ENOTEMPTY)
            self.disk.change_names([self.disk.place(path)], [])
            return 0

        def chmod(self, path: str, mode: int) -> int:
            return 0

        def statfs(self, path: str) -> dict[str, int]:
            return {"f_bsize": BLOCK_BYTES, "f_blocks": 1 << 20, "f_bavail": 1 << 20, "f_bfree": 1 << 20}

    folder, seed = sys.argv[1:]
    at_once = {"attr_timeout": 0, "entry_timeout": 0, "hard_remove": True}  # nothing of before a cut is remembered
    mfusepy.FUSE(Mounted(Random(seed)), folder, foreground=True, nothreads=True, **at_once)


if __name__ == "__main__":
    main()
