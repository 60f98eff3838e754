"""ADDJOB ID at several nodes: who is told that there is a job, and whose word that is."""

from random import Random
from typing import Final

import pytest

from kestreld.cluster.client_keys import ANSWER_MS
from kestreld.cluster.job_messages import FoundKey
from kestreld.jobs.job import COPY, QUEUED
from kestreld.jobs.keys import KEY_TIME_MS, key_in
from kestreld.server.disque.pending_addjob import Adding
from tests.support.job_net import RETRY_MS, TTL_MS, JobNet, JobNode, Q

OPTIONS: Final = (TTL_MS, RETRY_MS, 0, -1)
KEY = key_in(Q, b"key")


def add_one_that_waits(net: JobNet, *cut: int) -> bytes:
    """A job with the key at node 0, of which node 1 holds a copy, and not as many as it is to have."""
    net.cut |= {(other, 0) for other in cut} | {(0, other) for other in cut}
    for other in cut:
        net.nodes[0].lose_sight_of(net.nodes[other])
        net.nodes[other].lose_sight_of(net.nodes[0])
    job_id = net.nodes[0].add(len(net.nodes), key=b"key")
    net.run(10)
    assert net.nodes[1].state_of(job_id) == COPY
    return job_id


def search(net: JobNet, number: int) -> list[bytes]:
    """What becomes of a search for the key."""
    found: list[bytes] = []
    node = net.nodes[number]
    queue = node.jobs.queue(Q)
    assert queue is not None
    node.shared.keys.find(KEY, node.jobs.new_id(queue.terms_of((1000, 1000, 0, -1))), found.append)
    return found


def test_a_key_is_free_once_its_job_was_given_up_wherever_there_was_a_copy() -> None:
    net = JobNet(3)
    job_id = add_one_that_waits(net, 2)
    net.nodes[0].shared.replicating.give_up(job_id)
    net.run(10)
    assert net.nodes[1].state_of(job_id) == -1
    for number in (0, 1):
        found = search(net, number)
        net.run(1000)
        assert found == [b""]


def test_a_key_is_free_once_its_job_was_deleted_while_it_was_being_added() -> None:
    net = JobNet(3)
    job_id = add_one_that_waits(net, 2)
    here = net.nodes[0]
    job = here.jobs.find(job_id)
    assert job is not None
    here.jobs.remove(job)
    net.run(10)
    assert here.added == [None]
    assert net.nodes[1].state_of(job_id) == -1
    found = search(net, 1)
    net.run(1000)
    assert found == [b""]


def test_a_job_that_is_being_added_is_waited_for_although_a_copy_is_known_elsewhere() -> None:
    net = JobNet(4)
    job_id = add_one_that_waits(net, 2)
    found = search(net, 3)
    net.run(300)
    assert found == []
    net.nodes[0].shared.replicating.give_up(job_id)
    net.run(300)
    is_there = any(node.state_of(job_id) == COPY for node in net.nodes)
    assert found == [job_id if is_there else b""]


def test_what_somebody_was_told_is_there_stays_there_although_it_is_given_up() -> None:
    net = JobNet(3)
    job_id = add_one_that_waits(net, 2)
    found = search(net, 2)  # which does not reach who adds it
    net.run(300)
    assert found == [job_id]
    net.nodes[0].shared.replicating.give_up(job_id)
    net.run(300)
    assert net.nodes[1].state_of(job_id) == COPY


def test_a_copy_that_was_queued_and_told_of_here_stays_although_its_job_is_given_up() -> None:
    net = JobNet(3)
    job_id = add_one_that_waits(net, 2)
    node = net.nodes[1]
    net.run(2 * RETRY_MS)
    assert node.state_of(job_id) == QUEUED
    assert search(net, 1) == [job_id]
    net.nodes[0].shared.replicating.give_up(job_id)
    net.run(300)
    assert node.get() == job_id


def test_a_key_is_free_where_the_copy_was_deleted_before_its_job_was_given_up() -> None:
    net = JobNet(3)
    job_id = add_one_that_waits(net, 2)
    copy = net.nodes[1].jobs.find(job_id)
    assert copy is not None
    net.nodes[1].jobs.remove(copy)  # DELJOB
    net.nodes[0].shared.replicating.give_up(job_id)
    net.run(10)
    found = search(net, 1)
    net.run(1000)
    assert found == [b""]


