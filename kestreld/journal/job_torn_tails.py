"""Ends of job log segments where whole records stop early: a torn tail, which startup cuts off, or damage."""

from kestreld.clock import Clock
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.job_records import checked_job_end
from kestreld.journal.job_segments import (
    HEADER_BYTES,
    FoundJobSegment,
    FoundLog,
    find_job_log,
    was_synced,
)
from kestreld.journal.records import why_bad
from kestreld.journal.recovery import cut_tail, must_be_torn
from kestreld.journal.segment import TORN_MARK

_CUT_SHORT = -1


def is_said_again(log: FoundLog, place: int) -> bool:
    """True if a sync of that segment failed: its missing records were written again behind it, or never synced."""
    return place + 1 < len(log.segments) and log.has_failed_sync(log.segments[place].number)


def must_be_torn_tail(files: FileLayer, log: FoundLog, place: int, buffer: bytes, end: int, *, is_synced: bool) -> None:
    """Raise JournalCorrupt unless a torn tail begins at `end` in the segment at `place`.

    `buffer` has the segment's bytes that count; `is_synced`: a SYNC before `end` says that some of it was on disk.
    """
    one, later = log.segments[place], log.segments[place + 1 :]
    code = checked_job_end(buffer, end)[1] if end < len(buffer) else _CUT_SHORT
    reason = why_bad(code) if end < len(buffer) else f"the file ends here, not at byte {one.used_bytes}"
    if end < one.synced_bytes:
        raise JournalCorrupt(one.path, end, f"{reason}, in a part that had been synced")
    if not later:
        must_be_torn(buffer, end, one.path, is_synced, checked_job_end)
    elif any(was_synced(files, behind, log.marker) for behind in later):
        raise JournalCorrupt(one.path, end, f"{reason}, and what follows had been synced")
    elif code == -4:
        raise JournalCorrupt(one.path, end, reason)


def cut_torn_tail(
    files: FileLayer, clock: Clock, log: FoundLog, place: int, buffer: bytes, end: int
) -> tuple[list[str], bool]:
    """Cut off the tail and set later segments aside; returns log lines, and True if the cut is on disk."""
    note, is_cut = cut_tail(files, clock, log.segments[place].path, buffer, end, checked_job_end)
    return [note, *[set_aside(files, clock, behind) for behind in log.segments[place + 1 :]]], is_cut


def set_aside(files: FileLayer, clock: Clock, one: FoundJobSegment) -> str:
    """Rename a segment that was not on disk when the power failed, so that it does not count; returns a log line."""
    kept = f"{one.path}{TORN_MARK}{clock.wall_ms}"
    files.rename(one.path, kept)
    return f"{one.path}: incomplete on disk after a power failure; kept as {kept}"


def cut_as_a_start_does(files: FileLayer, clock: Clock, folder: str) -> list[str]:
    """Cut off the torn tail of a log without damage, if it has one; returns log lines.

    Raises JournalCorrupt or OSError.
    """
    log = find_job_log(files, folder)
    for place, one in enumerate(log.segments):
        buffer = files.read_file(one.path)[: one.used_bytes]
        end = HEADER_BYTES
        while end < len(buffer) and (found := checked_job_end(buffer, end))[0]:
            end = found[1]
        if end < one.used_bytes and not is_said_again(log, place):
            return cut_torn_tail(files, clock, log, place, buffer, end)[0]
    return []
