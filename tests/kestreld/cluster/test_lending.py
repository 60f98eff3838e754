"""Jobs that are delivered at most once, on their way from node to node."""

from collections import deque
from dataclasses import replace
from typing import Final

import pytest

from kestreld.cluster.at_most_once import REMIND_MS
from kestreld.cluster.copying import copy_of
from kestreld.cluster.job_messages import (
    Declined,
    JobCopy,
    LendJob,
    LetGo,
    NeedJobs,
    Released,
    Stored,
    TookBack,
)
from kestreld.cluster.nodes import Flag
from kestreld.jobs.job import BORROWED, DELAYED, LENT, LET_GO, QUEUED
from tests.support.job_net import TIMEOUT_MS, JobNet, Q


def test_a_job_that_is_sent_back_at_once_is_not_lost() -> None:
    net = JobNet(2)
    here, there = net.nodes
    here.wait(500)
    there.wait(500)
    net.run(600)  # nobody waits any longer, and neither knows that of the other
    job_id = here.add(1, retry_ms=0)
    net.run(5000)
    assert net.queued_at(job_id) == [0]
    assert there.state_of(job_id) == -1


def deliver_all_but(net: JobNet, late: type[object]) -> None:
    """Messages of that type are held up."""
    while links := [link for link, queue in net.links.items() if not all(isinstance(one, late) for one in queue)]:
        for link in links:
            net.links[link] = deque(sorted(net.links[link], key=lambda one: isinstance(one, late)))
            net.deliver(*link)


def test_a_job_that_goes_round_before_the_last_word_on_its_way_is_not_lost() -> None:
    net = JobNet(3)
    for node in net.nodes:
        node.wait(500)
    net.run(600)
    net.is_manual = True
    job_id = net.nodes[0].add(1, retry_ms=0)
    deliver_all_but(net, Released)
    net.is_manual = False
    net.run(5000)
    assert len(net.queued_at(job_id)) == 1


def test_a_job_with_a_delay_waits_for_its_end_where_it_was_taken_to() -> None:
    net = JobNet(2)
    here, there = net.nodes
    here.table.myself.flags |= Flag.LEAVING  # so that it keeps no job that is added
    job_id = here.add(1, retry_ms=0, delay_s=3)
    net.run(2900)
    assert here.added == [job_id]
    assert there.state_of(job_id) == DELAYED
    net.run(200)
    assert net.queued_at(job_id) == [1]


@pytest.mark.parametrize("is_declined", [False, True])
def test_an_answer_that_was_lost_is_asked_for_again(is_declined: bool) -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.wait(1000)
    net.run(100)
    net.cut.add((1, 0))  # and nobody notices
    if is_declined:
        there.shared.peers._stores = lambda: False
    job_id = here.add(1, retry_ms=0)
    net.run(2000)
    net.cut.clear()
    net.run(6000)
    if is_declined:
        assert net.queued_at(job_id) == [0]
    else:
        assert there.fetched == [job_id] or net.queued_at(job_id) == [1]
        assert here.state_of(job_id) == -1


def test_a_job_that_was_taken_back_is_not_borrowed_on_and_on() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.wait(1000)
    net.run(100)
    net.cut.add((1, 0))
    job_id = here.add(1, retry_ms=0)
    net.run(100)
    job = here.jobs.find(job_id)
    assert job is not None
    here.jobs.remove(job)
    assert there.state_of(job_id) == BORROWED
    net.run(1000)
    net.cut.clear()
    net.run(6000)
    assert there.state_of(job_id) == -1


def test_a_job_that_is_borrowed_of_one_node_can_be_lent_by_the_next() -> None:
    net = JobNet(3)
    here, there, third = net.nodes
    there.wait(3000)
    third.wait(500)
    net.run(600)
    net.cut.add((1, 0))
    job_id = here.add(1, retry_ms=0)
    net.run(50)
    assert there.state_of(job_id) == BORROWED
    here.lose_sight_of(there)  # which takes it back, and lends it to the third
    net.run(300)
    assert there.fetched == [job_id]


# One fault at each step of the way


STEPS: Final = [LendJob, Stored, LetGo, Released]


def on_its_way(step: type[object], *, has_log: bool = True) -> tuple[JobNet, bytes]:
    """A job of node 0 that a client of node 1 waits for, and of which that message has just been sent."""
    net = JobNet(3)
    if has_log:
        for node in net.nodes:
            node.keep_log()
    job_id = net.nodes[0].add(1, retry_ms=0)
    net.is_manual = True
    net.nodes[1].wait()
    while not net.said(step):
        net.deliver(*next(link for link, queue in sorted(net.links.items()) if queue))
    return net, job_id


def deliveries(net: JobNet) -> list[bytes]:
    """Everybody fetches, for a minute."""
    net.is_manual = False
    net.deliver_all()
    for _ in range(60):
        net.run(1000)
        for node in net.nodes:
            if node.is_up and node.queue.jobs.count:
                node.get()
    return [job_id for node in net.nodes for job_id in node.fetched]


