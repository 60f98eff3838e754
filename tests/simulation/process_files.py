"""The disk as one process sees it: descriptors, calls that fail, and a call that is its last."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from kestreld.files import FileLayer
from tests.simulation.disk import Disk, File, Folder
from tests.support.mortal_files import Killed

CHANGES: Final = frozenset(
    {"make_dir", "create", "write", "truncate", "sync", "sync_dir", "link", "rename", "unlink", "remove_dir"}
)
KINDS: Final = (*sorted(CHANGES), "open", "read", "list_dir")
Finished = Callable[[OSError | None], None]


class Faults:
    """Which calls fail. Nothing does unless told to."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.error = errno.EIO
        self.kinds: frozenset[str] = frozenset()
        self.probability = 0.0
        self.fails_at: int = 0  # the n-th call of these kinds fails, and with `stays` every later one
        self.stays = False
        self.calls = 0
        self.struck: Callable[[str, str], None] = lambda kind, path: None  # told of each failure
        self.failed = 0
        self.is_short = False  # a write that is to fail takes half, and the next one fails
        self.short_writes = 0.0  # so many of the writes take less than they are given

    def heal(self) -> None:
        self.kinds, self.probability, self.fails_at = frozenset(), 0.0, 0

    def strike(self, kind: str, path: str) -> None:
        """Called with every call of a process. Raises OSError where it is to fail."""
        if kind not in self.kinds:
            return
        self.calls += 1
        if self.is_short and self.calls == self.fails_at:
            return
        is_time = self.calls == self.fails_at + self.is_short or (
            self.stays and self.fails_at and self.calls > self.fails_at
        )
        if is_time or (self.probability and self._chance.random() < self.probability):
            self.fail(kind, path, self.error)

    def fail(self, kind: str, path: str, error: int) -> None:
        self.failed += 1
        self.struck(kind, path)
        raise OSError(error, os.strerror(error), path)

    def taken(self, size_bytes: int) -> int:
        """How many bytes of a write are taken at once."""
        if self.is_short and self.calls == self.fails_at:
            return max(size_bytes // 2, 1)
        if size_bytes > 1 and self.short_writes and self._chance.random() < self.short_writes:
            return self._chance.randint(1, size_bytes - 1)
        return size_bytes


class ProcessFiles(FileLayer):
    """A process's calls on a simulated disk.

    `dies_in` changes from now it is killed, in the middle if that is a write; 0 = it lives. `changed` is told of
    each change before it is made. `background` takes slow work; without it that is done at once.
    """

    def __init__(
        self,
        disk: Disk,
        faults: Faults | None = None,
        background: Callable[[Callable[[], None], Finished], None] | None = None,
    ) -> None:
        self.disk = disk
        self.faults = faults or Faults(Random(0))
        self.background = background
        self.dies_in = 0
        self.dead = False
        self.changed: Callable[[], None] = lambda: None
        self.takes_too_long = False  # a call that has to be over in time is not
        self.created: Callable[[str], None] = lambda path: None  # told of each new file
        self.calls: Counter[str] = Counter()
        self.open: dict[int, tuple[File, str]] = {}
        self._next_fd = 3

    def _call(self, kind: str, path: str) -> None:
        if self.dead:
            raise Killed
        self.calls[kind] += 1
        if kind in CHANGES:
            self.changed()
            if kind != "write":
                self._come_nearer_to_death()
        self.faults.strike(kind, path)

    def _come_nearer_to_death(self) -> None:
        if self.dies_in:
            self.dies_in -= 1
            if not self.dies_in:
                self.die()
                raise Killed

    def die(self) -> None:
        self.dead = True
        self.disk.locked.clear()

    def in_background(self, work: Callable[[], None], finished: Finished) -> None:
        if self.background is None:
            super().in_background(work, finished)
        else:
            self.background(work, finished)

    # Names

    def _file(self, path: str) -> File:
        node = self.disk.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return node

    def _folder(self, path: str) -> Folder:
        node = self.disk.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, File):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def make_dir(self, path: str) -> None:
        node = self.disk.find(path)
        if isinstance(node, Folder):
            return
        if above := path.rpartition("/")[0]:
            self.make_dir(above)
        self._call("make_dir", path)
        self.disk.change_names([], [(*self.disk.place(path), Folder())])

    def list_dir(self, path: str) -> list[str]:
        self._call("list_dir", path)
        return sorted(self._folder(path).names)

    def is_dir(self, path: str) -> bool:
        return isinstance(self.disk.find(path), Folder)

    def is_file(self, path: str) -> bool:
        return isinstance(self.disk.find(path), File)

    def exists(self, path: str) -> bool:
        return self.disk.find(path) is not None

    def size_bytes(self, path: str) -> int:
        return len(self._file(path).data)

    def free_bytes(self, path: str) -> int:
        capacity_bytes = self.disk.capacity_bytes
        return 1 << 40 if capacity_bytes is None else max(capacity_bytes - self.disk.used_bytes(), 0)

    def sync_file_system(self, fd: int) -> None:
        files = [file for _, file in self.disk.walk()] + [file for file, _ in self.open.values()]
        try:
            self._call("sync", "the file system")
        except OSError:
            for file in files:
                file.fail_sync()
            raise
        for file in files:
            file.sync()
        self.disk.sync_all_names()

    def is_covered(self, path: str, fd: int) -> bool:
        self._file(path)
        return True

    def in_time(self, work: Callable[[], None], within_us: int | None) -> bool:
        if self.takes_too_long and within_us is not None:
            return False
        return super().in_time(work, within_us)

    def sync_dir(self, path: str) -> None:
        self._call("sync_dir", path)
        self.disk.sync_folder(self._folder(path))

    def link(self, path: str, new_path: str) -> None:
        self._call("link", new_path)
        file = self._file(path)
        if self.exists(new_path):
            raise FileExistsError(errno.EEXIST, "File exists", new_path)
        self.disk.change_names([], [(*self.disk.place(new_path), file)])

    def rename(self, path: str, new_path: str) -> None:
        self._call("rename", path)
        place = self.disk.place(path)
        node = place[0].names.get(place[1])
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        there = self.disk.find(new_path)
        if isinstance(there, Folder) and there.names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new_path)
        self.disk.change_names([place], [(*self.disk.place(new_path), node)])

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        self._file(path)
        self.disk.change_names([self.disk.place(path)], [])

    def remove_dir(self, path: str) -> None:
        self._call("remove_dir", path)
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.disk.change_names([self.disk.place(path)], [])

    # Files

    def _opened(self, file: File, path: str) -> int:
        self._next_fd += 1
        self.open[self._next_fd] = (file, path)
        return self._next_fd

    def create(self, path: str) -> int:
        self._call("create", path)
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        file = File()
        self.disk.change_names([], [(*self.disk.place(path), file)])
        self.created(path)
        return self._opened(file, path)

    def make_like(self, fd: int, path: str) -> None:
        assert self._file(path) is not self.open[fd][0]

    def open_append(self, path: str) -> int:
        self._call("open", path)
        return self._opened(self._file(path), path)

    def open_read(self, path: str) -> int:
        return self.open_append(path)

    def write(self, fd: int, data: bytes) -> int:
        file, path = self.open[fd]
        self._call("write", path)
        if self.dies_in == 1:
            file.write(len(file.data), data[: len(data) // 2])
        self._come_nearer_to_death()
        taken = self._room(path, self.faults.taken(len(data)))
        file.write(len(file.data), data[:taken])
        return taken

    def _room(self, path: str, size_bytes: int) -> int:
        """How much of that the disk has room for. OSError when it is full."""
        if self.disk.capacity_bytes is None:
            return size_bytes
        room_bytes = self.disk.capacity_bytes - self.disk.used_bytes()
        if room_bytes <= 0 < size_bytes:
            self.faults.fail("write", path, errno.ENOSPC)
        return min(size_bytes, room_bytes)

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        file, path = self.open[fd]
        self._call("read", path)
        return bytes(file.data[offset : offset + size_bytes])

    def truncate(self, fd: int, size_bytes: int) -> None:
        file, path = self.open[fd]
        self._call("truncate", path)
        file.truncate(size_bytes)

    def sync(self, fd: int) -> None:
        file, path = self.open[fd]
        try:
            self._call("sync", path)
        except OSError:
            file.fail_sync()
            raise
        file.sync()

    def close(self, fd: int) -> None:
        if not self.dead:
            self.disk.locked.discard(self.open.pop(fd)[0])

    def copy(self, path: str, new_path: str) -> None:
        data = self.read_file(path)
        if self.exists(new_path):
            self.unlink(new_path)
        fd = self.create(new_path)
        try:
            while data:
                data = data[self.write(fd, data) :]
            self.sync(fd)
        finally:
            self.close(fd)

    def lock(self, path: str) -> int | None:
        fd = self.open_append(path) if self.exists(path) else self.create(path)
        file = self.open[fd][0]
        if file in self.disk.locked:
            self.close(fd)
            return None
        self.disk.locked.add(file)
        return fd

    def replace_content(self, fd: int, data: bytes) -> None:
        self.truncate(fd, 0)
        self.write(fd, data)

    def read_file(self, path: str) -> bytes:
        fd = self.open_read(path)
        try:
            return self.read_at(fd, self.size_bytes(path), 0)
        finally:
            self.close(fd)

    def read_operators_file(self, path: str) -> bytes:
        return self.read_file(path)
