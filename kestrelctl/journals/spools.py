"""A spool seen from outside: its lock, which kestreld holds while it runs, and queue names on disk."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import text
from kestreld.files import FileLayer


def on_disk(queue: str) -> str:
    """A queue's name as the server has it: each byte a character."""
    return os.fsencode(queue).decode("latin-1")


def shown(name: str) -> str:
    """A queue's name as the user typed it."""
    return text(name.encode("latin-1", "replace"))


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn an OSError into a Failure."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Failure(ExitCode.IO, f"cannot read {error.filename or path}: {reason}") from error


@contextmanager
def held(spool: str, holder: str) -> Iterator[None]:
    """Lock the spool exclusively, creating it if missing: no kestreld runs on it or can start.

    Raises Failure that names the holder of the lock.
    """
    files = FileLayer()
    files.make_dir(spool)
    lock = files.lock(f"{spool}/.lock")
    if lock is None:
        raise _in_use(spool)
    try:
        files.replace_content(lock, f"pid {os.getpid()}, {holder}\n".encode())
        yield
    finally:
        files.close(lock)


@contextmanager
def kept_still(spool: str) -> Iterator[None]:
    """Lock the spool as `held` does, but shared with other readers, and without writing to it."""
    lock = _lock_shared(spool)
    if lock is None:
        raise _in_use(spool)
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def server_runs(spool: str) -> bool:
    """True if a kestreld holds the spool's lock."""
    lock = _lock_shared(spool)
    if lock is None:
        return True
    if lock >= 0:
        os.close(lock)
    return False


def _lock_shared(spool: str) -> int | None:
    """Descriptor of a shared lock; -1 if the spool has no lock file, None if it is in use."""
    try:
        lock = os.open(f"{spool}/.lock", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _in_use(spool: str) -> Failure:
    with open(f"{spool}/.lock", encoding="utf-8", errors="replace") as file:
        holder = file.readline().strip() or "another process"
    return Failure(ExitCode.TRY_AGAIN, f"{spool}: in use by {holder}; stop it first")
