"""The work of `journal-verify`: finds and verifies journals, repairs them, and reports rows and an exit code."""

import os
from collections.abc import Callable, Sequence
from typing import Final

from kestrelctl.journals.locations import checked_name
from kestrelctl.journals.repairs import Row, report_repair
from kestrelctl.journals.spools import held, kept_still, reading, server_runs, shown
from kestrelctl.journals.verified import Verified
from kestrelctl.remote.checking import State, nagios_line
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted, encoded, say
from kestrelctl.shell.progress import progress
from kestreld.client.items import RepairAnswer
from kestreld.clock import Clock
from kestreld.config.queue_names import decode_queue_name
from kestreld.errors import JournalCorrupt, JournalFailed
from kestreld.files import FileLayer
from kestreld.journal.discovery import JournalFile, discover
from kestreld.journal.job_repair import repair_job_log
from kestreld.journal.job_segments import FOLDER
from kestreld.journal.job_verify import NAME as JOB_LOG
from kestreld.journal.job_verify import verify_job_log
from kestreld.journal.kestrel.format import queue_of
from kestreld.journal.kestrel.verify import verify_kestrel
from kestreld.journal.marker import find_marker
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.recovery import recover
from kestreld.journal.repair import repair
from kestreld.journal.replacement import finish_repairs
from kestreld.journal.segment import FOLDER_SUFFIX, parse_segment_name
from kestreld.journal.verify import (
    CANNOT_TELL,
    SegmentReport,
    journal_folders,
    verify_journal,
    verify_spool,
)
from kestreld.spool_lock import LOCK

COLUMNS: Final = ["queue", "segment", "records", "live_items", "bytes", "bad_offset", "finding"]
IMPORTED: Final = ".imported"
NO_QUEUES: Final = "no queues yet"
Repairing = Callable[[FileLayer, str, bool], RepairAnswer]  # a folder; True = a dry run


def read_reports(path: str, queue: str | None, verified: Verified) -> list[SegmentReport]:
    """One report for each segment or Kestrel file of a queue, None = of all queues.

    Empty for a spool that has no queues yet. Raises Failure, also if there is nothing to read. `path` is a spool of
    kestreld's or Kestrel's, an archive, a folder of them, a queue's folder, a segment, a file of a Kestrel queue, or a
    glob.
    """
    places = [path] if os.path.lexists(path) else FileLayer().matching(path)
    reports: list[SegmentReport] = []
    for place in places or [path]:
        try:
            reports += _read_place(place, queue, verified)
        except Failure as failure:
            below = _places_below(place) if failure.code == ExitCode.NO_INPUT and os.path.isdir(place) else []
            found = [one for one in below if _has(one, queue)]
            if not found:
                raise
            for one in found:
                reports += _read_place(one, queue, verified)
    return reports


def _places_below(folder: str) -> list[str]:
    """The spools, archives and folders of journals below a folder that is none itself."""
    with reading(folder):
        found = discover([folder])
        places = {_place_of(file) for file in [*found.files, *found.missing]}
        places.update(above for above, names, _ in os.walk(folder) if FOLDER in names)
    return sorted(places - {folder})


def _place_of(file: JournalFile) -> str:
    folder = file.path if file.missing else os.path.dirname(file.path)
    if file.is_kestrel:
        return folder
    if folder.endswith(FOLDER_SUFFIX):
        return os.path.dirname(folder)
    return os.path.dirname(os.path.dirname(folder)) if os.path.basename(folder).isdecimal() else folder


def _has(place: str, queue: str | None) -> bool:
    return queue is None or any(True for _ in discover([place], [queue]).files)


def _read_place(path: str, queue: str | None, verified: Verified) -> list[SegmentReport]:
    files = FileLayer()
    if queue is None and os.path.isfile(path) and parse_segment_name(os.path.basename(path)) is not None:
        return _read_segment(files, os.path.abspath(path), verified)
    name = None if queue is None else checked_name(queue)
    is_file = os.path.isfile(path) and name is None
    if is_file:
        path, file_name = os.path.split(os.path.abspath(path))
        name = queue_of(file_name)
        if name is None:
            raise Failure(ExitCode.USAGE, f"{path}/{file_name}: neither a spool nor a Kestrel journal file")
        queue = os.fsdecode(file_name)
    _must_be_folder(path)
    reports: list[SegmentReport] = []
    with reading(path), verified, progress("verifying", lambda: count_files(path)) as advance:

        def known(file: str) -> int | None:
            advance(1)
            return verified(file)

        if queue is None and _is_job_log(path):
            reports += verified.noted(verify_job_log(files, path))
        elif queue is None and _is_journal(files, path):
            reports += verified.noted(verify_journal(files, path, _queue_in(path), known))
        else:
            if not is_file:
                reports += verified.noted(verify_spool(files, path, name, known))
                if name is None:
                    reports += verified.noted(verify_job_log(files, f"{path}/{FOLDER}"))
            for folder in _kestrel_folders(files, path):
                reports += verified.noted(verify_kestrel(files, folder, Clock().wall_ms, name, known))
    if not reports and not verified.passed_over:
        if queue is not None:
            raise Failure(ExitCode.NO_INPUT, f"{path}: no journal of {queue}")
        _must_be_spool(path)
    return reports


