"""ADDJOB in a cluster: how many nodes hold a job before its client is answered, and what becomes of one that is not."""

from collections import Counter

import pytest

from kestreld.cluster.job_messages import DelJob, GaveUp, GotJob, LendJob, Notice, Owners, ReplJob, SetAck, TookBack
from kestreld.cluster.reactions import Word
from kestreld.cluster.replication import MORE_AFTER_MS
from kestreld.jobs.job import ACKED, ACTIVE, COPY, DELAYED, QUEUED, WAIT_REPL
from kestreld.jobs.job_queue import PAUSED_IN, PAUSED_OUT
from tests.support.job_net import RETRY_MS, SLICE_MS, JobNet, JobNode


@pytest.fixture
def net() -> JobNet:
    return JobNet(3)


@pytest.fixture
def seven() -> JobNet:
    return JobNet(7)


def mute(net: JobNet, *numbers: int) -> None:
    """What is sent to these gets lost, and nobody has noticed yet."""
    net.cut |= {(one.number, number) for one in net.nodes for number in numbers}


# How many nodes hold it


@pytest.mark.parametrize("copies", range(1, 8))
def test_a_job_takes_two_messages_for_each_copy_on_another_node(seven: JobNet, copies: int) -> None:
    seven.nodes[0].add(copies)
    seven.run(1000)
    expected = {"ReplJob": copies - 1, "GotJob": copies - 1} if copies > 1 else {}
    assert seven.counted() == expected


def test_the_client_is_answered_once_as_many_nodes_as_it_asked_for_hold_the_job(seven: JobNet) -> None:
    node = seven.nodes[0]
    job_id = node.add(4)
    seven.run(1)
    assert (node.added, len(seven.holders(job_id))) == ([], 4)
    seven.run(1)
    assert node.added == [job_id]
    assert Counter(seven.states(job_id)) == {QUEUED: 1, COPY: 3, -1: 3}


def test_nobody_gets_a_job_before_its_client_is_answered(net: JobNet) -> None:
    node = net.nodes[0]
    node.wait()
    net.is_manual = True
    job_id = node.add(3)
    assert (node.state_of(job_id), node.fetched) == (WAIT_REPL, [])
    net.deliver_all()
    assert (node.added, node.fetched) == ([job_id], [job_id])


def test_a_client_that_waits_at_the_same_node_is_served_behind_the_answer(net: JobNet) -> None:
    node = net.nodes[0]
    node.wait()
    happened: list[str] = []
    node.add(3, added=lambda job_id: happened.append(f"added, {len(node.fetched)} fetched"))
    net.run(10)
    assert happened == ["added, 0 fetched"]
    assert len(node.fetched) == 1


