"""The only door to the disk. The crash simulation puts a faulty one in its place.

Errors are the system's own OSError; the rooms above say what was being done. Files are 0600, folders 0700, links
are never followed in the last component.
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
    """Raise it again where no call of the system has failed: signal handlers raise TimeoutError, which is one."""
    if error.errno is None:
        raise error


@contextmanager
def naming(path: str) -> Iterator[None]:
    """An error of the system about a descriptor names its file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def why_unread(error: OSError, path: str) -> str:
    """Why the file or folder at `path` cannot be read; what is there, where it is no file."""
    found = _found(os.lstat, path)
    what = next((what for is_it, what in NOT_FILES if found is not None and is_it(found.st_mode)), "")
    is_folder_to_read = what == "a folder" and error.errno != errno.EISDIR
    return f"it is {what}" if what and not is_folder_to_read else error.strerror or str(error)


def descriptors_max() -> int:
    """How many descriptors this process may have open as it is."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else ENDLESS_DESCRIPTORS


def _found(look: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    try:
        return look(path)
    except OSError as error:
        must_be_the_systems(error)
    except ValueError:  # no path at all
        pass
    return None


@dataclass(slots=True, frozen=True)
class FileTimes:
    """In nanoseconds since 1970. `born_ns` None: the file system does not tell. `changed_ns` counts renames, rights and
    times that were set, too."""

    born_ns: int | None
    written_ns: int
    changed_ns: int


class FileLayer:
    """Plain calls on paths and descriptors of the real file system."""

    takes_calls = True  # `in_background` still does what it is given

    def make_dir(self, path: str) -> None:
        """Make a folder and its missing parents; one that exists is fine."""
        os.makedirs(path, mode=0o700, exist_ok=True)

    def make_lasting_dir(self, path: str) -> None:
        """As `make_dir`, and a power cut does not take away what it has made."""
        unsynced, above = [], os.path.abspath(path)
        while not self.exists(above):
            above = os.path.dirname(above)
            unsynced.append(above)
        self.make_dir(path)
        for folder in reversed(unsynced):
            with suppress(PermissionError):  # it may be passed and written to, but not be read
                self.sync_dir(folder)

    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        return sorted(os.listdir(path))

    # Not left to os.path, which takes what a signal handler raises for an answer.

    def is_dir(self, path: str) -> bool:
        found = _found(os.stat, path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_file(self, path: str) -> bool:
        """Whether it is a regular file: one that can be read to its end."""
        found = _found(os.stat, path)
        return found is not None and stat.S_ISREG(found.st_mode)

    def exists(self, path: str) -> bool:
        return _found(os.lstat, path) is not None

    def matching(self, pattern: str) -> list[str]:
        """The absolute paths that a glob matches, or the one path that it is. Sorted."""
        path = os.path.abspath(pattern)
        return [path] if os.path.lexists(path) else sorted(glob.glob(path))

    def files_below(self, folder: str) -> Iterator[str]:
        """Every file in a folder and its folders, sorted. Hidden files and folders are skipped."""
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (f"{parent}/{name}" for name in sorted(names) if not name.startswith("."))

    def real_path(self, path: str) -> str:
        """The one absolute path of a file or folder, links followed; it need not exist."""
        return os.path.realpath(path)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def owner_and_mode(self, path: str) -> tuple[int, int]:
        """The number of the account it belongs to, and its permissions."""
        found = os.stat(path)
        return found.st_uid, stat.S_IMODE(found.st_mode)

    def is_open_as(self, fd: int, path: str) -> bool:
        """Whether a descriptor is open, and of the file at `path`."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except OSError as error:
            must_be_the_systems(error)
            return False

    def free_bytes(self, path: str) -> int:
        """What can still be written to the file system that `path` is on, quotas aside."""
        found = os.statvfs(path)
        return found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)

    def times(self, path: str) -> FileTimes:
        """When a file was created, written and changed otherwise."""
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
        """A new file, open for reading and appending. FileExistsError when there is one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)

    def make_like(self, fd: int, path: str) -> None:
        """Give an open file the mode of another one, and its owner as far as this account may."""
        found = os.stat(path)
        with suppress(PermissionError):
            os.fchown(fd, found.st_uid, found.st_gid)
        os.fchmod(fd, stat.S_IMODE(found.st_mode))

    def append(self, path: str, data: bytes) -> None:
        """Write behind what is in a file, which is made where there is none."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)

    def open_append(self, path: str) -> int:
        """An existing file, open for reading and appending."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)

    def open_read(self, path: str) -> int:
        """An existing file. A FIFO in its place has nobody wait: it cannot be read."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    # Append some of `data`; returns how many bytes were taken, which may be fewer. The system's own, without a call of
    # ours around it, which each put and take would pay for.
    write = staticmethod(os.write)

    def read_at(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Up to `size_bytes` from `offset`; fewer only at the end of the file."""
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
        """Put the file's data on disk. Never repeated after a failure: the kernel reports it once."""
        os.fdatasync(fd)

    def sync_dir(self, path: str) -> None:
        """Put a folder's names on disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, fd: int) -> None:
        """Put everything on disk that the file's file system holds, names included: one call for many files."""
        if _libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def is_covered(self, path: str, fd: int) -> bool:
        """Whether `sync_file_system` of `fd` puts the file at `path` on disk.

        Not one elsewhere; nor any of a file system that is a program, since FUSE does not pass that call on.
        """
        if os.stat(path).st_dev != os.fstat(fd).st_dev:
            return False
        about = ctypes.create_string_buffer(512)
        if _libc.fstatfs(fd, about):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return ctypes.c_uint32.from_buffer(about).value != FUSE

    def sync_by_name(self, path: str) -> None:
        """Put a file's data on disk. One that has gone meanwhile has none."""
        try:
            fd = self.open_read(path)
        except FileNotFoundError:
            return
        try:
            self.sync(fd)
        finally:
            self.close(fd)

    def in_time(self, work: Callable[[], None], within_us: int | None) -> bool:
        """Make slow disk calls; False when they are not over in time, and go on. Raises what they raise.

        Here at once; the server has a thread for it.
        """
        work()
        return True

    def in_background(self, work: Callable[[], None], finished: Callable[[OSError | None], None]) -> None:
        """Run slow disk calls and tell `finished` how they went. Here at once; the server has a thread for it."""
        try:
            work()
        except OSError as error:
            finished(error)
        else:
            finished(None)

    def close(self, fd: int) -> None:
        os.close(fd)

    def copy(self, path: str, new_path: str) -> None:
        """Copy a file to a new one, on disk when this returns. Slow: off the loop."""
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
        """Whether a rename failed because the two names are on different file systems."""
        return error.errno == errno.EXDEV

    def is_bad_block(self, error: OSError) -> bool:
        """Whether the disk itself cannot read what was asked for."""
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
        """Hold the file at `path` against other processes until the descriptor closes. None when one holds it."""
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
        """Let go of what `lock` holds, also where a forked child has not closed its copy of the descriptor yet."""
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def close_inherited(self, names: Pattern[str]) -> None:
        """In a forked child: close its copies of the descriptors of files whose paths match `names`.

        The kernel is asked which these are: what the process has noted may be wrong in the middle of a call of
        another thread. A lock stays the parent's, as closing a copy does not let go of it.
        """
        for fd in os.listdir(OWN_DESCRIPTORS):
            with suppress(FileNotFoundError):  # what listed them
                if names.match(os.readlink(f"{OWN_DESCRIPTORS}/{fd}")):
                    os.close(int(fd))

    def replace_content(self, fd: int, data: bytes) -> None:
        """Make `data` the whole content of a small open file."""
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)

    def open_operators_file(self, path: str) -> int:
        """Open for reading; as in `read_operators_file`, links are followed."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_start(self, path: str, size_bytes: int) -> bytes:
        """The first bytes of a file, so many at most; as in `read_operators_file`, links are followed."""
        fd = self.open_operators_file(path)
        try:
            return self.read_at(fd, size_bytes, 0)
        finally:
            self.close(fd)

    def at_once(self, look: Callable[[str], Found], paths: Iterable[str]) -> Iterator[Found]:
        """What `look` finds at each path, in order. Files that are far away can be looked at together."""
        return map(look, paths)

    def read_operators_file(self, path: str) -> bytes:
        """The content of a file that somebody else lays out, such as the configuration: links are followed."""
        with open(path, "rb") as file:
            return file.read()

    def read_file(self, path: str) -> bytes:
        fd = self.open_read(path)
        try:
            with naming(path):
                return self.read_at(fd, os.fstat(fd).st_size, 0)
        finally:
            self.close(fd)
