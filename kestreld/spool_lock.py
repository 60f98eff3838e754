"""Ownership check and lock of a spool, which one process uses at a time."""

import os
import pwd
from typing import Final

from kestreld.errors import SpoolLocked, SpoolUnusable
from kestreld.files import FileLayer, must_be_the_systems

LOCK: Final = ".lock"


def check_spool(files: FileLayer, spool: str) -> None:
    """Raise SpoolUnusable if a spool belongs to another account or others can write to it."""
    if not files.is_dir(spool):
        return
    owner, mode = files.owner_and_mode(spool)
    if owner != os.geteuid():
        reason = f"owned by {_account_name(owner)}, but kestreld runs as {_account_name(os.geteuid())}: set user"
        raise SpoolUnusable(spool, reason)
    if mode & 0o022:
        raise SpoolUnusable(spool, f"writable by other accounts (mode {mode:04o}): run chmod go-w")


def _account_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def take_lock(files: FileLayer, spool: str) -> int:
    """Lock the spool for this process; returns the descriptor. Raises SpoolUnusable, or SpoolLocked with the holder."""
    path = f"{spool}/{LOCK}"
    lock, is_held = None, False
    try:
        files.make_lasting_dir(spool)
        lock = files.lock(path)
        if lock is None:
            holder = files.read_file(path).decode("utf-8", "replace").split("\n")[0] or "another process"
            raise SpoolLocked(spool, holder)
        files.replace_content(lock, f"pid {os.getpid()}\n".encode())
        files.list_dir(spool)
        is_held = True
    except OSError as error:
        must_be_the_systems(error)
        raise SpoolUnusable(spool, f"not usable as a spool: {error.strerror}") from error
    finally:
        if lock is not None and not is_held:
            files.close(lock)
    return lock
