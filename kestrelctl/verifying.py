"""What journal-verify found, as rows and as an exit code."""

import fcntl
import os
from collections.abc import Sequence
from typing import Final

from kestrelctl.blocks import Cell, text
from kestrelctl.exit_codes import ExitCode, Failure
from kestreld.files import FileLayer
from kestreld.journal.verify import SegmentReport, verify_spool

COLUMNS: Final = ["queue", "segment", "records", "live_items", "bytes", "bad_offset", "finding"]


def read_reports(spool: str, queue: str | None) -> list[SegmentReport]:
    """One report for each segment of a queue, None = of all queues. Raises Failure when it is not there."""
    if not os.path.isdir(spool):
        raise Failure(ExitCode.NO_INPUT, f"{spool}: no such folder")
    # In names on disk a byte is a character.
    name = None if queue is None else os.fsencode(queue).decode("latin-1")
    try:
        return list(verify_spool(FileLayer(), spool, name))
    except FileNotFoundError as error:
        raise Failure(ExitCode.NO_INPUT, f"{spool}: no journal of {queue}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Failure(ExitCode.IO, f"cannot read {error.filename or spool}: {reason}") from error


def to_row(report: SegmentReport) -> dict[str, Cell]:
    """A segment's row. `finding` is "" when all is well."""
    return {
        "queue": text(report.queue.encode("latin-1", "replace")),
        "segment": os.path.basename(report.path),
        "records": report.records,
        "live_items": report.live_items,
        "bytes": report.size_bytes,
        "bad_offset": "" if report.bad_offset is None else report.bad_offset,
        "finding": _finding(report),
    }


def _finding(report: SegmentReport) -> str:
    if report.torn:
        return f"truncated tail: {report.reason or 'the last record is incomplete'}"
    if report.bad_offset is not None:
        return f"corrupt: {report.reason}"
    return ""


def verdict(reports: Sequence[SegmentReport], spool: str) -> ExitCode:
    """The worst that was found. A running server may be in the middle of its last record."""
    if any(report.bad_offset is not None and not report.torn for report in reports):
        return ExitCode.CORRUPT
    if any(report.torn for report in reports) and not _server_runs(spool):
        return ExitCode.NEGATIVE
    return ExitCode.OK


def _server_runs(spool: str) -> bool:
    """Whether a kestreld holds the spool's lock."""
    try:
        descriptor = os.open(os.path.join(spool, ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
