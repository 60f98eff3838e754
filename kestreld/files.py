"""All disk access of the engine and server, in one class; the crash simulation replaces it by a faulty disk.

Errors are the system's own OSError; callers add the context. Files are created with mode 0600, folders with 0700;
symbolic links are not followed in the last component of a path.
"""

import ctypes
import errno
import fcntl
import glob
import os
import resource
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from re import Pattern
from typing import Final, TypeVar

Found = TypeVar("Found")
_libc = ctypes.CDLL(None, use_errno=True)
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
OWN_DESCRIPTORS: Final = "/proc/self/fd"
FUSE: Final = 0x65735546  # what statfs(2) calls it
DISK_SHORT = frozenset({errno.ENOSPC, errno.EDQUOT})  # removing files helps
OUT_OF_MEANS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # no file is to blame
ENDLESS_DESCRIPTORS: Final = 1 << 20
AT_FDCWD: Final = -100
STATX_BASIC, STATX_BTIME, STATX_BYTES = 0x7FF, 0x800, 256
STATX_TIMES: Final = struct.Struct("=qI4x")  # of birth, change and modification, from byte 80 on
NOT_FILES: Final = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


def must_be_the_systems(error: OSError) -> None:
    """Raise `error` again if no system call has failed: it is then a signal handler's TimeoutError, also an OSError."""
    if error.errno is None:
        raise error


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Set `filename` to `path` in system errors about a descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def why_unread(error: OSError, path: str) -> str:
    """Reason for which `path` cannot be read: its kind if it is not a regular file, else the text of the error."""
    found = _found(os.lstat, path)
    what = next((what for is_it, what in NOT_FILES if found is not None and is_it(found.st_mode)), "")
    is_folder_to_read = what == "a folder" and error.errno != errno.EISDIR
    return f"it is {what}" if what and not is_folder_to_read else error.strerror or str(error)


