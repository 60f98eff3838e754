"""The jobs of Disque's append-only file, in a store and its log."""

from pathlib import Path

import pytest

from kestreld.jobs.importing import JobImporter
from kestreld.jobs.job import ACTIVE, CTIME_BITS, DELAYED, NEVER, QUEUED
from kestreld.journal.disque_aof import read_saved_job
from tests.support.clock import START_WALL_MS
from tests.support.disque_aof import delete, job_id, load, saved_job
from tests.support.job_engine import JobEngine

MINUTE_MS = 60_000


@pytest.fixture
def engine(tmp_path: Path) -> JobEngine:
    return JobEngine(tmp_path / "spool")


def import_file(engine: JobEngine, content: bytes, *, may_cut: bool = True) -> str:
    """What comes of it: why nothing, "" = it was imported."""
    path = engine.spool.parent / "disque.aof"
    path.write_bytes(content)
    problems: list[str] = []
    engine.storage.import_aof(str(path), problems.append, may_cut=may_cut)
    assert engine.storage.is_loading
    engine.work_until(lambda: bool(problems))
    assert not engine.storage.is_loading
    return problems[0]


def test_a_job_keeps_its_id_times_and_counters(engine: JobEngine) -> None:
    blob = saved_job(
        5, queue=b"q\0/\r\n", body=b"\xff\r\n", replicas=3, created_ms=START_WALL_MS - 5001, counter=7, ttl_s=60,
        retry_s=9, nacks=3, deliveries=4,
    )  # fmt: skip
    assert import_file(engine, load(blob)) == ""
    job = engine.job(job_id(5))
    assert (job.terms.queue.name, job.body, job.nacks, job.deliveries) == (b"q\0/\r\n", b"\xff\r\n", 3, 4)
    assert job.ctime == (START_WALL_MS - 5001 << CTIME_BITS) + 7
    assert (job.terms.retry_ms, job.terms.delay_s, job.terms.replicate) == (9000, 0, 3)
    assert job.expires_at_ms // 1000 == (START_WALL_MS - 5001) // 1000 + 60


def test_what_was_deleted_acknowledged_or_has_expired_is_not_imported_and_of_two_the_first_counts(
    engine: JobEngine,
) -> None:
    expired = saved_job(3, created_ms=START_WALL_MS - MINUTE_MS, ttl_s=60)
    content = b"".join(
        [
            load(saved_job(1)), delete(1), delete(9), load(saved_job(2, body=b"first")),
            load(saved_job(2, body=b"second")), load(expired), load(saved_job(4, state=3)), load(saved_job(5)),
            delete(5), load(saved_job(5, body=b"again")),
        ]
    )  # fmt: skip
    assert import_file(engine, content) == ""
    assert {job.id: job.body for job in engine.jobs.table} == {job_id(2): b"first", job_id(5): b"again"}
    assert any(
        "imported 2 jobs of Disque's, not 2 that have expired or were imported before" in line for line in engine.log
    )


def test_jobs_come_back_active_and_are_queued_after_their_retry_time(engine: JobEngine) -> None:
    assert import_file(engine, load(saved_job(1, queue=b"q")) + load(saved_job(2, queue=b"q", retry_s=0))) == ""
    assert engine.jobs.find_queue(b"q") is None
    assert [engine.job(one.id).state for one in engine.jobs.table] == [ACTIVE, ACTIVE]
    assert engine.job(job_id(2, b"05a0")).requeue_at_ms == NEVER
    engine.pass_time(299_000)
    assert engine.drain() == []
    engine.pass_time(1300)
    assert engine.drain() == [job_id(1)]
    engine.pass_time(3_600_000)
    assert job_id(2, b"05a0") not in engine.drain()


