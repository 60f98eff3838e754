"""Segments of a log of jobs: finding them, and reading one in order as blocks of records and damaged stretches."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.beginnings import missing_words
from kestreld.journal.discovery import JournalFile, server_of
from kestreld.journal.job_records import JOB_FIELDS_BYTES, JobState, JobType, checked_job_end
from kestreld.journal.job_segments import (
    FOLDER,
    HEADER_BYTES,
    JobHeader,
    decode_job_header,
    job_segment_name,
    parse_job_segment_name,
)
from kestreld.journal.marker import find_marker
from kestreld.journal.records import FRAME_BYTES, ID_MAX, TYPE_OFFSET, find_whole_records, read_sync, why_bad
from kestreld.journal.recovery import must_be_torn
from kestrelspark.contents import DamagedStretch
from kestrelspark.scanning import scans
from kestrelspark.storage import is_remote

# The bodies of records, as far as their sizes are fixed.
JOB_DTYPE: Final = np.dtype(
    [
        ("at_ms", "<u8"),
        ("created", "<u8"),
        ("requeue_at_ms", "<u8"),
        ("id", "S40"),
        ("state", "u1"),
        ("nacks", "<u4"),
        ("deliveries", "<u4"),
        ("extras_bytes", "<u4"),
        ("ttl_ms", "<u8"),
        ("delay_ms", "<u8"),
        ("retry_ms", "<u8"),
        ("replicas", "<u2"),
        ("queue_bytes", "<u4"),
    ]
)
CHANGE_DTYPE: Final = np.dtype(
    [
        ("at_ms", "<u8"),
        ("requeue_at_ms", "<u8"),
        ("id", "S40"),
        ("state", "u1"),
        ("nacks", "<u4"),
        ("deliveries", "<u4"),
    ]
)
LOOKS: Final = 3  # attempts to list a folder from which a running server removes segments
_CHECKSUM_DTYPE: Final = np.dtype([("body_bytes", "<u4"), ("checksum", "<u4")])
_U32: Final = np.uint64(0xFFFFFFFF)
_TYPE_SHIFT: Final = np.uint64(56)


@dataclass(slots=True)
class JobBlock:
    """Consecutive valid records as arrays: start, end and type of each."""

    starts: Any
    ends: Any
    types: Any

    def offsets(self, kind: JobType) -> list[int]:
        return [int(start) for start in self.starts[self.types == kind]]


# Files


def job_folders(paths: Iterable[str]) -> Iterator[str]:
    """Folders of job logs below the paths, which may be globs. Raises FileNotFoundError for a path without match."""
    for pattern in paths:
        if is_remote(pattern):
            continue  # shipped archives have no log of jobs
        matches = FileLayer().matching(pattern.removeprefix("file:"))
        if not matches:
            raise FileNotFoundError(f"{pattern}: no such file or folder")
        for match in matches:
            for parent, folders, names in os.walk(match):
                folders[:] = sorted(name for name in folders if name == FOLDER or not name.startswith("."))
                if any(map(parse_job_segment_name, names)):
                    yield parent


def job_files(folder: str) -> list[JournalFile]:
    """The segments in a folder that count, in order, and entries for missing ones. Raises OSError."""
    for _ in range(LOOKS - 1):
        with suppress(FileNotFoundError):  # deleted by a running server
            return _job_files(folder)
    return _job_files(folder)


def _job_files(folder: str) -> list[JournalFile]:
    names = os.listdir(folder)
    marker = find_marker(names)
    floor = marker.floor if marker is not None else 0
    numbers = sorted(number for name in names if (number := parse_job_segment_name(name)) is not None)
    found: list[tuple[int, int, JobHeader | None]] = [
        (number, *_look_at(f"{folder}/{job_segment_name(number)}")) for number in numbers if number >= floor
    ]
    log_id = next((header.log_id for _, _, header in found if header is not None), 0)
    found = [one for one in found if one[2] is None or one[2].log_id == log_id]
    there = [one[0] for one in found]
    first = floor or min(there, default=1)
    last = max([*there, marker.number if marker is not None else 0])
    files = [
        JournalFile(folder, server_of(folder), FOLDER, "", 0, False, log_id, before + 1, missing=words)
        for before, after in pairwise([first - 1, *there, last + 1])
        if after > before + 1 and (words := missing_words(before + 1, after - 1))
    ]
    for (number, size_bytes, _), (following, _, header) in pairwise([*found, (0, 0, None)]):
        end = header.previous_bytes if header is not None and following == number + 1 else None
        path, is_last = f"{folder}/{job_segment_name(number)}", not following
        files.append(
            JournalFile(
                path, server_of(path), FOLDER, "", size_bytes, False, log_id, number, end, is_last, is_live=is_last
            )
        )
    return files


def _look_at(path: str) -> tuple[int, JobHeader | None]:
    """Size in bytes, and the header if it is valid."""
    with open(path, "rb") as opened:
        beginning = opened.read(HEADER_BYTES)
        size_bytes = os.fstat(opened.fileno()).st_size
    with suppress(JournalCorrupt):
        return size_bytes, decode_job_header(beginning, path)
    return size_bytes, None


# Records


def job_contents(buffer: bytes, file: JournalFile) -> Iterator[JobBlock | DamagedStretch]:
    """Contents of a segment in order. After damage it continues with the next whole record."""
    if file.missing:
        yield DamagedStretch(0, file.missing, is_missing=True)
        return
    buffer = buffer[: file.end]  # bytes left by a failed write do not count
    at, is_synced = HEADER_BYTES, False
    try:
        decode_job_header(buffer, file.path)
    except JournalCorrupt as problem:
        at = len(buffer) if problem.offset else _next_whole(buffer, 0)  # a later version's format is not known
        is_torn = file.is_live and at == len(buffer) and not problem.offset
        yield DamagedStretch(problem.offset, problem.reason, at, is_torn)
    while at < len(buffer):
        for block in job_blocks(buffer, at):
            at = int(block.ends[-1])
            is_synced = is_synced or any(
                read_sync(buffer[start + FRAME_BYTES : start + FRAME_BYTES + 8])
                for start in block.offsets(JobType.SYNC)
            )
            yield block
        if at < len(buffer):
            damage = _damage(buffer, at, file, is_synced=is_synced)
            yield damage
            at += damage.size_bytes
    if file.end is not None and len(buffer) < file.end:
        yield DamagedStretch(len(buffer), f"the file ends here, not at byte {file.end}")


def _next_whole(buffer: bytes, at: int) -> int:
    """Offset of the next whole record, or of the end."""
    found = next(find_whole_records(buffer, at + 1, None, checked_job_end), None)
    return len(buffer) if found is None else found[1]


def _damage(buffer: bytes, at: int, file: JournalFile, *, is_synced: bool) -> DamagedStretch:
    reason = why_bad(checked_job_end(buffer, at)[1])
    if file.is_live:
        try:
            must_be_torn(buffer, at, file.path, is_synced, checked_job_end)
        except JournalCorrupt as problem:
            reason = problem.reason
        else:
            left_out = sum(1 for _ in find_whole_records(buffer, at + 1, None, checked_job_end))
            return DamagedStretch(at, reason, len(buffer) - at, is_torn=True, left_out=left_out)
    return DamagedStretch(at, reason, _next_whole(buffer, at) - at)


def job_blocks(buffer: bytes, at: int) -> Iterator[JobBlock]:
    """Valid records from `at` on; the last block stops at the end, or before the first invalid record."""
    while at < len(buffer):
        starts, stop = scans()[0].chain(buffer, at, len(buffer))
        if not len(starts):
            return
        ends = np.append(starts[1:], stop)
        is_true = np.zeros(len(starts), bool)
        whole = len(starts) - (stop > len(buffer))
        is_true[:whole] = _are_true(buffer, starts[:whole], ends[:whole])
        # `checked_job_end` decides on all other records.
        bad = (
            place for place in np.flatnonzero(~is_true).tolist() if not checked_job_end(buffer, int(starts[place]))[0]
        )
        good = next(bad, len(starts))
        if good:
            at = int(ends[good - 1])
            types = np.frombuffer(buffer, np.uint8)[starts[:good] + TYPE_OFFSET]
            yield JobBlock(starts[:good], ends[:good], types)
        if good < len(starts):
            return


def _are_true(buffer: bytes, starts: Any, ends: Any) -> Any:
    """A mask of the records that are surely valid: JOBs without extras, and CHANGEs."""
    types = np.frombuffer(buffer, np.uint8)[starts + TYPE_OFFSET].astype(np.uint64)
    frames = scans()[0].heads(buffer, starts, _CHECKSUM_DTYPE)
    bodies = ends - starts - FRAME_BYTES
    is_job = (types == JobType.JOB) & (bodies >= JOB_FIELDS_BYTES)
    is_change = (types == JobType.CHANGE) & (bodies == CHANGE_DTYPE.itemsize)
    for which, dtype in ((is_job, JOB_DTYPE), (is_change, CHANGE_DTYPE)):
        heads = scans()[0].heads(buffer, starts[which] + FRAME_BYTES, dtype)
        is_sound = (heads["state"] <= max(JobState)) & (heads["requeue_at_ms"] < ID_MAX)
        if dtype is JOB_DTYPE:
            is_sound &= (heads["ttl_ms"] < ID_MAX) & (heads["extras_bytes"] == 0)
            is_sound &= JOB_FIELDS_BYTES + heads["queue_bytes"].astype(np.int64) <= bodies[which]
        which[which] = is_sound
    seeds = frames["body_bytes"].astype(np.uint64) + (types << _TYPE_SHIFT)
    digests = scans()[0].digests(buffer, starts + FRAME_BYTES, ends, seeds)
    return (is_job | is_change) & (digests & _U32 == frames["checksum"])