def test_a_job_for_one_node_is_sent_to_nobody(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    assert net.nodes[0].added == [job_id]
    assert net.sent == []


def test_all_holders_know_all_holders(seven: JobNet) -> None:
    job_id = seven.nodes[0].add(3)
    seven.run(10)
    holders = set(seven.holders(job_id))
    assert len(holders) == 3
    assert all(seven.nodes[number].owners(job_id) == holders for number in holders)


def test_copies_are_spread_over_all_nodes(seven: JobNet) -> None:
    for _ in range(210):
        seven.nodes[0].add(3)
    seven.run(100)
    counts = [node.jobs.table.count for node in seven.nodes[1:]]
    assert sum(counts) == 2 * 210
    assert min(counts) > 40


def test_a_delayed_job_is_a_copy_elsewhere_and_is_queued_by_one_node_when_it_is_due(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = node.add(3, delay_s=5)
    net.run(10)
    assert net.states(job_id) == [DELAYED, COPY, COPY]
    net.run(4_980)
    assert net.states(job_id) == [DELAYED, COPY, COPY]
    net.run(20)
    assert net.states(job_id) == [QUEUED, COPY, COPY]


def test_a_delayed_job_whose_node_fails_is_queued_by_another_and_not_before_its_time(net: JobNet) -> None:
    job_id = net.nodes[0].add(3, delay_s=30)
    net.run(10)
    net.nodes[0].crash()
    net.run(30_000)
    assert net.queued_at(job_id) == []
    net.run(RETRY_MS + 2000)
    assert len(net.queued_at(job_id)) == 1


# One more node every 50 ms


def test_while_a_node_does_not_answer_one_more_is_asked_every_fifty_milliseconds(seven: JobNet) -> None:
    mute(seven, *range(1, 7))
    began_ms = seven.now_ms
    job_id = seven.nodes[0].add(3)
    asked_at: list[int] = []
    for _ in range(400):
        seven.run(1)
        asked = len({receiver for _, receiver, _ in seven.said(ReplJob)})
        asked_at += [seven.now_ms - began_ms] * (asked - 2 - len(asked_at))
    assert asked_at == [MORE_AFTER_MS * number for number in range(1, 5)]
    assert len(seven.said(ReplJob)) == 6, "nobody is asked twice over one link"
    assert seven.nodes[0].state_of(job_id) == WAIT_REPL


def test_those_that_were_asked_before_are_told_of_each_further_holder(seven: JobNet) -> None:
    node = seven.nodes[0]
    first = node.shared.peers.takers()
    mute(seven, *[other.number for other in seven.nodes if other.id != first[0].id][1:4])
    job_id = node.add(3)
    seven.run(500)
    assert node.added == [job_id]
    holders = set(seven.holders(job_id))
    asked = {receiver for _, receiver, _ in seven.said(ReplJob)} | {0}
    assert holders < asked
    for number in holders:
        assert seven.nodes[number].owners(job_id) == asked
    assert seven.said(Owners)


def test_a_node_is_asked_again_over_a_new_link(net: JobNet) -> None:
    node = net.nodes[0]
    net.is_manual = True
    job_id = node.add(3)
    net.lose(0, 1)
    net.deliver(0, 2)
    net.deliver(2, 0)
    net.run(MORE_AFTER_MS)
    assert [receiver for _, receiver, _ in net.said(ReplJob)] in ([1, 2, 1], [2, 1, 1])
    net.deliver_all()
    assert node.added == [job_id]


def test_a_node_that_comes_up_meanwhile_is_asked(net: JobNet) -> None:
    node = net.nodes[0]
    net.nodes[1].crash()
    mute(net, 2)
    job_id = node.add(2)
    net.run(100)
    assert node.added == []
    net.nodes[1].start()
    net.run(100)
    assert node.added == [job_id]
    assert net.holders(job_id) == [0, 1]


def test_a_copy_on_a_node_that_was_forgotten_meanwhile_does_not_count() -> None:
    net = JobNet(4)
    mute(net, 2, 3)
    node = net.nodes[0]
    job_id = node.add(3)
    net.run(200)
    assert net.holders(job_id) == [0, 1]
    node.forget(net.nodes[1])
    net.cut = {(0, 3), (3, 0)}
    net.run(8000)
    assert (net.holders(job_id), node.added) == ([0, 1, 2], [])
    net.cut = set()
    net.run(8000)
    assert node.added == [job_id]


def test_a_late_answer_counts(net: JobNet) -> None:
    node = net.nodes[0]
    net.delay_ms = lambda: 200
    job_id = node.add(2)
    net.run(500)
    assert node.added == [job_id]
    assert sorted(net.states(job_id)) == [QUEUED, COPY, COPY]
    assert node.owners(job_id) == {0, 1, 2}


# Default copies


@pytest.mark.parametrize(("nodes", "copies"), [(1, 1), (2, 2), (3, 3), (7, 3)])
def test_a_job_has_three_copies_where_there_are_as_many_nodes(nodes: int, copies: int) -> None:
    assert JobNet(nodes).nodes[0].shared.replicating.default_copies() == copies


def test_nodes_that_are_down_leaving_or_slow_do_not_count() -> None:
    net = JobNet(5)
    node = net.nodes[0]
    assert node.shared.replicating.copies_possible() == 5
    net.nodes[1].crash()
    net.nodes[2].set_leaving()
    node.is_crowded_for = {3}
    assert node.shared.replicating.copies_possible() == 2
    assert node.shared.replicating.default_copies() == 2


@pytest.mark.parametrize("what", ["leaving", "full", "not storing"])
def test_this_node_does_not_count_where_it_takes_no_copies(net: JobNet, what: str) -> None:
    node = net.nodes[0]
    unable(node, what)
    assert node.shared.replicating.default_copies() == 2


def test_there_is_one_copy_at_least() -> None:
    net = JobNet(1)
    net.nodes[0].set_leaving()
    assert net.nodes[0].shared.replicating.default_copies() == 1


# Nodes that take no copies


def unable(node: JobNode, what: str) -> None:
    if what == "leaving":
        node.set_leaving()
    elif what == "full":
        node.fill()
    elif what == "not storing":
        node.stores = False
    else:
        node.jobs.pause(node.queue, PAUSED_IN)


@pytest.mark.parametrize("what", ["full", "not storing", "paused"])
def test_a_node_that_takes_no_copies_does_not_answer_and_another_is_asked(seven: JobNet, what: str) -> None:
    for node in seven.nodes[1:5]:
        unable(node, what)
    job_id = seven.nodes[0].add(3)
    seven.run(500)
    assert seven.nodes[0].added == [job_id]
    assert seven.holders(job_id) == [0, 5, 6]


def test_a_node_whose_queue_gives_no_jobs_takes_copies(net: JobNet) -> None:
    net.nodes[1].jobs.pause(net.nodes[1].queue, PAUSED_OUT)
    job_id = net.nodes[0].add(3)
    net.run(10)
    assert net.holders(job_id) == [0, 1, 2]


def test_a_node_that_may_have_no_more_queues_takes_copies_only_for_those_it_has(net: JobNet) -> None:
    net.nodes[1].jobs.limit_queues(0)
    for _ in range(10):
        job_id = net.nodes[0].add(2)
        net.run(100)
        assert net.holders(job_id) == [0, 2]
    net.nodes[1].jobs.limit_queues(1)
    assert net.nodes[1].queue
    other = net.nodes[0].add(3)
    net.run(100)
    assert net.holders(other) == [0, 1, 2]


@pytest.mark.parametrize("what", ["leaving", "full", "not storing"])
def test_a_node_that_takes_no_copies_puts_its_jobs_on_others_one_of_which_queues_it(seven: JobNet, what: str) -> None:
    node = seven.nodes[0]
    unable(node, what)
    queued_at = set()
    for _ in range(20):
        job_id = node.add(3)
        seven.run(20)
        assert node.added[-1] == job_id
        assert sorted(seven.states(job_id)) == [-1] * 4 + [QUEUED, COPY, COPY]
        assert node.state_of(job_id) == -1
        (at,) = seven.queued_at(job_id)
        queued_at.add(at)
        assert seven.nodes[at].owners(job_id) == set(seven.holders(job_id))
    assert len(queued_at) > 3


def test_a_delayed_job_of_such_a_node_is_queued_when_it_is_due(net: JobNet) -> None:
    node = net.nodes[0]
    node.set_leaving()
    job_id = node.add(2, delay_s=5)
    net.run(10)
    assert sorted(net.states(job_id)) == [-1, DELAYED, COPY]
    net.run(5000)
    assert len(net.queued_at(job_id)) == 1


def test_a_job_that_comes_once_at_most_is_on_one_other_node_where_this_one_takes_none(net: JobNet) -> None:
    node = net.nodes[0]
    node.set_leaving()
    job_id = node.add(1, retry_ms=0)
    assert node.added == []
    net.run(10_000)
    assert node.added == [job_id]
    assert sorted(net.states(job_id)) == [-1, -1, QUEUED]


def test_of_two_nodes_that_were_offered_such_a_job_one_gets_it(net: JobNet) -> None:
    node = net.nodes[0]
    node.set_leaving()
    net.delay_ms = lambda: 200
    job_id = node.add(1, retry_ms=0)
    net.run(10_000)
    assert {receiver for _, receiver, _ in net.said(LendJob)} == {1, 2}
    assert len(net.said(TookBack)) == 1
    assert sorted(net.states(job_id)) == [-1, -1, QUEUED]
    assert [one.get() for one in net.nodes[1:]].count(job_id) == 1


# ASYNC


def test_an_asynchronous_job_is_there_at_once_and_its_copies_come_later(net: JobNet) -> None:
    node = net.nodes[0]
    net.is_manual = True
    job_id = node.add_without_waiting(3)
    assert net.states(job_id) == [QUEUED, -1, -1]
    net.deliver_all()
    assert net.states(job_id) == [QUEUED, COPY, COPY]
    assert node.shared.replicating.async_copies_missed == 0


def test_copies_that_an_asynchronous_job_could_not_have_are_counted(net: JobNet) -> None:
    node = net.nodes[0]
    net.nodes[1].crash()
    node.add_without_waiting(3)
    assert node.shared.replicating.async_copies_missed == 1
    net.nodes[2].crash()
    node.add_without_waiting(3)
    assert node.shared.replicating.async_copies_missed == 3


@pytest.mark.parametrize("retry_ms", [0, RETRY_MS])
def test_an_asynchronous_job_of_a_node_that_takes_none_is_queued_by_another(net: JobNet, retry_ms: int) -> None:
    net.nodes[0].set_leaving()
    job_id = net.nodes[0].add_without_waiting(1, retry_ms=retry_ms)
    net.run(6_000)
    assert sorted(net.states(job_id)) == [-1, -1, QUEUED]


@pytest.mark.parametrize("retry_ms", [0, RETRY_MS])
@pytest.mark.parametrize("job_id", [b"", b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"])
def test_where_no_other_node_is_left_an_asynchronous_job_stays_here(net: JobNet, retry_ms: int, job_id: bytes) -> None:
    """Others may have gone while they were asked for its client's own id."""
    node = net.nodes[0]
    node.set_leaving()
    for other in net.nodes[1:]:
        other.crash()
    replicating = node.shared.replicating
    added = replicating.add_without_waiting(node.queue, b"", (60_000, retry_ms, 0, -1), b"key", 1, job_id)
    assert node.get() == added


# Jobs that are not added after all


def test_a_job_that_is_given_up_is_nowhere(net: JobNet) -> None:
    node = net.nodes[0]
    net.cut = {(2, 0)}
    job_id = node.add(3, key=b"key")
    net.run(100)
    assert net.states(job_id) == [WAIT_REPL, COPY, COPY]
    node.shared.replicating.give_up(job_id)
    net.run(100)
    assert net.holders(job_id) == []
    assert node.added == []
    assert len(net.said(GaveUp)) == 2
    net.run(60_000)
    assert [one.get() for one in net.nodes] == [None] * 3
    assert node.jobs.keys.find(b"1:qkey", node.jobs.now_ms) is None


def test_a_copy_that_comes_behind_the_end_of_its_job_is_not_taken(net: JobNet) -> None:
    node = net.nodes[0]
    net.is_manual = True
    job_id = node.add(2)
    ((_, at, late),) = net.said(ReplJob)
    node.shared.replicating.give_up(job_id)
    net.deliver_all()
    net.nodes[at].receive(node, late)
    assert net.holders(job_id) == []


def test_who_was_asked_and_has_not_answered_may_have_the_job_and_is_told_to_drop_it(net: JobNet) -> None:
    node = net.nodes[0]
    net.is_manual = True
    job_id = node.add(3)
    node.shared.replicating.give_up(job_id)
    assert {receiver for _, receiver, _ in net.said(GaveUp)} == {1, 2}


@pytest.mark.parametrize("how", ["deleted", "cleared"])
def test_a_job_that_is_deleted_while_it_is_being_added_is_nowhere_and_its_client_is_told(net: JobNet, how: str) -> None:
    node = net.nodes[0]
    net.cut = {(2, 0)}
    job_id = node.add(3)
    net.run(100)
    if how == "deleted":
        node.jobs.remove(node.job(job_id))
    else:
        for _ in node.jobs.clear():
            pass
    net.run(100)
    assert node.added == [None]
    assert net.holders(job_id) == []


def test_a_job_that_expires_while_it_is_being_added_is_refused(net: JobNet) -> None:
    node = net.nodes[0]
    mute(net, 1, 2)
    job_id = node.add(3, ttl_ms=3000)
    net.run(2990)
    assert node.added == []
    net.run(20)
    assert (node.added, net.holders(job_id)) == ([None], [])


def test_a_copy_of_a_job_whose_ttl_is_over_is_not_taken(net: JobNet) -> None:
    net.delay_ms = lambda: 3000
    job_id = net.nodes[0].add(2, ttl_ms=2000)
    net.run(3500)
    assert net.holders(job_id) == []
    assert net.said(GotJob) == []


# What happens to a job elsewhere before it is added


def stuck(net: JobNet) -> bytes:
    """A job of node 0 that node 1 holds, and that no third node takes."""
    mute(net, 2)
    job_id = net.nodes[0].add(3)
    net.run(100)
    assert net.states(job_id) == [WAIT_REPL, COPY, -1]
    return job_id


def test_an_acknowledgement_of_another_node_is_an_answer_and_the_job_is_not_delivered(net: JobNet) -> None:
    node = net.nodes[0]
    node.wait()
    job_id = stuck(net)
    node.receive(net.nodes[1], SetAck(job_id, (node.id, net.nodes[1].id)))
    assert node.added == [job_id]
    assert node.state_of(job_id) == ACKED
    assert node.fetched == []


@pytest.mark.parametrize("how", ["deleted", "acknowledged with FASTACK"])
def test_an_addjob_does_not_wait_for_a_copy_whose_node_was_rid_of_it_before_it_could_answer(
    net: JobNet, how: str
) -> None:
    net.cut.add((1, 0))  # its answers get lost
    node, other, _ = net.nodes
    job_id = node.add(3)
    net.run(10)
    assert node.added == []
    if how == "deleted":
        other.jobs.remove(other.job(job_id))
    else:
        other.shared.acks.del_job(DelJob((job_id,)))
    net.cut.clear()
    net.run(20_000)
    assert node.added == [job_id]


def test_a_job_that_a_client_acknowledges_before_it_is_added_is_added(net: JobNet) -> None:
    node = net.nodes[0]
    node.wait()
    job_id = stuck(net)
    node.shared.replicating.achieve(job_id)
    assert node.ack(job_id)
    assert (node.added, node.fetched) == ([job_id], [])


def test_a_job_that_another_node_has_delivered_meanwhile_is_a_copy_here_once_it_is_added(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = stuck(net)
    net.run(RETRY_MS + 2000)
    assert net.nodes[1].get() == job_id
    net.cut = set()
    net.lose(0, 2)
    net.run(100)
    assert node.added == [job_id]
    assert net.states(job_id) == [COPY, ACTIVE, COPY]


def test_a_job_that_became_a_dead_letter_meanwhile_is_a_copy_here_once_it_is_added(net: JobNet) -> None:
    node = net.nodes[0]
    job_id = stuck(net)
    net.nodes[1].jobs.bury(net.nodes[1].job(job_id), b"asked")
    net.run(10)
    assert (node.state_of(job_id), node.job(job_id).terms.queue.name) == (WAIT_REPL, b"q")
    net.cut = set()
    net.lose(0, 2)
    net.run(100)
    assert node.added == [job_id]
    assert net.states(job_id) == [COPY, QUEUED, COPY]
    net.run(RETRY_MS + 2000)
    assert node.job(job_id).terms.queue.name == b"q.dead", "once it asks whether to queue it"
    assert net.queued_at(job_id) == [1]


def test_no_second_node_is_asked_to_queue_a_job_that_was_delivered_before_it_was_added(net: JobNet) -> None:
    node = net.nodes[0]
    node.set_leaving()
    mute(net, 2)
    job_id = node.add(2)
    net.run(RETRY_MS + 2000)
    assert net.nodes[1].get() == job_id
    net.cut = set()
    net.lose(0, 2)
    net.run(100)
    assert node.added == [job_id]
    assert [word.word for _, _, word in net.said(Notice) if word.word is Word.ENQUEUE] == []
    assert net.states(job_id) == [-1, ACTIVE, COPY]


@pytest.mark.parametrize("delay_s", [0, 2])
def test_a_job_of_a_node_that_leaves_is_queued_where_it_went_though_that_counts_as_down_for_a_moment(
    delay_s: int,
) -> None:
    net = JobNet(2)
    net.nodes[0].set_leaving()
    net.is_manual = True
    job_id = net.nodes[0].add(1, delay_s=delay_s)
    net.deliver(0, 1)
    net.nodes[0].lose_sight_of(net.nodes[1])
    net.deliver(1, 0)
    net.run(1000)
    net.nodes[0].link(net.nodes[1])
    net.run(SLICE_MS)
    net.deliver_all()
    net.run(delay_s * 1000)
    assert net.states(job_id) == [-1, QUEUED]
    assert net.nodes[1].get() == job_id
    net.nodes[0].relink(net.nodes[1])
    net.run(SLICE_MS)
    net.deliver_all()
    assert net.states(job_id) == [-1, ACTIVE]
