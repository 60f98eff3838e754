"""What docs/jobs.md says of jobs in a cluster, on real nodes: copies, states, and kestreld's extensions of Disque."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_nodes import CALM, ClusterNode, cluster_of
from tests.support.resp import NIL_ARRAY
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterNode]]:
    with cluster_of(tmp_path_factory.mktemp("cluster"), 3, CALM) as nodes:
        yield nodes


def shown(node: ClusterNode, job_id: bytes) -> dict[str, Any]:
    """What SHOW says; nothing where the node does not know the job."""
    found: Any = node("SHOW", job_id)
    return {} if found is None else {key.decode(): value for key, value in zip(found[::2], found[1::2], strict=True)}


def states(nodes: list[ClusterNode], job_id: bytes) -> list[str]:
    return [shown(node, job_id).get("state", b"-").decode() for node in nodes]


def fetched(node: ClusterNode, queue: str) -> bytes:
    """The id of the next job."""
    reply: Any = node("GETJOB", "TIMEOUT", 50_000, "FROM", queue)
    job_id: bytes = reply[0][1]
    return job_id


# Copies


def test_a_job_is_on_three_nodes_unless_its_producer_says_otherwise(nodes: list[ClusterNode]) -> None:
    one = nodes[0]
    for options, copies in ((), 3), (("REPLICATE", 1), 1), (("REPLICATE", 2), 2):
        job_id = one("ADDJOB", "copies", "x", 5000, *options)
        found = states(nodes, job_id)
        assert (found[0], found.count("active"), found.count("-")) == ("queued", copies - 1, 3 - copies)
        assert shown(one, job_id)["repl"] == copies
    assert one("ADDJOB", "copies", "x", 5000, "REPLICATE", 4).startswith(b"NOREPL ")
    assert one("ADDJOB", "copies", "x", 5000, "RETRY", 0).startswith(b"ERR With RETRY set to 0 please explicitly set")
    assert shown(one, one("ADDJOB", "copies", "x", 5000, "RETRY", 0, "REPLICATE", 1))["state"] == b"queued"


def test_with_fewer_nodes_a_job_has_fewer_copies_or_is_refused(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, CALM, "jobs.min_replicate=2") as (one, gone):
        assert shown(one, one("ADDJOB", "q", "x", 5000))["repl"] == 2
        gone.kill()
        one.notice_silence()
        until(lambda: "fail" in one.flags_of(gone), "a flag")
        assert one("ADDJOB", "q", "x", 5000).startswith(b"NOREPL ")
        assert shown(one, one("ADDJOB", "q", "x", 5000, "REPLICATE", 1))["repl"] == 1


# States


def test_a_job_is_queued_at_one_node_and_active_at_the_others_until_all_know_that_it_is_acknowledged(
    nodes: list[ClusterNode],
) -> None:
    one, other, third = nodes
    job_id = one("ADDJOB", "states", "x", 5000)
    assert states(nodes, job_id) == ["queued", "active", "active"]
    assert [node("QLEN", "states") for node in nodes] == [1, 0, 0]
    assert fetched(other, "states") == job_id
    assert states(nodes, job_id) == ["active"] * 3
    assert third("ACKJOB", job_id) == 1
    until(lambda: states(nodes, job_id) == ["-"] * 3, "the end of it")


@pytest.mark.parametrize("then", ["", "DELJOB"])
def test_a_holder_that_was_down_learns_that_a_job_is_acknowledged_before_it_delivers_it(
    tmp_path: Path, then: str
) -> None:
    with cluster_of(tmp_path, 2, CALM, "jobs.journal=true") as (one, gone):
        job_id = one("ADDJOB", "q", "x", 5000, "RETRY", 1)
        gone.kill()
        assert one("ACKJOB", job_id) == 1
        if then:
            assert one(then, job_id) == 0
        assert shown(one, job_id)["state"] == b"acked"
        time.sleep(1.3)  # the retry time is over, and what it varies by
        gone.start()
        until(lambda: states([one, gone], job_id) == ["-", "-"], "the end of it")
        assert gone("GETJOB", "NOHANG", "FROM", "q") is NIL_ARRAY


def test_nobody_waits_for_a_node_that_was_forgotten(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, CALM) as (one, gone):
        job_id = one("ADDJOB", "q", "x", 5000)
        gone.kill()
        assert one("ACKJOB", job_id) == 1
        assert states([one], job_id) == ["acked"]
        assert one("CLUSTER", "FORGET", gone.id) == b"OK"
        until(lambda: states([one], job_id) == ["-"], "the end of it")


# Where clients wait


@pytest.mark.parametrize("within_s", [PATIENCE_S, pytest.param(0.1, marks=pytest.mark.long)])
def test_a_job_reaches_a_client_that_waits_at_another_node(nodes: list[ClusterNode], within_s: float) -> None:
    one, other, _ = nodes
    for number, queue in enumerate(("near", "nearer", "nearest")):
        client = other.client()
        client.send("GETJOB", "FROM", queue)
        until(lambda: b"blocked_clients:1\r" in other("INFO", "clients"), "a client that waits")
        time.sleep(0.1 * number)  # however long it has waited
        began_s = time.monotonic()
        job_id = one("ADDJOB", queue, "x", 5000, "REPLICATE", 1)
        assert client.reply()[0][1] == job_id
        assert time.monotonic() - began_s < within_s


def test_a_job_that_has_come_from_another_node_is_in_the_log_where_it_is(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, CALM, "jobs.journal=true") as (one, other):
        job_id = one("ADDJOB", "q", "x", 5000, "REPLICATE", 1, "RETRY", 60)
        assert fetched(other, "q") == job_id
        one.kill()
        other.kill()
        other.start()
        assert shown(other, job_id)["state"] == b"active"


# Extensions


def test_the_same_id_of_a_client_makes_one_job_at_whichever_nodes_it_is_said(nodes: list[ClusterNode]) -> None:
    job_id = nodes[0]("ADDJOB", "keys", "x", 5000, "ID", "order 17", "REPLICATE", 1)
    assert [node("ADDJOB", "keys", "y", 5000, "ID", "order 17") for node in nodes] == [job_id] * 3
    assert sum(node("QLEN", "keys") for node in nodes) == 1


def test_a_dead_letter_is_one_however_many_nodes_hold_it(nodes: list[ClusterNode]) -> None:
    one, other, _ = nodes
    job_id = one("ADDJOB", "mail", "x", 5000, "RETRIES", 0)
    assert fetched(other, "mail") == job_id
    assert other("NACK", job_id) == 1
    until(lambda: all(shown(node, job_id)["queue"] == b"mail.dead" for node in nodes), "the dead letter at all nodes")
    assert sum(node("QLEN", "mail.dead") for node in nodes) == 1
    origins = {tuple(node("DEADSHOW", job_id)[4:8]) for node in nodes}
    assert origins == {(b"origin", b"mail", b"reason", b"retries")}
    assert sum(node("REDRIVE", "mail.dead") for node in nodes) == 1
    until(lambda: all(shown(node, job_id)["queue"] == b"mail" for node in nodes), "the job at all nodes")
    assert sum(node("QLEN", "mail") for node in nodes) == 1


def test_the_end_of_a_job_is_waited_for_at_a_node_that_does_not_hold_it(nodes: list[ClusterNode]) -> None:
    one, _, away = nodes
    job_id = one("ADDJOB", "waited", "x", 5000, "REPLICATE", 1)
    assert states([away], job_id) == ["-"]
    client = away.client()
    client.send("WAITJOB", job_id, 20_000)
    until(lambda: b"blocked_clients:1\r" in away("INFO", "clients"), "a client that waits")
    assert one("ACKJOB", job_id) == 1
    assert client.reply() == b"acked"
    unknown = b"D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
    assert away("WAITJOB", unknown, 20_000).startswith(b"NOJOB ")


def test_a_node_that_adds_a_job_is_one_of_those_that_hold_it(nodes: list[ClusterNode]) -> None:
    one, other, third = nodes
    for away in (other, third):
        assert away("PAUSE", "held up", "in") == b"in"  # takes no copies
    client = one.client()
    client.send("ADDJOB", "held up", "x", 60_000, "REPLICATE", 2)
    until(lambda: one("JSCAN", "QUEUE", "held up")[1], "a job that is being added")
    ((job_id,),) = [one("JSCAN", "QUEUE", "held up")[1]]
    assert (shown(one, job_id)["state"], shown(one, job_id)["nodes-confirmed"]) == (
        b"wait-repl",
        [one("CLUSTER", "MYID")],
    )
    for away in (other, third):
        assert away("PAUSE", "held up", "none") == b"none"
    assert client.reply() == job_id


def test_a_queue_is_deleted_here_or_everywhere(nodes: list[ClusterNode]) -> None:
    one, other, third = nodes
    for node in nodes:
        node("ADDJOB", "deleted", "x", 5000, "REPLICATE", 1)
    job_id = one("ADDJOB", "deleted", "x", 5000, "RETRY", 3600)
    assert one("QDEL", "deleted", "LOCAL") == 2
    assert [node("QLEN", "deleted") for node in nodes] == [0, 1, 1]
    assert third("ENQUEUE", job_id) == 1  # as when its retry time is over
    other("QDEL", "deleted", "BCAST")
    until(lambda: [node("QLEN", "deleted") for node in nodes] == [0, 0, 0], "an empty queue at all nodes")
    # A node goes through the copies that wait elsewhere after those of its queue, a few parts of its table in a turn.
    until(lambda: states(nodes, job_id) == ["-"] * 3, "the job to be gone from all nodes")


def test_a_queue_is_paused_here_or_everywhere(nodes: list[ClusterNode]) -> None:
    one, other, _ = nodes
    assert one("PAUSE", "paused", "in") == b"in"
    assert [node("PAUSE", "paused", "state") for node in nodes] == [b"in", b"none", b"none"]
    assert other("PAUSE", "paused", "all", "bcast") == b"all"
    until(lambda: [node("PAUSE", "paused", "state") for node in nodes] == [b"all"] * 3, "a pause at all nodes")
    assert one("PAUSE", "paused", "none", "bcast") == b"none"
    until(lambda: [node("PAUSE", "paused", "state") for node in nodes] == [b"none"] * 3, "the end of it")


def test_a_job_that_is_given_back_for_later_is_queued_then_and_not_before_by_another_holder(
    nodes: list[ClusterNode],
) -> None:
    one, other, _ = nodes
    job_id = one("ADDJOB", "later", "x", 5000, "RETRY", 60)
    assert fetched(other, "later") == job_id
    assert other("NACK", job_id, "DELAY", 3600) == 1
    until(
        lambda: all(shown(node, job_id)["next-requeue-within"] > 3_500_000 for node in nodes),
        "the time at all nodes",
    )
    assert all(shown(node, job_id)["nacks"] == 1 for node in nodes)


def test_where_the_retry_time_counts_from_delivery_the_other_holders_are_told(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, CALM, "jobs.retry_from=delivery") as nodes:
        one, other = nodes
        job_id = one("ADDJOB", "q", "x", 5000, "RETRY", 3)
        # They are told where less than half of it is left.
        until(lambda: all(shown(node, job_id)["next-requeue-within"] < 1_400 for node in nodes), "the other half")
        assert fetched(one, "q") == job_id
        until(lambda: shown(other, job_id)["next-requeue-within"] > 1_500, "a retry time that begins anew")
        assert shown(other, job_id)["state"] == b"active", "it has not queued the job itself"


def test_pauses_survive_a_restart(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 1, "jobs.journal=true") as (node,):
        node("PAUSE", "q", "out")
        node.restart()
        assert node("PAUSE", "q", "state") == b"out"
