"""The job log: what of the jobs is there after a restart, a crash and damage."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt
from kestreld.jobs.job import DELAYED, NEVER, QUEUED, Job
from kestreld.jobs.keys import key_in
from kestreld.jobs.node_sets import NodeSets
from kestreld.jobs.recovery import JobRecovery
from kestreld.journal.job_records import JobType, read_job, whole_job_records
from kestreld.journal.job_segments import HEADER_BYTES
from kestreld.journal.records import FRAME_BYTES, sync_record
from tests.support.clock import FakeClock
from tests.support.engine import LateFiles, QuickFiles
from tests.support.job_engine import Consumer, JobEngine, numbered

MINUTE_MS = 60_000


@pytest.fixture
def engine(tmp_path: Path) -> JobEngine:
    return JobEngine(tmp_path / "spool")


def test_every_field_of_a_job_survives_a_crash(engine: JobEngine) -> None:
    engine.add(b"plain")
    engine.add(b"", b"")
    engine.add(b"q\0/\r\n", b"\r\n\0", ttl_ms=1 << 40, retry_ms=7000, delay_s=90, key=b"order-17", retries_max=3)
    engine.end_turn()
    said = engine.said()
    engine.crash()
    assert engine.problem == ""
    assert engine.said() == said


def test_after_a_crash_no_job_is_queued_and_each_is_requeued_at_its_saved_time(engine: JobEngine) -> None:
    early, late = engine.add(retry_ms=MINUTE_MS), engine.add(retry_ms=10 * MINUTE_MS)
    engine.end_turn()
    saved_ms = engine.job(early).requeue_at_ms
    engine.crash()
    assert engine.drain() == []
    engine.pass_time(saved_ms - engine.jobs.now_ms - 5)
    assert engine.drain() == []
    engine.pass_time(10)
    assert engine.drain() == [early]
    engine.pass_time(10 * MINUTE_MS)
    assert late in engine.drain()


def test_a_job_without_retry_is_never_queued_again_after_a_crash(engine: JobEngine) -> None:
    engine.add(retry_ms=0)
    engine.end_turn()
    engine.crash()
    engine.pass_time(3_600_000)
    assert engine.drain() == []
    assert len(engine.ids()) == 1


def test_a_delay_goes_on_over_a_crash_and_does_not_begin_anew(engine: JobEngine) -> None:
    once, often = engine.add(retry_ms=0, delay_s=60), engine.add(delay_s=60)
    engine.end_turn()
    engine.pass_time(50_000)
    engine.crash()
    assert engine.drain() == []
    engine.pass_time(10_010)
    assert engine.drain() == [once, often]


@pytest.mark.parametrize("sync_ms", [None, 0])
def test_a_delayed_job_without_retry_whose_time_came_in_a_crash_may_have_been_delivered(
    tmp_path: Path, sync_ms: int | None
) -> None:
    engine = JobEngine(tmp_path / "spool", sync_ms=sync_ms)
    one = engine.add(retry_ms=0, delay_s=60)
    engine.end_turn()
    engine.clock.advance(61_000)
    engine.crash()
    engine.pass_time(61_000)
    assert engine.drain() == []
    engine.restart()
    assert engine.drain() == [], "nor after a stop in good order"
    assert engine.ids() == {one}


def test_a_delayed_job_without_retry_whose_time_came_while_the_server_was_stopped_is_queued(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool")
    one = engine.add(retry_ms=0, delay_s=60)
    engine.end_turn()
    engine.storage.close()
    engine.clock.advance(61_000)
    engine.crash()
    engine.pass_time(10)
    assert engine.drain() == [one]


def test_a_stop_in_good_order_says_that_no_job_was_delivered_since_only_until_the_next_start(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool")
    one = engine.add(retry_ms=0, delay_s=60)
    engine.restart()
    engine.clock.advance(61_000)  # and a power cut takes what it has written meanwhile
    engine.crash()
    engine.pass_time(10)
    assert (engine.drain(), engine.ids()) == ([], {one})


def test_a_commit_of_which_only_its_sync_record_is_left_is_no_stop_in_good_order(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", LateFiles(), sync_ms=0)
    one = engine.add(retry_ms=0, delay_s=60)
    engine.end_turn()
    engine.work()
    size_bytes = engine.segments()[0].stat().st_size
    engine.add()
    engine.end_turn()
    os.truncate(engine.segments()[0], size_bytes + len(sync_record(size_bytes)))
    engine.clock.advance(61_000)
    engine.crash()
    engine.pass_time(10)
    assert (engine.drain(), engine.ids()) == ([], {one})


def test_what_a_killed_server_has_left_is_put_on_disk_before_answers_rely_on_it(tmp_path: Path) -> None:
    files = LateFiles()
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    engine.add(key=b"key")
    engine.end_turn()
    engine.crash()
    assert engine.maintenance.journal.synced_at == (1, engine.segments()[0].stat().st_size)
    assert [path.name for path in (tmp_path / "spool/.jobs").glob("*.live")] == ["0000000001-00000000000000000001.live"]


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_clients_own_id_is_known_over_restarts_when_its_job_is_gone(engine: JobEngine, restarts: int) -> None:
    one = engine.add(key=b"key")
    engine.ack(one)
    engine.end_turn()
    for _ in range(restarts):
        engine.crash()
        engine.settle()
    assert engine.jobs.keys.find(key_in(b"q", b"key"), engine.jobs.now_ms) == one


def test_jobs_that_go_at_once_during_a_rewrite_stay_gone(tmp_path: Path) -> None:
    engine = rolled(tmp_path, 600)
    assert engine.storage.rewrite()
    engine.work(2)
    for _ in engine.jobs.clear():
        engine.work()
    engine.settle()
    engine.crash()
    assert engine.ids() == set()


def test_a_segment_that_a_power_cut_left_without_a_header_leaves_no_gap(tmp_path: Path) -> None:
    engine = rolled(tmp_path, 20)
    said = engine.said()
    last = engine.segments()[-1]
    (last.parent / f"{int(last.name[:10]) + 1:010d}.jobs").write_bytes(b"\0" * 30)
    for _ in range(2):
        engine.crash()
        assert engine.problem == ""
        assert engine.said() == said
        engine.add()
        engine.end_turn()
        said = engine.said()


def test_a_last_segment_without_a_header_but_with_records_stops_the_log_and_says_so(tmp_path: Path) -> None:
    engine = rolled(tmp_path, 20)
    engine.add(body=b"x" * 3000)
    engine.end_turn()
    last = engine.segments()[-1]
    last.write_bytes(bytes(HEADER_BYTES) + last.read_bytes()[HEADER_BYTES:])
    engine.crash()
    assert "not a segment of a job log, and intact records follow" in (engine.problem or "")


def test_a_stop_while_jobs_are_loaded_replaces_no_log_by_those_that_are_there_so_far(tmp_path: Path) -> None:
    engine = rolled(tmp_path, 2000)
    said = engine.said()
    problems: list[str] = []
    engine.storage.reload(problems.append)
    engine.work(3)
    engine.storage.save(problems.append)
    engine.storage.turn_on(problems.append)
    engine.work_until(lambda: len(problems) == 3)
    assert sorted(problems)[:2] == ["", ""]
    assert "not all jobs are in memory" in sorted(problems)[2]
    engine.restart()
    assert engine.said() == said


def test_a_ttl_goes_on_over_a_crash(engine: JobEngine) -> None:
    engine.add(ttl_ms=10_000, retry_ms=1000)
    engine.end_turn()
    engine.pass_time(8_000)
    engine.crash()
    assert len(engine.ids()) == 1
    engine.pass_time(2_010)
    assert engine.ids() == set()


@pytest.mark.parametrize("step_ms", [-3_600_000, -10_000])
def test_a_clock_that_was_set_back_makes_no_ttl_and_no_delay_longer(engine: JobEngine, step_ms: int) -> None:
    delayed = engine.add(delay_s=60)
    engine.add(b"other", ttl_ms=30_000, retry_ms=0)
    engine.end_turn()
    engine.clock.wall_ms += step_ms
    engine.crash()
    engine.pass_time(30_010)
    assert len(engine.ids()) == 1
    engine.pass_time(30_010)
    assert engine.drain() == [delayed]


def test_what_happened_to_a_job_survives_a_crash(engine: JobEngine) -> None:
    nacked, working, delayed = (engine.add(body=body) for body in numbered(3))
    engine.end_turn()
    engine.drain()
    engine.jobs.nack(engine.job(nacked))
    engine.clock.advance(1000)
    engine.jobs.working(engine.job(working))
    engine.jobs.nack(engine.job(delayed), 20_000)
    engine.end_turn()
    requeues = {one: engine.job(one).requeue_at_ms for one in (nacked, working, delayed)}
    engine.crash()
    assert {one: engine.job(one).requeue_at_ms for one in requeues} == requeues
    assert [engine.job(one).nacks for one in requeues] == [1, 0, 1]
    assert engine.job(delayed).state == DELAYED


def test_a_job_that_is_done_does_not_come_back(engine: JobEngine) -> None:
    kept, acked, expired = engine.add(), engine.add(), engine.add(ttl_ms=500, retry_ms=100)
    engine.end_turn()
    engine.ack(acked)
    engine.pass_time(600)
    engine.clock.wall_ms -= 600
    engine.crash()
    assert engine.ids() == {kept}
    assert expired not in engine.ids()


def test_a_job_that_came_and_went_in_one_turn_leaves_nothing(engine: JobEngine) -> None:
    engine.ack(engine.add())
    engine.end_turn()
    engine.crash()
    assert engine.ids() == set()


def test_a_dead_letter_stays_one_and_knows_where_it_comes_from(engine: JobEngine) -> None:
    one = engine.add(b"mail", key=b"key", retries_max=0)
    engine.end_turn()
    engine.take(b"mail")
    engine.jobs.nack(engine.job(one))
    engine.end_turn()
    engine.crash()
    terms = engine.job(one).terms
    assert terms.queue.name == b"mail.dead"
    assert engine.jobs.keys.find(key_in(b"mail", b"key"), engine.jobs.now_ms) == one
    assert terms.dead is not None
    assert (terms.dead.origin, terms.dead.reason) == (b"mail", b"retries")
    engine.jobs.redrive(engine.job(one))
    engine.end_turn()
    engine.crash()
    assert (engine.job(one).terms.queue.name, engine.job(one).terms.dead) == (b"mail", None)


def test_a_job_that_expires_on_its_way_to_the_dead_letters_is_gone(engine: JobEngine) -> None:
    queue, consumer = engine.jobs.queue(b"q.dead"), Consumer()
    assert queue is not None
    engine.jobs.wait(consumer, [queue], [], 0)
    one = engine.add(ttl_ms=500, retry_ms=100)
    engine.end_turn()
    engine.clock.advance(600)
    assert engine.jobs.bury(engine.job(one), b"poison")
    engine.end_turn()
    assert (engine.ids(), consumer.given) == (set(), [])
    engine.crash()
    assert (engine.problem, engine.ids()) == ("", set())


def test_a_clients_own_id_is_remembered_over_a_crash_as_long_as_it_was_to_be(engine: JobEngine) -> None:
    there, gone = engine.add(key=b"a"), engine.add(key=b"b")
    engine.end_turn()
    engine.ack(gone)
    engine.end_turn()
    engine.crash()
    now_ms = engine.jobs.now_ms
    assert engine.jobs.keys.find(key_in(b"q", b"a"), now_ms) == there
    assert engine.jobs.keys.find(key_in(b"q", b"b"), now_ms) == gone
    assert engine.jobs.keys.find(key_in(b"q", b"b"), now_ms + 300_001) is None


def test_flushed_jobs_do_not_come_back_and_those_added_later_do(engine: JobEngine) -> None:
    for body in numbered(50):
        engine.add(body=body)
    engine.end_turn()
    engine.add()
    for _ in engine.jobs.clear():
        pass
    later = engine.add()
    engine.end_turn()
    engine.crash()
    assert engine.ids() == {later}


def test_a_controlled_stop_restores_the_queues_in_order_and_jobs_without_retry_with_them(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    first = [engine.add(b"a", body, retry_ms=0 if body.endswith(b"3") else 9000) for body in numbered(2500)]
    second = [engine.add(b"b", body) for body in numbered(5)]
    worked, delayed = engine.take(b"b"), engine.add(b"b", delay_s=30)
    engine.restart()
    assert engine.drain(b"a") == first
    assert engine.drain(b"b") == second[1:]
    engine.pass_time(30_010)
    assert engine.drain(b"b") == [delayed]
    assert worked in engine.ids()


def test_a_controlled_stop_counts_for_a_job_whose_own_record_still_says_that_it_waits_for_its_time(
    tmp_path: Path,
) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    one = engine.add(retry_ms=0, delay_s=60)
    listener = engine.jobs.listener
    engine.jobs.listen(None)
    engine.pass_time(60_010)
    engine.jobs.listen(listener)
    engine.restart()
    assert engine.drain() == [one]


def test_a_controlled_stop_counts_once(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    once = engine.add(retry_ms=0)
    engine.restart()
    assert engine.drain() == [once]
    engine.crash()
    assert engine.drain() == []
    assert engine.job(once).requeue_at_ms == NEVER


def test_a_controlled_stop_counts_although_the_server_that_loads_it_dies_before_anybody_was_served(
    tmp_path: Path,
) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    engine.add()
    engine.restart()
    engine.crash()
    assert engine.drain() == []  # it cannot be known whether anybody was


def test_a_plain_stop_restores_no_queue(engine: JobEngine) -> None:
    engine.add()
    engine.restart()
    assert engine.drain() == []


def test_a_log_may_be_read_for_a_controlled_restart_without_being_kept(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    one = engine.add()
    engine.is_on = False
    engine.restart()
    assert engine.drain() == [one]
    assert not engine.storage.is_on


# Damage


def written(tmp_path: Path, turns: int, sync_ms: int | None = None) -> tuple[JobEngine, list[set[bytes]]]:
    """Jobs that come and go in several turns; and which there were after each."""
    engine = JobEngine(tmp_path / "spool", sync_ms=sync_ms)
    chance = Random(5)
    states: list[set[bytes]] = [set()]
    for turn in range(turns):
        for body in numbered(chance.randrange(1, 4)):
            engine.add(b"q%d" % turn, body, retry_ms=chance.choice((0, 1000)))
        for job_id in sorted(engine.ids()):
            if chance.random() < 0.3:
                engine.ack(job_id)
            elif chance.random() < 0.3:
                engine.jobs.working(engine.job(job_id))
        engine.end_turn()
        states.append(engine.ids())
    return engine, states


def read(content: bytes, folder: Path) -> dict[bytes, Job] | None:
    """The jobs that a log of one segment with that content tells of; None where it is damaged."""
    for one in folder.iterdir():
        one.unlink()
    (folder / "0000000001.jobs").write_bytes(content)
    recovery = JobRecovery(QuickFiles(), FakeClock(), str(folder), NodeSets())
    try:
        for _ in recovery.run():
            pass
    except JournalCorrupt:
        return None
    return {job.id: job for job in recovery.state.jobs}


@pytest.mark.exhaustive("some places")
@pytest.mark.parametrize("between_bytes", [7, 1], ids=["some places", "every byte"])  # no record is as short as that
@pytest.mark.parametrize("sync_ms", [None, 0])
def test_cut_anywhere_a_log_tells_of_the_records_before_the_cut(
    tmp_path: Path, sync_ms: int | None, between_bytes: int
) -> None:
    engine, states = written(tmp_path, 5, sync_ms)
    path = engine.segments()[0]
    content = path.read_bytes()
    engine.storage.close()
    seen = []
    for end in [*range(HEADER_BYTES, len(content), between_bytes), len(content)]:
        found = read(content[:end], path.parent)
        assert found is not None
        seen.append(found.keys())
    for state in states:
        assert state in seen
    assert seen[-1] == states[-1]


@pytest.mark.parametrize("flips", [100, pytest.param(400, marks=pytest.mark.long)])
def test_a_flipped_bit_makes_no_job_that_nobody_added_and_changes_none(tmp_path: Path, flips: int) -> None:
    engine, _ = written(tmp_path, 12)
    path = engine.segments()[0]
    content = path.read_bytes()
    engine.storage.close()
    whole = {bytes(record) for record in jobs_in(content)}
    chance = Random(7)
    for _ in range(flips):
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        found = read(bytes(flipped), path.parent)
        for job in (found or {}).values():
            assert job.id + job.terms.queue.name + job.body in whole


def jobs_in(content: bytes) -> Iterator[bytes]:
    for record_type, start, end in whole_job_records(content, HEADER_BYTES, "log"):
        if record_type == JobType.JOB:
            job = read_job(content[start + FRAME_BYTES : end])
            yield job.job_id + job.queue + job.body


def test_a_torn_tail_is_cut_off_kept_and_told(engine: JobEngine) -> None:
    kept = engine.add()
    engine.end_turn()
    engine.add(body=b"x" * 500)
    engine.end_turn()
    path = engine.segments()[0]
    path.write_bytes(path.read_bytes()[:-10])
    engine.crash()
    assert engine.ids() == {kept}
    assert any("torn tail" in line for line in engine.log)
    assert [one.name for one in path.parent.iterdir() if ".torn-" in one.name]
    later = engine.add()
    engine.end_turn()
    engine.crash()
    assert engine.ids() == {kept, later}


def test_a_torn_tail_that_may_not_be_cut_off_stops_the_log_and_stays(engine: JobEngine) -> None:
    engine.add()
    engine.end_turn()
    path = engine.segments()[0]
    path.write_bytes(path.read_bytes()[:-10])
    before = path.read_bytes()
    engine.is_on = False
    engine.crash()
    engine.storage.load(engine._loaded, may_cut=False)
    engine.work_until(lambda: engine.problem is not None)
    assert engine.problem is not None
    assert "cannot be cut off" in engine.problem
    assert path.read_bytes() == before


def test_damage_in_a_part_that_was_synced_stops_the_log_and_changes_nothing(tmp_path: Path) -> None:
    engine, _ = written(tmp_path, 12, sync_ms=0)
    path = engine.segments()[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    engine.crash()
    assert "0000000001.jobs: byte" in (engine.problem or "")
    assert engine.storage.stopped is not None
    assert path.read_bytes() == content


@pytest.mark.parametrize("taken", [0, 1, -1])
def test_a_segment_that_was_taken_away_is_missed(tmp_path: Path, taken: int) -> None:
    engine = JobEngine(tmp_path / "spool", sync_ms=0, segment_bytes_max=2000)
    for body in numbered(60):
        engine.add(body=body)
        engine.end_turn()
    engine.settle()
    assert len(engine.segments()) > 3
    engine.segments()[taken].unlink()
    engine.crash()
    assert "missing" in (engine.problem or "")


def test_a_log_of_a_later_version_is_refused_and_left_alone(engine: JobEngine) -> None:
    engine.add()
    engine.end_turn()
    engine.restart()
    path = engine.segments()[0]
    content = bytearray(path.read_bytes())
    content[8] = 9
    content[52:56] = (xxh3_64_intdigest(bytes(content[:52])) & 0xFFFFFFFF).to_bytes(4, "little")
    path.write_bytes(content)
    engine.crash()
    assert "job log version 9" in (engine.problem or "")
    assert path.read_bytes() == content


# Segments


def rolled(tmp_path: Path, jobs: int = 200, **options: object) -> JobEngine:
    engine = JobEngine(tmp_path / "spool", segment_bytes_max=4000, **options)  # type: ignore[arg-type]
    for body in numbered(jobs):
        engine.add(body=body)
        engine.end_turn()
    return engine


@pytest.mark.parametrize("sync_ms", [None, 0, 1000])
def test_a_log_of_several_segments_reads_as_one(tmp_path: Path, sync_ms: int | None) -> None:
    engine = rolled(tmp_path, sync_ms=sync_ms)
    for job_id in sorted(engine.ids())[::3]:
        engine.ack(job_id)
    engine.end_turn()
    said = engine.said()
    assert len(engine.segments()) > 5
    engine.crash()
    assert engine.said() == said


@pytest.mark.parametrize("sync_ms", [None, 0, 1000])
def test_segments_whose_jobs_are_all_done_are_deleted(tmp_path: Path, sync_ms: int | None) -> None:
    engine = rolled(tmp_path, sync_ms=sync_ms)
    segments = len(engine.segments())
    oldest = engine.drain()
    for job_id in oldest[:120]:
        engine.ack(job_id)
    engine.end_turn()
    engine.settle()
    assert len(engine.segments()) <= segments - 3
    said = engine.said()
    engine.crash()
    assert engine.said() == said


def test_one_old_job_keeps_its_segment_until_a_rewrite(tmp_path: Path) -> None:
    engine = rolled(tmp_path)
    for job_id in engine.drain()[1:]:
        engine.ack(job_id)
    engine.end_turn()
    engine.settle()
    before = len(engine.segments())
    assert before > 5
    assert engine.storage.rewrite()
    assert not engine.storage.rewrite()
    engine.settle()
    assert len(engine.segments()) <= 2
    said = engine.said()
    engine.crash()
    assert engine.said() == said
    assert len(said) == 1


def test_a_log_grown_to_twice_what_lives_in_it_is_rewritten_by_itself(tmp_path: Path) -> None:
    engine = rolled(tmp_path)
    engine.storage.rules.bytes_min = 8000
    for job_id in engine.drain()[1:]:
        engine.ack(job_id)
    engine.end_turn()
    engine.settle()
    assert len(engine.segments()) <= 2
    assert not engine.maintenance.last_rewrite_failed


def test_jobs_come_and_go_while_the_log_is_rewritten(tmp_path: Path) -> None:
    engine = rolled(tmp_path, 300)
    engine.storage.rewrite()
    chance = Random(3)
    steps = 0
    while engine.maintenance.is_rewriting or steps < 5:
        steps += 1
        engine.work()
        for job_id in chance.sample(sorted(engine.ids()), 5):
            engine.ack(job_id)
        engine.add(body=b"meanwhile %d" % steps)
        engine.jobs.working(engine.job(chance.choice(sorted(engine.ids()))))
        engine.end_turn()
    engine.settle()
    said = engine.said()
    engine.crash()
    assert engine.said() == said


@pytest.mark.parametrize("steps", [0, 1, 5, 20, 60])
def test_a_crash_in_a_rewrite_loses_nothing_and_brings_nothing_back(tmp_path: Path, steps: int) -> None:
    engine = rolled(tmp_path, 300)
    for job_id in engine.drain()[::2]:
        engine.ack(job_id)
    engine.end_turn()
    engine.storage.rewrite()
    engine.work(steps)
    said = engine.said()
    engine.crash()
    assert engine.said() == said
    engine.settle()
    engine.crash()
    assert engine.said() == said


# On and off


def test_a_log_that_is_begun_anew_is_another_one_also_within_a_millisecond(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool")
    seen = {engine.maintenance.journal.journal_id}
    for times in range(2, 4):
        engine.storage.turn_off()
        assert engine.turn_on() == ""
        seen.add(engine.maintenance.journal.journal_id)
        assert len(seen) == times


def test_a_log_that_is_turned_on_replaces_the_one_from_before(tmp_path: Path) -> None:
    engine = rolled(tmp_path, 100)
    old = engine.ids()
    engine.storage.turn_off()
    for job_id in sorted(old)[:50]:
        engine.ack(job_id)
    new = engine.add()
    engine.end_turn()
    assert engine.turn_on() == ""
    assert engine.maintenance.is_fresh
    engine.settle()
    assert not engine.maintenance.is_fresh
    said = engine.said()
    assert new in said
    engine.crash()
    assert engine.said() == said
    assert len(said) == 51


@pytest.mark.parametrize("steps", [0, 1, 3, 10])
def test_until_a_new_log_is_whole_the_old_one_counts_and_they_are_never_merged(tmp_path: Path, steps: int) -> None:
    engine = rolled(tmp_path, 2000)
    engine.settle()
    old = engine.said()
    engine.storage.turn_off()
    engine.drain()
    for job_id in sorted(engine.ids())[:50]:
        engine.ack(job_id)
    engine.add()
    new = engine.said()
    assert engine.turn_on() == ""
    engine.pass_time(1000)
    for _ in range(steps):
        engine.slices.run(engine.clock.stopwatch_us())
        engine.end_turn()
    is_whole = not engine.maintenance.is_fresh
    engine.crash()
    said = engine.said()
    assert said in ((new,) if is_whole else (old, new))
    engine.settle()
    engine.crash()
    assert engine.said() == said


def test_a_log_is_begun_once_the_one_before_changes_nothing_in_the_folder_any_more(tmp_path: Path) -> None:
    files = LateFiles()
    engine = JobEngine(tmp_path / "spool", files, sync_ms=0)
    engine.add()
    engine.end_turn()
    engine.base.maintenance.sync_due()
    assert files.under_way
    engine.storage.turn_off()
    problems: list[str] = []
    engine.storage.turn_on(problems.append)
    for _ in range(10):
        engine.slices.run(engine.clock.stopwatch_us())
        engine.end_turn()
    assert (problems, engine.storage.is_on) == ([], False)
    engine.work_until(lambda: bool(problems))
    assert (problems, engine.storage.is_on) == ([""], True)
    engine.settle()
    said = engine.said()
    engine.crash()
    assert (engine.problem, engine.said()) == ("", said)
    assert not [line for line in engine.log if "marker" in line]


def test_a_log_that_was_turned_off_is_not_synced_when_that_would_have_been_due(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", sync_ms=1000)
    engine.add()
    engine.end_turn()
    engine.storage.turn_off()
    assert engine.turn_on() == ""
    engine.work_until(lambda: not engine.slices.is_busy)
    engine.pass_time(1000)
    engine.base.maintenance.sync_due()
    assert [line for line in engine.log if "sync" in line] == []


def test_a_log_can_be_turned_on_where_there_was_none(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", is_on=False)
    ids = {engine.add(body=body) for body in numbered(1000)}
    assert engine.turn_on() == ""
    engine.settle()
    engine.is_on = True
    engine.crash()
    assert engine.ids() == ids


def test_jobs_queued_again_and_again_do_not_make_the_log_grow_without_end(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", segment_bytes_max=4000)
    engine.storage.rules.bytes_min = 20_000
    for body in numbered(20):
        engine.add(body=body, retry_ms=1000)
    for _ in range(600):
        engine.pass_time(1000)
        engine.drain()
        engine.work_until(lambda: not engine.slices.is_busy)
    assert sum(path.stat().st_size for path in engine.segments()) < 60_000
    said = engine.said()
    engine.crash()
    assert engine.said() == said


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 20))])
def test_whatever_happens_the_log_says_what_memory_holds(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    engine = JobEngine(
        tmp_path / "spool",
        clock=FakeClock(),
        sync_ms=chance.choice((None, 0, 1000)),
        segment_bytes_max=chance.choice((600, 3000, 1 << 20)),
    )
    engine.storage.rules.bytes_min = 4000

    def some() -> bytes | None:
        ids = sorted(engine.ids())
        return chance.choice(ids) if ids else None

    def act(what: Callable[[bytes], object]) -> None:
        job_id = some()
        if job_id is not None:
            what(job_id)

    for _ in range(300):
        choice = chance.randrange(12)
        if choice < 4:
            engine.add(
                b"q%d" % chance.randrange(3),
                chance.randbytes(chance.randrange(60)),
                retry_ms=chance.choice((0, 1000, 60_000)),
                delay_s=chance.choice((0, 0, 5)),
            )
        elif choice < 6:
            act(engine.ack)
        elif choice == 6:
            act(lambda job_id: engine.jobs.nack(engine.job(job_id), chance.choice((None, 500))))
        elif choice == 7:
            act(lambda job_id: engine.jobs.working(engine.job(job_id)))
        elif choice == 8:
            engine.take(b"q%d" % chance.randrange(3))
        elif choice == 9:
            engine.pass_time(chance.randrange(3000))
            engine.work(chance.randrange(5))
        elif choice == 10 and chance.random() < 0.3:
            engine.storage.rewrite()
        elif choice == 11 and chance.random() < 0.3:
            engine.end_turn()
            said = engine.said()
            requeues = {job.id: job.requeue_at_ms for job in engine.jobs.table if job.state == DELAYED}
            engine.crash()
            engine.storage.rules.bytes_min = 4000
            assert engine.problem == ""
            assert engine.said() == said
            assert all(job.state != QUEUED for job in engine.jobs.table)
            for job_id, requeue_at_ms in requeues.items():
                assert engine.job(job_id).requeue_at_ms in (requeue_at_ms, NEVER)
        if chance.random() < 0.5:
            engine.end_turn()
