"""Which of several holders queues a job again: each row of the table, as it stands and as a node carries it out."""

from itertools import permutations, product
from random import Random
from typing import Final

import pytest

from kestreld.cluster.job_messages import GotJob, JobMessage, Moved, Notice, SetAck
from kestreld.cluster.peers import GAP_MS
from kestreld.cluster.reactions import REACTIONS, Do, Word, is_greater
from kestreld.jobs.job import (
    ACKED,
    ACTIVE,
    BORROWED,
    COPY,
    DELAYED,
    LENT,
    LET_GO,
    NOTICE_MS,
    QUEUED,
    WAIT_REPL,
)
from kestreld.jobs.job_queue import PAUSED_IN
from kestreld.jobs.store import JITTER_MS
from tests.support.job_net import RETRY_MS, JobNet, JobNode

JOB_ID = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
STATES: Final = (WAIT_REPL, ACTIVE, QUEUED, ACKED, DELAYED, BORROWED, LENT, LET_GO, COPY)
ON_THE_WAY: Final = (BORROWED, LENT, LET_GO)
DELAY_S: Final = 20


class Holder:
    """Node 1 with a job in a state; node 0 says something of it, node 2 holds a copy, too."""

    def __init__(self, state: int, *, wins: bool | None = None) -> None:
        """`wins`: node 1 keeps a job that it and node 0 have queued."""
        self.net = net = JobNet(3)
        self.node = net.nodes[1]
        self.sender = net.nodes[0]
        self.job_id = getattr(self, f"_{state}")()
        while wins is not None and is_greater(self.node.id, self.sender.id, self.job_id) != wins:
            self.job_id = getattr(self, f"_{state}")()
        assert self.state == state
        net.is_manual = True
        net.links.clear()
        net.sent.clear()

    def _shared(self, *, delay_s: int = 0, at: int = 1) -> bytes:
        job_id = self.net.nodes[at].add(3, delay_s=delay_s)
        self.net.run(10)
        return job_id

    def _0(self) -> bytes:
        self.net.is_manual = True
        return self.node.add(3)

    def _1(self) -> bytes:
        job_id = self._shared()
        assert self.node.get() == job_id
        return job_id

    def _2(self) -> bytes:
        return self._shared()

    def _3(self) -> bytes:
        job_id = self._1()
        self.net.is_manual = True
        self.node.ack(job_id)
        return job_id

    def _4(self) -> bytes:
        return self._shared(delay_s=DELAY_S)

    def _8(self) -> bytes:
        return self._shared(at=0)

    def _lend(self, giver: JobNode, taker: JobNode, messages: int) -> bytes:
        """A job on its way; so many messages about it have arrived."""
        job_id = giver.add(1, retry_ms=0)
        job = giver.jobs.find(job_id)
        assert job is not None
        giver.jobs.dequeue(job)
        self.net.is_manual = True
        giver.shared.lending.lend(job, giver.entry(taker))
        for number in range(messages):
            one, other = (giver, taker) if number % 2 == 0 else (taker, giver)
            self.net.deliver(one.number, other.number)
        return job_id

    def _5(self) -> bytes:
        return self._lend(self.net.nodes[2], self.node, 1)

    def _6(self) -> bytes:
        return self._lend(self.node, self.net.nodes[2], 0)

    def _7(self) -> bytes:
        return self._lend(self.node, self.net.nodes[2], 2)

    def hear(self, word: Word, *, after_ms: int = 0, nacks: int = 0, deliveries: int = 0) -> None:
        self.node.receive(self.sender, Notice(word, self.job_id, nacks, deliveries, after_ms))

    @property
    def state(self) -> int:
        return self.node.state_of(self.job_id)

    @property
    def said(self) -> list[tuple[int, JobMessage]]:
        """What the node has sent, and to whom."""
        return [(receiver, message) for sender, receiver, message in self.net.sent if sender == 1]

    def requeued_in_ms(self) -> int:
        job = self.node.jobs.find(self.job_id)
        assert job is not None
        return job.requeue_at_ms - self.node.jobs.now_ms


# The table


@pytest.mark.parametrize("word", Word)
def test_there_is_a_reaction_in_every_state_a_job_can_be_in(word: Word) -> None:
    assert set(REACTIONS[word]) == set(STATES)


@pytest.mark.parametrize(("word", "state"), list(product(Word, ON_THE_WAY)))
def test_nobody_has_a_say_in_a_job_that_only_one_node_may_deliver(word: Word, state: int) -> None:
    assert REACTIONS[word][state] is Do.NOTHING


@pytest.mark.parametrize("word", Word)
def test_whatever_is_said_of_an_acknowledged_job_is_answered_with_that(word: Word) -> None:
    assert REACTIONS[word][ACKED] is Do.SAY_ACKED


@pytest.mark.parametrize(("word", "state"), list(product([Word.HAS_QUEUED, Word.WORKING], [ACTIVE, COPY, DELAYED])))
def test_a_job_that_another_node_sees_to_is_put_off_here(word: Word, state: int) -> None:
    assert REACTIONS[word][state] is Do.PUT_OFF


