"""A job that nobody acknowledges is queued again by one of its holders, whoever of them is left."""

from itertools import pairwise
from random import Random
from typing import Final

import pytest

from kestreld.cluster.job_messages import Moved, NeedJobs, Notice
from kestreld.cluster.peers import GAP_MS
from kestreld.cluster.reactions import Word, is_greater
from kestreld.config.job_rules import JobRule
from kestreld.jobs.job import ACKED, ACTIVE, COPY, DELAYED, NOTICE_MS, QUEUED
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_IN
from kestreld.jobs.store import JITTER_MS
from tests.support.job_net import RETRY_MS, JobNet, JobNode

LATE_MS: Final = JITTER_MS + NOTICE_MS + 50


@pytest.fixture
def net() -> JobNet:
    return JobNet(3)


def fetched(net: JobNet, *, at: int = 0, copies: int = 3) -> bytes:
    """A job that a worker has."""
    job_id = net.nodes[at].add(copies)
    net.run(10)
    assert net.nodes[at].get() == job_id
    net.sent.clear()
    return job_id


def words(net: JobNet) -> list[tuple[int, int, Word]]:
    return [(sender, receiver, notice.word) for sender, receiver, notice in net.said(Notice)]


def fetch_what_is_queued(net: JobNet) -> list[tuple[int, bytes]]:
    return [
        (node.number, job_id)
        for node in net.nodes
        if node.is_up
        for _ in range(node.queue.jobs.count)
        if (job_id := node.get())
    ]


# One node at a time


def test_a_job_that_nobody_acknowledges_is_queued_by_one_node_at_a_time(net: JobNet) -> None:
    job_id = fetched(net)
    for _ in range(20):
        net.run(RETRY_MS + LATE_MS)
        ((_, again),) = fetch_what_is_queued(net)
        assert again == job_id


@pytest.mark.parametrize("delay_ms", [0, 1, 200])
def test_without_faults_no_two_holders_queue_a_job_at_once(delay_ms: int) -> None:
    """A thousand times and more, whatever the retry times, the way and the chance of each node's timers are."""
    net, random = JobNet(5), Random(delay_ms)
    net.delay_ms = lambda: random.randint(0, delay_ms)
    retry_ms: dict[bytes, int] = {}
    came_at_ms: dict[bytes, list[int]] = {}
    for _ in range(100):
        span_ms = random.choice((1000, 1500, 2000, 3000, 5000))
        retry_ms[random.choice(net.nodes).add(random.randint(2, 5), retry_ms=span_ms)] = span_ms
    for _ in range(250):
        net.run(100)
        for node, job_id in fetch_what_is_queued(net):
            came_at_ms.setdefault(job_id, []).append(net.now_ms)
            if random.random() < 0.2:
                net.nodes[node].jobs.working(net.nodes[node].job(job_id))
    assert came_at_ms.keys() == retry_ms.keys()
    assert sum(map(len, came_at_ms.values())) > 1000
    for job_id, times_ms in came_at_ms.items():
        waits = [later - earlier for earlier, later in pairwise(times_ms)]
        assert min(waits) >= retry_ms[job_id] - JITTER_MS - 100, (job_id, retry_ms[job_id], times_ms)


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "the greater one fails"])
def test_of_two_holders_that_say_at_once_that_they_will_queue_a_job_only_the_greater_does(
    net: JobNet, is_lost: bool
) -> None:
    job_id = fetched(net, copies=2)
    holders = [node for node in net.nodes if node.jobs.find(job_id) is not None]
    for node in holders:
        job = node.jobs.find(job_id)
        assert job is not None
        node.jobs.ask_at(job, node.jobs.now_ms + 100)
    net.run(150)
    assert len([one for one in words(net) if one[2] is Word.WILL_QUEUE]) == 2, "both have said so"
    one, other = holders
    lesser, greater = (other, one) if is_greater(one.id, other.id, job_id) else (one, other)
    if is_lost:
        greater.crash()
    net.run(NOTICE_MS)
    assert (lesser.queue.jobs.count, greater.queue.jobs.count) == (0, 0 if is_lost else 1)
    assert not [one for one in words(net) if one[0] == lesser.number and one[2] is Word.HAS_QUEUED], "nor for a moment"
    net.run(2000)
    assert lesser.queue.jobs.count == is_lost


