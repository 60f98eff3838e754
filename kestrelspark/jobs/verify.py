"""verify: every checksum of every segment of a fleet, in parallel."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kestrelctl.journals.verified import Verified
from kestreld.journal.discovery import JournalFile, discover
from kestrelspark.batch import MIB
from kestrelspark.contents import Damage, Progress, contents
from kestrelspark.packing import packed

TASK_BYTES: Final = 64 * MIB  # a task says nothing until it is done, and a file or two is lost with a worker
OK, TRUNCATED, CORRUPT, IO = 0, 1, 65, 74


@dataclass(slots=True, frozen=True)
class Finding:
    """Something wrong in a file: from byte `offset` on, -1 where it could not be read at all."""

    server: str
    queue: str
    path: str
    offset: int
    reason: str
    code: int  # TRUNCATED, CORRUPT or IO

    def __str__(self) -> str:
        kind = {TRUNCATED: "truncated tail", CORRUPT: "corrupt", IO: "cannot be read"}[self.code]
        place = self.path if self.offset < 0 else f"{self.path}: byte {self.offset}"
        return f"{place}: {kind}: {self.reason}"


@dataclass(slots=True)
class Verdict:
    files: int = 0
    records: int = 0
    size_bytes: int = 0
    passed_over: int = 0  # known to be whole from an earlier run
    findings: list[Finding] = field(default_factory=list)

    @property
    def code(self) -> int:
        """As of journal-verify: the worst there is. What a running server is just writing is no finding."""
        return max((finding.code for finding in self.findings), default=OK)


def verify(spark: Any, paths: Sequence[str], queues: Sequence[str] = (), state: str | None = None) -> Verdict:
    """Read all journals under paths to their ends; with `state` not those that earlier runs have found whole.

    `state` is a file, as of journal-verify; None = every file is read. Raises FileNotFoundError for a path that is not
    there, Failure when `state` cannot be read or written.
    """
    verdict = Verdict()
    with Verified(state) as verified:
        files = [file for file in discover(paths, queues).files if _is_cut(file) or verified(file.path) is None]
        verdict.passed_over = verified.passed_over
        packs = packed(files, TASK_BYTES)
        if packs:
            tasks = spark.sparkContext.parallelize(packs, len(packs))
            for part in tasks.map(_verify_pack).collect():
                verdict.files += part.files
                verdict.records += part.records
                verdict.size_bytes += part.size_bytes
                verdict.findings += part.findings
        bad = {finding.path for finding in verdict.findings}
        for file in files:
            verified.note(file.path, is_whole=file.path not in bad)
    verdict.findings = [finding for finding in verdict.findings if not _is_being_written(finding)]
    return verdict


def _is_cut(file: JournalFile) -> bool:
    """Whether the next segment says that this one should go on: nothing in the file itself tells."""
    return file.end is not None and file.end > file.size_bytes


def _verify_pack(pack: Iterable[JournalFile]) -> Verdict:
    verdict = Verdict()
    for file in pack:
        try:
            with open(file.path, "rb") as opened:
                buffer = opened.read()
        except FileNotFoundError:
            continue  # a running server has let it go meanwhile
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            verdict.findings.append(Finding(file.server, file.queue, file.path, -1, reason, IO))
            continue
        verdict.files += 1
        verdict.size_bytes += len(buffer)
        verdict.findings += _findings(buffer, file, verdict)
    return verdict


def _findings(buffer: bytes, file: JournalFile, verdict: Verdict) -> Iterator[Finding]:
    progress = Progress()
    for piece in contents(buffer, file, progress):
        if isinstance(piece, Damage):
            code = TRUNCATED if piece.is_torn else CORRUPT
            yield Finding(file.server, file.queue, file.path, piece.at, piece.reason, code)
    verdict.records += progress.records


def _is_being_written(finding: Finding) -> bool:
    """Whether it is the tail of a journal in the spool of a kestreld that runs on this machine."""
    if finding.code != TRUNCATED:
        return False
    spool = os.path.dirname(os.path.dirname(finding.path))
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