def test_a_job_that_is_being_added_is_waited_for_where_its_copy_was_deleted_too() -> None:
    net = JobNet(3)
    job_id = add_one_that_waits(net, 2)
    copy = net.nodes[1].jobs.find(job_id)
    assert copy is not None
    net.nodes[1].jobs.remove(copy)  # QDEL
    found = search(net, 1)
    net.run(300)
    assert found == []
    net.nodes[0].shared.replicating.give_up(job_id)
    net.run(300)
    assert found == [b""]


class Keyed:
    """An ADDJOB with the key, as a client of a node sees it: `answer` is the job's id, None = refused."""

    def __init__(self, node: JobNode, copies: int = 1, key: bytes = b"key") -> None:
        self.node = node
        self.copies = copies
        self.key = key
        self.answers: list[bytes | None] = []
        self.new_id = node.jobs.new_id(node.queue.terms_of(OPTIONS))
        node.shared.keys.find(key_in(Q, key), self.new_id, self._found)

    def _found(self, known: bytes) -> None:
        if known:
            self.answers.append(known)
            return
        replicating = self.node.shared.replicating
        if replicating.copies_possible() < self.copies:
            self.answers.append(None)
            return
        replicating.add(self.node.queue, b"body", OPTIONS, self.key, self.copies, self.answers.append, self.new_id)

    @property
    def answer(self) -> bytes | None:
        (answer,) = self.answers
        return answer


def jobs_of(net: JobNet) -> set[bytes]:
    return {job.id for node in net.nodes for job in node.jobs.table}


# Who knows it


def test_a_key_that_another_node_knows_is_answered_with_its_job() -> None:
    net = JobNet(3)
    first = Keyed(net.nodes[0], 2)
    net.run(100)
    again = Keyed(net.nodes[2])
    net.run(100)
    assert again.answer == first.answer
    assert jobs_of(net) == {first.answer}


def test_where_there_is_no_other_node_a_key_is_free_at_once() -> None:
    net = JobNet(1)
    first, again = Keyed(net.nodes[0]), Keyed(net.nodes[0])
    assert first.answer == again.answer
    assert net.sent == []


def test_a_key_is_asked_for_with_two_messages_for_each_other_node() -> None:
    net = JobNet(7)
    Keyed(net.nodes[0])
    net.run(100)
    assert net.counted() == {"FindKey": 6, "FoundKey": 6}


def test_a_key_of_a_job_that_is_acknowledged_is_known_for_five_minutes() -> None:
    net = JobNet(3)
    first = Keyed(net.nodes[0], 2)
    net.run(100)
    assert first.answer is not None
    assert net.nodes[0].get() == first.answer
    net.nodes[0].ack(first.answer)
    net.run(1000)
    assert jobs_of(net) == set()
    again = Keyed(net.nodes[2])
    net.run(KEY_TIME_MS - 2000)
    assert again.answer == first.answer
    net.run(5000)
    later = Keyed(net.nodes[2])
    net.run(100)
    assert later.answer not in (None, first.answer)


def test_each_queue_has_its_own_keys() -> None:
    net = JobNet(2)
    first = Keyed(net.nodes[0])
    net.run(100)
    found: list[bytes] = []
    net.nodes[1].shared.keys.find(key_in(b"other", b"key"), b"D-00000000-%024d-05a1" % 1, found.append)
    net.run(100)
    assert found == [b""]
    assert first.answer


# Nodes that do not answer


def test_a_node_that_is_down_is_not_asked() -> None:
    net = JobNet(3)
    net.nodes[2].crash()
    first = Keyed(net.nodes[0])
    net.run(10)
    assert first.answer


def test_a_node_that_does_not_answer_is_passed_over_after_a_while() -> None:
    net = JobNet(3)
    net.cut = {(2, 0)}
    first = Keyed(net.nodes[0])
    net.run(ANSWER_MS - 10)
    assert first.answers == []
    net.run(20)
    assert first.answer


def test_a_node_that_goes_down_meanwhile_is_passed_over_at_once() -> None:
    net = JobNet(3)
    net.cut = {(2, 0)}
    first = Keyed(net.nodes[0])
    net.run(10)
    net.nodes[2].crash()
    net.run(1)
    assert first.answer


def test_each_side_of_a_partition_may_add_a_job_with_one_key() -> None:
    net = JobNet(4)
    net.partition(0, 1)
    ours, theirs = Keyed(net.nodes[0], 2), Keyed(net.nodes[2], 2)
    net.run(100)
    assert ours.answer != theirs.answer
    net.heal()
    net.run(1000)
    again = Keyed(net.nodes[1])
    net.run(1000)
    assert again.answer in (ours.answer, theirs.answer)
    assert len(jobs_of(net)) == 2


# Several at once


