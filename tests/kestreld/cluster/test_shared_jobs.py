"""Jobs that several nodes have: replication, requeues, acknowledgements and jobs that go where somebody waits."""

from collections import Counter
from typing import Final

import pytest

from kestreld.cluster.job_messages import About, Acked, Forget, Give, Keep, Kept, KnowsAck, LetGo, Need, Stored
from kestreld.jobs.globs import Glob
from kestreld.jobs.job import ACKED, ACTIVE, DELAYED, QUEUED, Job
from kestreld.jobs.waiting import JobWaiter
from tests.support.cluster_net import TIMEOUT_MS, Member, Net

TTL_MS: Final = 600_000
RETRY_MS: Final = 10_000
Q: Final = b"q"


class Client:
    """Adds, fetches and acknowledges jobs at one node, and remembers what it was told."""

    def __init__(self, node: Member) -> None:
        self.node = node
        self.added: list[bytes | None] = []
        self.fetched: list[bytes] = []

    def add(self, copies: int, *, retry_ms: int = RETRY_MS, delay_s: int = 0, ttl_ms: int = TTL_MS) -> bytes:
        queue = self.node.jobs.queue(Q)
        assert queue is not None
        options = (ttl_ms, retry_ms, delay_s, -1)
        job = self.node.shared.add(queue, b"body", options, b"", copies, self.added.append)
        if job is not None:
            return job.id
        assert self.added[-1] is not None
        return self.added[-1]

    def get(self) -> bytes | None:
        queue = self.node.jobs.queue(Q)
        assert queue is not None
        job = self.node.jobs.take(queue)
        if job is None:
            return None
        self.fetched.append(job.id)
        return job.id

    def wait(self) -> None:
        queue = self.node.jobs.queue(Q)
        assert queue is not None
        if self.get() is None:
            globs: list[Glob] = []
            self.node.jobs.wait(self, [queue], globs, 0)

    def served(self, waiter: JobWaiter, job: Job | None) -> None:
        if job is not None:
            self.fetched.append(job.id)

    def ack(self, job_id: bytes) -> bool:
        job = self.node.jobs.find(job_id)
        if job is None:
            self.node.shared.acknowledge_unknown(job_id, TTL_MS)
            return False
        return self.node.shared.acknowledge(job)


@pytest.fixture
def net() -> Net:
    net = Net(3)
    net.form()
    net.log.clear()
    return net


@pytest.fixture
def seven() -> Net:
    net = Net(7)
    net.form()
    net.log.clear()
    return net


def states(net: Net, job_id: bytes) -> list[int | None]:
    return [job.state if (job := node.jobs.find(job_id)) is not None else None for node in net.nodes]


def kinds(net: Net) -> Counter[str]:
    return Counter(type(message).__name__ for _, _, message in net.log)


def test_a_job_is_added_once_as_many_nodes_as_asked_for_have_it(net: Net) -> None:
    client = Client(net.nodes[0])
    job_id = client.add(3)
    assert client.added == []
    assert client.get() is None
    net.run(10)
    assert client.added == [job_id]
    assert states(net, job_id) == [QUEUED, ACTIVE, ACTIVE]
    assert kinds(net) == {"Keep": 2, "Kept": 2, "Need": 2}


def test_a_delayed_job_is_active_elsewhere_and_queued_by_one_node_when_it_is_due(net: Net) -> None:
    client = Client(net.nodes[0])
    job_id = client.add(3, delay_s=5)
    net.run(10)
    assert states(net, job_id) == [DELAYED, ACTIVE, ACTIVE]
    net.run(4900)
    assert states(net, job_id) == [DELAYED, ACTIVE, ACTIVE]
    net.run(100)
    assert states(net, job_id) == [QUEUED, ACTIVE, ACTIVE]


def test_one_node_more_is_asked_where_one_does_not_answer(seven: Net) -> None:
    client = Client(seven.nodes[0])
    seven.cut = {(0, 1), (0, 2), (0, 3), (0, 4)}
    job_id = client.add(3)
    seven.run(300)
    assert client.added == [job_id]
    assert len([state for state in states(seven, job_id) if state is not None]) == 3


def test_a_job_that_is_given_up_is_nowhere(net: Net) -> None:
    client = Client(net.nodes[0])
    net.cut = {(2, 0)}
    job_id = client.add(3)
    net.run(100)
    assert states(net, job_id)[1:] == [ACTIVE, ACTIVE]
    net.nodes[0].shared.give_up(job_id)
    net.run(100)
    assert states(net, job_id) == [None, None, None]
    assert client.added == []


def test_a_job_that_nobody_acknowledges_is_queued_by_one_node_at_a_time(net: Net) -> None:
    client = Client(net.nodes[0])
    job_id = client.add(3)
    net.run(10)
    assert client.get() == job_id
    for _ in range(20):
        net.run(RETRY_MS + 300)
        queued = [node for node, state in zip(net.nodes, states(net, job_id), strict=True) if state == QUEUED]
        assert len(queued) == 1
        assert Client(queued[0]).get() == job_id


