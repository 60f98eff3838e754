"""Nodes of a cluster in the console: what real servers say of each other, and what is made of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.support.cluster_nodes import ClusterNode, cluster_of
from tests.support.daemon import running_daemon
from tests.support.shell import Kestrelctl
from tests.tui.sights import console, drive, line_of, lines, type_in, until, until_true
from tui.board import ALL_SERVERS, Board
from tui.node_rows import DOWN, LEAVING, NO_LINK, NOT_READY, STRANGER, SUSPECTED, UP, node_rows_of
from tui.recording import Recorder, load
from tui.screens.command_line import CommandLine
from tui.snapshots import NODE_KEYS, NodeFigures, Snapshot


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[ClusterNode]]:
    with cluster_of(tmp_path, 3, admin="127.0.0.1:0") as nodes:
        yield nodes


def test_nodes_are_shown_with_what_they_hold_and_one_that_is_lost_is_named(nodes: list[ClusterNode]) -> None:
    one, other, gone = nodes
    for _ in range(4):
        one("ADDJOB", "q", "x", 1000)

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "└ jobs (g)", "nodes (n) 3 of 3 up", "n nodes")
        await pilot.press("n")
        await until(pilot, "nodes  3 of 3 up  jobs 8", "copies of a job 3", f"› {min(places(nodes))}")
        assert line_of(pilot, f"{place(one)}   ").removeprefix("›").split()[2] == "up"
        # The third one is not asked: nobody says how many jobs it holds.
        assert line_of(pilot, f"{place(gone)}   ").removeprefix("›").split()[2] == "up"
        gone.kill()
        await until(pilot, "nodes  2 of 3 up", f"✖ {place(gone)}  DOWN: Connection refused", "gets 2, not 3")
        await until_true(pilot, lambda: " down " in line_of(pilot, f"{place(gone)}   "), "its state")
        await pilot.press("n")
        await until(pilot, "queues 0", "nodes (n) 2 of 3 up", f"{place(gone)}  DOWN")
        await pilot.press("g", "n")
        await until(pilot, "nodes  2 of 3 up")
        await pilot.press("escape")
        await until(pilot, "jobs  queues 1", f"{place(gone)}  DOWN")
        await pilot.press("enter")
        await until(pilot, "queued jobs, 4")
        await pilot.press("i", "i", "i")
        await until(pilot, "copies of jobs, 4")

    drive(console(one.address, other.address), driving, (160, 40))


def place(node: ClusterNode) -> str:
    return f"127.0.0.1:{node.client_port}"


def places(nodes: list[ClusterNode]) -> list[str]:
    return [place(node) for node in nodes]


def test_without_an_admin_port_it_says_so_and_without_other_nodes_there_is_no_page(tmp_path: Path) -> None:
    with cluster_of(tmp_path / "cluster", 2) as (one, other):

        async def driving(pilot: Pilot[None]) -> None:
            await until(pilot, "nodes (n) 2 of 2 up")
            await pilot.press("n")
            await until(pilot, "no admin port: other nodes are not listed", "copies of a job 2")
            other.kill()
            await until(pilot, "NODES DOWN: 1 of 1 others")

        drive(console(one.address), driving, (160, 30))

    with running_daemon(tmp_path / "alone", "listen.disque=127.0.0.1:0") as daemon:

        async def driving_alone(pilot: Pilot[None]) -> None:
            await until(pilot, "└ jobs (g)")
            assert "nodes" not in lines(pilot)[-1]
            await pilot.press("n")
            await pilot.press("colon")
            await until_true(pilot, lambda: isinstance(pilot.app.screen, CommandLine), "the command line")
            await type_in(pilot, "nodes", "enter")
            await until(pilot, "no server has other nodes", "└ jobs (g)")

        drive(console(daemon.address), driving_alone, (120, 30))


def test_nodes_as_text_and_json(nodes: list[ClusterNode], tmp_path: Path) -> None:
    one = nodes[0]
    one("ADDJOB", "q", "x", 1000)
    kestrelctl = Kestrelctl(one.address, tmp_path)
    text = kestrelctl("top", "--once", "--plain", "-i", "20ms").out.decode().splitlines()
    at = next(number for number, line in enumerate(text) if line.startswith("node "))
    assert sorted(line.split()[0] for line in text[at + 1 : at + 4]) == sorted(places(nodes))
    record = json.loads(kestrelctl("top", "--once", "--json", "-i", "20ms").out)
    assert {node["id"] for node in record["nodes"]} == {node.id for node in nodes}
    assert [node["jobs"] for node in record["nodes"] if node["id"] == one.id] == [1]


def figures(**known: Any) -> NodeFigures:
    figures = {"address": "", "flags": "noflags", "link": 1, "up": 1, "knows_us": 1, "problem": ""} | known
    return tuple([figures.get(key) for key in NODE_KEYS])


def own(**known: Any) -> NodeFigures:
    nothing = dict.fromkeys(("link", "up", "knows_us"))
    return figures(**{"flags": "myself", "jobs": 5} | nothing | known)


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({}, UP),
        ({"flags": "leaving"}, LEAVING),
        ({"up": 0}, NOT_READY),
        ({"up": 0, "knows_us": 0}, STRANGER),
        ({"link": 0, "up": 0}, NO_LINK),
        ({"flags": "fail?", "link": 0, "up": 0}, SUSPECTED),
        ({"flags": "fail,leaving", "link": 0, "up": 0}, DOWN),
    ],
)
def test_a_nodes_state_is_the_worst_that_any_server_says(known: dict[str, Any], state: str) -> None:
    first = Snapshot("a:1", 1, 1, {}, {}, nodes={"a": own(), "c": figures(**known)})
    second = Snapshot("b:1", 1, 1, {}, {}, nodes={"b": own(), "c": figures()})
    assert {row.id: row.state for row in node_rows_of([(None, first), (None, second)])} == {
        "a": UP, "b": UP, "c": state,
    }  # fmt: skip


def test_figures_of_a_node_are_those_of_all_that_see_it_and_its_jobs_its_own() -> None:
    def look(at_ms: int, given: int) -> list[Snapshot]:
        seen = {"lag_us": 1500, "queued_bytes": 10, "links": 1}
        return [
            Snapshot("a:1", at_ms, at_ms, {}, {}, nodes={
                "a": own(address="10.0.0.1:7711"),
                "b": figures(address="10.0.0.2:7711", jobs_given=given, jobs_taken=0, **seen),
                "c": figures(jobs_given=0, jobs_taken=2 * given, **seen),
            }),
            Snapshot("b:1", at_ms, at_ms, {}, {}, nodes={
                "b": own(address="10.0.0.2:7711", jobs=7),
                "c": figures(jobs_given=0, jobs_taken=0, **{**seen, "lag_us": 2500}),
            }),
        ]  # fmt: skip

    rows = {row.id: row for row in node_rows_of(list(zip(look(0, 10), look(2000, 30), strict=True)))}
    assert (rows["a"].jobs, rows["b"].jobs, rows["c"].jobs) == (5, 7, None)
    assert (rows["c"].lag_ms, rows["c"].queued_bytes, rows["c"].links) == (2.5, 20, 2)
    # a gave 20 jobs to b and took 40 from c in two seconds; b says of itself that it has given none.
    assert (rows["a"].given_per_s, rows["a"].taken_per_s) == (10.0, 20.0)
    assert (rows["b"].given_per_s, rows["b"].taken_per_s) == (0.0, 0.0)
    assert (rows["c"].given_per_s, rows["c"].taken_per_s) == (20.0, 0.0)
    (row,) = [row for row in node_rows_of([(None, look(0, 1)[0])]) if row.id == "b"]
    assert (row.given_per_s, row.address) == (None, "10.0.0.2:7711")


def test_a_recording_gives_back_nodes(tmp_path: Path) -> None:
    looks = [Snapshot("a:1", at_ms, at_ms, {}, {}, nodes={"a": own(jobs=at_ms)}) for at_ms in (1, 1001)]
    recorder = Recorder(str(tmp_path / "seen.jsonl"), 500)
    for look in looks:
        recorder.write(look)
    recorder.close()
    player, board = load(str(tmp_path / "seen.jsonl")), Board(["a:1"])
    assert list(player.samples) == looks
    player.seek(1, board)
    assert [row.jobs for row in board.node_rows(ALL_SERVERS)] == [1001]