@pytest.mark.parametrize("copies", [1, 2])
def test_of_two_nodes_that_add_one_key_at_once_one_does(copies: int) -> None:
    net = JobNet(3)
    one, other = Keyed(net.nodes[0], copies), Keyed(net.nodes[1], copies)
    net.run(1000)
    assert one.answer == other.answer
    assert jobs_of(net) == {one.answer}


def test_of_two_clients_of_one_node_that_add_one_key_at_once_one_does() -> None:
    net = JobNet(3)
    one, other = Keyed(net.nodes[0], 2), Keyed(net.nodes[0], 2)
    net.run(1000)
    assert one.answer == other.answer
    assert jobs_of(net) == {one.answer}


def test_however_many_nodes_add_one_key_at_once_there_is_one_job() -> None:
    random = Random(3)
    for _ in range(60):
        net = JobNet(5)
        net.delay_ms = lambda: random.choice((0, 1, 10, random.randint(0, 120)))
        clients = []
        for _ in range(6):
            clients.append(Keyed(random.choice(net.nodes), random.randint(1, 3)))
            net.run(random.choice((0, 1, 30, 100)))
        net.run(5000)
        assert len({client.answer for client in clients}) == 1
        assert jobs_of(net) == {clients[0].answer}


def test_who_has_waited_for_another_add_goes_on_where_that_is_refused() -> None:
    net = JobNet(3)
    net.cut = {(0, 2), (2, 0)}
    first = Keyed(net.nodes[0], 3)
    net.run(ANSWER_MS + 50)
    assert net.nodes[1].state_of(first.new_id) == COPY
    second = Keyed(net.nodes[1], 1)
    net.run(300)
    assert second.answers == []
    net.nodes[0].shared.replicating.give_up(first.new_id)
    net.run(ANSWER_MS + 200)
    assert second.answer == second.new_id
    assert jobs_of(net) == {second.new_id}


def test_who_has_waited_for_another_add_is_told_its_job_where_that_succeeds() -> None:
    net = JobNet(3)
    net.cut = {(0, 2), (2, 0)}
    first = Keyed(net.nodes[0], 3)
    net.run(ANSWER_MS + 50)
    second = Keyed(net.nodes[1], 1)
    net.run(300)
    net.cut = set()
    net.lose(0, 2)
    net.run(3000)
    assert first.answer == second.answer == first.new_id


def test_a_search_that_is_cancelled_keeps_nobody_waiting() -> None:
    net = JobNet(3)
    node = net.nodes[0]
    told: list[bytes] = []
    search = node.shared.keys.find(key_in(Q, b"key"), b"D-00000000-%024d-05a1" % 0, told.append)
    node.shared.keys.cancel(search)
    other = Keyed(net.nodes[1])
    net.run(1000)
    assert (told, other.answer) == ([], other.new_id)


def test_late_answers_change_nothing() -> None:
    net = JobNet(3)
    first = Keyed(net.nodes[0])
    net.run(100)
    net.nodes[0].receive(net.nodes[1], FoundKey(first.new_id, b"D-00000000-%024d-05a1" % 1))
    net.nodes[0].receive(net.nodes[1], FoundKey(b"D-00000000-%024d-05a1" % 2, b"D-00000000-%024d-05a1" % 1))
    assert first.answer == first.new_id


def test_keys_are_known_after_a_restart() -> None:
    net = JobNet(2)
    for node in net.nodes:
        node.keep_log()
    first = Keyed(net.nodes[0], 2)
    net.run(100)
    for node in net.nodes:
        node.crash()
    for node in net.nodes:
        node.start()
    again = Keyed(net.nodes[1])
    net.run(1000)
    assert again.answer == first.answer


@pytest.mark.parametrize("what", ["flushed", "collected"])
def test_a_job_is_in_its_queue_although_that_was_flushed_or_collected_while_others_were_asked_for_its_key(
    what: str,
) -> None:
    net = JobNet(2)
    here = net.nodes[0]
    replies: list[bytes] = []
    adding = Adding(
        lambda _, reply: replies.append(reply), here.shared, net.now_ms + 5000, here.queue, b"body", OPTIONS, b"key", 1
    )
    adding.begin(waits=True)
    assert replies == []
    if what == "flushed":
        ending = here.jobs.clear()
    else:
        here.jobs.unlist(here.queue)
        here.wait(1)  # for the queue that is made anew
        ending = iter(())
    net.run(1000)
    for _ in ending:
        pass
    (reply,) = replies
    job_id = reply.strip(b"+\r\n")
    assert here.get() == job_id
    here.jobs.remove(here.job(job_id))
