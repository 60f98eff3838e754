"""Keys shared out over several servers, and what is out of reach while one of them is down."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from pymemcache import Client

from kestreld.errors import InvalidValue
from kestreld.recipes import CacheAway, LockingQueue, LogQueue, RingQueue, Servers
from tests.support.cache_server import CacheProcess
from tests.support.process import stop

WAIT_S = 60


@pytest.fixture
def three(start_cache: Callable[..., CacheProcess]) -> dict[str, CacheProcess]:
    return {one.address: one for one in [start_cache() for _ in range(3)]}


@pytest.fixture
def servers(three: dict[str, CacheProcess]) -> Iterator[Servers]:
    with Servers(three) as servers:
        yield servers


def test_keys_are_shared_out_evenly_and_in_any_order_of_the_servers() -> None:
    addresses = ["a:1", "b:1", "c:1"]
    keys = [b"log:events:%08x:%d" % (7, number) for number in range(3000)]
    chosen = [Servers(addresses).of(key).address for key in keys]
    assert [Servers(reversed(addresses)).of(key).address for key in keys] == chosen
    assert all(800 < count < 1200 for count in Counter(chosen).values())


def test_without_a_server_only_its_own_keys_move() -> None:
    keys = [b"log:events:%08x:%d" % (7, number) for number in range(300)]
    three, two = Servers(["a:1", "b:1", "c:1"]), Servers(["a:1", "b:1"])
    assert all(two.of(key).address == three.of(key).address for key in keys if three.of(key).address != "c:1")


def test_messages_are_spread_and_the_counters_of_a_queue_are_on_one_server(
    servers: Servers, three: dict[str, CacheProcess]
) -> None:
    log, queue = LogQueue(servers, "events"), LockingQueue(servers, "jobs")
    messages = [b"%d" % number for number in range(60)]
    log.put_many(messages)
    queue.put_many(messages)
    held = [int(Client(address).stats()[b"curr_items"]) for address in three]
    assert min(held) > 10
    assert log.reader().get_many() == messages
    has_counters = [
        {key for key in ("head", "tail") if Client(address).get(f"lock:jobs:{key}") is not None} for address in three
    ]
    assert sorted(map(len, has_counters)) == [0, 0, 2]
    assert queue.get_many() == messages


def _without_counters(servers: Servers, three: dict[str, CacheProcess], head: bytes) -> CacheProcess:
    """One that has none of the counters."""
    return next(one for address, one in three.items() if address != servers.of(head).address)


def test_a_log_goes_on_without_a_server_and_what_was_there_is_told_as_missed(
    servers: Servers, three: dict[str, CacheProcess]
) -> None:
    log = LogQueue(servers, "events", hole_timeout=0.2)
    before = [b"before %d" % number for number in range(30)]
    positions = log.put_many(before)
    down = _without_counters(servers, three, b"log:events:head")
    lost = {
        message
        for message, position in zip(before, positions, strict=True)
        if servers.of(b"log:events:%08x:%d" % (position.epoch, position.number)).address == down.address
    }
    assert lost
    down.stop()
    after = [b"after %d" % number for number in range(30)]
    for message in after:
        log.put(message)
    reader = log.reader(on_missed=lambda missed: None)
    got: list[bytes] = []
    while len(got) < 60 - len(lost):
        got += reader.get_many(timeout=WAIT_S)
    assert got == [message for message in before if message not in lost] + after
    assert reader.missed >= len(lost)  # numbers that could not be written as well


def test_queues_whose_counters_are_on_a_server_that_is_down_wait_for_it_and_no_other_stands_in(
    servers: Servers, three: dict[str, CacheProcess]
) -> None:
    ring, queue = RingQueue(servers, "events", 8), LockingQueue(servers, "jobs")
    three[servers.of(b"ring:events:head").address].stop()
    three[servers.of(b"lock:jobs:head").address].stop()
    for use in (lambda: ring.put(b"x"), ring.reader().get, lambda: queue.put(b"x"), queue.get):
        with pytest.raises(CacheAway, match=r"no memcached at 127.0.0.1:\d+ \(.*refused"):
            use()


def test_a_locking_queue_goes_on_without_a_server_of_messages(servers: Servers, three: dict[str, CacheProcess]) -> None:
    queue = LockingQueue(servers, "jobs", on_missed=lambda missed: None)
    _without_counters(servers, three, b"lock:jobs:head").stop()
    messages = [b"%d" % number for number in range(30)]
    for message in messages:
        queue.put(message)
    got: list[bytes] = []
    while len(got) < len(messages):
        got += queue.get_many(timeout=WAIT_S)
    assert got == messages


def test_a_server_that_does_not_answer_is_waited_for_once_and_then_left_alone(three: dict[str, CacheProcess]) -> None:
    with Servers(three, timeout=WAIT_S) as servers:
        log = LogQueue(servers, "events", hole_timeout=0.1)
        stopped = _without_counters(servers, three, b"log:events:head")
        stop(stopped.pid)
        key = next(key for key in map(b"%d".__mod__, range(100)) if servers.of(key).address == stopped.address)
        servers.of(key)._timeout_s = 0.2  # the others answer, late on a busy machine
        try:
            messages = [b"%d" % number for number in range(20)]
            for message in messages:
                log.put(message)
            with pytest.raises(CacheAway, match="timed out a moment ago"):
                servers.of(key).get_many([key])
            reader = log.reader(on_missed=lambda missed: None)
            got: list[bytes] = []
            while len(got) < len(messages):
                got += reader.get_many(timeout=WAIT_S)
            assert got == messages
        finally:
            os.kill(stopped.pid, signal.SIGCONT)


@pytest.mark.parametrize("addresses", ["", [], ["a:1", "a:1"], "a:b", ":1"])
def test_addresses_that_cannot_be_are_refused(addresses: str | list[str]) -> None:
    with pytest.raises(InvalidValue):
        Servers(addresses)


@pytest.mark.parametrize("address", ["localhost", "localhost:11211", "unix:/run/memcached", "[::1]:11211", "[::1]"])
def test_addresses_have_the_usual_forms(address: str) -> None:
    assert Servers(address).of(b"key").address == address
