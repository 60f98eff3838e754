"""Verification of Kestrel's journal files; changes nothing.

They have no checksums: damage shows only where the ops stop making sense, not if bytes were altered within an item.
"""

from collections.abc import Iterator
from contextlib import suppress

from kestreld.files import FileLayer
from kestreld.journal.kestrel.format import find_queues, read_queue, replayed_files
from kestreld.journal.kestrel.ops import is_cut_short, op_end
from kestreld.journal.kestrel.salvage import stretches
from kestreld.journal.verify import Known, SegmentReport, nothing_known


def verify_kestrel(
    files: FileLayer, folder: str, now_ms: int, queue: str | None = None, known: Known = nothing_known
) -> Iterator[SegmentReport]:
    """A report for every file of every Kestrel queue in the folder, or of one; `live_items` are in a queue's last.

    Unless it was asked for, a queue is skipped if nothing in its files reads as Kestrel's. Raises OSError.
    """
    queues, _ = find_queues(files, folder)
    for name in sorted(queues):
        if queue in (None, name):
            paths = [f"{folder}/{file}" for file in replayed_files(files, folder, name)]
            unknown = [path for path in paths if known(path) is None]
            reports = [report for path in unknown if (report := _verify_file(files, path, name)) is not None]
            if any(report.records or not report.size_bytes for report in reports) or (reports and queue is not None):
                if len(reports) == len(paths) and not any(report.unreadable for report in reports):
                    with suppress(FileNotFoundError):  # its Kestrel has begun another file
                        reports[-1].live_items = len(read_queue(files, folder, name, now_ms).items)
                yield from reports


def _verify_file(files: FileLayer, path: str, queue: str) -> SegmentReport | None:
    """Report of one file; None if it is gone meanwhile."""
    report = SegmentReport(queue, path)
    try:
        buffer = files.read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        report.unreadable, report.reason = True, (error.strerror or str(error)).lower()
        return report
    report.size_bytes = len(buffer)
    for stretch in stretches(buffer):
        report.records += _count_ops(buffer, stretch.start, stretch.end)
        damage = stretch.damage
        if damage is not None and report.bad_offset is None:
            report.bad_offset, report.reason = damage.at, damage.reason
            is_live = path.rpartition("/")[2] == queue  # the others were complete before it was begun
            report.torn = is_live and damage.resume_at == len(buffer) and is_cut_short(buffer, damage.at)
    return report


def _count_ops(buffer: bytes, at: int, end: int) -> int:
    count = 0
    while at < end:
        at = op_end(buffer, at)
        count += 1
    return count
