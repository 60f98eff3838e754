"""Who is in a cluster and who is up: several nodes on a network that a test cuts, without sockets."""

from random import Random
from typing import Final

import pytest

from kestreld.cluster.messages import Failed, Ping
from kestreld.cluster.nodes import Flag, NodeAddress
from tests.support.cluster_net import TIMEOUT_MS, Member, Net

SEEDS: Final = [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 40))]


@pytest.fixture
def seven() -> Net:
    net = Net(7)
    net.form()
    return net


@pytest.fixture
def four() -> Net:
    net = Net(4)
    net.form()
    return net


def agree(net: Net) -> bool:
    tables = [node.table() for node in net.nodes if node.is_up]
    return all(table == tables[0] for table in tables)


def are_all_up(net: Net) -> bool:
    return all(
        node.table() == {one.id: Flag(0) for one in net.nodes}
        and all(entry.is_up for entry in node.membership.table.members())
        for node in net.nodes
    )


# Getting to know each other


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_meet_one_get_to_know_all(seed: int) -> None:
    net = Net(7, seed)
    net.form()
    assert are_all_up(net)
    assert all(sorted(node.came) == sorted(one.id for one in net.nodes if one is not node) for node in net.nodes)


@pytest.mark.parametrize("seed", SEEDS)
def test_they_know_all_at_once_however_rarely_they_ping(seed: int) -> None:
    net = Net(7, seed, timeout_ms=15_000)
    for node in net.nodes[1:]:
        net.nodes[0].membership.meet(node.address, node.clock.monotonic_ms)
    net.run(500)
    assert are_all_up(net)


def test_a_node_that_meets_itself_knows_nobody_and_complains_of_nothing() -> None:
    net = Net(1)
    net.nodes[0].membership.meet(net.nodes[0].address, net.nodes[0].clock.monotonic_ms)
    net.run(3000)
    assert list(net.nodes[0].table()) == [net.nodes[0].id]
    assert net.nodes[0].complaints == []


def test_meeting_a_member_again_changes_nothing(seven: Net) -> None:
    seven.nodes[2].membership.meet(seven.nodes[5].address, seven.nodes[2].clock.monotonic_ms)
    seven.run(1000)
    assert are_all_up(seven)