def is_forgotten(net: JobNet, job_id: bytes) -> bool:
    """Whether the giver remembers it no more, and only its own node has it, if any."""
    return len(net.holders(job_id)) <= 1 and LET_GO not in net.states(job_id)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("links", [[(0, 1)], [(1, 0)], [(0, 1), (1, 0)]], ids=["there", "back", "both"])
def test_a_link_that_breaks_neither_loses_a_job_nor_doubles_it(
    step: type[object], links: list[tuple[int, int]]
) -> None:
    net, job_id = on_its_way(step)
    for link in links:
        net.lose(*link)
    assert deliveries(net) == [job_id]
    assert is_forgotten(net, job_id)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("span_ms", [10, 30_000])
def test_a_partition_neither_loses_a_job_nor_doubles_it(step: type[object], span_ms: int) -> None:
    net, job_id = on_its_way(step)
    net.partition(1)
    net.is_manual = False
    net.run(span_ms)
    assert len([one for node in net.nodes for one in node.fetched]) <= 1
    net.heal()
    assert deliveries(net) == [job_id]
    assert is_forgotten(net, job_id)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("who", [0, 1])
def test_a_node_that_is_stopped_in_good_order_neither_loses_a_job_nor_doubles_it(step: type[object], who: int) -> None:
    net, job_id = on_its_way(step)
    was_delivered = bool(net.nodes[1].fetched)
    net.nodes[who].crash()
    net.is_manual = False
    net.run(2000)
    net.nodes[who].start()
    found = deliveries(net)
    if who == 1 and (step is Released or was_delivered):
        assert len(found) <= 1, "it was delivered, and that is not in the log"
    else:
        assert found == [job_id]
    assert is_forgotten(net, job_id)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("has_log", [True, False])
def test_a_node_that_crashes_may_lose_a_job_and_never_doubles_it(step: type[object], who: int, has_log: bool) -> None:
    net, job_id = on_its_way(step, has_log=has_log)
    net.nodes[who].crash()
    net.is_manual = False
    net.run(2000)
    net.nodes[who].start(is_all_known=False)
    assert deliveries(net) in ([], [job_id])
    net.nodes[who].crash()
    net.nodes[who].start()
    assert deliveries(net) in ([], [job_id]), "nor after a stop in good order that follows"


@pytest.mark.parametrize("who", [0, 1])
def test_a_power_cut_that_takes_the_last_words_of_a_log_does_not_double_a_job(who: int) -> None:
    """The giver's log says that it was lent, the taker's that it was borrowed; meanwhile a worker is done with it."""
    net, job_id = on_its_way(Stored)
    node = net.nodes[who]
    assert node.disk is not None
    on_disk = dict(node.disk.saved)
    net.deliver(1, 0)
    net.deliver(0, 1)
    assert net.nodes[1].fetched == [job_id]
    if who == 0:
        net.deliver_all()
    assert net.nodes[1].ack(job_id)
    node.crash()
    node.disk.saved = on_disk
    node.start(is_all_known=False)
    assert deliveries(net) == [job_id]
    node.crash()
    node.start()
    assert deliveries(net) == [job_id]


@pytest.mark.parametrize("step", STEPS)
def test_a_giver_that_never_comes_back_leaves_the_job_only_where_it_had_let_go_of_it(step: type[object]) -> None:
    net, job_id = on_its_way(step)
    net.nodes[0].crash()
    for node in net.nodes[1:]:
        node.forget(net.nodes[0])
    assert deliveries(net) == ([job_id] if step is Released else [])


@pytest.mark.parametrize("step", STEPS)
def test_a_taker_that_never_comes_back_takes_the_job_along_only_if_it_was_let_go_of(step: type[object]) -> None:
    net, job_id = on_its_way(step)
    net.nodes[1].crash()
    for node in (net.nodes[0], net.nodes[2]):
        node.forget(net.nodes[1])
    assert deliveries(net) == ([] if step is LetGo else [job_id]), step


def test_a_job_that_was_lent_comes_back_when_giver_and_taker_stop_and_only_the_giver_starts_again() -> None:
    net, job_id = on_its_way(LendJob)
    for node in net.nodes[:2]:
        node.crash()
    net.is_manual = False
    net.nodes[0].start()
    net.run(TIMEOUT_MS + 2 * REMIND_MS)
    assert net.queued_at(job_id) == [0]


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_is_acknowledged_on_its_way_is_not_delivered_from_then_on(step: type[object]) -> None:
    net, job_id = on_its_way(step)
    before = list(net.nodes[1].fetched)
    for node in net.nodes[:2]:
        job = node.jobs.find(job_id)
        if job is not None:
            node.shared.acks.acknowledge(job)
    assert deliveries(net) == before
    assert net.holders(job_id) == []


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_job_that_is_deleted_by_its_giver_is_not_delivered(step: type[object]) -> None:
    net, job_id = on_its_way(step)
    net.nodes[0].jobs.remove(net.nodes[0].job(job_id))
    assert deliveries(net) == ([job_id] if step is LetGo else [])
    assert len(net.holders(job_id)) <= 1


