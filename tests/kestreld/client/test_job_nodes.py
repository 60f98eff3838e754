"""Which node a client of jobs asks: tables without nodes, and real nodes that are killed, leave and give jobs."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from kestreld.client import AsyncJobClient, Job, JobClient, ServersAway, job_nodes
from kestreld.client.job_connection import KnownNode, NodeHello
from kestreld.client.job_nodes import AWAY_MS_MAX, MOVE_EVERY_MS, NEVER_MET_MS_MAX, PRIORITY_MS, JobNodes
from tests.support.cluster_nodes import CALM, ClusterNode, cluster_of
from tests.support.waiting import until

IDS: Final = {name: name * 40 for name in "abcd"}


class Time:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def place(name: str) -> str:
    return f"10.0.0.{'abcd'.index(name) + 1}:7711"


def hello(own: str, **priorities: int) -> NodeHello:
    """What a node says, of itself that its own address is not known."""
    others = [KnownNode(IDS[name], place(name), priority) for name, priority in priorities.items()]
    return NodeHello(IDS[own], (KnownNode(IDS[own], "", 1), *others))


def job(name: str, node: str = "") -> Job:
    return Job("q", f"D-{IDS[name][:8]}-AAAAAAAAAAAAAAAAAAAAAAAA-05a1", b"", node=node)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def nodes(time: Time) -> JobNodes:
    """Of which a is given, and tells of b and c."""
    nodes = JobNodes([place("a")], Random(1), read_clock_ms=time)
    nodes.met(place("a"), hello("a", b=1, c=1))
    return nodes


def order(nodes: JobNodes, of: Job | None = None) -> str:
    """Which nodes are asked, one after the other."""
    found = nodes.in_order(b"" if of is None else of.id.encode(), "" if of is None else of.node)
    return "".join("abcd"["1234".index(address[7])] for address in found)


# Tables


def test_nodes_that_others_tell_of_come_last_and_by_their_priorities(nodes: JobNodes, time: Time) -> None:
    nodes.met(place("a"), hello("a", b=10, c=1))
    assert order(nodes) == "acb"
    nodes.met(place("a"), hello("a", b=1, c=100))
    assert order(nodes) == "abc"
    nodes.leave_out(place("a"), "gone")
    assert order(nodes) == "bca"
    time.now_ms += 101
    assert order(nodes) == "abc"
    time.now_ms += PRIORITY_MS
    assert sorted(order(nodes)) == ["a", "b", "c"], "by then nobody knows how they are"
    nodes.met(place("b"), hello("b", a=100, d=1))
    assert order(nodes)[-1] == "a"
    assert sorted(order(nodes)) == ["a", "b", "d"], "the one that was met last, and those that it tells of"


def test_a_node_that_leaves_is_asked_last_but_for_the_jobs_that_it_has_handed_out(nodes: JobNodes, time: Time) -> None:
    nodes.leaves(place("a"))
    assert order(nodes)[-1] == "a"
    assert order(nodes, job("b", place("a")))[0] == "a"
    assert order(nodes, job("a"))[0] == "a"
    time.now_ms += PRIORITY_MS
    assert order(nodes)[0] == "a"


def test_a_job_goes_to_the_node_that_has_handed_it_out_else_to_that_of_its_id(nodes: JobNodes) -> None:
    assert order(nodes, job("c"))[:2] == "ca"
    assert order(nodes, job("c", place("b")))[:2] == "ba"
    assert order(nodes, job("d"))[0] == "a", "nobody knows where it is"
    nodes.leave_out(place("b"), "gone")
    assert order(nodes, job("c", place("b")))[-1] == "b"


@pytest.mark.parametrize(("name", "away_ms"), [("a", AWAY_MS_MAX), ("b", NEVER_MET_MS_MAX)])
def test_a_node_that_was_never_reached_is_tried_less_often_in_the_end(
    nodes: JobNodes, time: Time, name: str, away_ms: int
) -> None:
    for _ in range(20):
        nodes.leave_out(place(name), "unreachable")
    time.now_ms += away_ms - 1
    assert order(nodes, job(name))[-1] == name
    time.now_ms += 1
    assert order(nodes, job(name))[0] == name


def test_a_client_that_does_not_discover_asks_none_but_those_it_was_given(time: Time) -> None:
    nodes = JobNodes([place("a"), place("b")], Random(2), discovers=False, read_clock_ms=time)
    first = nodes.in_order(b"")[0]
    nodes.met(place("a"), hello("a", b=100, c=1))
    assert order(nodes) == "ab"
    nodes.met(place("a"), hello("a", b=1, c=1))
    assert nodes.in_order(b"")[0] == first
    assert order(nodes, job("b"))[0] == "b"
    assert order(nodes, job("c"))[0] == order(nodes)[0]


def test_addresses_that_were_given_are_used_rather_than_those_that_nodes_tell(time: Time) -> None:
    nodes = JobNodes(["tls:a.example:1"], Random(1), read_clock_ms=time)
    nodes.met("tls:a.example:1", hello("a", b=1))
    assert nodes.in_order(b"") == ["tls:a.example:1", f"tls:{place('b')}"]
    nodes.met(f"tls:{place('b')}", hello("b", a=1))
    assert nodes.in_order(b"") == ["tls:a.example:1", f"tls:{place('b')}"]


@pytest.mark.parametrize(
    ("origins", "moves_to"),
    [
        ("b" * 20, "b"),
        ("b" * 19, "a"),  # too few to tell
        ("b" * 14 + "a" * 7, "b"),
        ("b" * 13 + "a" * 7, "a"),  # not twice as many as from here
        ("b" * 14 + "c" * 14, "a"),  # no majority
        ("a" * 30, "a"),
        ("d" * 30, "a"),  # nobody knows where that is
    ],
)
def test_it_moves_to_the_node_that_most_jobs_come_from(
    nodes: JobNodes, time: Time, origins: str, moves_to: str
) -> None:
    nodes.fetched(place("a"), [job(name) for name in origins[:-1]])
    assert order(nodes)[0] == "a"
    time.now_ms += MOVE_EVERY_MS
    nodes.fetched(place("a"), [job(origins[-1])])
    assert order(nodes)[0] == moves_to


def test_it_moves_once_in_a_while_and_back_only_for_as_good_a_reason(nodes: JobNodes, time: Time) -> None:
    def fetch(node: str, origins: str) -> str:
        time.now_ms += MOVE_EVERY_MS
        nodes.fetched(place(node), [job(name) for name in origins])
        return order(nodes)[0]

    assert fetch("a", "b" * 20) == "b"
    nodes.met(place("b"), hello("b", a=1, c=1))
    nodes.fetched(place("b"), [job("a")] * 100)
    assert order(nodes)[0] == "b", "not yet"
    assert fetch("b", "b" * 60) == "b"
    assert fetch("b", "c" * 20 + "b" * 11) == "b"
    assert fetch("b", "c" * 40) == "c"
    nodes.leave_out(place("c"), "gone")
    assert order(nodes)[0] != "c"


# Real nodes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[ClusterNode]]:
    with cluster_of(tmp_path, 3) as nodes:
        yield nodes


@pytest.fixture
def calm_cluster(tmp_path: Path) -> Iterator[list[ClusterNode]]:
    """Nodes that lose nothing that they tell each other, as none counts as down while the machine keeps it waiting."""
    with cluster_of(tmp_path, 3, CALM) as nodes:
        yield nodes


def test_where_the_node_that_was_given_is_killed_the_client_goes_to_one_that_it_has_told_of(
    cluster: list[ClusterNode],
) -> None:
    first, other, third = cluster
    with JobClient([first.disque], patience=60) as client, JobClient([first.disque], discover=False, patience=0) as two:
        job_id = client.add("q", b"x")
        assert two.qlen("q") == 1
        job = client.get("q")
        assert job is not None
        assert job.node == first.disque
        first.kill()
        assert client.working(job) > 0, "another node has a copy"
        assert client.ack(job) == 1
        until(lambda: "fail" in other.flags_of(first) and "fail" in third.flags_of(first), "the flags")
        assert client.add("q", b"y") != job_id
        with pytest.raises(ServersAway):
            two.qlen("q")
        first.start()
        assert two.qlen("q") == 0


def test_a_client_that_waits_at_a_node_that_leaves_gets_a_job_of_another_one(calm_cluster: list[ClusterNode]) -> None:
    leaving, other, third = calm_cluster
    found: list[Job | None] = []
    with JobClient([leaving.disque]) as client:
        client.add("mine", b"x")
        mine = client.get("mine")
        assert mine is not None
        waiting = threading.Thread(target=lambda: found.append(client.get("q", timeout=60)))
        waiting.start()
        until(lambda: b"blocked_clients:1\r" in leaving("INFO", "clients"), "a client that waits")
        assert leaving("CLUSTER", "LEAVING", "yes") == b"OK"
        until(lambda: any(b"blocked_clients:1\r" in node("INFO", "clients") for node in (other, third)), "it elsewhere")
        other("ADDJOB", "q", "y", 1000)
        waiting.join(60)
        (job,) = found
        assert job is not None
        assert job.node != leaving.disque
        assert client.ack(job) == 1
        assert client.working(mine) > 0
        assert client.ack(mine) == 1, "it still knows the job that it has handed out"
        job_id = client.add("another", b"z")
        assert leaving("SHOW", job_id) is None


def test_a_job_that_its_node_has_not_kept_is_given_back_where_it_came_from(calm_cluster: list[ClusterNode]) -> None:
    """A node that leaves has others hold what it is given: the id names a node that does not know the job."""
    leaving, _, _ = calm_cluster
    assert leaving("CLUSTER", "LEAVING", "yes") == b"OK"
    job_id = leaving("ADDJOB", "q", "x", 5000, "REPLICATE", 1, "RETRY", 60).decode()
    with JobClient([node.disque for node in calm_cluster], chance=Random(3)) as client:
        with client.work("q", timeout=60) as job:
            assert job is not None
            assert (job.id, job.node == leaving.disque) == (job_id, False)
            assert client.nack(job) == 1
            again = client.get("q", timeout=60)
            assert again is not None
            assert again.nacks == 1
        shown = client.show(again)
        assert shown is None or shown["state"] == "acked"


def test_a_client_moves_to_the_node_whose_jobs_it_gets(
    calm_cluster: list[ClusterNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_nodes, "MOVE_EVERY_MS", 100)
    near, far, _ = calm_cluster
    with JobClient([near.disque]) as client:
        for _ in range(1000):
            far("ADDJOB", "q", "x", 1000, "REPLICATE", 1)
        seen: list[str] = []
        while far.disque not in seen:
            job = client.get("q", timeout=60)
            assert job is not None
            seen.append(job.node)
            client.ack(job)
        assert seen[0] == near.disque


def test_the_client_for_asyncio_goes_on_where_nodes_are_killed_or_leave(cluster: list[ClusterNode]) -> None:
    async def use() -> None:
        first, leaving, last = cluster
        async with AsyncJobClient([first.disque], patience=60) as client:
            await client.add("q", b"x")
            async with client.work("q", timeout=60) as job:
                assert job is not None
                assert job.node == first.disque
                first.kill()
            assert leaving("CLUSTER", "LEAVING", "yes") == b"OK"
            waiting = asyncio.create_task(client.get("other", timeout=60))
            await asyncio.sleep(0)
            last("ADDJOB", "other", "y", 1000, "REPLICATE", 1)
            found = await waiting
            assert found is not None
            assert found.node == last.disque
            assert await client.ack(found) == 1
        async with AsyncJobClient([last.disque], discover=False, patience=0) as client:
            assert await client.qlen("other") == 0
            last.kill()
            with pytest.raises(ServersAway):
                await client.qlen("other")

    asyncio.run(use())