def test_a_handshake_with_nobody_ends(seven: Net) -> None:
    node = seven.nodes[0]
    node.membership.meet(NodeAddress("10.9.9.9", 7711, 17711), node.clock.monotonic_ms)
    seven.run(TIMEOUT_MS // 2)
    assert any(flags & Flag.HANDSHAKE for flags in node.table().values())
    seven.run(TIMEOUT_MS)
    assert agree(seven)
    assert all(flags == Flag(0) for flags in node.table().values())


def test_nothing_but_pings_is_sent_once_all_know_each_other(seven: Net) -> None:
    before = seven.sent
    seven.run(10_000)
    assert seven.sent - before <= 7 * 6 * (10_000 // (TIMEOUT_MS // 4) + 1)


def test_a_node_is_up_only_for_those_that_are_members_for_it_too() -> None:
    net = Net(2)
    one, other = net.nodes
    net.form()
    other.membership.forget(other.entry(one), other.clock.monotonic_ms)
    assert other.went == other.gone == [one.id]
    net.run(TIMEOUT_MS)
    assert one.went == [other.id]
    assert not one.entry(other).is_reachable
    assert one.flags_of(other) == Flag(0), "it answers"


# Failures


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_node_has_failed_within_one_and_a_half_timeouts(seed: int) -> None:
    net = Net(5, seed)
    net.form()
    net.run(seed * 37)
    net.stop(net.nodes[2])
    net.run(TIMEOUT_MS * 3 // 2)
    others = [node for node in net.nodes if node.is_up]
    assert [node.flags_of(net.nodes[2]) for node in others] == [Flag.FAILED] * 4
    assert all(node.broken == node.went == [net.nodes[2].id] for node in others)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_falls_silent_has_failed_within_one_and_a_half_timeouts(seed: int) -> None:
    net = Net(5, seed)
    net.form()
    net.run(seed * 37)
    net.partition(2)
    net.run(TIMEOUT_MS * 3 // 2)
    assert {node.flags_of(net.nodes[2]) for node in net.nodes if node.number != 2} == {Flag.FAILED}


def test_a_broken_link_is_told_at_once_and_the_node_comes_up_again_with_the_next_link(seven: Net) -> None:
    one, other = seven.nodes[0], seven.nodes[1]
    one.came.clear()
    one.break_links_to(other)
    assert one.broken == [other.id]
    assert not one.entry(other).is_reachable
    seven.run(50)
    assert one.came == [other.id]
    assert one.went == []


def test_a_minority_suspects_the_others_and_fails_nobody(seven: Net) -> None:
    seven.partition(0, 1)
    seven.run(2 * TIMEOUT_MS)
    assert [seven.nodes[0].flags_of(one) for one in seven.nodes[2:]] == [Flag.SUSPECT] * 5
    assert seven.nodes[5].flags_of(seven.nodes[0]) == Flag.FAILED
    assert seven.nodes[0].flags_of(seven.nodes[1]) == Flag(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_heals_leaves_no_trace(seed: int) -> None:
    net = Net(7, seed)
    net.form()
    net.partition(*net.random.sample(range(7), net.random.randint(1, 3)))
    net.run(net.random.randint(100, 5 * TIMEOUT_MS))
    net.heal()
    net.run(TIMEOUT_MS)
    assert are_all_up(net)
    assert all(node.complaints == [] for node in net.nodes)


def test_one_node_that_gets_no_answer_is_not_the_majority(seven: Net) -> None:
    seven.cut = {(2, 3)}
    seven.run(4 * TIMEOUT_MS)
    assert seven.nodes[2].flags_of(seven.nodes[3]) == Flag.SUSPECT
    assert seven.nodes[5].flags_of(seven.nodes[3]) == Flag(0)
    seven.heal()
    seven.run(TIMEOUT_MS)
    assert are_all_up(seven)


def test_a_node_that_answers_is_not_taken_for_failed_because_others_say_so(seven: Net) -> None:
    one, other = seven.nodes[0], seven.nodes[1]
    failed = Failed(seven.nodes[2].id)
    seven.run(TIMEOUT_MS // 4)
    one.membership.received(other.hello, other.address, failed, other.clock.monotonic_ms, one.clock.monotonic_ms)
    assert one.flags_of(seven.nodes[2]) == Flag(0)
    seven.run(TIMEOUT_MS)
    assert are_all_up(seven)
    assert one.went == []


def test_a_failure_spreads_to_who_has_missed_the_message_of_it(seven: Net) -> None:
    seven.stop(seven.nodes[6])
    seven.run(4 * TIMEOUT_MS)
    late = seven.nodes[0].entry(seven.nodes[6])
    late.flags = Flag.SUSPECT
    late.reports.clear()
    seven.run(TIMEOUT_MS)
    assert late.flags == Flag.FAILED, "gossip tells it"


@pytest.mark.parametrize("down_ms", [200, 5 * TIMEOUT_MS])
def test_a_returning_node_is_up_again_for_all_within_100_ms_of_its_first_ping(seven: Net, down_ms: int) -> None:
    back = seven.nodes[4]
    seven.stop(back)
    seven.run(down_ms)
    seven.restart(back)
    seven.run(100)
    assert [node.flags_of(back) for node in seven.nodes] == [Flag(0)] * 7
    assert are_all_up(seven)
    assert all(node.complaints == [] for node in seven.nodes)


def test_a_process_that_was_stopped_blames_nobody_and_finds_out_anew_who_is_up(seven: Net) -> None:
    slow = seven.nodes[3]
    slow.is_up = False
    seven.run(4 * TIMEOUT_MS)
    slow.came.clear()
    slow.is_up = True
    slow.membership.tick(slow.clock.monotonic_ms)
    assert sorted(slow.went) == sorted(node.id for node in seven.nodes if node is not slow)
    assert not any(flags & (Flag.SUSPECT | Flag.FAILED) for flags in slow.table().values())
    seven.run(100)
    assert are_all_up(seven)


def test_the_timeout_may_be_changed_at_any_time(seven: Net) -> None:
    for node in seven.nodes:
        node.membership.timeout_ms = 200
    seven.stop(seven.nodes[1])
    seven.run(400)
    assert seven.nodes[0].flags_of(seven.nodes[1]) == Flag.FAILED


# Forgetting


def test_a_forgotten_node_is_not_brought_back_by_gossip_for_a_minute(four: Net) -> None:
    gone = four.nodes[3]
    four.stop(gone)
    for node in four.nodes[:3]:
        node.membership.forget(node.entry(gone), node.clock.monotonic_ms)
        four.run(300)
    for _ in range(500):
        four.run(100)
        assert all(len(node.table()) == 3 for node in four.nodes[:3]), "nor is it in handshake"


def test_after_a_minute_gossip_brings_back_a_node_that_was_not_forgotten_everywhere(four: Net) -> None:
    node, other = four.nodes[0], four.nodes[3]
    node.membership.forget(node.entry(other), node.clock.monotonic_ms)
    four.run(59_000)
    assert other.id not in node.table()
    four.run(3000)
    assert are_all_up(four)


def test_a_forgotten_node_that_is_met_is_a_member_at_once(seven: Net) -> None:
    for node in seven.nodes[:6]:
        node.membership.forget(node.entry(seven.nodes[6]), node.clock.monotonic_ms)
    seven.run(1000)
    seven.nodes[0].membership.meet(seven.nodes[6].address, seven.nodes[0].clock.monotonic_ms)
    seven.run(1000)
    assert seven.nodes[0].entry(seven.nodes[6]).is_up
    assert seven.nodes[6].entry(seven.nodes[0]).is_up


def test_a_node_that_was_reset_knows_nobody_until_it_is_met(seven: Net) -> None:
    reset = seven.nodes[3]
    reset.saved.clear()
    reset.membership.forget_all()
    assert reset.saved == [[]], "no file ever names some of them"
    seven.run(5000)
    assert list(reset.table()) == [reset.id]
    assert all(reset.id in node.went for node in seven.nodes if node is not reset)
    seven.nodes[0].membership.meet(reset.address, seven.nodes[0].clock.monotonic_ms)
    seven.run(3000)
    assert are_all_up(seven)


def test_a_node_with_a_new_id_at_an_old_address_is_met_there(seven: Net) -> None:
    reset = seven.nodes[3]
    old_id = reset.id
    reset.membership.forget_all()
    reset.id = b"f" * 40
    reset.membership.table.rename(reset.membership.table.myself, reset.id)
    for node in seven.nodes:
        node.break_links_to(reset)
    seven.run(300)
    assert all(node.table()[old_id] & Flag.NO_ADDRESS for node in seven.nodes if node is not reset)
    reset.membership.meet(seven.nodes[5].address, reset.clock.monotonic_ms)
    seven.run(3000)
    assert all(node.flags_of(reset) == Flag(0) for node in seven.nodes)


# Places


def test_a_node_in_another_place_is_found_there(seven: Net) -> None:
    moved = seven.nodes[1]
    seven.stop(moved)
    seven.run(3 * TIMEOUT_MS)
    moved.address = NodeAddress("10.0.0.99", 7711, 17711)
    seven.restart(moved)
    seven.run(100)
    assert are_all_up(seven)
    assert seven.nodes[5].entry(moved).address.host == "10.0.0.99"


def test_a_node_that_moves_before_anybody_has_missed_it_is_found_as_soon_as_the_old_place_is_silent(seven: Net) -> None:
    moved = seven.nodes[1]
    seven.stop(moved)
    moved.address = NodeAddress("10.0.0.99", 7711, 17711)
    seven.restart(moved)
    seven.run(TIMEOUT_MS // 2)
    assert are_all_up(seven)
    assert seven.nodes[5].entry(moved).address.host == "10.0.0.99"
    assert all(node.complaints == [] for node in seven.nodes)


# Two nodes with one id


def copy_of(net: Net, original: Member) -> Member:
    """A node that was started on a copy of another's spool."""
    copy = net.add()
    copy.id = original.id
    copy.begin(original.membership.table.others())
    return copy


def test_the_copy_of_a_node_is_refused_by_name_on_both_sides_and_nothing_it_says_counts(seven: Net) -> None:
    original = seven.nodes[1]
    copy = copy_of(seven, original)
    seven.run(2 * TIMEOUT_MS)
    for one in (seven.nodes[0], copy):
        assert "run CLUSTER RESET HARD on the copy" in one.complaints[0]
        assert all(str(place) in one.complaints[0] for place in (original.address, copy.address))
    assert seven.nodes[0].entry(original).address == original.address
    assert seven.nodes[0].membership.takes_jobs_of(copy.hello) is None
    assert seven.nodes[0].membership.takes_jobs_of(original.hello) is not None
    assert all(node.went == node.broken == [] for node in seven.nodes[:7] if node is not original)
    assert not any(node.is_up for node in copy.membership.table.members())


def test_a_copy_that_announces_the_same_address_breaks_no_link_to_the_original(seven: Net) -> None:
    original = seven.nodes[1]
    copy = copy_of(seven, original)
    hello = copy.hello.__class__(original.id, copy.hello.run_id, original.address)
    one = seven.nodes[0]
    for _ in range(5):
        assert one.membership.arrived(hello, original.address, one.clock.monotonic_ms) == ""
        assert one.membership.takes_jobs_of(hello) is None
        seven.run(100)
    assert len(one.complaints) >= 5
    assert one.broken == []


def test_a_copy_of_this_node_is_refused_by_name_whoever_calls(seven: Net) -> None:
    original = seven.nodes[1]
    copy = copy_of(seven, original)
    copy.membership.forget_all()
    seven.run(1)
    original.complaints.clear()
    original.membership.meet(copy.address, original.clock.monotonic_ms)
    seven.run(500)
    assert any(str(copy.address) in one for one in original.complaints)
    copy.membership.meet(original.address, copy.clock.monotonic_ms)
    seven.run(2 * TIMEOUT_MS)
    assert any(str(original.address) in one and str(copy.address) in one for one in copy.complaints)
    assert list(copy.table()) == [copy.id]


def test_whoever_is_up_keeps_the_id_and_a_return_of_the_other_is_refused(seven: Net) -> None:
    original = seven.nodes[1]
    seven.stop(original)
    seven.run(3 * TIMEOUT_MS)
    copy = copy_of(seven, original)
    seven.run(TIMEOUT_MS)
    assert seven.nodes[0].entry(original).address == copy.address
    seven.restart(original)
    seven.run(TIMEOUT_MS)
    assert original.complaints
    assert seven.nodes[0].entry(original).address == copy.address


# What nodes say of themselves


def test_leaving_is_known_to_all_at_once_and_can_be_taken_back(seven: Net) -> None:
    leaving = seven.nodes[3]
    leaving.membership.set_leaving(leaving=True, now_ms=leaving.clock.monotonic_ms)
    seven.run(10)
    assert [node.flags_of(leaving) for node in seven.nodes] == [Flag.LEAVING] * 7
    assert leaving.id not in [node.id for node in seven.nodes[0].membership.table.reachable()]
    assert seven.nodes[0].went == [], "it still takes messages"
    leaving.membership.set_leaving(leaving=False, now_ms=leaving.clock.monotonic_ms)
    seven.run(10)
    assert are_all_up(seven)


def test_a_node_that_reads_its_log_is_there_but_not_up_and_takes_nothing_about_jobs(seven: Net) -> None:
    loading, other = seven.nodes[3], seven.nodes[0]
    loading.membership.set_loading(loading=True, now_ms=loading.clock.monotonic_ms)
    seven.run(10)
    assert other.went == [loading.id]
    assert loading.membership.takes_jobs_of(other.hello) is None
    assert other.flags_of(loading) == Flag.LOADING
    seven.run(3 * TIMEOUT_MS)
    assert not other.entry(loading).is_reachable
    other.came.clear()
    loading.membership.set_loading(loading=False, now_ms=loading.clock.monotonic_ms)
    seven.run(10)
    assert other.came == [loading.id]
    assert are_all_up(seven)


def test_what_a_node_says_of_itself_is_not_undone_by_what_it_has_said_before(seven: Net) -> None:
    one, other = seven.nodes[0], seven.nodes[1]
    now_ms = other.clock.monotonic_ms
    for sent_at_ms, flags in ((now_ms, Flag.LEAVING), (now_ms - 1, Flag(0))):
        one.membership.received(other.hello, other.address, Ping(flags), sent_at_ms, one.clock.monotonic_ms)
    assert one.flags_of(other) == Flag.LEAVING


# In general


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_trouble_all_know_the_same(seed: int) -> None:
    random = Random(seed)
    net = Net(5, seed)
    net.delay_ms = lambda: random.choice([1, 1, 1, 3, 20])
    net.form()
    for _ in range(12):
        kind, node = random.choice(["cut", "heal", "stop", "restart", "break", "leave"]), random.choice(net.nodes)
        if kind == "cut":
            other = random.choice(net.nodes)
            net.cut.add((node.number, other.number))
        elif kind == "heal":
            net.heal()
        elif kind == "stop":
            net.stop(node)
        elif kind == "restart" and not node.is_up:
            net.restart(node)
        elif kind == "break":
            node.break_links_to(random.choice(net.nodes))
        elif kind == "leave" and node.is_up:
            node.membership.set_leaving(leaving=random.random() < 0.5, now_ms=node.clock.monotonic_ms)
        net.run(random.choice([5, 100, 700, 3000]))
    net.heal()
    for node in net.nodes:
        if not node.is_up:
            net.restart(node)
        node.membership.set_leaving(leaving=False, now_ms=node.clock.monotonic_ms)
    net.run(3 * TIMEOUT_MS)
    assert are_all_up(net)
    for node in net.nodes:
        assert node.complaints == []
