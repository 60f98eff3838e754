"""Jobs go to where clients wait for them: at once where that is known, and none is lost or doubled on the way."""

from collections import Counter
from typing import Final

import pytest

from kestreld.cluster.federating import GIVEN_AT_ONCE, GIVEN_BYTES_MAX, GIVEN_IN_ONE, INTEREST_MAX, UNANSWERED_MAX
from kestreld.cluster.federation import ALL_EVERY_MS, INTEREST_MS
from kestreld.cluster.job_messages import NeedJobs, Notice, TookJobs, YourJobs
from kestreld.cluster.peers import GAP_MS
from kestreld.cluster.reactions import Word
from kestreld.jobs.job import ACKED, ACTIVE, COPY, NOTICE_MS, QUEUED
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_OUT
from kestreld.jobs.store import JITTER_MS
from tests.support.job_net import RETRY_MS, JobNet, JobNode, Q

SOON_MS: Final = (
    3 * NOTICE_MS + 100
)  # by then what was lost on the way is queued again, without its retry time being over


@pytest.fixture
def net() -> JobNet:
    return JobNet(3)


@pytest.fixture
def seven() -> JobNet:
    return JobNet(7)


def needs(net: JobNet, sender: int | None = None) -> list[NeedJobs]:
    return [message for number, _, message in net.said(NeedJobs) if sender in (None, number)]


def drain(net: JobNet, node: JobNode, count: int) -> None:
    """Workers at one node, which fetch as fast as they can."""
    while len(node.fetched) < count:
        if node.get() is None:
            node.wait()
            net.run(1)


# How soon


@pytest.mark.parametrize("retry_ms", [RETRY_MS, 0])
@pytest.mark.parametrize("waited_ms", [0, 1000, 20_000, 200_000])
def test_a_job_comes_to_where_somebody_waits_in_less_than_a_tenth_of_a_second(
    net: JobNet, waited_ms: int, retry_ms: int
) -> None:
    """Disque's first job took 3 to 7 s."""
    net.delay_ms = lambda: 10
    net.nodes[1].wait()
    net.run(waited_ms)
    job_id = net.nodes[0].add(1, retry_ms=retry_ms)
    net.run(95)
    assert net.nodes[1].fetched == [job_id]
    assert net.states(job_id) == [COPY if retry_ms else -1, ACTIVE, -1]


def test_a_job_that_comes_while_where_somebody_waits_counts_as_down_goes_there_once_it_is_up(net: JobNet) -> None:
    """The node there does not know that it counted as down, and asks again late."""
    net.nodes[1].wait()
    net.run(20_000)
    net.nodes[0].lose_sight_of(net.nodes[1])
    job_id = net.nodes[0].add(1)
    net.run(10)
    assert net.states(job_id) == [QUEUED, -1, -1]
    net.nodes[0].link(net.nodes[1])
    net.run(10)
    assert net.nodes[1].fetched == [job_id]


