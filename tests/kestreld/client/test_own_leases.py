"""Leases whose reply never reached its caller: the client gives them back, and no other ones."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random, randrange
from typing import Any, Final

import pytest

from kestreld.client import AsyncKestrelCluster, ClusterLease, ClusterQueue, KestrelCluster
from kestreld.client.absence import now_ms
from kestreld.client.own_leases import KNOWN_MS, LOOK_THROUGH, ClientName, LeaseRequest, OwnLeases
from kestreld.client.queue_talks import Answer, QueueTalks, Request
from kestreld.errors import ConnectionLost
from tests.support.daemon import Daemon, running_daemon
from tests.support.forwarder import Forwarder
from tests.support.gate import Gate
from tests.support.interrupting import interrupted_at
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

LONG_S: Final = 3600.0
QUICK: Final = 7  # every so many places are tried by the quick test
INTERRUPTIONS: Final = int(os.environ.get("INTERRUPTIONS", "1000"))  # of the long test
NAME: Final = "worker-7"
MUCH: Final = LOOK_THROUGH + 7


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def forwarder(daemon: Daemon) -> Iterator[Forwarder]:
    forwarder = Forwarder(Random(1))
    yield forwarder
    forwarder.close()


@contextmanager
def direct(daemon: Daemon, name: str) -> Iterator[ClusterQueue]:
    with KestrelCluster([daemon.address]) as cluster:
        yield cluster.queue(name)


def behind(forwarder: Forwarder, daemon: Daemon) -> str:
    port = free_port()
    forwarder.forward(port, daemon.port)
    return f"127.0.0.1:{port}"


def leased(queue: ClusterQueue) -> ClusterLease:
    lease = queue.lease(LONG_S, timeout=PATIENCE_S)
    assert lease is not None
    return lease


def figure(queue: ClusterQueue, name: str) -> int:
    return sum(int(counters[name]) for counters in queue.stats().values() if counters)


# A reply that is lost


def test_an_item_whose_lease_was_not_answered_is_given_back_and_none_that_is_held(
    daemon: Daemon, forwarder: Forwarder
) -> None:
    with KestrelCluster([behind(forwarder, daemon)]) as cluster, direct(daemon, "threads") as aside:
        queue = cluster.queue("threads")
        for number in range(4):
            aside.put(b"%d" % number)
        held = [leased(queue) for _ in range(3)]
        forwarder.broken_by = b"VALUE "
        lost = leased(queue)
        assert lost.item == b"3"
        assert [lease.confirm() for lease in (*held, lost)] == [True] * 4
        assert figure(aside, "items") == figure(aside, "open_transactions") == 0


def test_a_task_gets_the_item_whose_lease_was_not_answered(daemon: Daemon, forwarder: Forwarder) -> None:
    address = behind(forwarder, daemon)

    async def body() -> None:
        async with AsyncKestrelCluster([address]) as cluster, asyncio.timeout(PATIENCE_S):
            queue = cluster.queue("tasks")
            for number in range(2):
                await queue.put(b"%d" % number)
            held = await queue.lease(LONG_S)
            assert held is not None
            forwarder.broken_by = b"VALUE "
            lost = await queue.lease(LONG_S, timeout=PATIENCE_S)
            assert lost is not None
            assert lost.item == b"1"
            assert await held.confirm()
            assert await lost.confirm()

    asyncio.run(body())


def test_what_is_given_back_has_not_failed(tmp_path: Path, forwarder: Forwarder) -> None:
    settings = ("max_retries=1", "move_failed_to=dead")
    with running_daemon(tmp_path, *settings) as daemon, KestrelCluster([behind(forwarder, daemon)]) as cluster:
        queue = cluster.queue("work")
        queue.put(b"job")
        for _ in range(4):
            forwarder.broken_by = b"VALUE "
            assert leased(queue).give_back()
        assert figure(queue, "items") == 1


def test_nothing_is_given_back_in_a_name_that_others_may_have(daemon: Daemon, forwarder: Forwarder) -> None:
    with KestrelCluster([behind(forwarder, daemon)]) as cluster, direct(daemon, "shared") as aside:
        queue = cluster.queue("shared")
        queue.put(b"job")
        forwarder.broken_by = b"VALUE "
        assert queue.lease(LONG_S, timeout=0.2, by=NAME) is None
        assert queue.lease(LONG_S) is None
        assert figure(aside, "open_transactions") == 1


# Requests at the same time: what is sent and answered, step by step


class Requests:
    """Requests of one client for leases from one server, each on a connection of its own."""

    def __init__(self) -> None:
        self.own = OwnLeases()
        self.talks = QueueTalks("here")
        self.talks._knows_leases = self.talks._knows_holders = True

    def begin(self) -> "Generator[Request, Answer, Any]":
        """Begin one, up to its first command."""
        call = LeaseRequest(b"work", NAME, is_own=True).lease(self.own, self.talks, 60_000, 1000)
        self.first = next(call).data
        return call

    def settle(self) -> "Generator[Request, Answer, None]":
        return self.own.settle(self.talks, b"work")


def an_item(token: int) -> Answer:
    return Answer((b"job",), b"VALUE work/t=1000/open/lease=60000/by=worker-7 0 3 %d" % token)


def listed(call: "Generator[Request, Answer, Any]", *tokens: int) -> "Request | None":
    """Answer the question for leases. What is sent next; None = nothing."""
    try:
        for token in tokens:
            call.send(Answer(b"LEASE work 1 %d 60000 60000" % token, b""))
        return call.send(Answer((), b""))
    except StopIteration:
        return None


def end(call: "Generator[Request, Answer, Any]", answer: Answer) -> Any:
    with pytest.raises(StopIteration) as ended:
        call.send(answer)
    return ended.value.value


def test_a_token_that_another_request_is_just_receiving_is_not_given_back() -> None:
    requests = Requests()
    lost, other = requests.begin(), requests.begin()
    with pytest.raises(ConnectionLost):
        lost.throw(ConnectionLost("here", "it closed the connection"))
    again = requests.begin()
    assert requests.first == b"leases by=worker-7 work\r\n"
    step = listed(again, 17, 18)  # one of them is that of `other`
    assert step is not None
    assert step.data.startswith(b"gets "), "nothing is given back as long as it may be the other one's"
    assert end(again, Answer((), b"")) is None
    assert requests.own.may_have_more
    assert end(other, an_item(18)).id == 18
    settled = requests.begin()
    assert requests.first == b"touch work/17 0\r\n"
    assert settled.send(Answer(b"TOUCHED", b"")).data.startswith(b"gets ")
    assert end(settled, Answer((), b"")) is None
    assert not requests.own.may_have_more


def test_a_request_that_begins_after_the_list_delays_nothing() -> None:
    requests = Requests()
    requests.own.lost(b"work", NAME)
    settling = requests.settle()
    assert next(settling).data == b"leases by=worker-7 work\r\n"
    requests.own.lost(b"other", NAME)
    step = listed(settling, 17)
    assert step is not None
    assert step.data == b"touch work/17 0\r\n"


def test_a_server_that_cannot_list_leases_is_asked_for_them_once() -> None:
    requests = Requests()
    requests.own.lost(b"work", NAME)
    first = requests.begin()
    assert requests.first == b"leases by=worker-7 work\r\n"
    assert first.send(Answer(b"ERROR", b"")).data.startswith(b"gets ")
    assert end(first, Answer((), b"")) is None
    requests.begin()
    assert requests.first.startswith(b"gets ")


def test_a_list_that_is_lost_is_asked_for_again() -> None:
    requests = Requests()
    requests.own.lost(b"work", NAME)
    settling = requests.settle()
    next(settling)
    with pytest.raises(ConnectionLost):
        settling.throw(ConnectionLost("here", "it closed the connection"))
    requests.begin()
    assert requests.first == b"leases by=worker-7 work\r\n"


def test_tokens_of_leases_that_are_long_over_are_forgotten_unless_somebody_has_them() -> None:
    class Holder:
        pass

    own, holder = OwnLeases(), Holder()
    own.came(1, now_ms() - KNOWN_MS - 1)
    own.is_had_by(1, holder)
    for token in range(2, MUCH):
        own.came(token, now_ms() - KNOWN_MS - 1)
    assert len(own._known) < MUCH - LOOK_THROUGH + 2
    assert 1 in own._known
    del holder
    for token in range(2, MUCH):
        own.came(token, now_ms() - KNOWN_MS - 1)
    assert 1 not in own._known


# The name


def test_the_holder_is_the_client_unless_it_is_named(daemon: Daemon) -> None:
    with KestrelCluster([daemon.address]) as cluster, KestrelCluster([daemon.address], name=NAME) as named:
        assert named.name == NAME
        assert f"-{os.getpid()}-" in cluster.name
        with KestrelCluster([daemon.address]) as other:
            assert other.name != cluster.name
        for one in (cluster, named):
            one.queue("named").put(b"job")
            lease = leased(one.queue("named"))
            server = one._pool.calls.servers[0]
            held = server.asked(lambda connection: connection.leases(one.name, b"named"))  # noqa: B023
            assert [entry.token for entry in held] == [lease.token]
            assert lease.confirm()


def test_a_host_of_any_name_gives_a_name_that_servers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "größe/ 1." + 100 * "x")
    with KestrelCluster(["127.0.0.1:1"]) as cluster, KestrelCluster(["127.0.0.1:1"], name=cluster.name) as same:
        assert same.name.startswith("gr-e-1.xxx")


@pytest.mark.parametrize("given", ["", NAME, 64 * "x"])
def test_a_forked_child_has_another_name(given: str) -> None:
    name = ClientName(given)
    pipe, ours = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: ours.send(name.text))
    child.start()
    assert pipe.poll(PATIENCE_S)
    theirs = pipe.recv()
    child.join(PATIENCE_S)
    assert theirs != name.text
    assert len(theirs) <= 64
    assert str(child.pid) in theirs
    assert KestrelCluster(["127.0.0.1:1"], name=theirs).name == theirs


# Interruptions


def interrupt_everywhere(daemon: Daemon, step: int) -> int:
    """Have an exception at each place of a lease in turn; the next one has the item. How many places."""
    with KestrelCluster([daemon.address]) as cluster:
        queue, at = cluster.queue("interrupted"), 1
        queue.put(b"job")
        while True:
            found = interrupted_at(at, lambda: queue.lease(LONG_S, timeout=PATIENCE_S))
            if found is None:
                return at
            lease = leased(queue)
            assert lease.give_back(), found[1]
            at += step


def test_who_is_interrupted_during_a_lease_holds_nothing(daemon: Daemon) -> None:
    assert interrupt_everywhere(daemon, QUICK) > 10 * QUICK


@pytest.mark.long
def test_who_is_interrupted_anywhere_during_a_lease_holds_nothing(daemon: Daemon) -> None:
    interrupt_everywhere(daemon, 1)


def test_closing_gives_back_what_an_interrupted_lease_may_have_left(daemon: Daemon) -> None:
    with direct(daemon, "closed") as aside:
        aside.put(b"job")
        with KestrelCluster([daemon.address]) as cluster:
            server = cluster._pool.calls.servers[0]
            # As if the reply had been on its way when the signal came.
            server.asked(lambda connection: connection.lease(b"closed", 3_600_000, by=cluster.name))
            server.own_leases.lost(b"closed", cluster.name)
            assert aside.get() is None
        assert aside.get() == b"job"


@pytest.mark.parametrize("face", ["threads", "tasks"])
def test_closing_gives_back_an_item_that_is_on_its_way(daemon: Daemon, face: str) -> None:
    gate = Gate(daemon.port)
    with direct(daemon, f"closing {face}".replace(" ", "-")) as aside:
        aside.put(b"job")
        gate.withhold(b"VALUE ")
        if face == "tasks":
            asyncio.run(closed_meanwhile(gate, aside.name))
        else:
            with ThreadPoolExecutor(1) as pool:
                with KestrelCluster([gate.address], timeout_ms=300) as cluster:
                    waiting = pool.submit(cluster.queue(aside.name).lease, LONG_S, None)
                    assert gate.withheld.wait(PATIENCE_S)
                assert waiting.result(PATIENCE_S) is None
        assert aside.get() == b"job"
    gate.close()


async def closed_meanwhile(gate: Gate, name: str) -> None:
    async with AsyncKestrelCluster([gate.address], timeout_ms=300) as cluster:
        waiting = asyncio.create_task(cluster.queue(name).lease(LONG_S, None))
        assert await asyncio.to_thread(gate.withheld.wait, PATIENCE_S)
    assert await waiting is None


class Alarm(BaseException):
    """What the handler of the signal raises."""


def at_random(chance: Random, act: Callable[[], object]) -> bool:
    """Have a signal interrupt it at some time. False = it was over before that."""
    is_armed = True

    def ring(*_: object) -> None:
        if is_armed:
            raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))
            act()
            return False
        finally:
            is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)


def weather(daemon: Daemon, interruptions: int) -> None:
    """Put, lease and end leases under random signals, with another thread that waits for the same items."""
    seed = int(os.environ.get("SEED", "0")) or randrange(1 << 32)
    print(f"SEED={seed}")
    chance, count, number = Random(seed), 0, 0
    done: list[bytes] = []
    confirmed: list[ClusterLease] = []  # maybe
    with KestrelCluster([daemon.address]) as cluster, direct(daemon, f"storm{interruptions}") as aside:
        queue = cluster.queue(aside.name)
        over = threading.Event()

        def consume() -> None:
            while not over.is_set():
                if (lease := queue.lease(LONG_S, wait_ms=20)) is not None:
                    assert lease.confirm()
                    done.append(lease.item)

        consumer = threading.Thread(target=consume)
        consumer.start()

        def one() -> None:
            lease = queue.lease(LONG_S, wait_ms=2)
            if lease is not None:
                confirmed.append(lease)
                lease.confirm()

        while count < interruptions:
            for _ in range(3):
                aside.put(b"%d" % number)
                number += 1
            count += at_random(chance, one)
            while confirmed:  # `append` is done as a whole
                lease = confirmed.pop()
                lease.confirm()  # False where it had been confirmed when the signal came
                done.append(lease.item)
        until(lambda: figure(aside, "items") == figure(aside, "open_transactions") == 0, "the end of all leases")
        over.set()
        consumer.join(PATIENCE_S)
        assert not consumer.is_alive()
    assert sorted(done) == sorted(b"%d" % one for one in range(number))


def test_random_interruptions_lose_and_hold_nothing(daemon: Daemon) -> None:
    weather(daemon, 100)


@pytest.mark.long
@pytest.mark.timeout(120 + INTERRUPTIONS)
def test_many_random_interruptions_lose_and_hold_nothing(daemon: Daemon) -> None:
    weather(daemon, INTERRUPTIONS)