def test_the_others_are_told_half_a_second_ahead_and_when_it_is_queued(net: JobNet) -> None:
    job_id = fetched(net)
    due_at_ms = net.nodes[0].job(job_id).requeue_at_ms
    net.run(due_at_ms - NOTICE_MS - net.nodes[0].jobs.now_ms - 5)
    assert net.sent == []
    net.run(10)
    assert words(net) == [(0, 1, Word.WILL_QUEUE), (0, 2, Word.WILL_QUEUE)]
    net.run(NOTICE_MS - 20)
    assert net.queued_at(job_id) == []
    net.run(25)
    assert words(net)[2:] == [(0, 1, Word.HAS_QUEUED), (0, 2, Word.HAS_QUEUED)]
    assert net.states(job_id) == [QUEUED, COPY, COPY]


def test_who_queues_a_job_after_the_delay_of_a_nack_is_told_in_time_that_it_was_acknowledged_elsewhere(
    net: JobNet,
) -> None:
    """The node where it was acknowledged does not know who has got the job meanwhile, and so cannot tell by itself."""
    job_id = fetched(net, copies=2)
    giver, acknowledged_at, taker = net.nodes
    if acknowledged_at.state_of(job_id) == -1:
        acknowledged_at, taker = taker, acknowledged_at
    net.partition(acknowledged_at.number)
    assert acknowledged_at.ack(job_id)
    taker.wait()
    net.run(100)
    giver.jobs.nack(giver.job(job_id), 0)
    net.run(100)
    assert taker.fetched == [job_id]
    taker.jobs.nack(taker.job(job_id), 2000)
    for one, other in ((acknowledged_at, taker), (taker, acknowledged_at)):
        net.cut.discard((one.number, other.number))
        one.link(other)
    net.run(1000)
    assert taker.state_of(job_id) == DELAYED
    net.run(600)
    assert taker.state_of(job_id) == ACKED
    net.run(2000)
    assert net.queued_at(job_id) == []


def test_the_end_of_the_delay_that_a_job_was_added_with_is_not_announced(net: JobNet) -> None:
    job_id = net.nodes[0].add_without_waiting(3, delay_s=2)
    net.run(100)
    net.sent.clear()
    net.run(1850)
    assert words(net) == []
    net.run(100)
    assert net.queued_at(job_id) == [0]


def test_a_job_that_one_node_holds_is_queued_when_its_retry_time_is_over_and_nobody_is_told(net: JobNet) -> None:
    job_id = fetched(net, copies=1)
    due_at_ms = net.nodes[0].job(job_id).requeue_at_ms
    net.run(due_at_ms - net.nodes[0].jobs.now_ms + 5)
    assert (net.queued_at(job_id), net.sent) == ([0], [])


def test_additional_deliveries_are_known_to_all_holders(net: JobNet) -> None:
    job_id = fetched(net)
    for _ in range(3):
        net.run(RETRY_MS + LATE_MS)
        fetch_what_is_queued(net)
    net.run(10)
    assert [node.job(job_id).deliveries for node in net.nodes] == [3, 3, 3]


# Whoever is left


