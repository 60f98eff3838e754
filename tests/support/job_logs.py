"""Job logs as a server has left them, without a server that writes them."""

import time
from pathlib import Path

from kestreld.journal.job_records import job_record, shared_fields
from kestreld.journal.job_segments import FOLDER, JobHeader, encode_job_header, job_segment_name


def write_job_log(spool: Path, jobs: int) -> None:
    """A log of so many jobs of the queue `mail`, in a spool that has none. A server reads about 200,000 a second."""
    now_ms = time.time_ns() // 1_000_000
    shared = shared_fields(b"mail", 86_400_000, 0, 60_000, 1)
    records = [encode_job_header(JobHeader(now_ms, 1, now_ms))]
    for number in range(jobs):
        job_id = b"D-dcb833cf-%024d-05a1" % number
        records.append(
            job_record(now_ms, job_id, b"body", now_ms * 1_000_000 + number, now_ms + 60_000, 1, 0, 0, shared, b"")
        )
    folder = spool / FOLDER
    folder.mkdir(mode=0o700, parents=True)
    (folder / job_segment_name(1)).write_bytes(b"".join(records))
