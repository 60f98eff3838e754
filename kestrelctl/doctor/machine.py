"""Checks of the machine: descriptors, clock synchronisation, and the spool's disk, permissions and latency."""

import ctypes
import os
import pwd
import stat
import time
from collections.abc import Iterator
from typing import Final

from kestrelctl.doctor.process import Process
from kestrelctl.doctor.results import CheckResult, critical, fine, graded, unknown, warning
from kestrelctl.journals.times import now_ms, written_span
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.segment import FOLDER_SUFFIX, decode_header, parse_segment_name

DESCRIPTORS_FEW: Final = 4096
DESCRIPTORS_USED: Final = (0.8, 0.95)
DISK_USED: Final = (0.9, 0.97)
FREE_BYTES_LOW: Final = (1 << 30, 256 << 20)
LATENCY_MS: Final = (50.0, 500.0)
LATENCY_TRIES: Final = 5
PAGE: Final = bytes(4096)
TIMEX_BYTES: Final = 512  # struct timex has 208
TIME_ERROR: Final = 5
AHEAD_MS: Final = 60_000
LOOKED_AT_MAX: Final = 10_000
AS_ROOT: Final = "run it as root or as the server's user"


def descriptors(process: Process) -> CheckResult:
    limit = process.descriptors_max
    if limit is None:
        return fine("descriptors", f"{process.descriptors} in use, without limit")
    words = f"{process.descriptors} of {limit} in use"
    advice = "raise LimitNOFILE (systemd) or ulimit -n, and restart the server"
    found = graded("descriptors", process.descriptors / limit, DESCRIPTORS_USED, words, advice)
    if limit < DESCRIPTORS_FEW and not found.advice:
        return warning("descriptors", f"{words}; connections and journals need one or two each", advice)
    return found


def synchronisation() -> CheckResult:
    """Check that the kernel regards its clock as synchronised."""
    adjtimex = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    state = adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)) if adjtimex is not None else -1
    if state < 0:
        return unknown("clock synchronised", "the kernel does not report it")
    if state == TIME_ERROR:
        words = "this machine's clock is not synchronised: expiry and ages may be wrong"
        return warning("clock synchronised", words, "start chrony or systemd-timesyncd, here or on the host")
    return fine("clock synchronised", "yes")


def spool(path: str, account: int | None) -> Iterator[CheckResult]:
    """Check the spool folder. `account` is the server's user id, None = not known."""
    try:
        found = os.stat(path)
    except OSError as error:
        advice = f"--spool names another; {AS_ROOT}"
        yield unknown("spool", f"{path} cannot be read: {(error.strerror or str(error)).lower()}", advice)
        return
    yield _permissions(path, found, account)
    yield space("disk space", path)
    yield latency(path)
    yield _from_the_future(path)


def _permissions(path: str, found: os.stat_result, account: int | None) -> CheckResult:
    mode = stat.S_IMODE(found.st_mode)
    owner = account if account is not None else found.st_uid
    if found.st_uid != owner:
        words = f"{path} belongs to {_name(found.st_uid)}, the server runs as {_name(owner)}"
        return critical("spool", words, f"stop the server; chown -R {_name(owner)} {path}")
    if mode & 0o022:
        return critical("spool", f"{path} has mode {mode:04o}: others can write to it", f"chmod 0700 {path}")
    foreign = next(_foreign(path, owner), None)
    if foreign is not None:
        words = f"{foreign} does not belong to {_name(owner)}, and the server cannot write it"
        return critical("spool", words, f"stop the server; chown -R {_name(owner)} {path}")
    if mode & 0o077:
        return warning("spool", f"{path} has mode {mode:04o}: others can read it", f"chmod 0700 {path}")
    return fine("spool", f"{path} belongs to {_name(owner)} alone")


def _foreign(path: str, owner: int) -> Iterator[str]:
    """Files of the spool with another owner. The search ends after LOOKED_AT_MAX files."""
    looked_at = 0
    for folder, _, names in os.walk(path):
        for name in [folder, *(f"{folder}/{name}" for name in names)]:
            looked_at += 1
            if looked_at > LOOKED_AT_MAX:
                return
            try:
                if os.lstat(name).st_uid != owner:
                    yield name
            except FileNotFoundError:
                continue  # deleted by the running server


def _name(account: int) -> str:
    try:
        return pwd.getpwuid(account).pw_name
    except KeyError:
        return str(account)


def space(check: str, path: str) -> CheckResult:
    disk = os.statvfs(path)
    free_bytes, all_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    words = f"{free_bytes / (1 << 30):.1f} GiB free of {all_bytes / (1 << 30):.1f} ({path})"
    advice = "free disk space: kestrelctl journal explain-space shows what keeps segments"
    if disk.f_files and disk.f_favail / disk.f_files < 1 - DISK_USED[1]:
        return critical(check, f"{words}, but only {disk.f_favail} files can be made", advice)
    if free_bytes < FREE_BYTES_LOW[1]:
        return critical(check, words, advice)
    if free_bytes < FREE_BYTES_LOW[0]:
        return warning(check, words, advice)
    used = 1 - free_bytes / all_bytes if all_bytes else 1.0
    # 50 GiB are enough, whatever their share of a large disk.
    return graded(check, used, DISK_USED, words, advice) if free_bytes < 50 << 30 else fine(check, words)


def latency(path: str) -> CheckResult:
    """Measure the sync of one page to disk, in an unnamed temporary file."""
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return unknown("disk latency", f"cannot be measured in {path}: {reason}", AS_ROOT)
    try:
        took_ms = []
        for _ in range(LATENCY_TRIES):
            begun_s = time.perf_counter()
            os.write(fd, PAGE)
            os.fdatasync(fd)
            took_ms.append((time.perf_counter() - begun_s) * 1000)
    except OSError as error:
        words = f"{path} cannot be written: {(error.strerror or str(error)).lower()}"
        return critical("disk latency", words, "see the kernel log (dmesg) for disk errors")
    finally:
        os.close(fd)
    median_ms = sorted(took_ms)[len(took_ms) // 2]
    words = f"{median_ms:.1f} ms for a sync, {max(took_ms):.1f} at worst"
    advice = "with sync_journal each answer waits for this: use a faster or dedicated disk"
    return graded("disk latency", median_ms, LATENCY_MS, words, advice)


def _from_the_future(path: str) -> CheckResult:
    """Warn if a segment was created later than now: the clock has been set back."""
    ahead_ms, files = 0, FileLayer()
    for folder in sorted(os.listdir(path)):
        names = os.listdir(f"{path}/{folder}") if folder.endswith(FOLDER_SUFFIX) else []
        newest = max((name for name in names if parse_segment_name(name)), default=None)
        if newest is None:
            continue
        try:
            fd = files.open_read(f"{path}/{folder}/{newest}")
            try:
                header, _ = decode_header(files.read_at(fd, 8192, 0), newest)
            finally:
                files.close(fd)
        except (JournalCorrupt, OSError):
            continue  # journal-verify reports such files
        ahead_ms = max(ahead_ms, header.created_at_ms - now_ms())
    if ahead_ms > AHEAD_MS:
        words = f"a segment was begun {written_span(ahead_ms)} from now: the clock has been set back"
        return warning("clock and journals", words, "ages and expiry are wrong until then")
    return fine("clock and journals", "no journal is from the future")
