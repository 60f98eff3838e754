"""The logs of two real nodes of a cluster as tables: copies, owners, acknowledgements, jobs on their way, pauses."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.__main__ import main
from kestrelspark.job_log import job_changes, jobs
from kestrelspark.jobs.verify import OK, verify
from tests.support.cluster_nodes import ClusterNode, cluster_of
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def add(node: ClusterNode, queue: str, *options: str | int) -> str:
    return node("ADDJOB", queue, b"body of " + queue.encode(), 0, *options).decode()


def job_line(node: ClusterNode, name: bytes, job: str) -> bytes | None:
    """What SHOW says; None where the job is not here."""
    shown: Any = node("SHOW", job)
    return None if shown is None else dict(zip(shown[::2], shown[1::2], strict=True))[name]


def test_a_job_that_two_nodes_hold_is_a_row_of_each_log_with_its_owners_and_what_became_of_it(
    spark: Any, tmp_path: Path
) -> None:
    with cluster_of(tmp_path, 2, "jobs.journal=true") as (one, other):
        acked, waiting = (add(one, queue, "REPLICATE", 2) for queue in ("mail", "work"))
        alone = add(one, "alone", "REPLICATE", 1)
        one("PAUSE", "work", "out")
        assert other("GETJOB", "FROM", "mail") or one("GETJOB", "FROM", "mail")
        assert other("ACKJOB", acked) == 1
        until(lambda: job_line(one, b"state", acked) is None, "the acknowledgement at both")
        ids = {one.id, other.id}
        spools = [str(one.spool), str(other.spool)]
        changes = job_changes(spark, *spools).collect()
        rows = {(row.id, which): row for which, path in enumerate(spools) for row in jobs(spark, path).collect()}
        assert verify(spark, spools).code == OK
    assert set(rows) == {(acked, 0), (acked, 1), (waiting, 0), (waiting, 1), (alone, 0)}
    for which in (0, 1):
        row = rows[acked, which]
        assert (row.queue, row.body, row.outcome, row.state) == ("mail", b"body of mail", "acked", "acked")
        assert row.ctime <= row.done_time
        assert set(rows[waiting, which].owners) == ids
        assert (rows[waiting, which].body, rows[waiting, which].outcome) == (b"body of work", None)
    assert [rows[waiting, which].state for which in (0, 1)] == ["queued", "active"]
    assert (rows[alone, 0].owners, rows[alone, 0].outcome) == (None, None)
    assert {row._corrupt for row in changes} == {None}
    assert all(row.id is not None for row in changes)  # a pause is not a change of a job


def test_an_acknowledgement_of_a_job_that_was_never_here_is_no_job(spark: Any, tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, "jobs.journal=true") as (one, other):
        job = add(one, "mail", "REPLICATE", 1)
        other.kill()
        other.start()
        one.kill()
        other("ACKJOB", job)
        changes = job_changes(spark, str(other.spool)).where("id is not null").collect()
        assert [(row.id, row.state, row.owners) for row in changes] == [(job, "acked", None)]
        assert jobs(spark, str(other.spool)).collect() == []


def test_a_job_that_goes_to_the_other_node_to_be_delivered_once_is_left_in_one_log_and_ends_in_the_other(
    spark: Any, tmp_path: Path
) -> None:
    with cluster_of(tmp_path, 2, "jobs.journal=true") as (one, other):
        kept = add(one, "kept", "REPLICATE", 1)  # so that the segment stays
        job = add(one, "once", "RETRY", 0, "REPLICATE", 1)
        ((_, fetched, body),) = other("GETJOB", "TIMEOUT", 10_000, "FROM", "once")
        assert (fetched.decode(), body) == (job, b"body of once")
        add(other, "kept too", "REPLICATE", 1)
        assert other("ACKJOB", job) == 1
        until(lambda: job_line(one, b"state", job) is None, "its giver to forget it")
        (left,) = jobs(spark, str(one.spool)).where(f"id != '{kept}'").collect()
        (ended,) = jobs(spark, str(other.spool)).where("queue = 'once'").collect()
        states = {row.state for row in job_changes(spark, str(one.spool), str(other.spool)).collect()}
    assert (left.outcome, left.state, left.body, left.done_time) == ("let-go", "let-go", b"body of once", None)
    assert (ended.outcome, ended.queue, ended.body) == ("acked", "once", b"body of once")
    assert {"lent", "let-go", "borrowed"} <= states


def test_the_report_counts_a_job_of_two_nodes_once(spark: Any, tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, "jobs.journal=true") as (one, other):
        done = [add(one, "mail", "REPLICATE", 2) for _ in range(20)]
        again, _ = (add(one, "again", "REPLICATE", 2) for _ in range(2))
        assert one("GETJOB", "COUNT", 2, "FROM", "again")
        assert one("NACK", again) == 1
        for node, ids in ((one, done[:10]), (other, done[10:])):
            assert node("ACKJOB", *ids) == 10
        until(lambda: all(job_line(node, b"state", done[-1]) is None for node in (one, other)), "all to know")
        arguments = ["report", str(one.spool), str(other.spool), "--to", str(tmp_path / "report"), "--queue", "[am]*"]
        assert main(arguments) == 0
    found = {row.queue: row for row in spark.read.parquet(str(tmp_path / "report" / "job_queues")).collect()}
    mail, tried = found["mail"], found["again"]
    assert (mail.jobs, mail.acked, mail.open, mail.retries) == (20, 20, 0, 0)
    assert 0 <= mail.queued_p50_ms <= mail.delivered_by_p50_ms <= mail.acked_p99_ms <= mail.acked_max_ms
    assert (tried.jobs, tried.open, tried.retried_jobs, tried.retries, tried.nacks) == (2, 2, 1, 1, 1)
    assert tried.queued_p50_ms <= tried.delivered_by_p50_ms
    assert tried.acked_p50_ms is None
    buckets = spark.read.parquet(str(tmp_path / "report" / "job_buckets"))
    assert buckets.where("queue = 'mail'").selectExpr("sum(added)", "sum(acked)").first() == (20, 20)
    shown = (tmp_path / "report" / "jobs.html").read_text()
    assert "<h2>mail</h2>" in shown
    assert not (tmp_path / "report" / "report.html").exists()  # there are no queues' journals