def test_a_delay_goes_on_where_it_was(engine: JobEngine) -> None:
    often = saved_job(1, queue=b"q", created_ms=START_WALL_MS - 50_000, delay_s=60)
    once = saved_job(2, queue=b"q", created_ms=START_WALL_MS - 50_000, delay_s=60, retry_s=0, counter=1)
    late = saved_job(3, queue=b"q", created_ms=START_WALL_MS - 70_000, delay_s=60, retry_s=0)
    assert import_file(engine, load(often) + load(once) + load(late)) == ""
    assert engine.job(job_id(1)).state == DELAYED
    engine.pass_time(9_990)
    assert engine.drain() == []
    engine.pass_time(20)
    assert engine.drain() == [job_id(1), job_id(2, b"05a0")]
    assert engine.job(job_id(3, b"05a0")).requeue_at_ms == NEVER


def test_after_a_controlled_restart_queued_jobs_are_queued_in_their_order(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    content = b"".join([load(saved_job(number, queue=b"q", counter=9 - number)) for number in range(5)])
    active, at_most_once = saved_job(6, queue=b"q", state=1), saved_job(7, queue=b"q", retry_s=0, counter=20)
    assert import_file(engine, content + load(active) + load(at_most_once)) == ""
    assert engine.job(job_id(0)).state == QUEUED
    assert engine.drain() == [job_id(4), job_id(3), job_id(2), job_id(1), job_id(0), job_id(7, b"05a0")]


def test_what_was_imported_is_in_the_log_before_the_file_is_moved_aside(engine: JobEngine) -> None:
    content = b"".join([load(saved_job(number, body=b"%d" % number)) for number in range(3000)])
    assert import_file(engine, content) == ""
    assert not (engine.spool.parent / "disque.aof").exists()
    (moved,) = (engine.spool / ".imported").glob("*/disque.aof")
    assert moved.read_bytes() == content
    assert any(f"the file is now {moved}" in line for line in engine.log)
    said = engine.said()
    engine.crash()
    assert engine.problem == ""
    assert engine.said() == said
    assert len(said) == 3000


def test_a_second_import_adds_only_what_is_unknown(engine: JobEngine) -> None:
    assert import_file(engine, load(saved_job(1))) == ""
    assert import_file(engine, load(saved_job(1, body=b"other")) + load(saved_job(2))) == ""
    assert {job.id: job.body for job in engine.jobs.table} == {job_id(1): b"body", job_id(2): b"body"}
    assert len(list((engine.spool / ".imported").iterdir())) == 2


def test_a_torn_tail_is_left_out_or_refused(engine: JobEngine) -> None:
    content = load(saved_job(1)) + load(saved_job(2))[:-3]
    place = f"byte {len(load(saved_job(1)))}"
    assert place in import_file(engine, content, may_cut=False)
    assert engine.ids() == set()
    assert engine.storage.stopped is not None
    assert import_file(engine, content) == ""
    assert engine.ids() == {job_id(1)}
    assert any(place in line and "left out" in line for line in engine.log)


def test_of_a_corrupt_file_nothing_is_imported_and_it_stays(engine: JobEngine) -> None:
    problem = import_file(engine, load(saved_job(1)) + b"garbage" + load(saved_job(2)))
    assert "disque.aof: byte" in problem
    assert engine.ids() == set()
    assert (engine.spool.parent / "disque.aof").exists()


def test_jobs_are_imported_into_memory_where_there_is_no_log(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", is_on=False)
    assert import_file(engine, load(saved_job(1))) == ""
    assert engine.ids() == {job_id(1)}


def test_a_queue_that_was_forgotten_between_two_jobs_is_another_one(engine: JobEngine) -> None:
    importer = JobImporter(engine.jobs)
    assert importer.take_over(read_saved_job(saved_job(1)))
    assert engine.ack(job_id(1))
    assert engine.jobs.queues.count == 0
    assert importer.take_over(read_saved_job(saved_job(2)))
    assert engine.jobs.queues.get(b"mail") is engine.job(job_id(2)).terms.queue