# The same, carried out


@pytest.mark.parametrize(("word", "state"), list(product(Word, ON_THE_WAY)), ids=str)
def test_a_job_on_its_way_stays_what_it_is_and_nothing_is_said(word: Word, state: int) -> None:
    one = Holder(state)
    one.hear(word)
    assert (one.state, one.said) == (state, [])


@pytest.mark.parametrize("word", Word)
def test_the_sender_is_told_that_a_job_is_acknowledged(word: Word) -> None:
    one = Holder(ACKED)
    one.hear(word)
    ((receiver, message),) = one.said
    assert one.state == ACKED
    assert isinstance(message, SetAck)
    assert (receiver, set(message.owners)) == (0, {node.id for node in one.net.nodes})


def test_a_job_that_is_still_being_added_is_not_queued_because_another_node_says_so() -> None:
    one = Holder(WAIT_REPL)
    one.hear(Word.ENQUEUE)
    assert (one.state, one.said) == (WAIT_REPL, [])


@pytest.mark.parametrize("word", [Word.WILL_QUEUE, Word.HAS_QUEUED, Word.WORKING])
def test_a_job_that_was_queued_elsewhere_while_it_was_being_added_is_a_copy_here(word: Word) -> None:
    one = Holder(WAIT_REPL)
    one.hear(word)
    assert (one.state, one.said) == (WAIT_REPL, [])
    for other in (one.net.nodes[0], one.net.nodes[2]):
        one.node.receive(other, GotJob(one.job_id))
    assert one.node.added == [one.job_id]
    assert one.state == COPY
    assert one.node.get() is None
    assert RETRY_MS - JITTER_MS <= one.requeued_in_ms() <= RETRY_MS + JITTER_MS


def test_a_node_that_will_queue_a_copy_is_an_owner_from_then_on() -> None:
    one = Holder(COPY)
    job = one.node.jobs.find(one.job_id)
    assert job is not None
    one.node.jobs.own(job, one.node.jobs.me)
    one.hear(Word.WILL_QUEUE)
    assert (one.state, one.said) == (COPY, [])
    assert set(one.node.jobs.node_sets.ids(job.terms.owners)) == {one.node.id, one.sender.id}


def test_who_will_queue_a_job_is_told_that_a_worker_has_it() -> None:
    one = Holder(ACTIVE)
    one.hear(Word.WILL_QUEUE)
    ((receiver, message),) = one.said
    assert isinstance(message, Notice)
    assert (receiver, message.word, one.state) == (0, Word.WORKING, ACTIVE)
    assert message.after_ms == one.requeued_in_ms()


def test_who_will_queue_a_job_is_not_stopped_where_this_node_would_soon_queue_it_itself() -> None:
    one = Holder(ACTIVE)
    one.net.run(RETRY_MS - 2 * NOTICE_MS)
    one.net.sent.clear()
    one.hear(Word.WILL_QUEUE)
    assert one.said == []


def test_who_will_queue_a_job_is_told_when_this_node_will() -> None:
    one = Holder(DELAYED)
    one.hear(Word.WILL_QUEUE)
    ((receiver, message),) = one.said
    assert isinstance(message, Notice)
    assert (receiver, message.word, one.state) == (0, Word.HAS_QUEUED, DELAYED)
    assert message.after_ms == one.requeued_in_ms()


def test_who_will_queue_a_job_that_is_queued_here_is_told_so_with_all_holders() -> None:
    one = Holder(QUEUED)
    one.hear(Word.WILL_QUEUE)
    assert [receiver for receiver, _ in one.said] == [0, 2]
    assert all(isinstance(message, Notice) and message.word is Word.HAS_QUEUED for _, message in one.said)
    assert one.state == QUEUED


def test_who_will_queue_a_dead_letter_is_told_which_queue_it_is_in() -> None:
    one = Holder(QUEUED)
    job = one.node.jobs.find(one.job_id)
    assert job is not None
    one.node.jobs.bury(job, b"asked")
    one.net.sent.clear()
    one.hear(Word.WILL_QUEUE)
    (told,) = [message for receiver, message in one.said if isinstance(message, Moved)]
    assert told.queue == b"q.dead"


@pytest.mark.parametrize("state", [ACTIVE, COPY, DELAYED])
def test_a_job_that_is_queued_elsewhere_is_queued_here_a_retry_time_later_at_the_earliest(state: int) -> None:
    one = Holder(state)
    one.hear(Word.HAS_QUEUED, nacks=2, deliveries=3)
    assert (one.state, one.said) == (COPY, [])
    assert RETRY_MS + GAP_MS - JITTER_MS <= one.requeued_in_ms() <= RETRY_MS + 2 * GAP_MS + JITTER_MS
    job = one.node.jobs.find(one.job_id)
    assert job is not None
    assert (job.nacks, job.deliveries) == (2, 3)


@pytest.mark.parametrize("state", [ACTIVE, COPY, DELAYED])
def test_a_job_that_will_be_queued_elsewhere_is_put_off_by_that_time_too(state: int) -> None:
    one = Holder(state)
    one.hear(Word.HAS_QUEUED, after_ms=60_000)
    assert one.requeued_in_ms() >= 60_000 + RETRY_MS + GAP_MS - JITTER_MS