@pytest.mark.parametrize("step", STEPS)
def test_a_job_expires_on_its_way_at_both_nodes(step: type[object]) -> None:
    net, job_id = on_its_way(step)
    net.links.clear()
    net.partition(1)
    net.run(700_000)
    assert net.holders(job_id) == []


# Nodes that do not take it


@pytest.mark.parametrize("why", ["disk", "queues"])
def test_a_node_that_cannot_store_a_job_says_so_and_it_is_delivered_elsewhere(why: str) -> None:
    net = JobNet(3)
    node = net.nodes[1]
    node.jobs.wait(node, [node.queue], [], 0)
    net.run(10)
    if why == "disk":
        node.stores = False
    else:
        node.jobs.queues.remove(b"q")
        node.jobs.limit_queues(0)
    job_id = net.nodes[0].add(1, retry_ms=0)
    net.run(10)
    assert [message for _, _, message in net.said(Declined)] == [Declined(job_id)]
    assert net.queued_at(job_id) == [0]


def test_an_expired_job_is_declined() -> None:
    net, job_id = on_its_way(LendJob)
    net.links.clear()
    ((_, _, late),) = net.said(LendJob)
    net.run(600_000 - 10)
    net.nodes[1].receive(net.nodes[0], replace(late, copy=replace(late.copy, ttl_ms=1000)))
    assert net.nodes[1].state_of(job_id) == -1
    assert net.said(Declined)


def test_a_leaving_node_lets_go_of_jobs_and_takes_none_that_are_added_elsewhere() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.set_leaving()
    here.fill()
    assert here.shared.replicating.copies_possible() == 0
    there.receive(here, LendJob(copy_of_a_job(net), is_new=True))
    assert net.said(Declined)
    net.sent.clear()
    there.receive(here, LendJob(copy_of_a_job(net), is_new=False))
    assert net.said(Stored), "but for one that was asked for"


def copy_of_a_job(net: JobNet) -> JobCopy:
    here = net.nodes[0]
    job = here.jobs.hold(b"body", here.queue.terms_of((60_000, 0, 0, -1)))
    return copy_of(here.jobs, job, here.jobs.me)


# Late and wrong words


def test_words_about_jobs_that_are_not_on_their_way_change_nothing() -> None:
    net = JobNet(2)
    here = net.nodes[0]
    job_id = here.add(1, retry_ms=0)
    for message in (Declined(job_id), Released(job_id), TookBack(job_id), LetGo(job_id), Stored(job_id)):
        here.receive(net.nodes[1], message)
        assert here.state_of(job_id) == QUEUED
    assert here.get() == job_id


def test_only_the_node_that_has_lent_a_job_can_let_go_of_it_or_take_it_back() -> None:
    net, job_id = on_its_way(Stored)
    node = net.nodes[1]
    assert node.state_of(job_id) == BORROWED
    node.receive(net.nodes[2], LetGo(job_id))
    node.receive(net.nodes[2], TookBack(job_id))
    assert node.state_of(job_id) == BORROWED
    node.receive(net.nodes[0], LetGo(job_id))
    assert node.fetched == [job_id]


def test_a_third_node_that_says_it_has_stored_the_job_is_told_to_drop_it() -> None:
    net, job_id = on_its_way(LendJob)
    net.nodes[0].receive(net.nodes[2], Stored(job_id))
    assert [receiver for _, receiver, _ in net.said(TookBack)] == [2]
    assert net.nodes[0].state_of(job_id) == LENT


@pytest.mark.parametrize("lost", [Stored, LetGo, Released])
def test_an_answer_that_gets_lost_though_no_link_breaks_is_said_again(lost: type[object]) -> None:
    """As where there is no way back for a while."""
    net, job_id = on_its_way(lost)
    sender, receiver, _ = net.said(lost)[0]  # type: ignore[misc]
    net.links[sender, receiver].clear()
    assert deliveries(net) == [job_id]
    assert is_forgotten(net, job_id)


def test_many_jobs_on_their_way_are_said_again_and_taken_back_in_short_steps() -> None:
    net = JobNet(2)
    here, there = net.nodes
    ids = [here.add(1, retry_ms=0) for _ in range(300)]
    net.is_manual = True
    for _ in range(3):
        here.receive(there, NeedJobs(Q, 100))
    assert here.shared.lending.lent == 300 - 50
    net.sent.clear()
    telling = here.shared.lending.came_up(here.entry(there))
    next(telling)
    assert len(net.said(LendJob)) == 1
    there.crash()
    taking_back = here.work.popleft()
    next(taking_back)
    assert here.queue.jobs.count == 50 + 1
    for _ in taking_back:
        pass
    assert here.queue.jobs.count == len(ids)