def _read_segment(files: FileLayer, path: str, verified: Verified) -> list[SegmentReport]:
    """Verify one segment; its neighbours determine how much of it counts."""
    folder = os.path.dirname(path)
    with reading(path), verified:

        def known(file: str) -> int | None:
            return verified(file) if file == path else CANNOT_TELL

        reports = [one for one in verify_journal(files, folder, _queue_in(folder), known) if one.path == path]
        return list(verified.noted(reports))


def _is_job_log(path: str) -> bool:
    """True if the path is the folder of a job log, in a spool or in .damaged."""
    name = os.path.basename(os.path.realpath(path))
    return name == FOLDER or name.startswith(f"{FOLDER}.")


def _is_journal(files: FileLayer, path: str) -> bool:
    """True if the path is the folder of one queue's journal, in or out of a spool."""
    names = files.list_dir(path)
    is_named = os.path.basename(os.path.realpath(path)).endswith(FOLDER_SUFFIX)
    return is_named or find_marker(names) is not None or any(map(parse_segment_name, names))


def _queue_in(folder: str) -> str:
    """The queue of a folder in a spool, in an archive, in .damaged or in .trash."""
    above, name = os.path.split(os.path.realpath(folder))
    encoded = os.path.basename(above) if name.isdecimal() else name.partition(".")[0]
    return decode_queue_name(os.fsencode(encoded).decode("latin-1"))


def _must_be_spool(path: str) -> None:
    """Raise Failure unless the folder has been a spool: one without queues is in order."""
    if not os.path.lexists(f"{path}/{LOCK}"):
        raise Failure(ExitCode.NO_INPUT, f"{path}: no journal found; specify a spool, an archive or a queue's folder")


def verify_journals(
    path: str, queue: str | None, state: str | None, since_at_ms: int | None
) -> tuple[list[Row], ExitCode, int]:
    """A row for each file read, the exit code of the worst finding, and the number of files known to be intact.

    `state` and `since_at_ms` None = every file is read. Raises Failure.
    """
    verified = Verified(state, since_at_ms)
    reports = read_reports(path, queue, verified)
    rows = [to_row(report) for report in reports]
    if state is not None or since_at_ms is not None:
        for row in rows:
            row["live_items"] = ""  # live items are not known if files are skipped
    return rows, verdict(reports, path), verified.passed_over


def _kestrel_folders(files: FileLayer, path: str) -> list[str]:
    """The folder itself; for .imported, the folders of imports in it, too."""
    inside = files.list_dir(path) if os.path.basename(os.path.realpath(path)) == IMPORTED else []
    return [path, *(f"{path}/{name}" for name in inside if name.isdecimal())]


def count_files(path: str) -> int:
    """Approximate number of files to verify."""
    return sum(len(names) for _, _, names in os.walk(path))


def _must_be_folder(path: str) -> None:
    if not os.path.isdir(path):
        raise Failure(ExitCode.NO_INPUT, f"{path}: no such folder")


def to_row(report: SegmentReport) -> Row:
    """A segment's row. `finding` is "" if the segment is intact."""
    return {
        "queue": shown(report.queue),
        "segment": "" if report.missing else os.path.basename(report.path),
        "records": report.records,
        "live_items": report.live_items,
        "bytes": report.size_bytes,
        "bad_offset": "" if report.bad_offset is None else report.bad_offset,
        "finding": _described(report),
    }


def _described(report: SegmentReport) -> str:
    if report.missing:
        return f"missing: {report.reason}"
    if report.unreadable:
        return f"cannot be read: {report.reason}"
    if report.torn:
        return f"truncated tail: {report.reason or 'the last record is incomplete'}"
    if report.bad_offset is not None:
        return f"corrupt: {report.reason}"
    return ""


def verdict(reports: Sequence[SegmentReport], path: str) -> ExitCode:
    """The exit code of the worst finding. A torn tail is none while a server may be writing it."""
    if any(report.missing or (report.bad_offset is not None and not report.torn) for report in reports):
        return ExitCode.CORRUPT
    if any(report.unreadable for report in reports):
        return ExitCode.IO
    if any(report.torn and not _is_being_written(report.path, path) for report in reports):
        return ExitCode.NEGATIVE
    return ExitCode.OK


def _is_being_written(file: str, path: str) -> bool:
    folder = os.path.dirname(os.path.realpath(file))
    return any(map(server_runs, dict.fromkeys([path, folder, os.path.dirname(folder)])))


SERVICE: Final = "KESTREL JOURNALS"


