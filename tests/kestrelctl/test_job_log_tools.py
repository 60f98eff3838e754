"""kestrelctl journal-verify and journal dump on the log of jobs."""

from pathlib import Path

import pytest

from kestrelctl.journals.dumping import Dump
from kestrelctl.journals.verifying import verify_journals
from kestrelctl.shell.exit_codes import ExitCode
from tests.support.job_engine import JobEngine, numbered


@pytest.fixture
def engine(tmp_path: Path) -> JobEngine:
    engine = JobEngine(tmp_path / "spool", sync_ms=0, segment_bytes_max=2000, restores_queues=True)
    for body in numbered(30):
        engine.add(b"mail/\n", body, key=b"order")
        engine.end_turn()
    engine.take(b"mail/\n")
    engine.jobs.working(engine.job(max(engine.ids())))
    for job_id in sorted(engine.ids())[:5]:
        engine.ack(job_id)
    engine.end_turn()
    engine.storage.close()
    return engine


@pytest.mark.parametrize("inside", ["", ".jobs"])
def test_a_whole_log_is_verified_with_the_jobs_that_live_in_it(engine: JobEngine, inside: str) -> None:
    rows, code, _ = verify_journals(str(engine.spool / inside), None, None, None)
    assert code == ExitCode.OK
    assert len(rows) == len(engine.segments()) > 2
    assert sum(int(str(row["live_items"])) for row in rows) == 25
    assert {row["finding"] for row in rows} == {""}


def test_damage_a_torn_tail_and_a_missing_segment_are_found(engine: JobEngine) -> None:
    first, last = engine.segments()[0], engine.segments()[-1]
    content = first.read_bytes()
    first.write_bytes(content[:300] + b"?" + content[301:])
    rows, code, _ = verify_journals(str(engine.spool), None, None, None)
    assert code == ExitCode.CORRUPT
    assert [row["segment"] for row in rows if row["finding"]] == [first.name]
    first.write_bytes(content)
    with last.open("ab") as file:
        file.write(b"\x50\0\0\0torn")
    _, code, _ = verify_journals(str(engine.spool), None, None, None)
    assert code == ExitCode.NEGATIVE
    engine.segments()[1].unlink()
    rows, code, _ = verify_journals(str(engine.spool), None, None, None)
    assert code == ExitCode.CORRUPT
    assert "missing" in str(rows[0]["finding"])


def test_every_record_is_printed_with_its_fields(engine: JobEngine) -> None:
    rows = [row for path in engine.segments() for row in Dump(with_values=True).of(str(path), None)]
    types = {row["type"] for row in rows}
    assert types == {"HEADER", "JOB", "CHANGE", "DONE", "SYNC", "QUEUED", "STOPPED", "KEY"}
    assert all(row["checksum"] == "ok" for row in rows)
    job = next(row for row in rows if row["type"] == "JOB")
    assert (job["state"], job["retry_ms"], job["data_bytes"], job["key"]) == ("queued", 300_000, 6, "order")
    content = bytearray(engine.segments()[0].read_bytes())
    content[300] ^= 1
    engine.segments()[0].write_bytes(content)
    dump = Dump(with_values=False)
    bad = [row for row in dump.of(str(engine.segments()[0]), None) if row["checksum"] != "ok"]
    assert len(bad) == 1
    assert dump.is_damaged
