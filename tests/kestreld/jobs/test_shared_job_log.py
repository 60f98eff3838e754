"""The job log of a node of a cluster: owners, acknowledgements, jobs on their way between nodes, and pauses."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.files import FileLayer
from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    BORROWED,
    COPY,
    DELAYED,
    LENT,
    LET_GO,
    NEVER,
    QUEUED,
    WAIT_REPL,
    Job,
    JobTerms,
)
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_IN, PAUSED_OUT, JobQueue
from kestreld.jobs.keys import key_in
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED, ReplicatedJobs
from kestreld.journal import job_segments
from kestreld.journal.job_records import JobType, read_paused, whole_job_records
from kestreld.journal.job_repair import repair_job_log
from kestreld.journal.job_segments import (
    HEADER_BYTES,
    VERSION,
    VERSION_OF_CLUSTERS,
    VERSION_OF_MOVES,
    decode_job_header,
)
from kestreld.journal.job_verify import verify_job_log
from kestreld.journal.records import FRAME_BYTES
from tests.support.clock import FakeClock
from tests.support.compiled import interpreted_only
from tests.support.faulty_files import FULL, FaultyFiles
from tests.support.job_engine import DAY_MS, NODE_ID, JobEngine
from tests.support.job_sums import must_add_up

B_ID, C_ID = b"b" * 40, b"c" * 40
RETRY_MS: Final = 300_000
Restart = Callable[[JobEngine], None]


def crash(engine: JobEngine) -> None:
    engine.end_turn()
    engine.crash()


def restart(engine: JobEngine) -> None:
    engine.restart()


def rewrite(engine: JobEngine) -> None:
    """And then a crash: what there is now stands in the segments that the rewrite has left."""
    engine.end_turn()
    before = engine.segments()
    assert engine.storage.rewrite()
    engine.work_until(lambda: not engine.maintenance.is_rewriting and not engine.maintenance.is_rewrite_wanted)
    assert not set(before) & set(engine.segments())
    engine.crash()


RESTARTS: Final = [crash, restart, rewrite]


@pytest.fixture
def engine(tmp_path: Path) -> JobEngine:
    return JobEngine(tmp_path / "spool")


def owners(engine: JobEngine, job_id: bytes) -> set[bytes]:
    return set(engine.jobs.node_sets.ids(engine.job(job_id).terms.owners))


def bits(jobs: ReplicatedJobs, *ids: bytes) -> int:
    return jobs.node_sets.of_all(ids)


def q(engine: JobEngine) -> JobQueue:
    queue = engine.jobs.queue(b"q")
    assert queue is not None
    return queue


def shared(engine: JobEngine, *, key: bytes = b"", delay_s: int = 0) -> Job:
    """A job that three nodes hold, queued here."""
    jobs = engine.jobs
    options = (DAY_MS, RETRY_MS, delay_s, -1)
    job = jobs.hold(b"body", q(engine).terms_shared_with(options, 3, bits(jobs, NODE_ID, B_ID, C_ID), key))
    jobs.release(job)
    return job


def once(engine: JobEngine, *, delay_s: int = 0) -> Job:
    """A job that is delivered at most once, taken out of its queue."""
    job = engine.jobs.add(b"body", q(engine).terms_of((DAY_MS, 0, delay_s, -1)))
    if not delay_s:
        assert engine.jobs.first_to_give(q(engine)) is job
    return job


def borrowed(engine: JobEngine) -> Job:
    jobs = engine.jobs
    terms = q(engine).terms_shared_with((DAY_MS, 0, 0, -1), 1, bits(jobs, NODE_ID, B_ID))
    job = Job(b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a0", b"body", terms, 1 << 60, NEVER)
    jobs.keep(job, BORROWED, NEVER)
    return job


# Owners


@pytest.mark.parametrize("again", RESTARTS)
def test_who_may_hold_a_job_is_known_after_a_restart(engine: JobEngine, again: Restart) -> None:
    job = shared(engine)
    again(engine)
    assert owners(engine, job.id) == {NODE_ID, B_ID, C_ID}
    assert engine.job(job.id).terms.replicate == 3
    must_add_up(engine.jobs)


@pytest.mark.parametrize("again", RESTARTS)
def test_owners_that_came_later_are_known_too(engine: JobEngine, again: Restart) -> None:
    first, second = engine.add(), engine.add(key=b"key", retries_max=3)
    for job_id in (first, second):
        engine.jobs.own(engine.job(job_id), bits(engine.jobs, NODE_ID, B_ID))
    again(engine)
    assert owners(engine, first) == owners(engine, second) == {NODE_ID, B_ID}
    terms = engine.job(second).terms
    assert (terms.key, terms.retries_max) == (b"key", 3)


def test_ids_are_what_counts_not_bits_of_the_process_that_wrote_them(engine: JobEngine) -> None:
    engine.jobs.node_sets.of(b"d" * 40)
    job = shared(engine)
    crash(engine)
    assert owners(engine, job.id) == {NODE_ID, B_ID, C_ID}
    assert engine.job(job.id).terms.owners != job.terms.owners


@pytest.mark.parametrize("delay_s", [0, 60])
@pytest.mark.parametrize("again", RESTARTS)
def test_a_job_of_several_nodes_comes_back_as_a_copy_with_its_time(
    engine: JobEngine, again: Restart, delay_s: int
) -> None:
    """Meanwhile another node may have queued it."""
    job = shared(engine, delay_s=delay_s)
    assert job.state == (DELAYED if delay_s else QUEUED)
    again(engine)
    assert engine.job(job.id).state == COPY
    assert engine.job(job.id).requeue_at_ms == job.requeue_at_ms
    must_add_up(engine.jobs)


def test_a_controlled_stop_does_not_queue_what_others_may_have_queued_since(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    mine, job = engine.add(), shared(engine)
    engine.restart()
    assert engine.drain() == [mine]
    assert engine.job(job.id).state == COPY
    assert engine.job(job.id).requeue_at_ms == engine.jobs.now_ms, "it asks at once"


@pytest.mark.parametrize("again", RESTARTS)
def test_a_job_that_was_still_being_added_is_not_there(engine: JobEngine, again: Restart) -> None:
    kept = engine.add()
    terms = q(engine).terms_shared_with((DAY_MS, RETRY_MS, 0, -1), 3, bits(engine.jobs, NODE_ID, B_ID))
    job = engine.jobs.hold(b"body", terms)
    assert job.state == WAIT_REPL
    again(engine)
    assert engine.ids() == {kept}


# Dead letters


@pytest.mark.parametrize("again", RESTARTS)
def test_how_often_a_job_was_moved_is_known_after_a_restart(engine: JobEngine, again: Restart) -> None:
    job = shared(engine)
    assert engine.jobs.bury(job, b"asked")
    again(engine)
    assert repr(engine.job(job.id).terms.moves) == "1"
    assert max(versions(engine)) == VERSION_OF_CLUSTERS
    assert engine.jobs.redrive(engine.job(job.id))
    again(engine)
    assert (engine.job(job.id).terms.moves, engine.job(job.id).terms.dead) == (2, None)
    assert max(versions(engine)) == VERSION_OF_MOVES


@pytest.mark.parametrize("again", RESTARTS)
def test_how_often_a_lone_job_was_moved_is_written_once_another_node_may_hold_it(
    engine: JobEngine, again: Restart
) -> None:
    job = engine.job(engine.add())
    assert engine.jobs.bury(job, b"asked")
    assert engine.jobs.redrive(job)
    engine.end_turn()
    assert set(versions(engine)) == {VERSION}
    engine.jobs.own(job, bits(engine.jobs, NODE_ID, B_ID))
    again(engine)
    assert engine.job(job.id).terms.moves == 2


# Acknowledged jobs


@pytest.mark.parametrize("again", RESTARTS)
def test_an_acknowledgement_that_others_have_yet_to_learn_is_known_after_a_restart(
    engine: JobEngine, again: Restart
) -> None:
    job = shared(engine, key=b"key")
    engine.jobs.remember_ack(job)
    again(engine)
    found = engine.job(job.id)
    assert (found.state, found.body, owners(engine, job.id)) == (ACKED, b"", {NODE_ID, B_ID, C_ID})
    assert engine.jobs.keys.find(key_in(b"q", b"key"), engine.jobs.now_ms) == job.id
    must_add_up(engine.jobs)
    engine.pass_time(2 * RETRY_MS)
    assert engine.drain() == []


@pytest.mark.parametrize("again", RESTARTS)
def test_a_dummy_acknowledgement_is_known_after_a_restart_and_is_no_job_of_any_queue(
    engine: JobEngine, again: Restart
) -> None:
    job_id = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
    engine.jobs.keep_dummy(job_id, JobQueue(b"").terms_of((DAY_MS, 1, 0, -1)))
    again(engine)
    assert (engine.job(job_id).state, owners(engine, job_id)) == (ACKED, set())
    assert engine.jobs.queues.count == 0
    must_add_up(engine.jobs)


@pytest.mark.parametrize("again", RESTARTS)
def test_an_acknowledgement_that_all_know_is_gone(engine: JobEngine, again: Restart) -> None:
    job, other = shared(engine), shared(engine)
    engine.jobs.remember_ack(job)
    engine.end_turn()
    engine.jobs.remove(job)
    again(engine)
    assert engine.ids() == {other.id}


def test_an_acknowledgement_expires_with_its_job(engine: JobEngine) -> None:
    job = shared(engine)
    engine.jobs.remember_ack(job)
    crash(engine)
    engine.pass_time(DAY_MS + 10)
    assert engine.ids() == set()
    crash(engine)
    assert engine.ids() == set()


# Jobs that are delivered at most once, on their way


@pytest.mark.parametrize("delay_s", [0, 60])
def test_after_a_stop_in_good_order_a_lent_job_is_still_lent(engine: JobEngine, delay_s: int) -> None:
    job = once(engine, delay_s=delay_s)
    engine.jobs.lend(job, bits(engine.jobs, NODE_ID, B_ID))
    restart(engine)
    assert (engine.job(job.id).state, owners(engine, job.id)) == (LENT, {NODE_ID, B_ID})
    assert engine.job(job.id).body == b"body"
    must_add_up(engine.jobs)


def test_after_a_stop_in_good_order_a_borrowed_job_is_still_borrowed(engine: JobEngine) -> None:
    job = borrowed(engine)
    restart(engine)
    assert (engine.job(job.id).state, owners(engine, job.id)) == (BORROWED, {NODE_ID, B_ID})
    must_add_up(engine.jobs)


@pytest.mark.parametrize("again", RESTARTS)
def test_a_job_that_leaves_and_comes_back_in_one_turn_is_there_after_a_restart(
    engine: JobEngine, again: Restart
) -> None:
    job = borrowed(engine)
    engine.settle()
    engine.jobs.remove(job)  # RELEASED: it went elsewhere,
    job = borrowed(engine)  # from where it comes back
    again(engine)
    assert owners(engine, job.id) == {NODE_ID, B_ID}
    must_add_up(engine.jobs)


@pytest.mark.parametrize("again", RESTARTS)
def test_an_acknowledgement_in_the_turn_in_which_its_job_ended_is_there_after_a_restart(
    engine: JobEngine, again: Restart
) -> None:
    job = shared(engine)
    engine.settle()
    engine.jobs.remove(job, ACKNOWLEDGED)  # FASTACK,
    engine.jobs.keep_dummy(job.id, JobTerms(JobQueue(b""), DAY_MS, 1))  # and ACKJOB
    again(engine)
    assert engine.job(job.id).state == ACKED
    must_add_up(engine.jobs)


@pytest.mark.parametrize("again", RESTARTS)
def test_a_job_that_was_let_go_of_is_never_this_nodes_again(engine: JobEngine, again: Restart) -> None:
    job = once(engine)
    engine.jobs.lend(job, bits(engine.jobs, NODE_ID, B_ID))
    engine.jobs.let_go(job, bits(engine.jobs, B_ID))
    again(engine)
    found = engine.job(job.id)
    assert (found.state, found.body, owners(engine, job.id)) == (LET_GO, b"", {B_ID})
    must_add_up(engine.jobs)
    engine.pass_time(3_600_000)
    assert engine.drain() == []


@pytest.mark.parametrize("make", [borrowed, once])
def test_what_was_on_its_way_in_a_crash_may_have_been_delivered_and_is_not_again(
    engine: JobEngine, make: Callable[[JobEngine], Job]
) -> None:
    """Nor after a stop in good order that follows."""
    job = make(engine)
    if make is once:
        engine.jobs.lend(job, bits(engine.jobs, NODE_ID, B_ID))
    crash(engine)
    for _ in range(3):
        found = engine.job(job.id)
        assert (found.state, found.requeue_at_ms) == (ACTIVE, NEVER) or found.state == COPY
        assert not engine.jobs.may_be_queued(found)
        must_add_up(engine.jobs)
        engine.pass_time(3_600_000)
        assert engine.drain() == []
        engine.ack(engine.add())
        restart(engine)


@pytest.mark.parametrize("again", RESTARTS)
def test_a_job_that_was_released_belongs_to_this_node_alone(engine: JobEngine, again: Restart) -> None:
    job = borrowed(engine)
    engine.jobs.keep_for_itself(job)
    again(engine)
    assert (engine.job(job.id).state, owners(engine, job.id)) == (ACTIVE, set())
    must_add_up(engine.jobs)


def test_where_queues_are_restored_such_a_job_is_delivered_after_a_controlled_stop(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", restores_queues=True)
    job = borrowed(engine)
    engine.jobs.keep_for_itself(job)
    restart(engine)
    assert engine.drain() == [job.id]


# Pauses


@pytest.mark.parametrize("pause", [PAUSED_IN, PAUSED_OUT, PAUSED_IN | PAUSED_OUT])
@pytest.mark.parametrize("again", RESTARTS)
def test_a_queue_is_paused_after_a_restart_as_it_was_before(engine: JobEngine, again: Restart, pause: int) -> None:
    engine.jobs.pause(q(engine), pause)
    again(engine)
    queue = engine.jobs.find_queue(b"q")
    assert queue is not None
    assert queue.pause == pause


@pytest.mark.parametrize("again", RESTARTS)
def test_a_pause_that_has_ended_does_not_come_back(engine: JobEngine, again: Restart) -> None:
    engine.jobs.pause(q(engine), PAUSED_OUT)
    engine.end_turn()
    engine.jobs.pause(q(engine), NOT_PAUSED)
    again(engine)
    queue = engine.jobs.find_queue(b"q")
    assert queue is None or queue.pause == NOT_PAUSED


def test_the_last_of_several_pauses_counts(engine: JobEngine) -> None:
    for pause in (PAUSED_OUT, NOT_PAUSED, PAUSED_IN, PAUSED_IN | PAUSED_OUT, PAUSED_IN):
        engine.jobs.pause(q(engine), pause)
        engine.end_turn()
    crash(engine)
    assert q(engine).pause == PAUSED_IN


def test_what_is_paused_already_is_not_written_again(engine: JobEngine) -> None:
    for _ in range(5):
        engine.jobs.pause(q(engine), PAUSED_OUT)
    engine.end_turn()
    assert [read_paused(body)[1:] for kind, body in records(engine) if kind == JobType.PAUSED] == [(b"q", PAUSED_OUT)]


@interpreted_only
@pytest.mark.parametrize("again", RESTARTS)
def test_pauses_are_kept_although_there_are_as_many_queues_as_there_may_be(tmp_path: Path, again: Restart) -> None:
    engine = JobEngine(tmp_path / "spool")
    for name in (b"q", b"r"):
        queue = engine.jobs.queue(name)
        assert queue is not None
        engine.jobs.pause(queue, PAUSED_IN)
    with patch.object(ReplicatedJobs, "has_all_queues", property(lambda self: True)):
        again(engine)
    assert [queue.pause for queue in engine.jobs.queues] == [PAUSED_IN] * 2
    assert engine.jobs.listed == 2


def test_a_pause_goes_with_a_flush(engine: JobEngine) -> None:
    engine.jobs.pause(q(engine), PAUSED_OUT)
    engine.end_turn()
    for _ in engine.jobs.clear():
        pass
    crash(engine)
    assert q(engine).pause == NOT_PAUSED


def test_segments_with_pauses_that_count_stay_and_others_go(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", segment_bytes_max=2000)
    engine.jobs.pause(q(engine), PAUSED_OUT)
    for _ in range(50):
        engine.ack(engine.add(b"r", b"x" * 200))
        engine.end_turn()
    engine.settle()
    count = len(engine.segments())
    assert count > 3, "the pause is in the first one"
    engine.jobs.pause(q(engine), NOT_PAUSED)
    engine.end_turn()
    engine.settle()
    assert len(engine.segments()) < 3


def test_a_log_that_is_turned_on_has_the_pauses_there_are(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool", is_on=False)
    engine.jobs.pause(q(engine), PAUSED_OUT)
    job = shared(engine)
    assert engine.turn_on() == ""
    engine.settle()
    engine.is_on = True
    crash(engine)
    assert (q(engine).pause, owners(engine, job.id)) == (PAUSED_OUT, {NODE_ID, B_ID, C_ID})


def test_many_pauses_are_rewritten_and_read_in_short_steps(engine: JobEngine) -> None:
    names = [b"%d" % number for number in range(3000)]
    for name in names:
        queue = engine.jobs.queue(name)
        assert queue is not None
        engine.jobs.pause(queue, PAUSED_IN)
    rewrite(engine)
    assert {queue.name for queue in engine.jobs.queues if queue.pause} == set(names)


# Versions of segments


def versions(engine: JobEngine) -> list[int]:
    return [decode_job_header(path.read_bytes(), str(path)).version for path in engine.segments()]


def records(engine: JobEngine) -> list[tuple[JobType, bytes]]:
    found = []
    for path in engine.segments():
        content = path.read_bytes()
        for kind, start, end in whole_job_records(content.rstrip(b"\0"), HEADER_BYTES, path.name):
            found.append((kind, content[start + FRAME_BYTES : end]))
    return found


def busy(engine: JobEngine) -> None:
    """Whatever a lone node does, but for pauses."""
    jobs = engine.jobs
    first, second, third = engine.add(key=b"key"), engine.add(retry_ms=0, delay_s=5), engine.add(retries_max=0)
    engine.drain()
    jobs.nack(engine.job(first))
    jobs.bury(engine.job(third), b"asked")
    jobs.redrive(engine.job(third))
    jobs.working(engine.job(first))
    engine.ack(second)
    engine.end_turn()


@pytest.mark.parametrize("again", RESTARTS)
def test_a_lone_node_that_pauses_nothing_writes_what_older_servers_read(engine: JobEngine, again: Restart) -> None:
    busy(engine)
    again(engine)
    busy(engine)
    assert set(versions(engine)) == {VERSION}


@pytest.mark.parametrize("what", ["pause", "shared", "owned", "lent", "dummy"])
def test_the_first_record_that_older_servers_do_not_know_begins_a_segment_that_they_refuse(
    engine: JobEngine, what: str
) -> None:
    job_id = engine.add(retry_ms=0, delay_s=5)
    engine.end_turn()
    if what == "pause":
        engine.jobs.pause(q(engine), PAUSED_OUT)
    elif what == "shared":
        shared(engine)
    elif what == "owned":
        engine.jobs.own(engine.job(job_id), bits(engine.jobs, NODE_ID, B_ID))
    elif what == "lent":
        engine.jobs.lend(engine.job(job_id), bits(engine.jobs, NODE_ID, B_ID))
    else:  # an older server would queue it, in a queue without a name
        engine.jobs.keep_dummy(b"D-%038d" % 1, JobQueue(b"").terms_of((DAY_MS, 1, 0, -1)))
    engine.end_turn()
    assert versions(engine) == [VERSION, VERSION_OF_CLUSTERS]


def test_a_node_that_has_left_its_cluster_writes_what_older_servers_read_once_all_is_written_anew(
    engine: JobEngine,
) -> None:
    job = shared(engine)
    engine.jobs.pause(q(engine), PAUSED_OUT)
    engine.end_turn()
    engine.jobs.pause(q(engine), NOT_PAUSED)
    engine.jobs.remove(job)
    mine = engine.add()
    crash(engine)
    rewrite(engine)
    assert set(versions(engine)) == {VERSION}
    assert engine.ids() == {mine}


@interpreted_only
def test_a_server_that_knows_no_clusters_refuses_the_log_by_its_version_and_leaves_it_alone(engine: JobEngine) -> None:
    shared(engine)
    engine.end_turn()
    before = [path.read_bytes() for path in engine.segments()]
    with patch.object(job_segments, "VERSION_OF_MOVES", VERSION):
        crash(engine)
    assert "job log version 2; this kestreld reads versions up to 1" in (engine.problem or "")
    assert [path.read_bytes() for path in engine.segments()] == before
    crash(engine)
    assert engine.problem == ""


# Disks that refuse


def test_a_pause_and_owners_that_a_full_disk_did_not_take_are_written_once_it_has_room(tmp_path: Path) -> None:
    files = FaultyFiles(errno.ENOSPC, FULL, stays=True)
    engine = JobEngine(tmp_path / "spool", files)
    job_id = engine.add()
    engine.end_turn()
    files.fail_from(1)
    engine.jobs.pause(q(engine), PAUSED_OUT)
    engine.jobs.own(engine.job(job_id), bits(engine.jobs, NODE_ID, B_ID))
    assert engine.end_turn()
    assert engine.storage.refusal
    files.mend()
    engine.settle()
    assert engine.storage.refusal == ""
    crash(engine)
    assert (q(engine).pause, owners(engine, job_id)) == (PAUSED_OUT, {NODE_ID, B_ID})


# Damage


def test_a_damaged_log_of_version_2_is_found_and_repaired(engine: JobEngine, tmp_path: Path) -> None:
    first, second = shared(engine), shared(engine)
    engine.jobs.remember_ack(first)
    engine.jobs.pause(q(engine), PAUSED_OUT)
    engine.end_turn()
    engine.add(b"r")
    restart(engine)
    path = engine.segments()[0]
    content = bytearray(path.read_bytes())
    at = bytes(content).index(second.id) + 50
    content[at] ^= 1
    path.write_bytes(content)
    engine.crash()
    assert "checksum" in (engine.problem or "")
    files, folder = FileLayer(), str(path.parent)
    assert any(one.bad_offset is not None for one in verify_job_log(files, folder))
    report = repair_job_log(files, FakeClock(), folder)
    assert len(report.damages) == 1
    assert [one.reason for one in verify_job_log(files, folder)] == [None] * len(engine.segments())
    assert set(versions(engine)) == {VERSION_OF_CLUSTERS}
    engine.crash()
    assert engine.problem == ""
    assert first.id in engine.ids()
    assert second.id not in engine.ids()
    assert (engine.job(first.id).state, q(engine).pause) == (ACKED, PAUSED_OUT)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_repaired_log_whose_header_was_lost_is_of_the_version_that_its_records_need(
    engine: JobEngine, is_shared: bool
) -> None:
    job_id = shared(engine).id if is_shared else engine.add()
    restart(engine)
    path = engine.segments()[0]
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    repair_job_log(FileLayer(), FakeClock(), str(path.parent))
    assert set(versions(engine)) == {VERSION_OF_CLUSTERS if is_shared else VERSION}
    engine.crash()
    assert engine.ids() == {job_id}


def test_an_owners_record_of_a_job_that_is_gone_changes_nothing(engine: JobEngine) -> None:
    job, other = shared(engine), shared(engine)
    engine.jobs.own(job, bits(engine.jobs, NODE_ID, B_ID))
    engine.jobs.remove(job)
    crash(engine)
    assert engine.ids() == {other.id}


def test_what_looks_like_a_pause_and_is_none_is_damage(engine: JobEngine) -> None:
    engine.jobs.pause(q(engine), PAUSED_OUT)
    restart(engine)
    path = engine.segments()[0]
    content = bytearray(path.read_bytes())
    start = next(
        start
        for kind, start, _ in whole_job_records(bytes(content).rstrip(b"\0"), HEADER_BYTES, "")
        if kind == JobType.PAUSED
    )
    size = int.from_bytes(content[start : start + 4], "little")
    body_at = start + FRAME_BYTES
    content[body_at + 8] = 4
    body = bytes(content[body_at : body_at + size])
    checksum = xxh3_64_intdigest(body, size + (JobType.PAUSED << 56)) & 0xFFFFFFFF
    content[start + 4 : start + 8] = checksum.to_bytes(4, "little")
    path.write_bytes(content)
    engine.crash()
    assert f"byte {start}" in (engine.problem or "")
