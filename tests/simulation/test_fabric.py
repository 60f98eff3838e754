"""Several simulated servers whose buses are connected: they meet, one of them dies, is flagged, and returns."""

from functools import partial
from random import Random

import pytest

from kestreld.cluster.nodes import Flag
from tests.simulation.machines import TIMEOUT_MS, Machines
from tests.support.compiled import interpreted_only

pytestmark = interpreted_only


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 10))])
@pytest.mark.parametrize("power_cut", [False, True])
def test_a_server_that_dies_is_flagged_and_is_one_of_them_again_after_its_return(seed: int, power_cut: bool) -> None:
    machines = Machines(seed)
    machines.form()
    one, other, gone = machines.hosts
    machines.run(machines.chance.randint(0, 1000))
    machines.kill(gone, power_cut=power_cut)
    for host in (one, other):
        machines.until(lambda host=host: machines.flags(host, gone) == Flag.FAILED, TIMEOUT_MS * 3 // 2)  # type: ignore[misc]
    machines.run(3000)
    machines.start(gone)
    machines.until(machines.is_whole, 100)
    for host in (one, other):
        events = [event for event, node in machines.told[host].events if node == gone]
        assert events == ["up", "broken", "down", "up"]
    assert not any("two nodes" in line for server in machines.servers.values() for line in server.log)


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_one_way_is_seen_at_both_ends_and_heals(seed: int) -> None:
    machines = Machines(seed)
    machines.form()
    one, other, third = machines.hosts
    machines.fabric.cut_way(one, other)
    machines.until(lambda: machines.flags(one, other) == machines.flags(other, one) == Flag.SUSPECT)
    machines.run(3000)
    assert machines.flags(third, one) == machines.flags(third, other) == Flag(0)
    machines.fabric.heal()
    machines.until(machines.is_whole, 3000)


@pytest.mark.parametrize("seed", range(3))
def test_broken_links_are_made_again_at_once(seed: int) -> None:
    machines = Machines(seed)
    machines.form()
    one, other, _ = machines.hosts
    machines.fabric.break_links(one, other)
    machines.until(lambda: ("broken", other) in machines.told[one].events, 50)
    machines.until(machines.is_whole, 300)
    assert machines.told[one].events[-1] == ("up", other)
    assert ("down", other) not in machines.told[one].events


def test_a_process_that_is_stopped_is_flagged_and_flags_nobody() -> None:
    machines = Machines(7)
    machines.form()
    one, other, slow = machines.hosts
    machines.servers[slow].loop.stop()
    machines.until(lambda: machines.flags(one, slow) == machines.flags(other, slow) == Flag.FAILED, 1600)
    machines.run(5000)
    machines.servers[slow].loop.go_on()
    machines.until(machines.is_whole, 200)
    events = machines.told[slow].events
    assert sorted(events[-4:]) == [("down", one), ("down", other), ("up", one), ("up", other)]


def test_slow_ways_do_not_part_nodes() -> None:
    machines = Machines(3)
    machines.form()
    one, other, _ = machines.hosts
    machines.fabric.delays_us[one, other] = 150_000
    machines.run(10_000)
    assert machines.is_whole()


def answered_after_ms(machines: Machines, host: str) -> int:
    """How long a client waits there from the start of the server on."""
    said: list[bytes] = []
    link = machines.servers[host].network.connect_client(lambda data, sent_us: said.append(data), lambda: None)
    assert link is not None
    link.send(b"PING\r\n")
    return machines.until(lambda: b"".join(said) == b"+PONG\r\n")


def test_a_returning_node_has_pinged_all_others_before_it_answers_a_client() -> None:
    machines = Machines(4, 5)
    machines.form()
    machines.run(100)  # the nodes are on disk
    back = machines.hosts[2]
    machines.kill(back)
    machines.run(5000)
    machines.start(back)
    machines.fabric.latency_us = 5_000
    spent_ms = answered_after_ms(machines, back)
    assert 15 < spent_ms < 100, "a connection and a handshake with each take so long"
    nodes = machines.servers[back].node.cluster.table.others()
    assert all(node.is_linked for node in nodes)
    machines.until(machines.is_whole, 100)


@pytest.mark.parametrize(("is_silent", "least_ms", "most_ms"), [(True, 490, 600), (False, 0, 60)])
def test_a_node_waits_for_silent_others_half_a_second_and_for_those_that_are_not_there_not_at_all(
    is_silent: bool, least_ms: int, most_ms: int
) -> None:
    machines = Machines(4)
    machines.form()
    machines.run(100)
    one, other, back = machines.hosts
    machines.kill(back)
    if is_silent:
        machines.fabric.partition(other)
    else:
        machines.kill(other)
        machines.fabric.networks[other] = machines.servers[one].network  # the machine is up, and refuses connections
    machines.start(back)
    assert least_ms <= answered_after_ms(machines, back) <= most_ms


def test_a_node_that_knows_no_other_waits_for_nobody_and_nothing_ticks_there() -> None:
    machines = Machines(4, 1)
    server = machines.servers[machines.hosts[0]]
    assert server.service is not None
    assert answered_after_ms(machines, machines.hosts[0]) < 20
    assert server.service.turn.senders == []
    assert server.service.agenda.next_at_ms() is None
    server.loop.run(server.node.cluster.meet, "10.0.0.77", 7711, 17_711, lambda is_found: None)
    machines.run(3000)
    assert server.service.turn.senders == [], "there is nobody there"
    assert server.service.agenda.next_at_ms() is None


def get_into_trouble(machines: Machines, chance: Random) -> None:
    """Processes die, stop and return, ways are cut and slow, links break; in the end all is well again."""
    down: set[str] = set()
    for _ in range(chance.randint(3, 15)):
        kind = chance.choice(
            ["cut", "cut", "heal", "kill", "power", "start", "break", "delay", "stop", "go on", "leave"]
        )
        one, other = chance.sample(machines.hosts, 2)
        server = machines.servers.get(one)
        if kind == "cut":
            machines.fabric.cut_way(one, other)
        elif kind == "heal":
            machines.fabric.heal()
        elif kind == "break":
            machines.fabric.break_links(one, other)
        elif kind == "delay":
            machines.fabric.delays_us[one, other] = chance.choice([1000, 50_000, 400_000])
        elif kind in ("kill", "power") and server is not None:
            machines.kill(one, power_cut=kind == "power")
            down.add(one)
        elif kind == "start" and server is None:
            machines.start(one)
            down.discard(one)
        elif kind == "stop" and server is not None:
            server.loop.stop()
        elif kind == "go on" and server is not None:
            server.loop.go_on()
        elif kind == "leave" and server is not None:
            server.loop.run(partial(server.node.set_leaving, leaving=chance.random() < 0.5))
        machines.run(chance.choice([1, 20, 100, 500, 2000, 4000]))
    machines.fabric.heal()
    for host in sorted(down):
        machines.start(host)
    for server in machines.servers.values():
        server.loop.go_on()
    machines.run(1)  # what they were told while they were stopped
    for server in machines.servers.values():
        server.loop.run(partial(server.node.set_leaving, leaving=False))


def is_one_after_trouble(seed: int) -> None:
    machines = Machines(seed, 5)
    machines.form()
    get_into_trouble(machines, Random(f"{seed} trouble"))
    machines.until(machines.is_whole, 3000)
    assert all(
        machines.flags(one, other) == Flag(0) for one in machines.hosts for other in machines.hosts if one != other
    )
    said = [line for server in machines.servers.values() for line in server.log]
    assert not [line for line in said if "two nodes" in line or "checksum" in line or "cannot be read" in line]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 8))])
def test_after_any_trouble_all_nodes_know_each_other_again(seed: int) -> None:
    is_one_after_trouble(seed)


@pytest.mark.long
def test_after_any_trouble_of_many_seeds_all_nodes_know_each_other_again() -> None:
    for seed in range(100, 300):
        is_one_after_trouble(seed)


def test_a_run_is_the_same_with_the_same_seed() -> None:
    def events(seed: int) -> int:
        machines = Machines(seed)
        machines.form()
        machines.kill(machines.hosts[0])
        machines.run(5000)
        return machines.schedule.events

    assert events(5) == events(5)


def test_the_first_member_of_a_cluster_has_its_nodes_on_disk_soon() -> None:
    machines = Machines(1)
    machines.form()
    machines.run(100)
    for host in machines.hosts:
        machines.kill(host, power_cut=True)
    for host in machines.hosts:
        machines.disks[host] = machines.disks[host].after_power_cut([], lambda file, change: None)
        machines.start(host)
    machines.until(machines.is_whole, 2000)
