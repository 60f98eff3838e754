"""What operators see of the other nodes: INFO, statistics, metrics, /stats.json."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster_nodes import CALM, ClusterNode, cluster_of
from tests.support.http import ask
from tests.support.waiting import until


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterNode]]:
    with cluster_of(tmp_path_factory.mktemp("cluster"), 3, CALM, admin="127.0.0.1:0") as nodes:
        yield nodes


def info(node: ClusterNode, section: str) -> dict[str, str]:
    lines = node("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def metrics(node: ClusterNode) -> dict[tuple[str, ...], float]:
    """Name and the id of another node -> value."""
    page = ask(node, "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    found = [one for one in samples if one.name.startswith("kestrel_jobs_") and "queue" not in one.labels]
    return {(one.name, *([one.labels["node"]] if "node" in one.labels else [])): one.value for one in found}


def stats(node: ClusterNode) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The server's figures, and those of each node by its id."""
    document = ask(node, "/stats.json").json
    rows = [dict(zip(document["job_node_columns"], row, strict=True)) for row in document["job_nodes"]]
    return document["server"], {row["id"]: row for row in rows}


def test_a_node_tells_of_the_links_to_the_others(nodes: list[ClusterNode]) -> None:
    one, *others = nodes
    until(lambda: all(one.figures(other)["lag_usec"] != "-1" for other in others), "a PONG of each")
    server, rows = stats(one)
    assert rows.keys() == {node.id for node in nodes}
    of_itself = [rows[one.id][name] for name in ("flags", "link", "jobs")]
    assert of_itself == ["myself", None, server["jobs_registered"]]
    found = metrics(one)
    for other in others:
        line, row = one.figures(other), rows[other.id]
        assert (line["link"], line["up"], line["knows_us"], line["problem"]) == ("up", "1", "1", "")
        assert (row["link"], row["up"], row["knows_us"], row["problem"]) == (1, 1, 1, "")
        assert line["address"] == row["address"] == f"127.0.0.1:{other.client_port}"
        assert 0 < row["lag_us"] < 60_000_000
        assert row["jobs"] is None
        for name in ("messages_out", "messages_in", "bytes_out", "bytes_in", "links"):
            assert 0 < row[name] <= int(line[name])
        assert found["kestrel_jobs_node_up", other.id] == 1
        assert 0 < found["kestrel_jobs_node_lag_seconds", other.id] < 60
        assert found["kestrel_jobs_node_links_total", other.id] == 1
        assert found["kestrel_jobs_node_sent_bytes_total", other.id] >= row["bytes_out"]
    assert ("kestrel_jobs_node_up", one.id) not in found


def test_a_node_tells_of_the_cluster(nodes: list[ClusterNode]) -> None:
    one = nodes[0]
    server, _ = stats(one)
    known = {name.removeprefix("jobs_cluster_"): value for name, value in server.items() if "jobs_cluster" in name}
    assert known == {
        "size": 3, "known": 3, "reachable": 2, "down": 0, "strangers": 0, "copied_spools": 0, "leaving": 0,
    }  # fmt: skip
    assert server["jobs_default_copies"] == 3
    found = info(one, "cluster")
    assert (found["cluster_known_nodes"], found["cluster_down"], found["cluster_copied_spools"]) == ("3", "0", "0")
    assert info(one, "jobs")["default_copies"] == "3"
    assert metrics(one)["kestrel_jobs_cluster_size",] == 3


def test_jobs_that_go_to_where_clients_wait_are_counted_at_both_ends(nodes: list[ClusterNode]) -> None:
    one, other, _ = nodes
    for _ in range(5):
        one("ADDJOB", "federated", "x", 1000, "REPLICATE", 1)
    for _ in range(5):
        assert other("GETJOB", "FROM", "federated")
    given, taken = one.figures(other), other.figures(one)
    assert (given["jobs_given"], given["jobs_taken"]) == ("5", "0")
    assert (taken["jobs_given"], taken["jobs_taken"]) == ("0", "5")
    assert info(one, "jobs")["given_jobs"] == info(other, "jobs")["taken_jobs"] == "5"
    server, rows = stats(other)
    assert server["jobs_import_rate"] > 0
    assert rows[one.id]["jobs_taken"] == 5
    (queue,) = ask(other, "/jobs/queues").json["rows"]
    columns = ask(other, "/jobs/queues").json["columns"]
    assert dict(zip(columns, queue, strict=True))["import_rate"] > 0
    assert metrics(other)["kestrel_jobs_node_taken_total", one.id] == 5


def test_a_node_that_is_down_and_what_waits_for_it_are_counted(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, CALM) as nodes:
        one, _, gone = nodes
        job_id = one("ADDJOB", "q", "x", 1000)
        assert info(one, "jobs")["default_copies_below_three"] == "0"
        gone.kill()
        one.notice_silence()
        until(lambda: info(one, "cluster")["cluster_down"] == "1", "a node that is down")
        assert "Connection refused" in one.figures(gone)["problem"]
        assert (one.figures(gone)["link"], one.figures(gone)["up"]) == ("down", "0")
        assert one("ACKJOB", job_id) == 1
        until(lambda: info(one, "jobs")["acked_jobs"] == "1", "an acknowledgement that one node does not know")
        assert info(one, "jobs")["default_copies"] == "2"
        one("ADDJOB", "q", "x", 1000)
        assert one("ADDJOB", "q", "x", 1000, "DELAY", 9, "TTL", 5).startswith(b"ERR The specified DELAY")
        found = info(one, "jobs")
        assert (found["default_copies_below_three"], found["async_copies_missed"]) == ("1", "0")
        gone.start()
        until(lambda: info(one, "jobs")["acked_jobs"] == "0", "the acknowledgement at all nodes")
        until(lambda: info(one, "cluster")["cluster_down"] == "0", "a node that is up")


def test_a_copied_spool_and_a_node_that_was_forgotten_by_one_are_counted(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2) as nodes:
        one, other = nodes
        assert other("CLUSTER", "SAVECONFIG") == b"OK"
        copy = ClusterNode(tmp_path / "copy")
        shutil.copytree(other.spool, copy.spool)
        try:
            copy.start()
            until(lambda: info(one, "cluster")["cluster_copied_spools"] == "1", "the copy")
            assert f"two nodes have the id {other.id}, one at" in info(one, "cluster")["cluster_copied_spool0"]
            until(lambda: "two nodes have the id" in copy.figures(one)["problem"], "why it is refused")
        finally:
            copy.end()
        assert other("CLUSTER", "FORGET", one.id) == b"OK"
        until(lambda: info(one, "cluster")["cluster_strangers"] == "1", "a node that does not know this one")
        assert one.figures(other)["knows_us"] == "0"
