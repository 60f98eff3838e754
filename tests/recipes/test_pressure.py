"""A dictionary that forgets: what is evicted is told, whatever it was."""

from collections.abc import Callable

import pytest

from kestreld.recipes import LockingQueue, LogQueue, MessagesMissed, Servers
from tests.support.cache_server import CacheProcess, evictions

WAIT_S = 60
MEMORY_MIB = 2


@pytest.fixture
def small(start_cache: Callable[..., CacheProcess]) -> CacheProcess:
    return start_cache(MEMORY_MIB)


def test_a_log_larger_than_memory_loses_its_oldest_messages_and_readers_are_told_how_many(small: CacheProcess) -> None:
    with Servers(small.address) as servers:
        log = LogQueue(servers, "events", hole_timeout=0.2)
        count = 0
        while evictions(small.address) < 100:
            for _ in range(50):
                log.put(b"%d " % count + bytes(20_000))
                count += 1
        missed: list[MessagesMissed] = []
        reader = log.reader(on_missed=missed.append)
        got = _numbers(reader.get_many, count - 1)
    assert got == sorted(got)
    assert {one.reason for one in missed} == {"missing"}
    assert reader.missed >= 100
    assert len(got) + reader.missed + reader.holes == count


def test_a_locking_queue_larger_than_memory_loses_messages_and_readers_are_told_how_many(small: CacheProcess) -> None:
    with Servers(small.address) as servers:
        missed: list[MessagesMissed] = []
        queue = LockingQueue(servers, "jobs", on_missed=missed.append)
        count = 0
        while evictions(small.address) < 100:
            queue.put_many([b"%d " % number + bytes(20_000) for number in range(count, count + 50)])
            count += 50
        got = _numbers(queue.get_many, count - 1)
    assert got == sorted(got)
    assert missed
    assert len(got) + queue.missed == count or not all(one.is_exact for one in missed)


@pytest.mark.long
def test_a_log_of_messages_as_small_as_its_counter_is_read_to_its_end_even_if_the_counter_is_evicted(
    small: CacheProcess,
) -> None:
    with Servers(small.address) as servers:
        log = LogQueue(servers, "events", hole_timeout=0.2)
        missed: list[MessagesMissed] = []
        reader = log.reader(on_missed=missed.append)
        log.put(b"0")
        assert reader.get() == b"0"
        count = 1
        while evictions(small.address) < 5000:
            log.put_many([b"%d" % number for number in range(count, count + 1000)])
            count += 1000
        got = _numbers(reader.get_many, count - 1)
        assert got == sorted(got)
        assert missed
        assert 1 + len(got) + reader.missed == count or not all(one.is_exact for one in missed)


def _numbers(get_many: Callable[..., list[bytes]], last: int) -> list[int]:
    """What messages begin with, up to the last one, which is there."""
    got: list[int] = []
    while last not in got[-1:]:
        more = get_many(100, WAIT_S)
        assert more, f"waited in vain for message {last}"
        got += [int(message.split(b" ")[0]) for message in more]
    return got