def test_the_job_of_a_node_that_is_gone_is_queued_by_another(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(3)
    net.run(10)
    net.stop(net.nodes[0])
    net.run(RETRY_MS + 800)
    assert states(net, job_id)[1:].count(QUEUED) == 1


@pytest.mark.parametrize("at", [0, 1])
def test_an_acknowledged_job_is_forgotten_by_all_with_three_messages_for_each_copy(net: Net, at: int) -> None:
    job_id = Client(net.nodes[0]).add(3)
    net.run(10)
    net.log.clear()
    assert Client(net.nodes[at]).ack(job_id)
    net.run(100)
    assert states(net, job_id) == [None, None, None]
    assert kinds(net) == {"Acked": 2, "KnowsAck": 2, "Forget": 2}
    net.run(TIMEOUT_MS * 10)
    assert kinds(net) == {"Acked": 2, "KnowsAck": 2, "Forget": 2}


def test_a_job_acknowledged_where_it_is_not_is_forgotten_by_all(seven: Net) -> None:
    job_id = Client(seven.nodes[0]).add(3)
    seven.run(10)
    elsewhere = states(seven, job_id).index(None)
    assert not Client(seven.nodes[elsewhere]).ack(job_id)
    seven.run(200)
    assert states(seven, job_id) == [None] * 7


def test_an_owner_that_was_away_does_not_deliver_what_was_acknowledged_meanwhile(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(3)
    net.run(10)
    net.partition(2)
    net.run(100)
    assert Client(net.nodes[0]).ack(job_id)
    net.run(3 * TIMEOUT_MS)
    assert states(net, job_id) == [ACKED, ACKED, ACTIVE]
    net.heal()
    net.run(TIMEOUT_MS)
    assert states(net, job_id) == [None, None, None]


def test_an_owner_that_was_forgotten_is_not_waited_for(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(3)
    net.run(10)
    net.stop(net.nodes[2])
    assert Client(net.nodes[0]).ack(job_id)
    net.run(3 * TIMEOUT_MS)
    assert states(net, job_id)[:2] == [ACKED, ACKED]
    for node in net.nodes[:2]:
        node.membership.forget(node.entry(net.nodes[2]), node.clock.monotonic_ms)
    net.run(TIMEOUT_MS * 6)
    assert states(net, job_id)[:2] == [None, None]


def test_a_job_goes_to_where_somebody_waits_in_less_than_a_tenth_of_a_second(net: Net) -> None:
    waiting = Client(net.nodes[1])
    waiting.wait()
    net.run(20_000)
    job_id = Client(net.nodes[0]).add(1)
    net.run(50)
    assert waiting.fetched == [job_id]
    assert states(net, job_id) == [ACTIVE, ACTIVE, None]


def test_who_fetches_gets_a_job_that_another_node_has(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(1)
    net.run(10)
    client = Client(net.nodes[2])
    client.wait()
    net.run(10)
    assert client.fetched == [job_id]


def test_an_importer_is_an_owner_so_that_an_ack_there_is_known_to_all(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(1)
    net.run(10)
    client = Client(net.nodes[2])
    client.wait()
    net.run(10)
    assert client.ack(job_id)
    net.run(10)
    assert states(net, job_id) == [None, None, None]
    net.run(3 * RETRY_MS)
    assert states(net, job_id) == [None, None, None]


def test_an_ack_at_another_owner_reaches_an_importer_that_it_does_not_know(seven: Net) -> None:
    job_id = Client(seven.nodes[0]).add(2)
    seven.run(10)
    other = next(number for number, state in enumerate(states(seven, job_id)) if state == ACTIVE)
    importer = next(number for number, state in enumerate(states(seven, job_id)) if state is None)
    client = Client(seven.nodes[importer])
    client.wait()
    seven.run(10)
    assert client.fetched == [job_id]
    assert Client(seven.nodes[other]).ack(job_id)
    seven.run(100)
    assert states(seven, job_id) == [None] * 7


def test_a_job_that_is_delivered_at_most_once_is_given_in_three_steps(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(1, retry_ms=0)
    net.run(10)
    net.log.clear()
    client = Client(net.nodes[1])
    client.wait()
    net.run(10)
    assert client.fetched == [job_id]
    assert [type(message) for _, _, message in net.log if not isinstance(message, Need)] == [Give, Stored, LetGo]
    assert states(net, job_id) == [None, ACTIVE, None]


@pytest.mark.parametrize("lost", [Give, Stored, LetGo])
def test_a_job_that_is_delivered_at_most_once_survives_a_link_that_breaks_in_its_transfer(net: Net, lost: type) -> None:
    job_id = Client(net.nodes[0]).add(1, retry_ms=0)
    net.run(10)
    clients = [Client(node) for node in net.nodes]

    def drop_from_now_on() -> int:
        if any(isinstance(message, lost) for _, _, message in net.log):
            net.partition(1)
        return 1

    net.delay_ms = drop_from_now_on
    clients[1].wait()
    net.run(3 * TIMEOUT_MS)
    net.delay_ms = lambda: 1
    net.heal()
    net.run(3 * TIMEOUT_MS)
    for client in (clients[0], clients[2]):
        client.wait()
    net.run(3 * TIMEOUT_MS)
    assert [job for client in clients for job in client.fetched] == [job_id]


def test_nothing_more_is_sent_about_jobs_once_they_are_over(net: Net) -> None:
    clients = [Client(node) for node in net.nodes]
    ids = [clients[number % 3].add(number % 3 + 1) for number in range(30)]
    net.run(50)
    for number, job_id in enumerate(ids):
        clients[number % 2].ack(job_id)
    net.run(TIMEOUT_MS)
    assert [len(node.jobs.table.parts) and node.jobs.table.count for node in net.nodes] == [0, 0, 0]
    net.log.clear()
    net.run(60_000)
    assert net.log == []


def test_words_about_jobs_that_are_nowhere_change_nothing(net: Net) -> None:
    job_id = Client(net.nodes[0]).add(1)
    net.run(10)
    node, sender = net.nodes[2], net.nodes[2].entry(net.nodes[0])
    for message in (Kept(job_id), KnowsAck(job_id, True, ()), Forget((job_id,)), LetGo(job_id)):
        node.shared.receive(sender, message)
    assert states(net, job_id) == [QUEUED, None, None]
    assert not [one for one in net.log if isinstance(one[2], (Keep, About, Acked))]
