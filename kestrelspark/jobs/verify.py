"""The job verify: checks every checksum of every segment in parallel."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kestrelctl.journals.verified import Verified
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.files import FileLayer
from kestreld.journal.discovery import JournalFile, discover, server_of
from kestreld.journal.job_verify import NAME, verify_job_log
from kestreld.journal.verify import CANNOT_TELL
from kestreld.spool_lock import LOCK
from kestrelspark.batch import MIB
from kestrelspark.contents import DamagedStretch, Progress, contents
from kestrelspark.job_contents import job_folders
from kestrelspark.packing import packed
from kestrelspark.storage import ENVIRONMENT

TASK_BYTES: Final = 64 * MIB  # small, because a task reports only at its end and is repeated if its worker dies
OK, TRUNCATED, CORRUPT, IO = 0, 1, 65, 74


@dataclass(slots=True, frozen=True)
class Problem:
    """A problem in a file at byte `offset`, -1 = it could not be read."""

    server: str
    queue: str
    path: str
    offset: int
    reason: str
    code: int  # TRUNCATED, CORRUPT or IO

    def __str__(self) -> str:
        kind = {TRUNCATED: "truncated tail", CORRUPT: "corrupt", IO: "cannot read"}[self.code]
        location = self.path if self.offset < 0 else f"{self.path}: byte {self.offset}"
        return f"{location}: {kind}: {self.reason}"


@dataclass(slots=True)
class VerifyResult:
    files: int = 0
    records: int = 0
    size_bytes: int = 0
    passed_over: int = 0  # known to be valid from an earlier run
    removed: list[str] = field(default_factory=list)  # by their servers, since they were found
    problems: list[Problem] = field(default_factory=list)
    put_items: dict[str, int] = field(default_factory=dict)  # ever, up to the ends of files that a gap follows

    @property
    def code(self) -> int:
        """The exit code, as from journal-verify: the highest of all problems."""
        return max((problem.code for problem in self.problems), default=OK)


def verify(spark: Any, paths: Sequence[str], queues: Sequence[str] = (), state: str | None = None) -> VerifyResult:
    """Read all journals under paths; with `state`, skip files that earlier runs found valid.

    Without `queues`, logs of jobs are read too, always completely. `state` is a state file of journal-verify; None =
    read every file. Raises FileNotFoundError for a missing path, Failure if there is nothing to read, or if `state`
    cannot be read or written.
    """
    result = VerifyResult()
    with Verified(state) as verified:
        found = discover(paths, queues, files=ENVIRONMENT.files)
        files = [file for file in found.files if _needs_reading(file, verified)]
        result.passed_over = len(found.files) - len(files)
        work: list[list[JournalFile] | str] = [
            *packed([*files, *found.missing], TASK_BYTES),
            *([] if queues else job_folders(paths)),
        ]
        if not work and not result.passed_over and not any(os.path.lexists(f"{path}/{LOCK}") for path in paths):
            words = f"no journal of {', '.join(queues)}" if queues else "no journal found"
            raise Failure(ExitCode.NO_INPUT, f"{', '.join(paths)}: {words}")
        if work:
            for part in spark.sparkContext.parallelize(work, len(work)).map(_verify).collect():
                result.files += part.files
                result.records += part.records
                result.size_bytes += part.size_bytes
                result.removed += part.removed
                result.put_items |= part.put_items
                result.problems += part.problems
        bad = {problem.path for problem in result.problems}
        for file in files:
            put_items = result.put_items.get(file.path, CANNOT_TELL)
            verified.note(file.path, put_items, is_whole=file.path not in bad)
    result.problems = [problem for problem in result.problems if not _is_being_written(problem)]
    return result


def _needs_reading(file: JournalFile, verified: Verified) -> bool:
    """True if the file is not known to be valid, or if it is, but the next segment implies a gap or missing bytes."""
    if file.end is not None and file.end > file.size_bytes:
        return True
    put_items = verified(file.path)
    if put_items is None or file.gap is None:
        return put_items is None
    return put_items == CANNOT_TELL or bool(file.gap.problem(put_items))


def _verify(work: list[JournalFile] | str) -> VerifyResult:
    """Verify a pack of files, or the folder of a log of jobs."""
    return _verify_jobs(work) if isinstance(work, str) else _verify_pack(work)


def _verify_jobs(folder: str) -> VerifyResult:
    result, server = VerifyResult(), server_of(folder)
    try:
        reports = verify_job_log(FileLayer(), folder)
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        result.problems.append(Problem(server, NAME, problem.filename or folder, -1, reason, IO))
        return result
    for report in reports:
        result.files += not report.missing
        result.records += report.records
        result.size_bytes += report.size_bytes
        if report.reason is not None:
            offset = -1 if report.bad_offset is None else report.bad_offset
            code = TRUNCATED if report.torn else CORRUPT
            result.problems.append(Problem(server, NAME, report.path, offset, report.reason, code))
    return result


def _verify_pack(pack: Iterable[JournalFile]) -> VerifyResult:
    result = VerifyResult()
    for file in pack:
        try:
            buffer = ENVIRONMENT.content(file)
        except FileNotFoundError:
            result.removed.append(file.path)
            continue
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            result.problems.append(Problem(file.server, file.queue, file.path, -1, reason, IO))
            continue
        result.files += not file.missing
        result.size_bytes += len(buffer)
        result.problems += _problems(buffer, file, result)
    return result


def _problems(buffer: bytes, file: JournalFile, result: VerifyResult) -> Iterator[Problem]:
    progress = Progress()
    for piece in contents(buffer, file, progress):
        if isinstance(piece, DamagedStretch):
            code = TRUNCATED if piece.is_torn else CORRUPT
            error = piece.error(file)
            offset = -1 if piece.is_missing else error.offset
            yield Problem(file.server, file.queue, error.path, offset, error.reason, code)
    result.records += progress.records
    if file.gap is not None:
        result.put_items[file.path] = progress.put_items


def _is_being_written(problem: Problem) -> bool:
    """True for the tail of a journal that a kestreld on this machine is writing, which is no problem."""
    if problem.code != TRUNCATED:
        return False
    spool = os.path.dirname(os.path.dirname(problem.path))
    try:
        lock = os.open(f"{spool}/.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
