"""What journal-verify found and what its repair did, as rows and as an exit code."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kestrelctl.blocks import text
from kestrelctl.exit_codes import ExitCode, Failure
from kestrelctl.output import say
from kestrelctl.repairs import RepairAnswer, Row, report_repair
from kestrelctl.spools import held, kept_still, server_runs
from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import FileLayer
from kestreld.journal.kestrel_format import queue_of
from kestreld.journal.kestrel_verify import verify_kestrel
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.recovery import recover
from kestreld.journal.repair import finish_repairs, repair
from kestreld.journal.verify import SegmentReport, journal_folders, verify_spool

COLUMNS: Final = ["queue", "segment", "records", "live_items", "bytes", "bad_offset", "finding"]


def read_reports(path: str, queue: str | None) -> list[SegmentReport]:
    """One report for each segment or Kestrel file of a queue, None = of all queues. Raises Failure.

    `path` is a spool of kestreld's or Kestrel's, or a file of a Kestrel queue.
    """
    files = FileLayer()
    name = None if queue is None else _on_disk(queue)
    if os.path.isfile(path) and name is None:
        path, file_name = os.path.split(os.path.abspath(path))
        name = queue_of(file_name)
        if name is None:
            raise Failure(ExitCode.USAGE, f"{path}/{file_name}: neither a spool nor named as Kestrel names its files")
        with _reading(path):
            return _or_fail(list(verify_kestrel(files, path, Clock().wall_ms, name)), path, os.fsdecode(file_name))
    _must_be_folder(path)
    with _reading(path):
        reports = [*verify_spool(files, path, name), *verify_kestrel(files, path, Clock().wall_ms, name)]
    return reports if queue is None else _or_fail(reports, path, queue)


def _or_fail(reports: list[SegmentReport], path: str, queue: str) -> list[SegmentReport]:
    if not reports:
        raise Failure(ExitCode.NO_INPUT, f"{path}: no journal of {queue}")
    return reports


def _must_be_folder(path: str) -> None:
    if not os.path.isdir(path):
        raise Failure(ExitCode.NO_INPUT, f"{path}: no such folder")


def _on_disk(queue: str) -> str:
    """A queue's name as the server knows it: there a byte is a character."""
    return os.fsencode(queue).decode("latin-1")


def _shown(name: str) -> str:
    return text(name.encode("latin-1", "replace"))


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Failure(ExitCode.IO, f"cannot read {error.filename or path}: {reason}") from error


def to_row(report: SegmentReport) -> Row:
    """A segment's row. `finding` is "" when all is well."""
    return {
        "queue": _shown(report.queue),
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


def verdict(reports: Sequence[SegmentReport], path: str) -> ExitCode:
    """The worst that was found. A running server may be in the middle of its last record."""
    if any(report.bad_offset is not None and not report.torn for report in reports):
        return ExitCode.CORRUPT
    if any(report.torn for report in reports) and not server_runs(path):
        return ExitCode.NEGATIVE
    return ExitCode.OK


# Repair


def repair_journals(spool: str, queue: str | None, *, dry_run: bool) -> tuple[list[Row], ExitCode]:
    """Repair the journals of a stopped server, None = all of them; a row for each. Raises Failure.

    What was bad is said on stderr, each with file and offset.
    """
    _must_be_folder(spool)
    spool = os.path.realpath(spool)
    rows: list[Row] = []
    worst = ExitCode.OK
    files = FileLayer()
    with _reading(spool), kept_still(spool) if dry_run else held(spool, "kestrelctl journal-verify --repair"):
        if not dry_run:
            for folder in finish_repairs(files, spool):
                say(f"{folder}: an interrupted repair is finished")
        folders = dict(journal_folders(files, spool, None if queue is None else _on_disk(queue)))
        if queue is not None and not folders:
            raise Failure(ExitCode.NO_INPUT, f"{spool}: no journal of {queue}")
        for name, folder in folders.items():
            row, code = _repair_one(files, name, folder, dry_run=dry_run)
            rows.append(row)
            worst = max(worst, code)
            if row["kept_at"]:
                _give_to_its_owner(spool, [f"{spool}/.damaged", f"{spool}/.tmp", folder, *_inside(folder)])
        _give_to_its_owner(spool, [f"{spool}/.lock"])
    return rows, worst


def _inside(folder: str) -> list[str]:
    return [entry.path for entry in os.scandir(folder)]


def _give_to_its_owner(spool: str, paths: list[str]) -> None:
    """What root has made in somebody's spool is no use to their kestreld."""
    owner = os.stat(spool)
    if os.geteuid() == 0 != owner.st_uid:
        for path in paths:
            if os.path.lexists(path):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _repair_one(files: FileLayer, name: str, folder: str, *, dry_run: bool) -> tuple[Row, ExitCode]:
    queue = _shown(name)
    try:
        report = repair(files, Clock(), folder, dry_run=dry_run)
        if not report.damages and not dry_run:
            _cut_tail(files, folder)
    except (JournalCorrupt, JournalFailed) as problem:
        say(f"{queue}: not repaired: {problem}")
        row, _ = report_repair(queue, RepairAnswer())
        return row | {"finding": "not repaired"}, ExitCode.CORRUPT
    answer = RepairAnswer(list(map(str, report.damages)), report.restored, report.lost, report.kept_at)
    row, code = report_repair(queue, answer)
    return row, ExitCode.CORRUPT if report.damages and dry_run else code


def _cut_tail(files: FileLayer, folder: str) -> None:
    """What a start would do with a journal that is sound but for its end."""
    recovered = recover(files, Clock(), OpenFiles(), folder)
    for note in recovered.notes if recovered is not None else []:
        say(note)