def test_the_job_of_a_node_that_is_gone_is_queued_by_another(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.nodes[0].crash()
    net.run(RETRY_MS + GAP_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1


def test_each_holder_would_queue_it_at_another_time() -> None:
    net = JobNet(5)
    job_id = net.nodes[2].add(5)
    net.run(10)
    requeued_in_ms = sorted(
        node.job(job_id).requeue_at_ms - net.nodes[2].job(job_id).requeue_at_ms for node in net.nodes
    )
    for rank, span_ms in enumerate(requeued_in_ms):
        assert abs(span_ms - rank * GAP_MS) <= 2 * JITTER_MS + 10


def test_the_last_holder_queues_it_when_all_others_are_gone() -> None:
    net = JobNet(5)
    job_id = net.nodes[2].add(5)
    net.run(10)
    last = max((node for node in net.nodes if node.number != 2), key=lambda node: node.job(job_id).requeue_at_ms)
    for node in net.nodes:
        if node is not last:
            node.crash()
    net.run(RETRY_MS + 4 * GAP_MS + LATE_MS)
    assert net.queued_at(job_id) == [last.number]


def test_a_holder_that_is_no_member_any_more_is_told_nothing(net: JobNet) -> None:
    fetched(net)
    net.nodes[0].forget(net.nodes[2])
    net.run(RETRY_MS + LATE_MS)
    assert {receiver for sender, receiver, _ in words(net) if sender == 0} == {1}


# What is said of it meanwhile


def test_it_is_not_queued_where_another_holder_says_that_it_has(net: JobNet) -> None:
    """And not even where that holder has not been told that it would be."""
    job_id = fetched(net)
    net.cut = {(1, 0), (0, 1)}
    net.nodes[1].jobs.enqueue(net.nodes[1].job(job_id))
    net.cut = set()
    net.run(RETRY_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1


def test_after_a_partition_of_which_both_sides_queued_it_one_side_takes_it_back(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(0)
    net.run(RETRY_MS + GAP_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 2
    net.heal()
    net.run(RETRY_MS + 2 * GAP_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1, "the third holder has asked whether to queue it"


def test_where_only_two_hold_it_one_takes_it_back_when_it_was_fetched_from_the_other(net: JobNet) -> None:
    job_id = fetched(net, copies=2)
    other = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    net.partition(0)
    net.run(RETRY_MS + GAP_MS + LATE_MS)
    net.heal()
    net.run(2 * RETRY_MS)
    assert net.queued_at(job_id) == [0, other.number]
    assert other.get() == job_id
    net.run(RETRY_MS + LATE_MS)
    assert net.queued_at(job_id) == [0]
    assert other.state_of(job_id) == COPY


def test_a_job_that_is_announced_and_fetched_elsewhere_meanwhile_is_put_off(net: JobNet) -> None:
    job_id = fetched(net)
    net.run(net.nodes[0].job(job_id).requeue_at_ms - net.nodes[0].jobs.now_ms - NOTICE_MS // 2)
    assert words(net)[0][2] is Word.WILL_QUEUE
    net.nodes[1].jobs.working(net.nodes[1].job(job_id))
    net.run(NOTICE_MS)
    assert net.queued_at(job_id) == []
    assert net.states(job_id) == [COPY, ACTIVE, COPY]
    net.run(RETRY_MS)
    assert len(net.queued_at(job_id)) == 1


def test_a_job_that_is_worked_on_goes_on_being_a_copy_elsewhere(net: JobNet) -> None:
    job_id = fetched(net)
    for _ in range(5):
        net.run(RETRY_MS // 2)
        net.nodes[0].jobs.working(net.nodes[0].job(job_id))
    net.run(10)
    assert net.states(job_id) == [ACTIVE, COPY, COPY]
    assert {word for _, _, word in words(net)} == {Word.WORKING}
    net.nodes[0].crash()
    net.run(RETRY_MS - JITTER_MS - 50)
    assert net.queued_at(job_id) == []
    net.run(GAP_MS + 2 * JITTER_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1


def test_while_the_link_to_a_holder_is_crowded_a_job_is_not_queued_again_unannounced(net: JobNet) -> None:
    job_id = fetched(net)
    for number in (1, 2):
        net.nodes[number].is_crowded_for = {0, 1, 2}
    net.nodes[0].is_crowded_for = {1}
    net.run(3 * RETRY_MS)
    assert (net.queued_at(job_id), words(net)) == ([], [])
    net.nodes[0].is_crowded_for = set()
    net.run(NOTICE_MS + 300)
    assert net.queued_at(job_id) == [0]
    assert [word for _, _, word in words(net)] == [Word.WILL_QUEUE] * 2 + [Word.HAS_QUEUED] * 2


def test_a_crowded_link_to_a_node_that_is_down_keeps_nobody_waiting(net: JobNet) -> None:
    job_id = fetched(net)
    net.nodes[0].is_crowded_for = {1}
    net.nodes[1].crash()
    net.run(RETRY_MS + LATE_MS)
    assert net.queued_at(job_id) == [0]


def test_a_queue_that_is_paused_in_queues_nothing_again_and_goes_on_later(net: JobNet) -> None:
    job_id = fetched(net)
    for node in net.nodes:
        node.jobs.pause(node.queue, PAUSED_IN)
    net.run(3 * RETRY_MS)
    assert net.queued_at(job_id) == []
    for node in net.nodes:
        node.jobs.pause(node.queue, NOT_PAUSED)
    net.run(RETRY_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1


# NACK, ENQUEUE


def test_a_job_that_is_given_back_is_queued_there_at_once_and_nowhere_else(net: JobNet) -> None:
    job_id = fetched(net)
    assert net.nodes[0].jobs.nack(net.nodes[0].job(job_id))
    net.run(10)
    assert net.states(job_id) == [QUEUED, COPY, COPY]
    assert [node.job(job_id).nacks for node in net.nodes] == [1, 1, 1]
    assert {word for _, _, word in words(net)} == {Word.HAS_QUEUED}


@pytest.mark.parametrize("how", ["nack", "enqueue"])
def test_a_job_can_be_given_back_to_another_holder(net: JobNet, how: str) -> None:
    job_id = fetched(net)
    other = net.nodes[1]
    assert getattr(other.jobs, how)(other.job(job_id))
    net.run(10)
    assert net.states(job_id) == [COPY, QUEUED, COPY]


def test_a_job_that_is_given_back_for_later_is_queued_by_its_node_then(net: JobNet) -> None:
    job_id = fetched(net)
    assert net.nodes[0].jobs.nack(net.nodes[0].job(job_id), 30_000)
    net.run(29_990)
    assert net.states(job_id) == [DELAYED, COPY, COPY]
    net.run(20)
    assert net.states(job_id) == [QUEUED, COPY, COPY]


def test_nobody_queues_a_job_before_the_time_for_which_it_was_given_back_though_its_node_fails(net: JobNet) -> None:
    job_id = fetched(net)
    assert net.nodes[0].jobs.nack(net.nodes[0].job(job_id), 30_000)
    net.run(10)
    net.nodes[0].crash()
    net.run(30_000 + RETRY_MS)
    assert net.queued_at(job_id) == []
    net.run(GAP_MS + 2 * JITTER_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1


def test_a_back_off_of_the_rules_holds_for_all_holders() -> None:
    net = JobNet(3, rules=(JobRule("*", retry_delays_ms=(20_000,)),))
    job_id = fetched(net)
    net.run(RETRY_MS + LATE_MS)
    assert net.states(job_id) == [DELAYED, COPY, COPY]
    net.nodes[0].crash()
    net.run(20_000 + RETRY_MS - JITTER_MS - LATE_MS)
    assert net.queued_at(job_id) == []


# The retry time from delivery


@pytest.fixture
def from_delivery() -> JobNet:
    return JobNet(3, retry_from_delivery=True)


def test_all_holders_count_the_retry_time_from_when_a_job_is_handed_out(from_delivery: JobNet) -> None:
    net = from_delivery
    job_id = net.nodes[0].add(3)
    net.run(RETRY_MS - 2000)
    net.sent.clear()
    assert net.nodes[0].get() == job_id
    net.run(10)
    assert words(net) == [(0, 1, Word.WORKING), (0, 2, Word.WORKING)]
    net.nodes[0].crash()
    net.run(RETRY_MS - JITTER_MS - 50)
    assert net.queued_at(job_id) == []
    net.run(GAP_MS + 2 * JITTER_MS + LATE_MS)
    assert len(net.queued_at(job_id)) == 1


def test_nobody_is_told_of_a_delivery_while_more_than_half_of_the_retry_time_is_left(from_delivery: JobNet) -> None:
    net = from_delivery
    job_id = net.nodes[0].add(3)
    net.run(RETRY_MS // 2 - JITTER_MS - 50)
    net.sent.clear()
    assert net.nodes[0].get() == job_id
    net.run(10)
    assert net.sent == []


def test_jobs_that_wait_for_long_are_not_queued_again_right_after_their_delivery(from_delivery: JobNet) -> None:
    net = from_delivery
    job_id = net.nodes[0].add(3)
    net.run(5 * RETRY_MS - 200)
    assert net.queued_at(job_id) == [0], "those that wait stay where they are"
    assert net.nodes[0].get() == job_id
    net.run(RETRY_MS - JITTER_MS - 50)
    assert net.queued_at(job_id) == []


# Dead letters


def letters(net: JobNet) -> list[tuple[int, bytes]]:
    return [
        (node.number, job.id)
        for node in net.nodes
        if node.is_up and (queue := node.jobs.find_queue(b"q.dead")) is not None
        for job in queue.jobs.oldest()
    ]


def bury(node: JobNode, job_id: bytes) -> None:
    assert node.jobs.bury(node.job(job_id), b"asked")


def test_of_a_job_with_three_holders_there_is_one_letter(net: JobNet) -> None:
    job_id = fetched(net)
    bury(net.nodes[0], job_id)
    net.run(10)
    assert letters(net) == [(0, job_id)]
    assert [node.job(job_id).terms.queue.name for node in net.nodes] == [b"q.dead"] * 3
    for node in net.nodes:
        dead = node.job(job_id).terms.dead
        assert dead is not None
        assert (dead.origin, dead.reason) == (b"q", b"asked")
    net.run(5 * RETRY_MS)
    assert letters(net) == [(0, job_id)]


def test_a_job_that_was_put_back_too_often_is_a_dead_letter_of_the_node_that_says_so() -> None:
    net = JobNet(3)
    job_id = net.nodes[0].add(3, retries=1)
    net.run(10)
    assert net.nodes[0].get() == job_id
    for _ in range(2):
        node = net.nodes[1]
        assert node.jobs.nack(node.job(job_id))
        net.run(10)
        fetch_what_is_queued(net)
    assert letters(net) == [(1, job_id)]


def test_retries_count_wherever_a_job_was_queued_again() -> None:
    net = JobNet(3)
    job_id = net.nodes[0].add(3, retries=2)
    net.run(10)
    for deliveries in range(3):
        assert [job for _, job in fetch_what_is_queued(net)] == [job_id], deliveries
        holder = next(node for node in net.nodes if node.state_of(job_id) == ACTIVE)
        net.partition(holder.number)
        net.heal()
        net.run(RETRY_MS + GAP_MS + LATE_MS)
    assert len(letters(net)) == 1


def test_the_letter_of_a_node_that_fails_is_another_ones_a_retry_time_later() -> None:
    net = JobNet(3)
    job_id = fetched(net)
    net.run(RETRY_MS - 1000)
    bury(net.nodes[0], job_id)
    net.run(10)
    net.nodes[0].crash()
    net.run(RETRY_MS - 100)
    assert letters(net) == []
    net.run(GAP_MS + JITTER_MS + LATE_MS)
    ((at, letter),) = letters(net)
    assert (at != 0, letter) == (True, job_id)


def test_a_holder_that_was_away_learns_that_a_job_is_a_dead_letter(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(2)
    bury(net.nodes[0], job_id)
    net.run(10)
    assert net.nodes[2].job(job_id).terms.queue.name == b"q"
    net.heal()
    net.run(RETRY_MS + 2 * GAP_MS + LATE_MS)
    assert net.nodes[2].job(job_id).terms.queue.name == b"q.dead"
    assert letters(net) == [(0, job_id)]
    assert net.queued_at(job_id) == [0]


def test_a_letter_that_is_put_back_is_in_its_queue_at_one_node_with_its_counters_at_zero(net: JobNet) -> None:
    job_id = fetched(net)
    net.nodes[0].jobs.nack(net.nodes[0].job(job_id))
    bury(net.nodes[0], job_id)
    net.run(10)
    assert net.nodes[1].jobs.redrive(net.nodes[1].job(job_id))
    net.run(10)
    assert letters(net) == []
    assert net.states(job_id) == [COPY, QUEUED, COPY]
    assert [node.job(job_id).terms.queue.name for node in net.nodes] == [b"q"] * 3
    assert [node.job(job_id).nacks for node in net.nodes] == [0] * 3


def test_a_holder_that_missed_that_a_letter_was_put_back_does_not_make_it_one_again() -> None:
    net = JobNet(3)
    job_id = net.nodes[0].add(3, retries=1)
    net.run(10)
    for _ in range(2):
        fetch_what_is_queued(net)
        assert net.nodes[1].jobs.nack(net.nodes[1].job(job_id))
        net.run(10)
    assert letters(net) == [(1, job_id)]
    net.partition(2)
    assert net.nodes[1].jobs.redrive(net.nodes[1].job(job_id))
    net.run(10)
    net.heal()
    net.run(RETRY_MS + 2 * GAP_MS + LATE_MS)
    assert letters(net) == []
    assert net.queued_at(job_id) == [1]
    jobs = [node.job(job_id) for node in net.nodes]
    assert [(job.terms.queue.name, job.nacks + job.deliveries) for job in jobs] == [(b"q", 0)] * 3


def redriven_while_one_is_away(*, is_killed: bool) -> tuple[JobNet, bytes]:
    """A letter that node 1 has put back while node 2, which holds it, too, did not hear."""
    net = JobNet(3)
    for node in net.nodes:
        node.keep_log()
    job_id = fetched(net)
    bury(net.nodes[1], job_id)
    net.run(10)
    if is_killed:
        net.nodes[2].crash()
    else:
        net.partition(2)
    assert net.nodes[1].jobs.redrive(net.nodes[1].job(job_id))
    net.run(10)
    return net, job_id


def is_back(net: JobNet, is_killed: bool) -> None:
    if is_killed:
        net.nodes[2].start()
    else:
        net.heal()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_with_a_worker", [False, True])
def test_a_letter_that_was_put_back_stays_so_when_a_holder_is_back(is_with_a_worker: bool, is_killed: bool) -> None:
    net, job_id = redriven_while_one_is_away(is_killed=is_killed)
    if is_with_a_worker:
        assert net.nodes[1].get() == job_id
        net.nodes[1].jobs.working(net.nodes[1].job(job_id))
    is_back(net, is_killed)
    for _ in range(30):
        net.run(RETRY_MS // 5)
        assert letters(net) == []
        if is_with_a_worker and net.nodes[1].state_of(job_id) == ACTIVE:
            net.nodes[1].jobs.working(net.nodes[1].job(job_id))
    assert [node.job(job_id).terms.queue.name for node in net.nodes] == [b"q"] * 3


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_letter_that_was_put_back_stays_so_when_the_node_that_did_it_has_gone(is_killed: bool) -> None:
    net, job_id = redriven_while_one_is_away(is_killed=is_killed)
    net.nodes[1].crash()
    is_back(net, is_killed)
    for _ in range(30):
        net.run(RETRY_MS // 5)
        assert letters(net) == []
        fetch_what_is_queued(net)
    assert [net.nodes[number].job(job_id).terms.queue.name for number in (0, 2)] == [b"q"] * 2


def test_counts_from_before_a_letter_was_put_back_do_not_count() -> None:
    net = JobNet(3)
    job_id = net.nodes[0].add(3, retries=3)
    net.run(10)
    assert net.nodes[0].get() == job_id
    net.nodes[2].jobs.count(net.nodes[2].job(job_id), 3, 0)
    net.partition(2)
    bury(net.nodes[0], job_id)
    net.run(10)
    assert net.nodes[0].jobs.redrive(net.nodes[0].job(job_id))
    net.run(10)
    net.heal()
    net.run(2 * RETRY_MS)
    assert [node.job(job_id).nacks for node in net.nodes] == [0] * 3


def test_a_dead_letter_that_another_node_has_put_back_meanwhile_is_a_letter_no_more_where_it_is_queued() -> None:
    net, job_id = redriven_while_one_is_away(is_killed=False)
    net.run(2 * RETRY_MS)
    assert letters(net) == [(2, job_id)], "cut off, it could not know"
    net.heal()
    for _ in range(10):
        fetch_what_is_queued(net)
        net.run(RETRY_MS // 2)
    assert letters(net) == []


def test_of_two_nodes_that_have_buried_a_job_at_once_one_has_the_letter(net: JobNet) -> None:
    job_id = fetched(net)
    bury(net.nodes[0], job_id)
    bury(net.nodes[1], job_id)
    net.run(10)
    assert [number for number, _ in letters(net)] in ([0], [1])


def test_who_lends_a_job_that_was_put_back_elsewhere_learns_of_it(net: JobNet) -> None:
    job_id = fetched(net)
    net.partition(2)
    bury(net.nodes[1], job_id)
    net.run(10)
    assert net.nodes[2].jobs.enqueue(net.nodes[2].job(job_id))
    net.heal()
    net.nodes[2].receive(net.nodes[0], NeedJobs(b"q", 1))
    net.run(10)
    assert letters(net) == [(1, job_id)]
    assert net.queued_at(job_id) == [1]
    assert [node.job(job_id).terms.queue.name for node in net.nodes] == [b"q.dead"] * 3


def test_queues_of_dead_letters_are_there_only_where_there_are_any(net: JobNet) -> None:
    job_id = fetched(net)
    bury(net.nodes[0], job_id)
    net.run(10)
    net.nodes[1].jobs.redrive(net.nodes[1].job(job_id))
    net.run(10)
    assert [node.jobs.queues.get(b"q.dead") is not None for node in net.nodes] == [True, False, False]
    assert [node.jobs.find_queue(b"q.dead") is not None for node in net.nodes] == [True, False, False]


def test_what_is_said_of_dead_letters_that_are_not_here_changes_nothing(net: JobNet) -> None:
    node = net.nodes[0]
    message = Moved(b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1", b"other", None, 0, 0)
    node.receive(net.nodes[1], message)
    assert node.jobs.queues.get(b"other") is None
