"""A disk in memory: for tests that start a server on some ten thousand different spools."""

import errno
from itertools import count

from kestreld.files import FileLayer


class MemoryFiles(FileLayer):
    """Files by path, descriptors by number; a descriptor goes on reading a file that was renamed or unlinked."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.folders: set[str] = set()
        self._open: dict[int, bytearray] = {}
        self._numbers = count(1000)

    def _there(self, path: str) -> bytearray:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.files[path]

    def make_dir(self, path: str) -> None:
        while path not in self.folders and len(path) > 1:
            self.folders.add(path)
            path = path.rpartition("/")[0]

    def list_dir(self, path: str) -> list[str]:
        inside = {
            one[len(path) + 1 :].partition("/")[0] for one in [*self.files, *self.folders] if one.startswith(path + "/")
        }
        return sorted(inside)

    def is_dir(self, path: str) -> bool:
        return path in self.folders

    def is_file(self, path: str) -> bool:
        return path in self.files

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def size_bytes(self, path: str) -> int:
        return len(self._there(path))

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def create(self, path: str) -> int:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.files[path] = bytearray()
        return self.open_append(path)

    def make_like(self, fd: int, path: str) -> None:
        assert self._there(path) is not self._open[fd]

    def open_append(self, path: str) -> int:
        fd = next(self._numbers)
        self._open[fd] = self._there(path)
        return fd

    def open_read(self, path: str) -> int:
        return self.open_append(path)

    def open_operators_file(self, path: str) -> int:
        return self.open_append(path)

    def write(self, fd: int, data: bytes) -> int:
        self._open[fd] += data
        return len(data)

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        return bytes(self._open[fd][offset : offset + size_bytes])

    def truncate(self, fd: int, size_bytes: int) -> None:
        del self._open[fd][size_bytes:]

    def sync(self, fd: int) -> None:
        assert fd in self._open

    def sync_file_system(self, fd: int) -> None:
        assert fd in self._open

    def is_covered(self, path: str, fd: int) -> bool:
        return True

    def sync_dir(self, path: str) -> None:
        assert path in self.folders

    def close(self, fd: int) -> None:
        del self._open[fd]

    def rename(self, path: str, new_path: str) -> None:
        if path in self.folders:
            self._rename_folder(path, new_path)
        else:
            self.files[new_path] = self._there(path)
            del self.files[path]

    def _rename_folder(self, path: str, new_path: str) -> None:
        self.folders.remove(path)
        self.folders.add(new_path)
        for inside in [one for one in self.files if one.startswith(path + "/")]:
            self.files[new_path + inside[len(path) :]] = self.files.pop(inside)

    def unlink(self, path: str) -> None:
        if path in self.folders:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self._there(path)
        del self.files[path]

    def remove_dir(self, path: str) -> None:
        self.folders.remove(path)

    def read_file(self, path: str) -> bytes:
        return bytes(self._there(path))
