"""Every order in which messages about one job can arrive, with a fault or the passing of time at every point.

A scenario without faults takes less than a second, one with a fault a few, one with a fault and a tick of the clock a
minute or two. With SEARCH=1 there are two faults, too.
"""

import os
from itertools import islice
from typing import Final

import pytest

from tests.kestreld.cluster.exploring import (
    Explorer,
    Run,
    Scenario,
    ack,
    add,
    add_with_key,
    add_without_waiting,
    bury,
    explored,
    fastack,
    get,
    nack,
    wait,
    working,
)
from tests.support.compiled import IS_COMPILED

pytestmark = pytest.mark.skipif(IS_COMPILED, reason="tables of compiled modules are too large to be made so often")

SCENARIOS: Final = {
    "acknowledged where it was added": Scenario([add(0), get(0), ack(0)]),
    "acknowledged at another owner": Scenario([add(0), get(0), ack(1)]),
    "acknowledged where it is not": Scenario([add(0), get(0), ack(2)], copies=2),
    "acknowledged at two owners": Scenario([add(0), get(0), ack(0), ack(1)]),
    "acknowledged with FASTACK": Scenario([add(0), get(0), fastack(0)], is_fast=True),
    "acknowledged by its importer, on one node": Scenario([wait(1), add(0), ack(1)], copies=1),
    "acknowledged by its importer, on two nodes": Scenario([wait(2), add(0), ack(2)], copies=2),
    "delivered at most once, where somebody waits": Scenario([wait(1), add(0), ack(1)], copies=1, retry_ms=0),
    "added while a node is down": Scenario([add(0), get(0), ack(0)], copies=2, down=(2,)),
    "added with ASYNC": Scenario([add_without_waiting(0), get(0), ack(0)], is_async=True),
    "one key at two nodes": Scenario([add_with_key(0), add_with_key(1)], copies=2),
    "one key at two nodes, the lesser one first": Scenario([add_with_key(1), add_with_key(0)], copies=2),
    "given back": Scenario([add(0), get(0), nack(0), get(0), ack(0)]),
    "given back at another owner": Scenario([add(0), get(0), nack(1), get(1), ack(1)]),
    "worked on": Scenario([add(0), get(0), working(1), ack(0)]),
    "buried": Scenario([add(0), get(0), bury(0)]),
    "without logs": Scenario([add(0), get(0), ack(0)], has_log=False),
    "imported without logs": Scenario([wait(1), add(0), ack(1)], copies=2, has_log=False),
}
QUICK: Final = (
    "acknowledged with FASTACK",
    "acknowledged by its importer, on one node",
    "delivered at most once, where somebody waits",
)
# With a fault and a tick these have many millions of orders.
WIDE: Final = (
    "acknowledged at two owners",
    "acknowledged by its importer, on two nodes",
    "worked on",
)
NARROW: Final = tuple(name for name in SCENARIOS if name not in WIDE)
SEARCHES: Final = "SEARCH" in os.environ


def must_be_well(name: str, *, faults: int, ticks: int = 0) -> None:
    count = 0
    for steps, problems in explored(SCENARIOS[name], faults_max=faults, ticks_max=ticks):
        assert problems == [], steps
        count += 1
    assert count


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_the_order_without_faults(name: str) -> None:
    must_be_well(name, faults=0)


@pytest.mark.parametrize("name", QUICK)
def test_whatever_the_order_with_a_lost_link_or_a_crash(name: str) -> None:
    must_be_well(name, faults=1)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in QUICK])
def test_whatever_the_order_with_a_fault_in_the_other_scenarios(name: str) -> None:
    must_be_well(name, faults=1)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not SEARCHES, reason="it takes minutes for each: SEARCH=1 does it, as does make prove")
@pytest.mark.parametrize("name", NARROW)
def test_whatever_the_order_with_a_fault_and_the_passing_of_time(name: str) -> None:
    must_be_well(name, faults=1, ticks=1)


@pytest.mark.long
@pytest.mark.parametrize("name", NARROW)
def test_whatever_the_order_while_timers_fall_due(name: str) -> None:
    must_be_well(name, faults=0, ticks=2)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not SEARCHES, reason="it takes an hour: SEARCH=1 does it")
@pytest.mark.parametrize("name", NARROW)
def test_whatever_the_order_with_two_faults(name: str) -> None:
    must_be_well(name, faults=2)


def test_what_is_known_of_a_nodes_moves_is_what_nodes_do() -> None:
    """The states that orders were put together from are those in which real nodes are in the end."""
    scenario = SCENARIOS["given back at another owner"]
    explorer = Explorer(scenario, faults_max=1)
    for steps in islice(explorer.orders(), 20):
        run = Run(scenario, steps)
        views = explorer.views_after(steps)
        for node, view in zip(run.net.nodes, views, strict=True):
            assert (node.is_up, len(node.fetched), tuple(node.added)) == (view.is_up, view.fetched, view.answers)
            if node.is_up:
                assert bool(node.queue.jobs.count) == view.is_queued
