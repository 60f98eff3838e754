"""kestrelctl cluster, on real nodes: what it prints, its exit codes, and what has become of the nodes."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelctl.remote.access import login_of
from kestrelctl.remote.agreeing import until_agreed
from kestrelctl.remote.job_cluster import JobCluster
from kestrelctl.shell.exit_codes import ExitCode, Failure
from tests.support.accounts import quick_hash
from tests.support.cluster_nodes import ClusterNode, cluster_of
from tests.support.daemon import running_daemon
from tests.support.job_logs import write_job_log
from tests.support.process import stop
from tests.support.shell import Kestrelctl, Outcome
from tests.support.waiting import until

SOON: Final = "cluster.node_timeout=300ms"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[ClusterNode]]:
    with cluster_of(tmp_path, 3, SOON) as nodes:
        yield nodes


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[list[ClusterNode]]:
    """Nodes that do not suspect each other where a busy machine lets one of them wait."""
    with cluster_of(tmp_path, 3) as nodes:
        yield nodes


@pytest.fixture
def ctl(nodes: list[ClusterNode], tmp_path: Path) -> Kestrelctl:
    return of_node(nodes[0], tmp_path)


def of_node(node: ClusterNode, folder: Path) -> Kestrelctl:
    return Kestrelctl("127.0.0.1:1", folder, jobs=node.disque)


def status(ctl: Kestrelctl, timeout: str = "400ms") -> tuple[int, dict[str, Any]]:
    run = ctl("cluster", "status", "-o", "json", "--timeout", timeout)
    assert run.err == ""
    return run.code, json.loads(run.out)


def lonely(folder: Path, *settings: str) -> ClusterNode:
    node = ClusterNode(folder, SOON, *settings)
    node.start()
    return node


# status, nodes


def test_a_cluster_that_is_well_is_exit_0_and_a_row_for_each_node(steady: list[ClusterNode], tmp_path: Path) -> None:
    ctl = of_node(steady[0], tmp_path)
    for _ in range(3):
        steady[0]("ADDJOB", "q", "x", 60_000)
    pairs = list(permutations(steady, 2))
    until(lambda: all(one.figures(other)["lag_usec"] != "-1" for one, other in pairs), "an answer of each to each")
    until(lambda: status(ctl, "60s")[0] == 0, "answers that do not lag")
    code, report = status(ctl, "60s")
    assert (code, report["state"], report["default_copies"], report["findings"]) == (0, "ok", 3, [])
    assert {one["id"] for one in report["nodes"]} == {node.id for node in steady}
    for one in report["nodes"]:
        assert (one["condition"], one["jobs"], one["acked"], one["findings"]) == ("up", 3, 0, [])
        assert one["lag_us"] > 0
    shown = ctl("cluster", "status")
    assert shown.out.startswith(b"CLUSTER OK - 3 nodes, which know each other; 9 jobs, copies included\naddress ")
    assert len(shown.out.splitlines()) == 5
    assert re.fullmatch(
        rb"CLUSTER OK - .* \| nodes=3 up=3 default_copies=3 jobs=9 acked=0\n",
        ctl("cluster", "status", "-o", "nagios").out,
    )
    page = ctl("cluster", "status", "-o", "prometheus").out.decode()
    assert page.count('kestrel_cluster_node_jobs{server="') == 3


def test_nodes_are_listed_as_one_sees_them(steady: list[ClusterNode], tmp_path: Path) -> None:
    ctl = of_node(steady[0], tmp_path)
    rows = json.loads(ctl("cluster", "nodes", "-o", "json").out)
    assert {row["id"]: row["address"] for row in rows} == {node.id: f"127.0.0.1:{node.client_port}" for node in steady}
    own = next(row for row in rows if row["id"] == steady[0].id)
    assert (own["flags"], own["link"], own["ping_age_ms"]) == ("myself", "up", "")
    assert all(row["flags"] == "noflags" and row["link"] == "up" for row in rows if row is not own)
    assert len({row["version"] for row in rows}) == 1
    lines = ctl("cluster", "nodes", "-o", "tsv").out.splitlines()
    assert lines[0].split(b"\t") == [
        b"id", b"address", b"flags", b"link", b"ping_age_ms", b"lag_ms", b"version",
    ]  # fmt: skip


def test_one_node_of_three_that_is_down_is_a_warning_two_are_critical_and_one_that_hangs_delays_nobody(
    ctl: Kestrelctl, nodes: list[ClusterNode]
) -> None:
    one, hanging, gone = nodes
    gone.kill()
    until(lambda: one.flags_of(gone) == "fail", "the flag")
    code, report = status(ctl)
    assert (code, report["findings"]) == (1, ["a job without REPLICATE gets 2 copies, not 3"])
    (found,) = [node for node in report["nodes"] if node["id"] == gone.id]
    assert (found["condition"], found["state"], found["jobs"]) == ("down", "warning", None)
    assert re.fullmatch(r"does not answer \S+, \S+: Connection refused", found["findings"][0])
    stop(hanging.pid)
    code, report = status(ctl)
    assert code in (1, 2)  # as soon as it is suspected
    (found,) = [node for node in report["nodes"] if node["id"] == hanging.id]
    assert found["condition"] in ("suspected", "away")
    run = ctl("cluster", "nodes", "--timeout", "200ms")
    assert (run.code, run.err.count("no version: ")) == (0, 2)
    until(lambda: status(ctl)[0] == 2, "a cluster of which most nodes do not answer")
    os.kill(hanging.pid, signal.SIGCONT)
    gone.start()
    until(lambda: status(ctl)[0] == 0, "a cluster that is well")


def test_a_node_that_only_some_know_is_named(steady: list[ClusterNode], tmp_path: Path) -> None:
    one, other, third = steady
    assert other("CLUSTER", "FORGET", third.id) == b"OK"
    code, report = status(of_node(one, tmp_path), "60s")
    assert code == 1
    findings = {node["id"]: node["findings"] for node in report["nodes"] if node["findings"]}
    assert findings == {third.id: [f"is not known to 127.0.0.1:{other.client_port}"]}
    assert one.sees([other, third])


def test_a_copied_spool_is_critical(ctl: Kestrelctl, nodes: list[ClusterNode], tmp_path: Path) -> None:
    original = nodes[2]
    assert original("CLUSTER", "SAVECONFIG") == b"OK"
    copy = ClusterNode(tmp_path / "copy", SOON)
    shutil.copytree(original.spool, copy.spool)
    try:
        copy.start()
        until(lambda: status(ctl)[0] == 2, "the copy")
        assert any(f"two nodes have the id {original.id}" in words for words in status(ctl)[1]["findings"])
    finally:
        copy.end()


def test_a_status_of_nobody_is_critical_and_one_without_a_login_unknown(ctl: Kestrelctl, tmp_path: Path) -> None:
    run = ctl("cluster", "status", "-s", "127.0.0.1:1", "-o", "nagios")
    assert (run.code, run.out[:33]) == (2, b"CLUSTER CRITICAL - cannot reach 1")
    assert ctl("cluster", "status", "--frobnicate").code == 3
    users = f"users: {{ann: {{password: '{quick_hash('secret')}', jobs: {{'*': [put]}}}}}}\n"
    with running_daemon(tmp_path / "with-users", "listen.disque=127.0.0.1:0", config=users) as daemon:
        (tmp_path / "password").write_text("another one")
        run = ctl(
            "cluster", "status", "-s", daemon.disque, "--user", "ann", "--password-file", str(tmp_path / "password")
        )
    assert run.code == 3, run.out


def test_all_nodes_are_asked_with_the_login_and_the_tls_of_the_first(steady: list[ClusterNode], tmp_path: Path) -> None:
    ctl = of_node(steady[0], tmp_path)
    (tmp_path / "password").write_text("secret")
    for node in steady:
        assert node("CONFIG", "SET", "requirepass", "secret") == b"OK"
    assert ctl("cluster", "status").code == 3
    run = ctl("cluster", "status", "--password-file", str(tmp_path / "password"))
    assert (run.code, run.out[:22]) == (0, b"CLUSTER OK - 3 nodes, ")
    assert JobCluster("tls:a.example:1", 1, login_of()).way("10.0.0.1:2") == "tls:10.0.0.1:2"
    assert JobCluster("a.example:1", 1, login_of()).way("10.0.0.1:2") == "10.0.0.1:2"


# meet


def test_nodes_meet_and_it_returns_once_all_know_each_other(
    ctl: Kestrelctl, nodes: list[ClusterNode], tmp_path: Path
) -> None:
    new = [lonely(tmp_path / "four"), lonely(tmp_path / "five")]
    try:
        everybody = [*nodes, *new]
        assert ctl("cluster", "meet", new[0].disque, f"localhost:{new[1].client_port}") == Outcome(0, b"", "")
        # A second handshake with one that is met already may not be over, and a busy node is suspected for a moment.
        for node in everybody:
            members = {node_id for node_id, (_, flags, _) in node.nodes().items() if "handshake" not in flags}
            assert members == {one.id for one in everybody}
        until(lambda: status(ctl)[0] == 0, "a cluster that is well")
    finally:
        for node in new:
            node.end()


def test_a_new_node_that_cannot_be_asked_is_not_taken_for_one_that_knows_the_others(nodes: list[ClusterNode]) -> None:
    one, _, new = nodes
    cluster = JobCluster(one.disque, 500, login_of())
    stop(new.pid)
    try:
        with pytest.raises(Failure, match=new.disque) as failed:
            until_agreed(cluster, [new.disque], frozenset({new.id}), 1)
        assert failed.value.code == ExitCode.WAIT_EXPIRED
    finally:
        os.kill(new.pid, signal.SIGCONT)


def test_who_cannot_be_met_is_named_and_nothing_is_done(
    ctl: Kestrelctl, nodes: list[ClusterNode], tmp_path: Path
) -> None:
    alone = lonely(tmp_path / "alone", "cluster.port=null")
    try:
        for address, code, words in (
            ("127.0.0.1:1", 69, "cannot reach 127.0.0.1:1"),
            (nodes[0].disque, 2, "is the node itself"),
            ("unix:/tmp/x", 2, "other nodes cannot connect to a unix socket"),
            (nodes[1].address, 76, "is not a node of jobs"),
            (alone.disque, 77, "its cluster.port is null"),
        ):
            run = ctl("cluster", "meet", nodes[2].disque, address, "--wait", "1s")
            assert (run.code, words in run.err) == (code, True), run
        assert nodes[0].sees(nodes[1:])
    finally:
        alone.end()


def test_nodes_that_do_not_find_each_other_in_time_are_exit_124_and_it_says_why(
    ctl: Kestrelctl, nodes: list[ClusterNode], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("another secret, of sixteen letters and more")
    stranger = lonely(tmp_path / "stranger", f"cluster.secret_file={tmp_path / 'secret'}")
    try:
        run = ctl("cluster", "meet", stranger.disque, "--wait", "1s")
        assert (run.code, run.out) == (124, b"")
        assert "secret" in run.err
        assert ctl("cluster", "meet", stranger.disque, "--wait", "0").code == 0, "it does not wait"
    finally:
        stranger.end()


# forget


def test_a_node_is_forgotten_by_all_by_its_id_the_beginning_of_it_or_its_address(
    ctl: Kestrelctl, nodes: list[ClusterNode], tmp_path: Path
) -> None:
    one, other, third = nodes
    third.kill()
    assert ctl("cluster", "forget", f"127.0.0.1:{third.client_port}") == Outcome(0, b"", "")
    assert one.sees([other])
    assert other.sees([one])
    new = lonely(tmp_path / "new")
    try:
        for word in (new.id, new.id[:8]):
            assert ctl("cluster", "meet", new.disque).code == 0
            assert ctl("cluster", "forget", word).code == 0
            assert one.sees([other])
            assert other.sees([one])
    finally:
        new.end()
    run = ctl("cluster", "forget", "127.0.0.1:9")
    assert (run.code, "no node 127.0.0.1:9" in run.err) == (66, True)


def test_who_could_not_be_told_to_forget_is_named(ctl: Kestrelctl, nodes: list[ClusterNode]) -> None:
    one, hanging, gone = nodes
    gone.kill()
    stop(hanging.pid)
    run = ctl("cluster", "forget", gone.id, "--timeout", "500ms")
    os.kill(hanging.pid, signal.SIGCONT)
    assert run.code == 69
    assert re.match(rf"kestrelctl: not removed from: .*127\.0\.0\.1:{hanging.client_port}", run.err)
    assert run.err.count("\n") == 1
    assert gone.id not in one.nodes()
    assert gone.id in hanging.nodes()


# leaving


def test_a_node_leaves_and_stays(ctl: Kestrelctl, nodes: list[ClusterNode]) -> None:
    one, other, leaving = nodes
    way = ("-s", leaving.disque)
    assert ctl("cluster", "leaving", *way) == Outcome(0, b"no\n", "")
    assert ctl("cluster", "leaving", "yes", *way) == Outcome(0, b"yes\n", "")
    until(lambda: one.flags_of(leaving) == other.flags_of(leaving) == "leaving", "the flag")
    _, report = status(ctl)
    assert {node["id"]: node["condition"] for node in report["nodes"]}[leaving.id] == "leaving"
    assert ctl("cluster", "leaving", "no", *way).out == b"no\n"
    assert ctl("cluster", "leaving", "state", *way).out == b"no\n"
    assert ctl("cluster", "leaving", "no", "--hand-over").code == 2
    assert ctl("cluster", "leaving", "--wait", "1s").code == 2


def test_it_waits_until_the_node_has_no_jobs_which_with_hand_over_it_moves(
    ctl: Kestrelctl, nodes: list[ClusterNode]
) -> None:
    one, _, leaving = nodes
    ids = {leaving("ADDJOB", "q", "x", 1000, "REPLICATE", 1) for _ in range(50)}
    way = ("-s", leaving.disque)
    run = ctl("cluster", "leaving", "yes", "--wait", "200ms", *way)
    assert (run.code, run.out) == (124, b"")
    assert "still has 50 jobs" in run.err
    assert ctl("cluster", "leaving", "yes", "--hand-over", "--wait", "20s", *way) == Outcome(0, b"yes\n", "")
    assert b"registered_jobs:0\r\n" in leaving("INFO", "jobs")
    leaving.stop()
    taken = [one("GETJOB", "TIMEOUT", 5000, "FROM", "q") for _ in range(50)]
    assert {job[0][1] for job in taken} == ids


# start


@pytest.fixture
def trial(ctl: Kestrelctl, tmp_path: Path) -> Iterator[tuple[list[str], Any]]:
    """The lines that it prints, and the process."""
    process = ctl.start(
        "cluster", "start", "2", "--dir", str(tmp_path / "trial"), "--set", "cluster.node_timeout=300ms"
    )
    assert process.stdout is not None
    lines = list[str]()
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline().decode().rstrip())
        assert lines[-1] or len(lines) < 20, process.stderr.read()  # type: ignore[union-attr]
    yield lines, process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_trial_starts_nodes_that_know_each_other_and_ends_with_all_of_them(
    ctl: Kestrelctl, trial: tuple[list[str], Any], tmp_path: Path
) -> None:
    lines, process = trial
    places = [re.match(r"node\d: jobs at (\S+), queues at (\S+), http://(\S+), pid (\d+)", line) for line in lines[:2]]
    first, second = (place.groups() for place in places if place is not None)
    ctl.environment["KESTRELCTL_JOBS"] = lines[3].partition("=")[2]
    until(lambda: status(ctl)[0] == 0, "two nodes that are well")
    assert ctl("jobs", "add", "mail", "hello").code == 0
    assert ctl("version", "-s", second[1]).code == 0
    os.kill(int(second[3]), signal.SIGKILL)
    line = process.stderr.readline()
    while b"start it again" not in line:
        line = process.stderr.readline()
    assert b"node2 was ended by SIGKILL" in line
    assert f"listen.disque={second[0]}".encode() in process.stderr.readline()
    until(lambda: status(ctl)[0] == 2, "a node that is down")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    for pid in (first[3], second[3]):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert (tmp_path / "trial" / "node1").is_dir()


def test_a_trial_that_holds_jobs_starts_again_although_its_nodes_read_them_first(
    ctl: Kestrelctl, tmp_path: Path
) -> None:
    for name in ("node1", "node2"):
        write_job_log(tmp_path / "trial" / name, 20_000)
    process = ctl.start("cluster", "start", "2", "--dir", str(tmp_path / "trial"))
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        lines = [process.stdout.readline().decode()]
        while "Ctrl-C" not in lines[-1]:
            assert lines[-1], process.stderr.read()
            lines.append(process.stdout.readline().decode())
        ctl.environment["KESTRELCTL_JOBS"] = lines[3].partition("=")[2].rstrip()
        until(lambda: status(ctl, "60s")[0] == 0, "answers that do not lag")
        assert [node["jobs"] for node in status(ctl, "60s")[1]["nodes"]] == [20_000, 20_000]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_trial_that_cannot_start_says_why_and_leaves_nothing(ctl: Kestrelctl, nodes: list[ClusterNode]) -> None:
    run = ctl("cluster", "start", "2", "--port", str(nodes[0].client_port))
    assert run.code == 77
    assert "in use" in run.err
    assert "has not started" in run.err.splitlines()[-1]
    assert ctl("cluster", "start", "2", "--port", "60000").code == 2


# Jobs and queues at all nodes


def test_a_queue_is_paused_deleted_and_its_dead_letters_sent_back_at_all_nodes(
    ctl: Kestrelctl, nodes: list[ClusterNode]
) -> None:
    one, _, third = nodes
    assert ctl("jobs", "pause", "mail", "out").out == b"out\n"
    assert ctl("jobs", "pause", "mail", "state", "--all-nodes").out in (b"out\nnone\n", b"none\nout\n")
    assert ctl("jobs", "pause", "mail", "out", "--all-nodes").out == b"out\n"
    assert third("PAUSE", "mail", "state") == b"out"
    assert ctl("jobs", "pause", "mail", "none", "--all-nodes").out == b"none\n"
    for node in nodes:  # a letter at each
        node("ADDJOB", "mail", "body", 0, "RETRIES", 0)
        ((_, job_id, _),) = node("GETJOB", "FROM", "mail")
        assert node("NACK", job_id) == 1
    assert ctl("jobs", "redrive", "mail.dead", "--max", "1", "--all-nodes").code == 2
    until(lambda: all(len(node("QPEEK", "mail.dead", 3)) == 1 for node in nodes), "a letter at each node")
    run = ctl("jobs", "redrive", "mail.dead", "--all-nodes")
    assert (run.code, run.out, run.err) == (0, b"3\n", "")
    assert ctl("jobs", "redrive", "mail.dead", "--all-nodes").code == 1
    third.kill()
    run = ctl("jobs", "qdel", "mail", "--all-nodes")
    assert (run.code, run.out) == (69, b"6\n")
    assert run.err.startswith(f"kestrelctl: node left out: cannot reach {third.disque}: connection refused")
    assert one("QLEN", "mail") == 0


def test_a_job_is_added_at_as_many_nodes_as_it_has_to_be(ctl: Kestrelctl) -> None:
    assert ctl("jobs", "add", "mail", "x", "--replicate", "2").code == 0
    assert ctl("jobs", "add", "mail", "x", "--replicate", "4").code == 80
    assert ctl("jobs", "add", "mail", "x", "--retry", "0").code == 77
    assert ctl("jobs", "add", "mail", "x", "--retry", "0", "--replicate", "1").code == 0
