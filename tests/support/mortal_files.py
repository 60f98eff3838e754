"""A process that dies between two changes to its disk, or in the middle of a write."""

from pathlib import Path

from tests.support.engine import QuickFiles


class Killed(BaseException):
    """The process is gone. Not an Exception: nobody may catch it."""


class MortalFiles(QuickFiles):
    """The real disk of a process that dies at its n-th change to it. A write that it dies in is half done.

    Nothing reaches the disk after death, whatever the code's last words are.
    """

    def __init__(self, dies_at_change: int) -> None:
        super().__init__()
        self.dies_at_change = dies_at_change
        self.changes = 0

    def _change(self) -> None:
        self.changes += 1
        if self.changes >= self.dies_at_change:
            raise Killed

    def make_dir(self, path: str) -> None:
        self._change()
        super().make_dir(path)

    def create(self, path: str) -> int:
        self._change()
        return super().create(path)

    def write(self, fd: int, data: bytes) -> int:
        if self.changes + 1 == self.dies_at_change:
            super().write(fd, data[: len(data) // 2])
        self._change()
        return super().write(fd, data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._change()
        super().truncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        self._change()

    def sync_file_system(self, fd: int) -> None:
        self._change()

    def sync_dir(self, path: str) -> None:
        self._change()

    def copy(self, path: str, new_path: str) -> None:
        if self.changes + 1 == self.dies_at_change:
            content = self.read_file(path)
            Path(new_path).write_bytes(content[: len(content) // 2])
        self._change()
        super().copy(path, new_path)

    def link(self, path: str, new_path: str) -> None:
        self._change()
        super().link(path, new_path)

    def rename(self, path: str, new_path: str) -> None:
        self._change()
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)

    def remove_dir(self, path: str) -> None:
        self._change()
        super().remove_dir(path)
