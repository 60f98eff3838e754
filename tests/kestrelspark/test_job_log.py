"""The log of jobs as tables: what became of every job, how it reads with damage, and while its server writes it."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestreld.files import FileLayer
from kestreld.journal import job_records
from kestreld.journal.job_records import JobExtras, JobOrigin, JobRecord, checked_job_end
from kestreld.journal.job_segments import HEADER_BYTES
from kestreld.journal.job_verify import verify_job_log
from kestreld.journal.records import sync_record
from kestrelspark.job_contents import job_blocks
from kestrelspark.job_log import job_changes, jobs
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.job_page import job_page
from kestrelspark.jobs.job_report import job_report
from kestrelspark.jobs.report import rows
from kestrelspark.jobs.verify import CORRUPT, OK, TRUNCATED, verify
from tests.support.daemon import running_daemon
from tests.support.job_engine import JobEngine
from tests.support.resp import resp_client
from tests.support.segments import puts, write_segment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
EPOCH: Final = datetime.fromtimestamp(0, UTC)


def at(ms: int) -> datetime:
    """As a collected row has it."""
    return (EPOCH + timedelta(milliseconds=ms)).astimezone().replace(tzinfo=None)


@pytest.fixture
def engine(tmp_path: Path) -> JobEngine:
    return JobEngine(tmp_path / "server=a" / "spool")


def by_id(frame: Any) -> dict[bytes, Any]:
    return {row.id.encode(): row for row in frame.collect()}


def test_a_job_is_a_row_with_all_that_was_said_of_it_and_what_became_of_it(spark: Any, engine: JobEngine) -> None:
    store = engine.jobs
    acked = engine.add(b"mail", b"\0\xff", key=b"order-17", retries_max=3, ttl_ms=60_000, retry_ms=7000)
    deleted, expired, dead = engine.add(), engine.add(ttl_ms=30_000), engine.add(b"work")
    delayed, waiting = engine.add(delay_s=90), engine.add(b"caf\xc3\xa9", retry_ms=0)
    began_ms = store.now_ms
    engine.end_turn()
    engine.drain(b"mail")
    engine.pass_time(8000)  # past its retry time
    engine.drain(b"mail")
    store.nack(engine.job(acked))
    engine.pass_time(1000)
    store.remove(engine.job(acked), "acked")
    store.remove(engine.job(deleted))
    engine.drain(b"work")
    store.bury(engine.job(dead), b"asked")
    engine.end_turn()
    buried_ms = store.now_ms
    engine.pass_time(30_000)
    rows = by_id(jobs(spark, str(engine.spool)))
    assert rows.keys() == {acked, deleted, expired, dead, delayed, waiting}
    row = rows[acked]
    assert (row.server, row.queue, row.body, row.key) == ("a", "mail", b"\0\xff", "order-17")
    assert (row.ttl_ms, row.retry_ms, row.delay_ms, row.retries) == (60_000, 7000, 0, 3)
    assert (row.nacks, row.additional_deliveries, row.deliveries, row.state) == (1, 1, 3, "queued")
    assert (row.outcome, row.done_time, row.ctime) == ("acked", at(buried_ms), at(began_ms))
    assert {one: rows[one].outcome for one in rows} == {
        acked: "acked", deleted: "deleted", expired: "expired", dead: "dead letter", delayed: None, waiting: None
    }  # fmt: skip
    assert (rows[dead].queue, rows[dead].origin, rows[dead].reason) == ("work.dead", "work", "asked")
    assert (rows[dead].dead_time, rows[dead].done_time) == (at(buried_ms), None)
    assert rows[expired].done_time >= rows[expired].ctime + timedelta(seconds=30)
    assert (rows[delayed].state, rows[delayed].deliveries) == ("delayed", 0)
    assert rows[delayed].requeue_time == at(began_ms + 90_000)
    assert (rows[waiting].queue, rows[waiting].requeue_time, rows[waiting].deliveries) == ("café", None, 1)


def test_every_change_has_its_time_and_its_segment_in_the_order_of_the_log(spark: Any, engine: JobEngine) -> None:
    one = engine.add()
    began_ms = engine.jobs.now_ms
    engine.end_turn()
    engine.drain()
    engine.pass_time(1000)
    engine.jobs.nack(engine.job(one), 5000)
    engine.end_turn()
    assert engine.storage.writer is not None
    engine.storage.writer.roll()
    engine.pass_time(1000)
    engine.jobs.working(engine.job(one))
    engine.end_turn()
    engine.ack(one)
    engine.end_turn()
    rows = job_changes(spark, str(engine.spool)).orderBy("segment", "offset").collect()
    first = int(engine.segments()[0].stem)
    assert [(row.event, row.state, row.at, row.segment - first) for row in rows] == [
        ("added", "queued", at(began_ms), 0),
        ("changed", "delayed", at(began_ms + 1000), 0),
        ("changed", "active", at(began_ms + 2000), 1),
        ("deleted", None, at(began_ms + 2000), 1),
    ]
    assert {row.id.encode() for row in rows} == {one}


def test_a_job_that_was_written_anew_is_one_row_and_a_flush_ends_all_jobs_before_it(
    spark: Any, engine: JobEngine
) -> None:
    acked, flushed = engine.add(), engine.add(b"other")
    engine.end_turn()
    engine.maintenance.rewrite()
    engine.settle()
    rows = job_changes(spark, str(engine.spool)).collect()
    assert {(row.id.encode(), row.event) for row in rows} >= {(acked, "written"), (flushed, "written")}
    engine.ack(acked)
    engine.end_turn()
    for _ in engine.jobs.clear():
        engine.end_turn()
    flushed_ms = engine.jobs.now_ms
    later = engine.add()
    engine.end_turn()
    found = by_id(jobs(spark, str(engine.spool)))
    outcomes = {one: (row.outcome, row.done_time is not None) for one, row in found.items()}
    assert outcomes == {acked: ("deleted", True), flushed: ("flushed", True), later: (None, False)}
    assert found[flushed].done_time == at(flushed_ms)


def random_log(chance: random.Random) -> bytes:
    """Records of every type, most of them JOBs and CHANGEs."""
    made = []
    for _ in range(chance.randrange(1, 40)):
        job_id, at_ms = chance.randbytes(40), chance.getrandbits(41)
        kind = chance.randrange(10)
        if kind < 4:
            origin = JobOrigin(b"q", b"retries", at_ms) if kind == 3 else None
            extras = JobExtras(b"key", 3, origin) if kind > 1 else job_records.NO_EXTRAS
            queue, body = chance.randbytes(chance.randrange(9)), chance.randbytes(chance.choice([0, 5, 60, 500]))
            job = JobRecord(at_ms, job_id, queue, body, at_ms * 10**6, 1000, state=chance.randrange(5), extras=extras)
            made.append(job_records.pack_job(job))
        elif kind < 7:
            made.append(job_records.change_record(at_ms, job_id, at_ms, chance.randrange(5), 1, 2))
        else:
            made.append(
                chance.choice(
                    [
                        job_records.done_record(at_ms, [job_id] * 3, "acked"),
                        job_records.flushed_record(at_ms),
                        job_records.queued_record(b"q", [job_id]),
                        sync_record(0),
                    ]
                )
            )
    return b"".join(made)


@pytest.mark.parametrize("seed", range(100))
def test_records_are_found_many_at_a_time_as_they_are_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    buffer = bytearray(random_log(chance))
    if seed % 4:
        buffer[chance.randrange(len(buffer))] ^= 1 << chance.randrange(8)
    content = bytes(buffer[: chance.randrange(len(buffer))] if seed % 3 == 0 else buffer)
    expected, place = [], 0
    while place < len(content) and (found := checked_job_end(content, place))[0]:
        expected.append((place, found[1], found[0]))
        place = found[1]
    blocks = list(job_blocks(content, 0))
    columns = [(block.starts.tolist(), block.ends.tolist(), block.types.tolist()) for block in blocks]
    assert [one for rows in columns for one in zip(*rows, strict=True)] == expected


def two_segments(engine: JobEngine) -> list[bytes]:
    ids = [engine.add(body=b"x" * 50) for _ in range(20)]
    engine.end_turn()
    assert engine.storage.writer is not None
    engine.storage.writer.roll()
    engine.pass_time(1000)
    ids += [engine.add(body=b"x" * 50) for _ in range(20)]
    engine.end_turn()
    return ids


def test_damage_is_a_row_or_is_dropped_or_raised_and_verify_says_what_journal_verify_does(
    spark: Any, engine: JobEngine
) -> None:
    ids = two_segments(engine)
    spool, first = str(engine.spool), engine.segments()[0]
    assert verify(spark, [spool]).code == OK
    content = bytearray(first.read_bytes())
    content[HEADER_BYTES + 30] ^= 1
    first.write_bytes(content)
    rows = job_changes(spark, spool).collect()
    assert len(rows) == len(ids)  # one less, and what is damaged
    (corrupt,) = [row._corrupt for row in rows if row._corrupt is not None]
    assert corrupt.startswith(f"{first}: byte {HEADER_BYTES}: ")
    assert by_id(jobs(spark, spool)).keys() == set(ids[1:])
    with pytest.raises(Exception, match="JournalCorrupt"):
        jobs(spark, spool, mode="FAILFAST").collect()
    verdict = verify(spark, [spool])
    (problem,) = verdict.problems
    (report,) = [one for one in verify_job_log(FileLayer(), f"{spool}/.jobs") if one.bad_offset is not None]
    assert (verdict.code, problem.server) == (CORRUPT, "a")
    assert (problem.path, problem.offset, problem.reason) == (str(first), report.bad_offset, report.reason)


def test_a_torn_tail_ends_the_log_and_a_segment_that_is_missing_is_told(spark: Any, engine: JobEngine) -> None:
    ids = two_segments(engine)
    first, last = engine.segments()
    last.write_bytes(last.read_bytes()[:-7])
    frame = job_changes(spark, str(engine.spool), mode="FAILFAST")
    assert {row.id.encode() for row in frame.collect()} == set(ids[:-1])
    verdict = verify(spark, [str(engine.spool)])
    assert (verdict.code, [problem.path for problem in verdict.problems]) == (TRUNCATED, [str(last)])
    (first.parent / f"{last.stem}-{first.stem}.live").touch()
    first.unlink()
    verdict = verify(spark, [str(engine.spool)])
    assert (verdict.code, ["missing" in problem.reason for problem in verdict.problems]) == (CORRUPT, [True])


def test_queues_and_jobs_in_one_spool_are_tables_apart(spark: Any, engine: JobEngine) -> None:
    one = engine.add()
    engine.end_turn()
    write_segment(engine.spool / "work.journal", 1, 1, puts(1, 5))
    (engine.spool / ".jobs" / "0000000001.jobs.torn-17").write_bytes(b"left behind")
    read = spark.read.format("kestrel").load
    assert [row.queue for row in read(str(engine.spool)).collect()] == ["work"] * 5
    for path in (engine.spool.parents[1], engine.spool / ".jobs"):
        assert by_id(jobs(spark, str(path))).keys() == {one}
    assert read(str(engine.spool / ".jobs")).count() == 0
    assert verify(spark, [str(engine.spool / ".jobs")]).files == 1
    assert jobs(spark, str(engine.spool / "work.journal")).count() == 0
    with pytest.raises(FileNotFoundError):
        jobs(spark, str(engine.spool / "nothing"))


def test_the_log_of_a_running_server_is_read(spark: Any, tmp_path: Path) -> None:
    settings = ("listen.disque=127.0.0.1:0", "jobs.journal=true", "max_journal_size=20KiB")
    with running_daemon(tmp_path, *settings) as daemon, resp_client(daemon.disque) as client:
        added = {client("ADDJOB", "mail", b"x" * 300, 0, "RETRY", 60) for _ in range(200)}
        taken = {client("GETJOB", "FROM", "mail")[0][1] for _ in range(10)}
        for one in taken:
            assert client("ACKJOB", one) == 1
        found = by_id(jobs(spark, str(daemon.spool)))
        assert verify(spark, [str(daemon.spool)]).code == OK
    assert found.keys() == {bytes(one) for one in added}
    assert {one for one, row in found.items() if row.outcome == "acked"} == {bytes(one) for one in taken}


def test_waits_until_the_acknowledgement_and_redelivered_jobs_as_the_guide_has_them(
    spark: Any, engine: JobEngine
) -> None:
    ids = [engine.add(b"mail") for _ in range(100)]
    engine.end_turn()
    for one in ids:
        engine.pass_time(10)
        engine.jobs.remove(engine.job(one), "acked")
        engine.end_turn()
    for one in [engine.add(b"mail") for _ in range(3)]:
        engine.drain(b"mail")
        engine.jobs.nack(engine.job(one))
    engine.end_turn()
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    recipe = text.partition("## Jobs as tables")[2].partition("```python\n")[2].partition("```")[0]
    said: dict[str, Any] = {"spark": spark}
    exec(recipe.replace("/var/spool/kestrel", str(engine.spool)), said)
    (row,) = said["waits"].collect()
    assert (row.queue, row.jobs, row.wait_ms) == ("mail", 100, [500, 950, 990])
    (row,) = said["again"].collect()
    assert (row.queue, row.jobs) == ("mail", 3)


def test_the_report_of_jobs_has_waits_retries_and_what_became_of_them_of_the_jobs_of_a_period(
    spark: Any, engine: JobEngine
) -> None:
    began_ms = engine.jobs.now_ms
    for _ in range(100):
        one = engine.add(b"mail")
        engine.end_turn()
        engine.drain(b"mail")
        engine.pass_time(10)
        engine.jobs.nack(engine.job(one))
        engine.end_turn()
        engine.drain(b"mail")
        engine.pass_time(10)
        engine.jobs.remove(engine.job(one), "acked")
        engine.end_turn()
    late = engine.add(b"late", delay_s=2)
    engine.end_turn()
    engine.pass_time(2000)
    engine.end_turn()
    engine.jobs.bury(engine.job(late), b"asked")
    engine.end_turn()
    found = job_report(spark, [str(engine.spool)], Choice())
    assert found is not None
    mail, buried = sorted(rows(found.queues), key=lambda row: row["queue"], reverse=True)
    assert [mail[name] for name in ("queue", "jobs", "acked", "nacks", "retries", "retried_jobs", "retries_max")] == [
        "mail", 100, 100, 100, 100, 100, 1
    ]  # fmt: skip
    assert [mail[f"{wait}_p99_ms"] for wait in ("queued", "delivered_by", "acked")] == [0, 10, 20]
    assert [buried[name] for name in ("queue", "jobs", "dead_letters", "queued_p50_ms", "acked_p50_ms")] == [
        "late", 1, 1, 2000, None
    ]  # fmt: skip
    assert sum(row["acked"] for row in rows(found.buckets)) == 100
    assert job_page(found).count("<svg") == 6
    some = job_report(spark, [str(engine.spool)], Choice(since=str(began_ms + 20), until=str(began_ms + 60)))
    assert some is not None
    assert [row["jobs"] for row in rows(some.queues)] == [2]
    assert job_report(spark, [str(engine.spool)], Choice(("nothing",))) is None