@pytest.mark.parametrize("state", [ACTIVE, COPY, DELAYED, QUEUED])
def test_a_job_that_a_worker_has_elsewhere_is_put_off_by_as_much_as_that_node_says(state: int) -> None:
    one = Holder(state)
    one.hear(Word.WORKING, after_ms=7_000)
    assert (one.state, one.said) == (COPY, [])
    assert 7_000 + GAP_MS <= one.requeued_in_ms() <= 7_000 + 2 * GAP_MS
    assert one.node.get() is None


def test_of_two_nodes_that_have_queued_a_job_the_lesser_one_takes_it_back() -> None:
    one = Holder(QUEUED, wins=False)
    one.hear(Word.HAS_QUEUED)
    assert (one.state, one.said) == (COPY, [])
    assert one.node.get() is None


def test_of_two_nodes_that_have_queued_a_job_the_greater_one_keeps_it_and_says_so() -> None:
    one = Holder(QUEUED, wins=True)
    one.hear(Word.HAS_QUEUED)
    ((receiver, message),) = one.said
    assert isinstance(message, Notice)
    assert (receiver, message.word, one.state) == (0, Word.HAS_QUEUED, QUEUED)


@pytest.mark.parametrize("state", [COPY, DELAYED])
def test_a_job_is_queued_where_another_node_asks_for_that(state: int) -> None:
    one = Holder(state)
    one.hear(Word.ENQUEUE)
    assert (one.state, one.said) == (QUEUED, [])
    assert one.node.get() == one.job_id


def test_a_job_is_not_queued_where_a_worker_has_it() -> None:
    one = Holder(ACTIVE)
    one.hear(Word.ENQUEUE)
    assert (one.state, one.said) == (ACTIVE, [])


def test_who_asks_for_a_job_to_be_queued_need_not_hold_it() -> None:
    one = Holder(COPY)
    job = one.node.job(one.job_id)
    one.node.jobs.own(job, one.node.jobs.me)
    one.hear(Word.ENQUEUE)
    assert one.node.owners(one.job_id) == {1}


def test_a_job_is_queued_later_where_another_node_asks_for_that() -> None:
    one = Holder(COPY)
    one.hear(Word.ENQUEUE, after_ms=5_000)
    assert one.state == DELAYED
    one.net.run(4_990)
    assert one.node.get() is None
    one.net.run(20)
    assert one.node.get() == one.job_id


def test_a_queued_job_is_not_queued_twice() -> None:
    one = Holder(QUEUED)
    one.hear(Word.ENQUEUE)
    assert (one.state, one.said) == (QUEUED, [])
    assert [one.node.get(), one.node.get()] == [one.job_id, None]


def test_a_queue_that_is_paused_in_takes_no_job_that_another_node_wants_queued() -> None:
    one = Holder(COPY)
    queue = one.node.jobs.queue(b"q")
    assert queue is not None
    one.node.jobs.pause(queue, PAUSED_IN)
    one.hear(Word.ENQUEUE)
    assert (one.state, one.said) == (COPY, [])


@pytest.mark.parametrize("word", Word)
def test_what_is_said_of_a_job_that_is_not_here_is_ignored(word: Word) -> None:
    one = Holder(QUEUED)
    one.job_id = JOB_ID
    one.hear(word)
    assert one.said == []
    assert one.node.state_of(JOB_ID) == -1


@pytest.mark.parametrize("word", Word)
def test_who_says_something_of_a_job_that_was_acknowledged_here_lately_is_told_so(word: Word) -> None:
    one = Holder(QUEUED)
    one.node.ack(one.job_id)
    one.net.deliver_all()
    assert one.state == -1
    one.net.sent.clear()
    one.hear(word)
    ((receiver, message),) = one.said
    assert isinstance(message, SetAck)
    assert receiver == 0


# Which node is the greater one


def test_of_two_nodes_one_is_the_greater_whoever_asks() -> None:
    random = Random(1)
    for _ in range(100):
        one, other = (random.randbytes(20).hex().encode() for _ in range(2))
        assert is_greater(one, other, JOB_ID) != is_greater(other, one, JOB_ID)
        assert not is_greater(one, one, JOB_ID)


def test_it_is_a_different_node_for_different_jobs() -> None:
    one, other = b"0" * 40, b"f" * 40
    winners = {is_greater(one, other, JOB_ID[:11] + letter * 24 + JOB_ID[35:]) for letter in (b"A", b"/", b"z", b"0")}
    assert winners == {True, False}


def test_the_greatest_of_three_is_greater_than_both() -> None:
    random = Random(2)
    for _ in range(50):
        nodes = [random.randbytes(20).hex().encode() for _ in range(3)]
        orders = [
            order
            for order in permutations(nodes)
            if is_greater(order[0], order[1], JOB_ID) and is_greater(order[1], order[2], JOB_ID)
        ]
        assert len(orders) == 1
        assert is_greater(orders[0][0], orders[0][2], JOB_ID)