def descriptors_max() -> int:
    """Number of descriptors that this process may have open, without raising the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else ENDLESS_DESCRIPTORS


def _found(look: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    try:
        return look(path)
    except OSError as error:
        must_be_the_systems(error)
    except ValueError:  # not a valid path
        pass
    return None


@dataclass(slots=True, frozen=True)
class FileTimes:
    """Times of a file, in ns since 1970.

    `born_ns` is None where the file system does not record it. `changed_ns` also covers renames, permissions, and times
    set by a program.
    """

    born_ns: int | None
    written_ns: int
    changed_ns: int


class FileLayer:
    """System calls on paths and descriptors of the real file system."""

    takes_calls = True  # False once `in_background` ignores calls

    def make_dir(self, path: str) -> None:
        """Make a folder and its missing parents; it may exist already."""
        os.makedirs(path, mode=0o700, exist_ok=True)

    def make_lasting_dir(self, path: str) -> None:
        """Make a folder as `make_dir` does, and sync its new names, so that they survive a power cut."""
        unsynced, above = [], os.path.abspath(path)
        while not self.exists(above):
            above = os.path.dirname(above)
            unsynced.append(above)
        self.make_dir(path)
        for folder in reversed(unsynced):
            with suppress(PermissionError):  # it may be writable without being readable
                self.sync_dir(folder)

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(path))

    # os.path is not used: it turns an exception of a signal handler into False.

    def is_dir(self, path: str) -> bool:
        found = _found(os.stat, path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_file(self, path: str) -> bool:
        """Return True for a regular file, which can be read to its end."""
        found = _found(os.stat, path)
        return found is not None and stat.S_ISREG(found.st_mode)

    def exists(self, path: str) -> bool:
        return _found(os.lstat, path) is not None

    def matching(self, pattern: str) -> list[str]:
        """Return the absolute paths that a glob matches, sorted, or the path itself if it exists."""
        path = os.path.abspath(pattern)
        return [path] if os.path.lexists(path) else sorted(glob.glob(path))

    def files_below(self, folder: str) -> Iterator[str]:
        """Yield every file in a folder and its subfolders, sorted. Hidden files and folders are skipped."""
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (f"{parent}/{name}" for name in sorted(names) if not name.startswith("."))

    def real_path(self, path: str) -> str:
        """Return the canonical absolute path of a file or folder, with links resolved; it need not exist."""
        return os.path.realpath(path)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def owner_and_mode(self, path: str) -> tuple[int, int]:
        """Return the owner's user id and the permission bits."""
        found = os.stat(path)
        return found.st_uid, stat.S_IMODE(found.st_mode)

    def is_open_as(self, fd: int, path: str) -> bool:
        """Return True if a descriptor is open, and of the file at `path`."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except OSError as error:
            must_be_the_systems(error)
            return False

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written to the file system of `path`, quotas aside."""
        found = os.statvfs(path)
        return found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)

    def times(self, path: str) -> FileTimes:
        """Return the times at which a file was created, written and otherwise changed."""
        if getattr(_libc, "statx", None) is None:
            found = os.stat(path)
            return FileTimes(None, found.st_mtime_ns, found.st_ctime_ns)
        about = ctypes.create_string_buffer(STATX_BYTES)
        if _libc.statx(AT_FDCWD, os.fsencode(path), 0, STATX_BASIC | STATX_BTIME, about):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        born_ns, changed_ns, written_ns = (
            seconds * 1_000_000_000 + ns for seconds, ns in STATX_TIMES.iter_unpack(about.raw[80:128])
        )
        is_known = int.from_bytes(about.raw[:4], sys.byteorder) & STATX_BTIME
        return FileTimes(born_ns if is_known else None, written_ns, changed_ns)

    def create(self, path: str) -> int:
        """Create a file, open for reading and appending. Raises FileExistsError if it exists."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)

    def make_like(self, fd: int, path: str) -> None:
        """Give an open file the mode of the file at `path`, and its owner as far as this account may."""
        found = os.stat(path)
        with suppress(PermissionError):
            os.fchown(fd, found.st_uid, found.st_gid)
        os.fchmod(fd, stat.S_IMODE(found.st_mode))

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, which is created if missing."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)

    def open_append(self, path: str) -> int:
        """Open an existing file for reading and appending."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)

    def open_read(self, path: str) -> int:
        """Open an existing file for reading. A FIFO in its place does not block, and cannot be read."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    # Append `data`; returns the number of bytes written, which may be fewer. It is the system's function itself: a
    # wrapper would cost time at each put and get.
    write = staticmethod(os.write)

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read up to `size_bytes` from `offset`; fewer only at the end of the file."""
        first = os.pread(fd, size_bytes, offset)
        if len(first) == size_bytes or not first:
            return first
        parts, got = [first], len(first)
        while got < size_bytes and (more := os.pread(fd, size_bytes - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        """Sync the file's data. Never repeated after a failure: the kernel reports a lost page only once."""
        os.fdatasync(fd)

    def sync_dir(self, path: str) -> None:
        """Sync the names in a folder."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, fd: int) -> None:
        """Sync the file system that a file is on, names included: one call for many files."""
        if _libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def is_covered(self, path: str, fd: int) -> bool:
        """Return True if `sync_file_system` of `fd` also syncs the file at `path`.

        False on another file system, and on any that is a program, since FUSE does not pass that call on.
        """
        if os.stat(path).st_dev != os.fstat(fd).st_dev:
            return False
        about = ctypes.create_string_buffer(512)
        if _libc.fstatfs(fd, about):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return ctypes.c_uint32.from_buffer(about).value != FUSE

    def sync_by_name(self, path: str) -> None:
        """Sync a file's data. Does nothing if the file no longer exists."""
        try:
            fd = self.open_read(path)
        except FileNotFoundError:
            return
        try:
            self.sync(fd)
        finally:
            self.close(fd)

    def in_time(self, work: Callable[[], None], within_us: int | None) -> bool:
        """Make slow disk calls; returns False if they are not done in time, and then continue. Raises their exceptions.

        Here they are made at once; the server has a thread for them.
        """
        work()
        return True

    def in_background(self, work: Callable[[], None], finished: Callable[[OSError | None], None]) -> None:
        """Make slow disk calls, then call `finished` with their error or None. Here at once; the server has threads."""
        try:
            work()
        except OSError as error:
            finished(error)
        else:
            finished(None)

    def close(self, fd: int) -> None:
        os.close(fd)

    def copy(self, path: str, new_path: str) -> None:
        """Copy a file to a new one, and sync the copy. Slow: not for the event loop."""
        source = self.open_read(path)
        try:
            target = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                while os.sendfile(target, source, None, 1 << 24):
                    pass
                self.sync(target)
            finally:
                os.close(target)
        finally:
            self.close(source)

    def is_other_disk(self, error: OSError) -> bool:
        """Return True if a rename failed because the two names are on different file systems."""
        return error.errno == errno.EXDEV

    def is_bad_block(self, error: OSError) -> bool:
        """Return True if a read failed because of the device itself."""
        return error.errno == errno.EIO

    def link(self, path: str, new_path: str) -> None:
        """Give a file a second name."""
        os.link(path, new_path, follow_symlinks=False)

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder of files."""
        for name in self.list_dir(path):
            self.unlink(f"{path}/{name}")
        self.remove_dir(path)

    def lock(self, path: str) -> int | None:
        """Lock the file at `path` against other processes until the descriptor is closed. None if another has it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        is_held = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        except BlockingIOError:
            return None
        finally:
            if not is_held:
                os.close(fd)
        return fd

    def unlock(self, fd: int) -> None:
        """Release the lock, even if a forked child has not closed its copy of the descriptor yet."""
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def close_inherited(self, names: Pattern[str]) -> None:
        """Close a forked child's copies of the descriptors of files whose paths match `names`.

        The kernel lists them, since the process's own records may be incomplete if another thread was in the middle of
        a call. The parent keeps its locks: closing a copy does not release them.
        """
        for fd in os.listdir(OWN_DESCRIPTORS):
            with suppress(FileNotFoundError):  # the descriptor of the listing
                if names.match(os.readlink(f"{OWN_DESCRIPTORS}/{fd}")):
                    os.close(int(fd))

    def replace_content(self, fd: int, data: bytes) -> None:
        """Replace the content of a small open file by `data`."""
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)

    def open_operators_file(self, path: str) -> int:
        """Open a file for reading; links are followed, as in `read_operators_file`."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_start(self, path: str, size_bytes: int) -> bytes:
        """Read the first bytes of a file, at most `size_bytes`; links are followed, as in `read_operators_file`."""
        fd = self.open_operators_file(path)
        try:
            return self.read_at(fd, size_bytes, 0)
        finally:
            self.close(fd)

    def at_once(self, look: Callable[[str], Found], paths: Iterable[str]) -> Iterator[Found]:
        """Yield the result of `look` for each path, in order. A layer of remote files may look at several together."""
        return map(look, paths)

    def read_operators_file(self, path: str) -> bytes:
        """Read a file that others create and place, such as the configuration: links are followed."""
        with open(path, "rb") as file:
            return file.read()

    def read_file(self, path: str) -> bytes:
        fd = self.open_read(path)
        try:
            with naming(path):
                return self.read_at(fd, os.fstat(fd).st_size, 0)
        finally:
            self.close(fd)
