"""kestrelctl journal-verify, its repair, and journal dump on the log of jobs."""

import json
from pathlib import Path

import pytest

from kestrelctl.journals.dumping import Dump
from kestrelctl.journals.verifying import verify_journals
from kestrelctl.shell.exit_codes import ExitCode
from kestreld.jobs.job_queue import PAUSED_IN, PAUSED_OUT
from tests.support.daemon import running_daemon
from tests.support.job_engine import NODE_ID, JobEngine, numbered
from tests.support.resp import ErrorReply, resp_client
from tests.support.shell import Kestrelctl


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


def test_owners_and_pauses_of_a_node_of_a_cluster_are_printed(engine: JobEngine) -> None:
    engine.crash()
    jobs, other = engine.jobs, "b" * 40
    job_id = engine.add()
    jobs.own(engine.job(job_id), jobs.me | jobs.node_sets.of(other.encode()))
    jobs.remember_ack(engine.job(job_id))
    queue = jobs.queue(b"mail/\n")
    assert queue is not None
    jobs.pause(queue, PAUSED_IN | PAUSED_OUT)
    engine.end_turn()
    rows = [row for path in engine.segments() for row in Dump(with_values=True).of(str(path), None)]
    (owned,) = [row for row in rows if row["type"] == "OWNERS"]
    assert (owned["id"], owned["owners"]) == (job_id.decode(), f"{NODE_ID.decode()},{other}")
    (paused,) = [row for row in rows if row["type"] == "PAUSED"]
    assert (paused["queue"], paused["pause"]) == ("mail/\n", "all")
    acked = [row for row in rows if row["type"] == "CHANGE" and row["state"] == "acked"]
    assert [row["id"] for row in acked] == [job_id.decode()]


def flip(path: Path, data: bytes) -> bytes:
    """Damage the place where `data` stands; what the file holds now."""
    content = bytearray(path.read_bytes())
    content[content.index(data)] ^= 1
    path.write_bytes(content)
    return bytes(content)


def test_a_server_with_a_damaged_log_names_the_command_that_repairs_it_and_serves_all_but_jobs(tmp_path: Path) -> None:
    settings = ("listen.disque=127.0.0.1:0", "jobs.journal=true", "jobs.sync_journal=true")
    with running_daemon(tmp_path / "daemon", *settings) as daemon:
        kestrelctl = Kestrelctl(daemon.address, tmp_path)
        with resp_client(daemon.disque) as client:
            ids = [client("ADDJOB", "mail", f"body {number}", 0, "RETRY", 1) for number in range(5)]
        kestrelctl("put", "work", "item")
        daemon.stop()
        folder = daemon.spool / ".jobs"
        (segment,) = folder.glob("*.jobs")
        damaged = flip(segment, b"body 2")
        daemon.start()
        command = f"kestrelctl journal-verify {daemon.spool} --repair"
        daemon.logged(f"stop the server and run: {command}")
        with resp_client(daemon.disque) as client:
            refusal = client("ADDJOB", "mail", "x", 0)
            assert isinstance(refusal, ErrorReply)
            assert refusal.startswith(f"MISCONF The job log cannot be read: {segment}: byte ".encode())
            assert refusal.endswith(command.encode())
        assert kestrelctl("put", "work", "more").code == 0
        assert kestrelctl("get", "work", "--all").out == b"item\nmore\n"
        assert kestrelctl(*command.split()[1:]).code == 75
        daemon.stop()
        dry = kestrelctl(*command.split()[1:], "--dry-run", "-q", "-o", "ndjson")
        assert (dry.code, json.loads(dry.out)["finding"]) == (65, "damaged")
        assert segment.read_bytes() == damaged
        run = kestrelctl(*command.split()[1:], "-q", "-o", "ndjson")
        row = json.loads(run.out)
        kept_at = row.pop("kept_at")
        assert run.code == 1
        assert row == {"queue": ".jobs", "finding": "repaired", "damages": 1, "items": 4, "lost_items": 0}
        found, done = run.err.splitlines()
        assert found.startswith(f"kestrelctl: .jobs: {segment}: byte ")
        assert found.endswith("jobs in them may be lost")
        assert done == f"kestrelctl: .jobs: repaired; the damaged journal is kept in {kept_at}"
        assert Path(kept_at, segment.name).read_bytes() == damaged
        assert kestrelctl("journal-verify", "-q", str(daemon.spool)).code == 0
        assert kestrelctl("journal-verify", "-q", kept_at).code == 65
        assert kestrelctl(*command.split()[1:], "-q").out == b""
        daemon.start()
        with resp_client(daemon.disque) as client:
            taken = [client("GETJOB", "TIMEOUT", 5000, "FROM", "mail")[0] for _ in range(4)]
            assert sorted(job[1] for job in taken) == sorted(ids[:2] + ids[3:])


def test_the_folder_of_the_log_alone_is_repaired_and_its_torn_tail_cut_off(
    engine: JobEngine, kestrelctl: Kestrelctl
) -> None:
    with engine.segments()[-1].open("ab") as file:
        file.write(b"\x50\0\0\0torn")
    run = kestrelctl("journal-verify", str(engine.spool / ".jobs"), "--repair", "--no-headers")
    assert (run.code, run.out.split(b"\t")[:3]) == (0, [b".jobs", b"", b"0"])
    assert "torn tail of 8 bytes cut off" in run.err
    assert kestrelctl("journal-verify", "-q", str(engine.spool)).code == 0