def tell_nagios(path: str, queue: str | None, state: str | None, since_at_ms: int | None) -> tuple[bytes, State]:
    """Verify as `verify_journals`; return one line in the format of nagios, and the state."""
    try:
        rows, code, passed_over = verify_journals(path, queue, state, since_at_ms)
    except Failure as failure:
        return encoded(nagios_line(SERVICE, State.UNKNOWN, [failure.words], "")), State.UNKNOWN
    verdict_of_nagios = {ExitCode.OK: State.OK, ExitCode.NEGATIVE: State.WARNING}.get(code, State.CRITICAL)
    bad = [f"{row['queue']} {row['segment']}: {row['finding']}" for row in rows if code and row["finding"]]
    words = bad or [f"{counted(len(rows), 'file')} read, {passed_over} unchanged and intact"]
    if not rows and not passed_over:
        words = [NO_QUEUES]
    figures = f"read={len(rows)} known={passed_over} findings={len(bad)}"
    return encoded(nagios_line(SERVICE, verdict_of_nagios, words, figures)), verdict_of_nagios


# Repair


def repair_journals(spool: str, queue: str | None, *, dry_run: bool) -> tuple[list[Row], ExitCode]:
    """Repair the journals of a stopped server, None = all of them and the job log; a row for each. Raises Failure.

    Each damage is printed on stderr with file and offset.
    """
    _must_be_folder(spool)
    name = None if queue is None else checked_name(queue)
    is_all = name is None
    only_jobs = is_all and os.path.basename(os.path.realpath(spool)) == FOLDER
    if is_all and os.path.realpath(spool).endswith(FOLDER_SUFFIX):
        name, spool = _queue_in(spool), os.path.dirname(os.path.realpath(spool))
    elif only_jobs:
        spool = os.path.dirname(os.path.realpath(spool))
    spool = os.path.realpath(spool)
    jobs = f"{spool}/{FOLDER}"
    with reading(spool):
        if name is None and not os.path.isdir(jobs) and not any(journal_folders(FileLayer(), spool)):
            _must_be_spool(spool)
    rows: list[Row] = []
    worst = ExitCode.OK
    files = FileLayer()
    with reading(spool), kept_still(spool) if dry_run else held(spool, "kestrelctl journal-verify --repair"):
        if not dry_run:
            for folder in finish_repairs(files, spool):
                say(f"{folder}: an interrupted repair was completed")
        folders = {} if only_jobs else dict(journal_folders(files, spool, name))
        if name is not None and not folders:
            raise Failure(ExitCode.NO_INPUT, f"{spool}: no journal of {shown(name)}")
        answers = [(_repair_queue, queue, folder) for queue, folder in folders.items()]
        if name is None and os.path.isdir(jobs):
            answers.append((_repair_jobs, JOB_LOG, jobs))
        for repair_it, shown_as, folder in answers:
            row, code = _repaired(repair_it, files, shown(shown_as), folder, dry_run=dry_run)
            rows.append(row)
            worst = max(worst, code)
            if row["kept_at"]:
                _give_to_its_owner(spool, [f"{spool}/.damaged", f"{spool}/.tmp", folder, *_inside(folder)])
        _give_to_its_owner(spool, [f"{spool}/.lock"])
    return rows, worst


def _inside(folder: str) -> list[str]:
    return [entry.path for entry in os.scandir(folder)]


def _give_to_its_owner(spool: str, paths: list[str]) -> None:
    """If root runs the repair, give the files to the spool's owner: kestreld could not use them otherwise."""
    owner = os.stat(spool)
    if os.geteuid() == 0 != owner.st_uid:
        for path in paths:
            if os.path.lexists(path):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _repaired(repair_it: Repairing, files: FileLayer, name: str, folder: str, *, dry_run: bool) -> tuple[Row, ExitCode]:
    try:
        answer = repair_it(files, folder, dry_run)
    except (JournalCorrupt, JournalFailed) as problem:
        say(f"{name}: not repaired: {problem}")
        row, _ = report_repair(name, RepairAnswer())
        return row | {"finding": "not repaired"}, ExitCode.CORRUPT
    row, code = report_repair(name, answer)
    return row, ExitCode.CORRUPT if answer.damages and dry_run else code


def _repair_queue(files: FileLayer, folder: str, dry_run: bool) -> RepairAnswer:
    report = repair(files, Clock(), folder, dry_run=dry_run)
    if not report.damages and not dry_run:
        _cut_tail(files, folder)
    return RepairAnswer(list(map(str, report.damages)), report.restored, report.lost, report.kept_at)


def _repair_jobs(files: FileLayer, folder: str, dry_run: bool) -> RepairAnswer:
    report = repair_job_log(files, Clock(), folder, dry_run=dry_run)
    for note in report.notes:
        say(note)
    return RepairAnswer(report.damages, report.jobs, 0, report.kept_at)


def _cut_tail(files: FileLayer, folder: str) -> None:
    """Recover a sound journal as a start does, which cuts off a torn tail."""
    recovered = recover(files, Clock(), OpenFiles(), folder)
    for note in recovered.notes if recovered is not None else []:
        say(note)
