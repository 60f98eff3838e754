"""Figures of jobs in a shell: stats, check and doctor."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelctl.doctor.server import cluster
from kestrelctl.remote.checking import Limits, State, judge
from tests.support.cluster_nodes import cluster_of
from tests.support.daemon import Daemon, running_daemon
from tests.support.forked import no_forks
from tests.support.queue_client import QueueClient
from tests.support.resp import RespClient, resp_client
from tests.support.shell import Kestrelctl
from tests.support.waiting import until

ODD = "odd\r\n'\\ käse"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = "listen: {disque: 127.0.0.1:0}\n"
    with running_daemon(tmp_path_factory.mktemp("daemon"), config=config, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("mail", b"an item")
        yield daemon


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[RespClient]:
    """Two queues of jobs, beside one of items."""
    with resp_client(daemon.disque) as client:
        for _ in range(3):
            client("ADDJOB", "mail", "x", 0)
        client("GETJOB", "FROM", "mail")
        client("ADDJOB", ODD, "x", 0, "DELAY", 100)
        client("PAUSE", "mail", "in")
        yield client


@pytest.fixture
def kestrelctl(daemon: Daemon, client: RespClient, tmp_path: Path) -> Kestrelctl:
    client("CONFIG", "SET", "maxmemory", "1gb")
    return Kestrelctl(daemon.address, tmp_path)


def test_stats_in_json_have_the_queues_of_jobs_behind_the_others(kestrelctl: Kestrelctl) -> None:
    queue, mail, odd = json.loads(kestrelctl("stats", "-o", "json").out)
    assert (queue["queue"], queue["items"]) == ("mail", 1)
    assert [mail[name] for name in ("job_queue", "queued", "active", "delayed", "jobs_in", "jobs_out", "pause")] == [
        "mail", 2, 1, 0, 3, 1, "in",
    ]  # fmt: skip
    assert (odd["job_queue"], odd["delayed"], odd["oldest_ms"]) == (ODD, 1, 0)
    (queue,) = json.loads(kestrelctl("stats", "mail", "-o", "json").out)
    assert queue["queue"] == "mail"
    server = json.loads(kestrelctl("stats", "--server-wide", "-o", "json").out)
    assert (server["jobs_queued"], server["jobs_active"], server["jobs_memory_level"]) == (2, 1, 0)


def test_a_table_of_the_queues_of_jobs(kestrelctl: Kestrelctl) -> None:
    lines = kestrelctl("stats", "--jobs", "-o", "tsv").out.decode().splitlines()
    assert lines[0].split("\t")[:4] == ["job_queue", "queued", "active", "delayed"]
    assert lines[1].split("\t")[:4] == ["mail", "2", "1", "0"]
    assert lines[2].split("\t")[0] == "odd\\r\\n'\\\\ käse"
    assert kestrelctl("stats", "--jobs", "mail").code == 2
    twice = kestrelctl("stats", "--jobs", "--per-server", "-o", "json")
    assert {row["server"] for row in json.loads(twice.out)} == {kestrelctl.address}


def test_check_tells_of_memory_that_runs_short(kestrelctl: Kestrelctl, client: RespClient) -> None:
    fine = kestrelctl("check")
    assert (fine.code, b" jobs=4 jobs_memory=" in fine.out) == (0, True)
    used_bytes = json.loads(kestrelctl("stats", "--server-wide", "-o", "json").out)["jobs_memory_bytes"]
    for percent, code, words in ((80, 1, "more than 75 %"), (97, 2, "more than 95 %"), (110, 2, "more than 100 %")):
        client("CONFIG", "SET", "maxmemory", used_bytes * 100 // percent)
        run = kestrelctl("check")
        assert (run.code, words in run.out.decode()) == (code, True), run.out
        assert kestrelctl("check", "mail").code == 0, "a queue that is named"
        (jobs,) = json.loads(kestrelctl("check", "-o", "json").out)["jobs"]
        assert (jobs["jobs"], jobs["memory_bytes"]) == (4, used_bytes)
        run = kestrelctl("doctor", "-o", "json")
        (row,) = [row for row in json.loads(run.out) if row["check"] == "jobs"]
        assert (row["state"], words in row["words"]) == ("warning" if code == 1 else "critical", True)
    assert b"kestrel_check_jobs_memory_level{" in kestrelctl("check", "-o", "prometheus").out


def test_a_log_that_cannot_be_written_is_critical() -> None:
    figures = {
        "jobs_registered": 1,
        "jobs_memory_level": 0,
        "jobs_memory_bytes": 1,
        "jobs_memory_limit_bytes": 2,
        "jobs_log_failed": 1,
    }
    verdict = judge("a:1", [], [], Limits(), [("a:1", figures), ("b:1", {})])
    assert (verdict.state, verdict.words) == (State.CRITICAL, "jobs of a:1: their log cannot be written")


def test_doctor_looks_at_jobs_where_there_are_any_or_should_be(tmp_path: Path) -> None:
    with no_forks(), running_daemon(tmp_path / "daemon", admin="127.0.0.1:0") as daemon:
        daemon.config_path.write_text("listen: {disque: 127.0.0.1:7711}\n")
        run = Kestrelctl(daemon.address, tmp_path)("doctor", "-o", "json")
        (row,) = [row for row in json.loads(run.out) if row["check"] == "jobs"]
        assert (row["state"], row["words"]) == ("warning", "listen.disque is set, but the server has no jobs")
        assert json.loads(Kestrelctl(daemon.address, tmp_path)("stats", "-o", "json").out) == []


CLUSTER = {
    "jobs_registered": 1,
    "jobs_memory_level": 0,
    "jobs_memory_bytes": 1,
    "jobs_memory_limit_bytes": 1000,
    "jobs_cluster_size": 3,
    "jobs_default_copies": 3,
}


@pytest.mark.parametrize(
    ("figures", "state", "words"),
    [
        ({}, State.OK, ""),
        ({"jobs_cluster_size": 2, "jobs_default_copies": 2}, State.OK, ""),
        (
            {"jobs_cluster_down": 1, "jobs_default_copies": 2},
            State.WARNING,
            "other nodes down: 1 of 2; a job without REPLICATE gets 2 copies, not 3",
        ),
        ({"jobs_cluster_down": 2}, State.CRITICAL, "other nodes down: 2 of 2"),
        ({"jobs_cluster_strangers": 1}, State.WARNING, "other nodes that do not know this one: 1 of 2"),
        (
            {"jobs_cluster_copied_spools": 1},
            State.CRITICAL,
            "a spool was copied: two nodes have one id; see kestrelctl cluster status",
        ),
    ],
)
def test_check_and_doctor_tell_what_a_node_sees_of_its_cluster(
    figures: dict[str, int], state: State, words: str
) -> None:
    seen = CLUSTER | figures
    (jobs,) = judge("here", [], [], Limits(), [("here", seen)]).jobs
    assert (jobs.state, jobs.words) == (state, words)
    assert (jobs.nodes, jobs.nodes_down) == (seen["jobs_cluster_size"], seen.get("jobs_cluster_down", 0))
    results = list(cluster(seen))
    assert max(result.state for result in results) == state
    assert words == "; ".join(result.words for result in results if result.state is not State.OK)


def test_check_and_doctor_of_a_node_whose_cluster_is_not_well(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, "cluster.node_timeout=300ms") as (node, other):
        ctl = Kestrelctl(node.address, tmp_path)
        # A busy node is suspected for a moment.
        until(lambda: ctl("check").code == 0, "two nodes that are well")
        until(lambda: b"2 nodes, all of which answer" in ctl("doctor").out, "the doctor to see that")
        other.kill()
        until(lambda: "fail" in node.flags_of(other), "the flag")
        run = ctl("check")
        assert (run.code, b"other nodes down: 1 of 1" in run.out) == (2, True)
        assert b"other nodes down: 1 of 1" in ctl("doctor").out