def test_who_comes_behind_the_job_is_given_it_at_once(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.run(100_000)
    net.nodes[2].wait()
    net.run(5)
    assert net.nodes[2].fetched == [job_id]


def test_whoever_waits_where_the_job_is_goes_first(net: JobNet) -> None:
    net.nodes[1].wait()
    net.run(100)
    net.nodes[0].wait()
    net.run(100)
    job_id = net.nodes[0].add(1)
    net.run(100)
    assert net.nodes[0].fetched == [job_id]
    assert net.nodes[1].fetched == []


def test_jobs_of_several_nodes_are_drained_through_one(seven: JobNet) -> None:
    for number in range(700):
        seven.nodes[number % 7].add(1)
    began_ms = seven.now_ms
    drain(seven, seven.nodes[3], 700)
    assert seven.now_ms - began_ms < 1000
    assert len(set(seven.nodes[3].fetched)) == 700


def test_jobs_come_in_the_order_of_their_creation(net: JobNet) -> None:
    ids = []
    for number in range(20):
        ids.append(net.nodes[number % 2].add(1))
        net.run(3)
    node = net.nodes[2]
    node.receive(net.nodes[0], NeedJobs(Q, 1))
    for giver in net.nodes[:2]:
        giver.receive(node, NeedJobs(Q, 5))
    net.run(10)
    got = [node.get() for _ in range(10)]
    assert got == sorted(got, key=ids.index)
    assert got == ids[:10]


# Asking


def test_a_node_without_waiting_clients_asks_nobody(net: JobNet) -> None:
    net.nodes[0].add(3)
    net.run(60_000)
    assert needs(net) == []


def test_all_are_told_at_once_that_somebody_waits_and_are_asked_again_rarely(seven: JobNet) -> None:
    seven.nodes[0].wait()
    seven.run(ALL_EVERY_MS - 200)
    assert Counter(receiver for _, receiver, _ in seven.said(NeedJobs)) == dict.fromkeys(range(1, 7), 2), "NOHANG, wait"
    seven.run(600_000)
    assert len(needs(seven)) < 6 * 30


def test_a_node_asks_for_as_many_jobs_as_clients_wait(net: JobNet) -> None:
    for _ in range(3):
        net.nodes[0].jobs.wait(net.nodes[0], [net.nodes[0].queue], [], 0)
    net.run(10)
    assert needs(net) == [NeedJobs(Q, 3, is_waiting=True)] * 2
    ids = [net.nodes[1].add(1) for _ in range(5)]
    net.run(10)
    assert net.nodes[0].fetched == ids[:3]


def test_those_who_have_given_jobs_are_asked_for_more_when_the_queue_is_empty_again(net: JobNet) -> None:
    for _ in range(30):
        net.nodes[0].add(1)
    node = net.nodes[1]
    assert node.get() is None
    net.run(10)
    net.sent.clear()
    assert node.get() is not None
    net.run(10)
    assert [(sender, receiver) for sender, receiver, _ in net.said(NeedJobs)] == [(1, 0)]
    assert needs(net)[0].count >= 5


def test_the_rate_of_imports_is_known_for_some_seconds_with_its_sources(net: JobNet) -> None:
    for _ in range(50):
        net.nodes[0].add(1)
    node = net.nodes[1]
    drain(net, node, 50)
    federating = node.shared.federating
    assert federating.import_rate(node.queue) > 50
    assert federating.import_sources(node.queue) == [net.nodes[0].id]
    assert (federating.jobs_taken, net.nodes[0].shared.federating.jobs_given) == (
        {net.nodes[0].id: 50},
        {node.id: 50},
    )
    net.run(6000)
    assert (federating.import_rate(node.queue), federating.import_sources(node.queue)) == (0, [])


def test_a_leaving_node_asks_for_nothing_and_gives(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.nodes[0].set_leaving()
    net.nodes[1].wait()
    net.run(10)
    assert net.nodes[1].fetched == [job_id]
    net.nodes[2].add(1)
    assert net.nodes[0].get() is None
    net.run(10_000)
    assert needs(net, 0) == []


def test_a_lone_node_asks_nobody_and_remembers_nothing() -> None:
    net = JobNet(1)
    net.nodes[0].wait()
    net.run(10_000)
    assert net.sent == []


# Interest


def test_a_job_that_comes_too_late_is_offered_on(net: JobNet) -> None:
    """Whoever waited has gone meanwhile; at a third node somebody waits."""
    node = net.nodes[1]
    node.wait()
    net.run(100)
    net.is_manual = True
    job_id = net.nodes[0].add(1)
    for waiter in list(node.jobs.waiters):
        waiter.leave()
    net.nodes[2].wait()
    net.is_manual = False
    net.deliver_all()
    net.run(100)
    assert net.nodes[2].fetched == [job_id]


def test_interest_ends_a_moment_after_the_last_client_has_ceased_to_wait(net: JobNet) -> None:
    net.nodes[1].wait(3000)
    net.run(2500)
    net.sent.clear()
    net.run(2500)
    assert [(message.count, receiver) for _, receiver, message in net.said(NeedJobs)] == [(0, 0), (0, 2)]
    job_id = net.nodes[0].add(1)
    net.run(1000)
    assert net.queued_at(job_id) == [0]


def test_clients_that_come_and_go_are_announced_once(net: JobNet) -> None:
    node = net.nodes[1]
    for _ in range(20):
        node.jobs.wait(node, [node.queue], [], 100)
        net.run(500)
    assert len([one for one in needs(net, 1) if one.count]) <= 2 * 5


def test_interest_is_renewed_as_long_as_somebody_waits(net: JobNet) -> None:
    net.nodes[1].wait()
    net.run(3 * INTEREST_MS)
    job_id = net.nodes[0].add(1)
    net.run(10)
    assert net.nodes[1].fetched == [job_id]


def test_nodes_that_are_interested_are_given_jobs_in_turn(seven: JobNet) -> None:
    for node in seven.nodes[1:]:
        for _ in range(4):
            node.jobs.wait(node, [node.queue], [], 0)
    seven.run(100)
    for _ in range(12):
        seven.nodes[0].add(1)
        seven.run(10)
    assert [len(node.fetched) for node in seven.nodes[1:]] == [2] * 6


def test_a_node_that_is_down_or_reads_too_slowly_keeps_its_turn(net: JobNet) -> None:
    for node in net.nodes[1:]:
        node.wait()
    net.run(100)
    net.nodes[0].is_crowded_for = {1}
    first = net.nodes[0].add(1)
    net.run(10)
    assert net.nodes[2].fetched == [first]
    second = net.nodes[0].add(1)
    net.run(10)
    assert net.queued_at(second) == [0]
    net.nodes[0].is_crowded_for = set()
    third = net.nodes[0].add(1)
    net.run(10)
    assert net.nodes[1].fetched == [second]
    assert net.queued_at(third) == [0]


def test_interest_in_more_queues_than_may_be_is_not_remembered(net: JobNet) -> None:
    node = net.nodes[0]
    for number in range(INTEREST_MAX + 5):
        node.shared.receive(node.entry(net.nodes[1]), NeedJobs(b"%d" % number, 1, is_waiting=True))
    assert len(node.shared.federating._interest) == INTEREST_MAX
    net.run(INTEREST_MS)
    node.receive(net.nodes[1], NeedJobs(b"another", 1, is_waiting=True))
    assert len(node.shared.federating._interest) == 1


def test_a_node_that_imports_a_queue_itself_gives_it_away_only_where_somebody_waits(net: JobNet) -> None:
    for _ in range(40):
        net.nodes[0].add(1)
    assert net.nodes[1].get() is None
    net.run(10)
    assert net.nodes[1].queue.jobs.count > 0
    net.sent.clear()
    net.nodes[1].receive(net.nodes[2], NeedJobs(Q, 1))
    assert net.said(YourJobs) == []
    net.nodes[1].receive(net.nodes[2], NeedJobs(Q, 1, is_waiting=True))
    assert len(net.said(YourJobs)) == 1


def test_two_nodes_whose_clients_wait_in_turn_do_not_send_jobs_to_and_fro(seven: JobNet) -> None:
    for node in seven.nodes:
        node.wait()
    seven.run(1000)
    seven.sent.clear()
    for _ in range(7):
        seven.nodes[0].add(1)
        seven.run(50)
    assert [len(node.fetched) for node in seven.nodes] == [1] * 7
    assert seven.counted()["YourJobs"] == 6
    assert seven.counted()["TookJobs"] == 6


# Giving


@pytest.mark.parametrize(("waiting", "count", "given"), [(1, 1, 1), (9, 5, 4), (10, 5, 5), (40, 10, 10), (0, 5, 0)])
def test_a_node_keeps_half_of_the_little_it_has(net: JobNet, waiting: int, count: int, given: int) -> None:
    for _ in range(waiting):
        net.nodes[0].add(1)
    net.nodes[0].receive(net.nodes[1], NeedJobs(Q, count))
    assert sum(len(message.copies) for _, _, message in net.said(YourJobs)) == given


def test_no_more_than_so_many_jobs_are_given_in_one_step(net: JobNet) -> None:
    for _ in range(5 * GIVEN_AT_ONCE):
        net.nodes[0].add(1)
    net.nodes[0].receive(net.nodes[1], NeedJobs(Q, 1 << 31, is_waiting=True))
    in_each = [len(message.copies) for _, _, message in net.said(YourJobs)]
    assert in_each == [GIVEN_IN_ONE] * (GIVEN_AT_ONCE // GIVEN_IN_ONE)


def test_no_more_than_so_many_bytes_are_given_in_one_message(net: JobNet) -> None:
    node = net.nodes[0]
    for _ in range(20):
        node.jobs.add(b"x" * (GIVEN_BYTES_MAX // 4), node.queue.terms_of((600_000, RETRY_MS, 0, -1)))
    node.receive(net.nodes[1], NeedJobs(Q, 10))
    ((_, _, message),) = net.said(YourJobs)
    assert len(message.copies) == 4


def test_no_more_than_so_many_jobs_are_on_the_way_to_one_node(net: JobNet) -> None:
    for number in range(2 * UNANSWERED_MAX + 400):
        net.nodes[0].add(1, retry_ms=RETRY_MS if number % 2 else 0)
    net.is_manual = True
    for _ in range(20):
        net.nodes[0].receive(net.nodes[1], NeedJobs(Q, 100))
    given = sum(node.state_of(job.id) != QUEUED for node in net.nodes[:1] for job in node.jobs.table)
    assert given == UNANSWERED_MAX
    net.deliver_all()
    net.sent.clear()
    net.nodes[0].receive(net.nodes[1], NeedJobs(Q, 100))
    assert net.said(YourJobs)


def test_an_answer_that_is_lost_is_made_up_for_by_the_next(net: JobNet) -> None:
    """Where only the link back breaks, the giver's own link does not."""
    node = net.nodes[0]
    for _ in range(2 * UNANSWERED_MAX + 500):
        node.add(1)
    for number in range(2 * UNANSWERED_MAX // 100):
        net.cut = {(1, 0)} if number % 2 == 0 else set()
        node.receive(net.nodes[1], NeedJobs(Q, 100))
        net.run(5)
    assert sum(len(message.copies) for _, _, message in net.said(YourJobs)) == 2 * UNANSWERED_MAX


def test_a_queue_that_is_paused_out_gives_no_jobs_until_it_does_again(net: JobNet) -> None:
    node = net.nodes[0]
    node.jobs.pause(node.queue, PAUSED_OUT)
    job_id = node.add(1)
    net.nodes[1].wait()
    net.run(1000)
    assert net.nodes[1].fetched == []
    node.jobs.pause(node.queue, NOT_PAUSED)
    net.run(ALL_EVERY_MS + 200)
    assert net.nodes[1].fetched == [job_id]


def test_no_expired_job_is_given(net: JobNet) -> None:
    net.delay_ms = lambda: 500
    net.nodes[0].add(1, ttl_ms=1000)
    net.nodes[1].wait()
    net.run(3000)
    assert net.nodes[1].fetched == []
    assert net.nodes[1].jobs.table.count == 0


def test_a_job_that_is_fetched_elsewhere_is_a_copy_here_and_queued_again_once(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.nodes[1].wait()
    net.run(10)
    assert net.states(job_id) == [COPY, ACTIVE, -1]
    net.run(RETRY_MS + GAP_MS + NOTICE_MS + JITTER_MS)
    assert len(net.queued_at(job_id)) == 1


def test_all_holders_learn_where_a_job_is_queued_now(seven: JobNet) -> None:
    job_id = seven.nodes[0].add(3)
    seven.run(10)
    importer = next(node for node in seven.nodes if node.state_of(job_id) == -1)
    importer.wait()
    seven.run(10)
    assert importer.fetched == [job_id]
    holders = set(seven.holders(job_id))
    assert len(holders) == 4
    assert all(seven.nodes[number].owners(job_id) == holders for number in holders)
    told = {receiver for sender, receiver, notice in seven.said(Notice) if notice.word is Word.HAS_QUEUED}
    assert told == holders - {0, importer.number}


def test_a_holder_can_be_given_the_job_that_it_holds(net: JobNet) -> None:
    job_id = net.nodes[0].add(3)
    net.run(10)
    net.nodes[2].wait()
    net.run(10)
    assert net.nodes[2].fetched == [job_id]
    assert net.states(job_id) == [COPY, COPY, ACTIVE]


def test_a_job_that_was_acknowledged_at_the_node_it_comes_to_is_acknowledged_everywhere(net: JobNet) -> None:
    job_id = net.nodes[0].add(2)
    net.run(10)
    holder = next(node for node in net.nodes[1:] if node.state_of(job_id) == COPY)
    net.cut = {(holder.number, 0)}
    holder.ack(job_id)
    net.run(10)
    assert holder.state_of(job_id) == ACKED
    net.cut = set()
    net.nodes[0].receive(holder, NeedJobs(Q, 1))
    net.run(10)
    assert net.holders(job_id) == []
    assert holder.fetched == []


def test_counters_and_keys_come_with_the_job(net: JobNet) -> None:
    job_id = net.nodes[0].add(1, key=b"key", retries=7)
    assert net.nodes[0].get() == job_id
    net.nodes[0].jobs.nack(net.nodes[0].job(job_id))
    net.nodes[1].wait()
    net.run(10)
    job = net.nodes[1].job(job_id)
    assert (job.nacks, job.terms.key, job.terms.retries_max) == (1, b"key", 7)
    assert net.nodes[1].jobs.keys.find(b"1:qkey", net.nodes[1].jobs.now_ms) == job_id


def test_a_dead_letter_is_given_as_such(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.nodes[0].jobs.bury(net.nodes[0].job(job_id), b"asked")
    net.nodes[0].receive(net.nodes[1], NeedJobs(b"q.dead", 1))
    net.run(10)
    assert net.queued_at(job_id) == [1]
    dead = net.nodes[1].job(job_id).terms.dead
    assert dead is not None
    assert (dead.origin, dead.reason) == (b"q", b"asked")


# Links that break


@pytest.mark.parametrize("lost", [YourJobs, TookJobs])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_link_that_breaks_with_jobs_on_the_way_loses_none_and_nobody_waits_for_the_retry_time(
    net: JobNet, lost: type, copies: int
) -> None:
    job_id = net.nodes[0].add(copies)
    net.run(10)
    net.is_manual = True
    net.nodes[1].wait()
    while not net.said(lost):
        net.deliver(*next(link for link, queue in net.links.items() if queue))
    sender, receiver, _ = net.said(lost)[0]
    net.lose(sender, receiver)
    net.lose(receiver, sender)
    net.is_manual = False
    net.deliver_all()
    net.run(SOON_MS)
    for node in net.nodes:
        if node.queue.jobs.count:
            node.get()
    assert [one for node in net.nodes for one in node.fetched] == [job_id]


def test_a_node_that_fails_with_a_job_on_its_way_to_it_does_not_take_it_along(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.is_manual = True
    net.nodes[1].wait()
    net.deliver(1, 0)
    assert net.said(YourJobs)
    net.nodes[1].crash()
    net.is_manual = False
    net.run(SOON_MS)
    assert net.queued_at(job_id) == [0]


def test_a_job_that_has_arrived_is_not_queued_by_its_giver_when_the_taker_fails_later_before_its_time(
    net: JobNet,
) -> None:
    job_id = net.nodes[0].add(1)
    net.nodes[1].wait()
    net.run(10)
    assert net.nodes[1].fetched == [job_id]
    net.nodes[1].crash()
    net.run(RETRY_MS - 2000)
    assert net.queued_at(job_id) == []
    net.run(2000 + GAP_MS + NOTICE_MS + JITTER_MS)
    assert net.queued_at(job_id) == [0]


def test_a_giver_that_fails_leaves_the_job_with_the_taker(net: JobNet) -> None:
    job_id = net.nodes[0].add(1)
    net.nodes[1].wait()
    net.run(10)
    net.nodes[0].crash()
    net.run(RETRY_MS + GAP_MS + NOTICE_MS + JITTER_MS)
    assert net.queued_at(job_id) == [1]


def test_an_imported_job_is_in_the_log_of_the_importer(net: JobNet) -> None:
    """Disque's importer has it in memory only."""
    for node in net.nodes:
        node.keep_log()
    job_id = net.nodes[0].add(1)
    net.nodes[1].wait()
    net.run(10)
    net.nodes[0].crash()
    net.nodes[1].crash()
    net.nodes[1].start()
    assert net.nodes[1].owners(job_id) == {0, 1}
    net.run(RETRY_MS + 2 * GAP_MS + NOTICE_MS + JITTER_MS)
    assert net.queued_at(job_id) == [1]


def test_after_a_flush_nobody_is_interested_any_more(net: JobNet) -> None:
    net.nodes[1].wait()
    net.run(100)
    for _ in net.nodes[1].jobs.clear():
        pass
    net.run(100)
    job_id = net.nodes[0].add(1)
    net.run(1000)
    assert net.queued_at(job_id) == [0]
