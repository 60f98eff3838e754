"""A disk that fails: the n-th call that could go wrong does, once or from then on until it is mended."""

import errno
import os

from tests.support.engine import LateFiles

MAKING = ("make_dir", "create", "rename")
ALL = (*MAKING, "write", "truncate", "sync", "sync_dir", "unlink")
FULL = (*MAKING, "write")  # what a full disk refuses


class FaultyFiles(LateFiles):
    """The real disk but for one call. `calls` counts those of the given kinds."""

    def __init__(
        self, error: int = errno.EIO, kinds: tuple[str, ...] = ALL, *, stays: bool = False, short: bool = False
    ) -> None:
        super().__init__()
        self.error = error
        self.kinds = kinds
        self.stays = stays  # every later call of these kinds fails too, until `mend`
        self.short = short  # a failing write takes half of its bytes first
        self.calls = 0
        self.fail_at = 0
        self.refused: set[str] = set()  # kinds of call that have failed

    @property
    def failed(self) -> bool:
        """Whether that call has come."""
        return bool(self.refused)

    def fail_from(self, call: int) -> None:
        """Count from here, and let that call fail."""
        self.calls, self.fail_at = 0, call

    def mend(self) -> None:
        self.fail_at = 0
        self.stays = False

    def _may_fail(self, kind: str) -> None:
        if kind not in self.kinds:
            return
        self.calls += 1
        if self.calls == self.fail_at or (self.stays and self.refused):
            self.refused.add(kind)
            raise OSError(self.error, os.strerror(self.error))

    def write(self, fd: int, data: bytes) -> int:
        try:
            self._may_fail("write")
        except OSError:
            if self.short and len(data) > 1:
                # Half goes through, and what was left of it fails with the next call.
                self.fail_at = self.calls + 1
                return super().write(fd, data[: len(data) // 2])
            raise
        return super().write(fd, data)

    def make_dir(self, path: str) -> None:
        self._may_fail("make_dir")
        super().make_dir(path)

    def create(self, path: str) -> int:
        self._may_fail("create")
        return super().create(path)

    def rename(self, path: str, new_path: str) -> None:
        self._may_fail("rename")
        super().rename(path, new_path)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._may_fail("truncate")
        super().truncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        self._may_fail("sync")
        super().sync(fd)

    def sync_file_system(self, fd: int) -> None:
        self._may_fail("sync")
        super().sync_file_system(fd)

    def sync_dir(self, path: str) -> None:
        self._may_fail("sync_dir")
        super().sync_dir(path)

    def unlink(self, path: str) -> None:
        self._may_fail("unlink")
        super().unlink(path)
