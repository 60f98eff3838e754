"""Writers and readers, each a process of its own: nothing lost, nothing twice, and the order that is promised."""

import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from kestreld.recipes import LockingQueue, LogQueue, MessagesMissed, NumberedQueue, RingQueue, Servers
from tests.support.forking import Child, Recording

WAIT_S = 60
STOP = b"stop"

each_size = pytest.mark.parametrize(("crowd", "messages"), [(3, 12), pytest.param(8, 400, marks=pytest.mark.long)])


def _named(writer: int, number: int) -> bytes:
    return b"%d %d" % (writer, number)


def _all_of(crowd: int, messages: int) -> Counter[bytes]:
    return Counter(_named(writer, number) for writer in range(crowd) for number in range(messages))


def _is_in_order(got: list[bytes]) -> bool:
    """Whether the messages of each writer are in the order in which it put them."""
    numbers: dict[bytes, list[int]] = {}
    for message in got:
        writer, _, number = message.partition(b" ")
        numbers.setdefault(writer, []).append(int(number))
    return all(earlier < later for one in numbers.values() for earlier, later in pairwise(one))


def _put_all(queue: NumberedQueue | LockingQueue, writer: int, messages: int) -> None:
    for number in range(messages):
        queue.put(_named(writer, number))


def _writers(make: Callable[[], NumberedQueue | LockingQueue], crowd: int, messages: int) -> list[Child]:
    return [Child(lambda writer=writer: _put_all(make(), writer, messages)) for writer in range(crowd)]


@each_size
@pytest.mark.parametrize("is_ring", [False, True])
def test_each_reader_of_a_log_or_ring_gets_every_message_once_and_all_in_the_same_order(
    servers: Servers, is_ring: bool, crowd: int, messages: int
) -> None:
    def make() -> NumberedQueue:
        if is_ring:
            return RingQueue(servers, "events", crowd * messages, hole_timeout=WAIT_S)
        return LogQueue(servers, "events", hole_timeout=WAIT_S)

    def read() -> tuple[list[bytes], int, int]:
        reader = make().reader()
        got: list[bytes] = []
        while len(got) < crowd * messages and (more := reader.get_many(timeout=WAIT_S)):
            got += more
        return got, reader.holes, reader.missed

    readers = [Child(read) for _ in range(crowd)]
    for writer in _writers(make, crowd, messages):
        writer.result()
    first, *others = [reader.result() for reader in readers]
    assert all(other == first for other in others)
    got, holes, missed = first
    assert Counter(got) == _all_of(crowd, messages)
    assert (holes, missed) == (0, 0)
    assert _is_in_order(got)


@each_size
def test_readers_of_a_small_ring_get_each_message_once_or_are_told_that_they_missed_it(
    servers: Servers, crowd: int, messages: int
) -> None:
    def make() -> RingQueue:
        return RingQueue(servers, "events", 10 * crowd, hole_timeout=WAIT_S)

    def read() -> tuple[list[bytes], int]:
        missed: list[MessagesMissed] = []
        reader = make().reader(on_missed=missed.append)
        got: list[bytes] = []
        while (not got or got[-1] != STOP) and (more := reader.get_many(timeout=WAIT_S)):
            got += more
        assert {one.reason for one in missed} <= {"lapped"}
        return got, sum(one.count for one in missed) + reader.holes

    readers = [Child(read) for _ in range(crowd)]
    for writer in _writers(make, crowd, messages):
        writer.result()
    ring = make()
    ring.put(STOP)
    for reader in readers:
        got, missed = reader.result()
        assert len(got) + missed == ring.size()
        assert got.pop() == STOP
        assert Counter(got) <= _all_of(crowd, messages)
        assert _is_in_order(got)


@each_size
def test_each_message_of_a_locking_queue_goes_to_one_reader_in_order(
    servers: Servers, crowd: int, messages: int
) -> None:
    def make() -> LockingQueue:
        return LockingQueue(servers, "jobs", lock_expiry=WAIT_S)

    def read() -> list[bytes]:
        queue = make()
        got: list[bytes] = []
        while (message := queue.get(timeout=WAIT_S)) != STOP:
            assert message is not None
            got.append(message)
        return got

    readers = [Child(read) for _ in range(crowd)]
    for writer in _writers(make, crowd, messages):
        writer.result()
    make().put_many([STOP] * crowd)
    got = [reader.result() for reader in readers]
    assert sum(map(Counter, got), Counter[bytes]()) == _all_of(crowd, messages)
    assert all(map(_is_in_order, got))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["log", "lock"])
def test_what_was_acknowledged_is_there_once_whichever_writers_are_killed_meanwhile(
    servers: Servers, kind: str
) -> None:
    """A writer that dies may leave a last message that it was not told of; nothing else."""

    def make() -> NumberedQueue | LockingQueue:
        if kind == "log":
            return LogQueue(servers, "events", hole_timeout=1)
        return LockingQueue(servers, "events", lock_expiry=2, on_missed=lambda missed: None)

    def put(writer: int, acknowledge: Callable[[bytes], None]) -> None:
        queue = make()
        for number in range(1_000_000):
            queue.put(_named(writer, number))
            acknowledge(_named(writer, number))

    chance = random.Random(7)
    acknowledged: list[list[bytes]] = []
    for begin in range(0, 16, 4):
        writers = [Recording(lambda acknowledge, writer=begin + more: put(writer, acknowledge)) for more in range(4)]
        for writer in writers:
            time.sleep(chance.random() / 4)  # when in a put it dies is what varies
            acknowledged.append(writer.kill())
    queue = make()
    queue.put(STOP)
    got: list[bytes] = []
    reader = queue.reader(on_missed=lambda missed: None) if isinstance(queue, NumberedQueue) else queue
    while not got or got[-1] != STOP:
        more = reader.get_many(timeout=WAIT_S)
        assert more
        got += more
    del got[-1]
    counted = Counter(got)
    assert max(counted.values()) == 1
    assert set().union(*acknowledged) <= set(counted)
    assert len(counted) <= sum(map(len, acknowledged)) + len(acknowledged)
    assert _is_in_order(got)
