"""Real nodes of a cluster: they meet, fail, return, leave and are forgotten."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.cluster_nodes import CALM, TIMEOUT_S, ClusterNode, cluster_of
from tests.support.process import stop
from tests.support.resp import ErrorReply, Status
from tests.support.waiting import until


def test_seven_nodes_that_meet_one_know_each_other_and_are_shown_to_clients(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 7, CALM) as nodes:
        for node in nodes:
            hello = node("HELLO")
            assert hello[:2] == [1, node.id.encode()]
            assert {tuple(one) for one in hello[2:]} == {
                (one.id.encode(), b"127.0.0.1", b"%d" % one.client_port, b"1") for one in nodes
            }
            info = dict(line.split(":") for line in node("CLUSTER", "INFO").decode().splitlines())
            assert (info["cluster_known_nodes"], info["cluster_reachable_nodes"]) == ("7", "6")
            assert info["cluster_size"] == "7"
            assert int(info["cluster_stats_messages_sent"]) > 10
            assert node.nodes()[node.id] == (f"127.0.0.1:{node.client_port}", "myself", "connected")
        assert not any("refused" in line for node in nodes for line in node.log)


def test_a_killed_node_is_flagged_and_cleared_when_it_is_back(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, other, gone = nodes
        gone.kill()
        for node in (one, other):
            until(lambda node=node: "fail" in node.flags_of(gone), "a flag")  # type: ignore[misc]
        until(lambda: one.flags_of(gone) == "fail", "the majority")
        until(lambda: "cluster_reachable_nodes:1" in one("CLUSTER", "INFO").decode().split(), "the other one")
        gone.start()
        for node in (one, other):
            until(lambda node=node: node.flags_of(gone) == "noflags", "the end of the flag")  # type: ignore[misc]
        until(lambda: gone.sees([one, other]), "the others")


def test_a_node_that_hangs_is_flagged_and_comes_back_without_blaming_the_others(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, other, slow = nodes
        stop(slow.pid)
        until(lambda: "fail" in one.flags_of(slow), "a flag")
        until(lambda: other.flags_of(slow) == "fail", "the majority")
        os.kill(slow.pid, signal.SIGCONT)
        for node in (one, other):
            until(lambda node=node: node.flags_of(slow) == "noflags", "the end of the flag")  # type: ignore[misc]
        until(lambda: slow.sees([one, other]), "the others")


def test_nodes_find_each_other_again_after_a_restart_of_all(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        for node in nodes:
            node.kill()
        for node in nodes:
            node.start()
        for node in nodes:
            until(lambda node=node: node.sees([one for one in nodes if one is not node]), "a cluster")  # type: ignore[misc]


def test_a_forgotten_node_stays_away_while_all_have_forgotten_it(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, other, gone = nodes
        gone.kill()
        for node in (one, other):
            assert node("CLUSTER", "FORGET", gone.id) == b"OK"
            assert node("CLUSTER", "FORGET", gone.id) == b"ERR Unknown node " + gone.id.encode()
        time.sleep(TIMEOUT_S)
        until(lambda: one.sees([other]), "a cluster without it")
        assert one("CLUSTER", "SAVECONFIG") == b"OK"
        one.restart()
        until(lambda: one.sees([other]), "the other node")


def test_a_node_that_was_reset_belongs_to_no_cluster_until_it_is_met(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, other, reset = nodes
        old_id = reset.id
        assert reset("CLUSTER", "RESET", "HARD") == b"OK"
        reset.id = reset("CLUSTER", "MYID").decode()
        assert reset.id != old_id
        reset.kill()
        reset.start()
        assert list(reset.nodes()) == [reset.id], reset.log
        until(lambda: one.nodes()[old_id][1] != "noflags", "a flag on the old id")
        assert reset.meet(one) == b"OK"
        until(lambda: one.flags_of(reset) == other.flags_of(reset) == "noflags", "the node under its new id")
        for node in (one, other):
            assert node("CLUSTER", "FORGET", old_id) == b"OK"
        until(lambda: reset.sees([one, other]) and one.sees([other, reset]), "a cluster of three")


def test_a_soft_reset_keeps_the_id_and_survives_kill_9(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, "cluster.node_timeout=10s") as nodes:  # a restart takes less
        one, reset = nodes
        assert reset("CLUSTER", "RESET") == b"OK"
        reset.kill()
        before = reset.id
        reset.start()
        assert reset.id == before
        assert reset.sees([])
        until(lambda: any("it does not know this node" in line for line in one.log), "the log of the other one")


def test_a_leaving_node_is_known_to_all_and_leaves_after_a_restart_too(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, other, leaving = nodes
        assert leaving("CLUSTER", "LEAVING") == b"no"
        assert leaving("CLUSTER", "LEAVING", "yes") == b"OK"
        for node in (one, other):
            until(lambda node=node: node.flags_of(leaving) == "leaving", "the flag")  # type: ignore[misc]
        assert [entry[3] for entry in one("HELLO")[2:] if entry[0] == leaving.id.encode()] == [b"100"]
        assert leaving("CLUSTER", "SAVECONFIG") == b"OK"
        leaving.kill()
        leaving.start()
        assert leaving("CLUSTER", "LEAVING") == b"yes"
        assert leaving.nodes()[leaving.id][1] == "myself,leaving"
        assert leaving("GETJOB", "FROM", "q").startswith(b"LEAVING ")
        assert leaving("CLUSTER", "LEAVING", "no") == b"OK"
        until(lambda: one.flags_of(leaving) == "noflags", "the end of the flag")


def test_the_copy_of_a_spool_is_refused_by_name_in_both_logs(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, _, original = nodes
        assert original("CLUSTER", "SAVECONFIG") == b"OK"
        copy = ClusterNode(tmp_path / "copy")
        shutil.copytree(original.spool, copy.spool)
        try:
            copy.start()
            for node in (one, copy):
                line = node.logged("two nodes have the id")
                assert original.id in line
                assert f"127.0.0.1:{original.client_port}" in line
                assert f"127.0.0.1:{copy.client_port}" in line
                assert "run CLUSTER RESET HARD on the copy" in line
            until(lambda: "fail?" in copy.flags_of(one), "a flag at the copy")
            until(lambda: one.flags_of(original) == "noflags", "no flag on the original")
            assert sum("two nodes have the id" in line for line in one.log) == 1
            assert original.meet(copy) == b"OK"
            assert f"127.0.0.1:{copy.client_port}" in original.logged("two nodes have the id")
            assert copy("CLUSTER", "RESET", "HARD") == b"OK"
            copy.id = copy("CLUSTER", "MYID").decode()
            assert copy.meet(one) == b"OK"
            until(lambda: one.flags_of(copy) == original.flags_of(copy) == "noflags", "the former copy as a node")
        finally:
            copy.end()


def test_clients_are_let_in_once_all_others_were_pinged_or_soon_if_one_does_not_answer(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        one, slow, back = nodes
        back.stop()
        stop(slow.pid)
        back.start()
        until(lambda: one.flags_of(back) == "noflags", "the node")
        os.kill(slow.pid, signal.SIGCONT)


def test_host_names_are_resolved_and_what_is_none_is_an_invalid_address(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 1) as (one,):
        other = ClusterNode(tmp_path / "other")
        other.start()
        try:
            assert one("CLUSTER", "MEET", "no-such-host.invalid", 7711) == (
                b"ERR Invalid node address specified: no-such-host.invalid:7711"
            )
            assert one("CLUSTER", "MEET", "localhost", other.client_port, other.bus_port) == b"OK"
            until(lambda: one.sees([other]), "the other node")
        finally:
            other.end()


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (("127.0.0.1",), "Wrong CLUSTER subcommand or number of arguments"),
        (("127.0.0.1", 1, 2, 3), "Wrong CLUSTER subcommand or number of arguments"),
        (("127.0.0.1", "x"), "Invalid TCP port specified: x"),
        (("127.0.0.1", 1, "y"), "Invalid TCP port specified: y"),
        (("127.0.0.1", 55_536), "Invalid node address specified: 127.0.0.1:55536"),
        (("127.0.0.1", 1, 65_536), "Invalid node address specified: 127.0.0.1:1:65536"),
        (("127.0.0.1", -1, 5), "Invalid node address specified: 127.0.0.1:-1:5"),
    ],
)
def test_an_address_to_meet_is_checked(words: tuple[str | int, ...], reply: str, one: ClusterNode) -> None:
    assert one("CLUSTER", "MEET", *words) == ErrorReply(f"ERR {reply}".encode())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with cluster_of(tmp_path_factory.mktemp("one"), 1) as (node,):
        yield node


@pytest.mark.parametrize(("a_host_s", "all_s"), [(60, 60), pytest.param(1.5, 1, marks=pytest.mark.long)])
def test_replies_that_wait_for_the_disk_or_a_resolver_come_as_soon_as_these_have_answered(
    one: ClusterNode, a_host_s: float, all_s: float
) -> None:
    one("CLUSTER", "LEAVING", "yes")
    began_s = time.monotonic()
    assert one("CLUSTER", "MEET", "no-such-host.invalid", 7711).startswith(b"ERR Invalid node address")
    assert time.monotonic() - began_s < a_host_s, "a second at most"
    began_s = time.monotonic()
    for word in ("yes", "no") * 5:
        assert one("CLUSTER", "LEAVING", word) == b"OK"
        assert one("CLUSTER", "SAVECONFIG") == b"OK"
    assert time.monotonic() - began_s < all_s


def test_who_is_met_in_vain_is_named_in_the_log(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 1) as (one,):
        assert isinstance(one("CLUSTER", "MEET", "127.0.0.1", 9, 9), Status)
        assert "Connection refused" in one.logged("cannot meet a node at 127.0.0.1:9")
