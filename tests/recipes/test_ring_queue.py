"""RingQueue: a fixed number of slots, each with the lap of its message."""

import pytest
from pymemcache import Client

from kestreld.errors import InvalidValue
from kestreld.recipes import ClaimLost, MessagesMissed, RingQueue, Servers
from kestreld.recipes.slots import RingSlots
from tests.support.cache_server import CacheProcess
from tests.support.clock import FakeClock
from tests.support.forking import Child, before_first_call, kill_itself, stop_itself

WAIT_S = 60
HOLE_TIMEOUT_MS = 3000


def test_readers_get_messages_in_order_over_many_laps(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 4)
    reader = ring.reader()
    for lap in range(5):
        messages = [b"%d.%d" % (lap, number) for number in range(3)]
        ring.put_many(messages)
        assert reader.get_many() == messages
    assert (reader.missed, reader.holes) == (0, 0)


def test_it_keeps_no_more_messages_than_it_has_slots(servers: Servers, cache: CacheProcess) -> None:
    ring = RingQueue(servers, "events", 4)
    for number in range(20):
        ring.put(b"%d" % number)
    assert int(Client(cache.address).stats()[b"curr_items"]) == 5  # and the counter


def test_the_slot_is_the_number_modulo_the_slots_and_the_value_says_which_lap(
    servers: Servers, cache: CacheProcess
) -> None:
    ring = RingQueue(servers, "events", 4)
    position = ring.put_many([b"%d" % number for number in range(6)])[5]
    assert Client(cache.address).get("ring:events:1") == b"%016x 5" % position.count


def test_a_lapped_reader_is_told_how_many_messages_it_missed(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 4)
    reader = ring.reader()
    ring.put(b"0")
    assert reader.get() == b"0"
    for number in range(1, 11):
        ring.put(b"%d" % number)
    with pytest.raises(MessagesMissed, match="6 messages overwritten before they were read") as told:
        reader.get()
    assert (told.value.reason, told.value.count, told.value.is_exact) == ("lapped", 6, True)
    assert reader.get_many() == [b"7", b"8", b"9", b"10"]
    assert reader.missed == 6


def test_a_reader_lapped_between_two_looks_is_told_of_each_message(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 8)
    missed: list[MessagesMissed] = []
    reader = ring.reader(on_missed=missed.append)
    got: list[bytes] = []
    for burst in range(1, 30):
        for number in range(burst):
            ring.put(b"%d.%d" % (burst, number))
        got += reader.get_many(3)
    while messages := reader.get_many():
        got += messages
    assert len(got) + sum(one.count for one in missed) == ring.size()
    assert {one.reason for one in missed} == {"lapped"}
    assert len(set(got)) == len(got)


def test_a_writer_killed_before_it_wrote_leaves_a_hole_that_is_skipped_and_counted(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 4, hole_timeout=HOLE_TIMEOUT_MS / 1000)
    reader, clock = ring.reader(), FakeClock()
    reader._clock = clock
    for number in range(5):  # the slot of the hole has an older lap
        ring.put(b"%d" % number)
        assert reader.get() == b"%d" % number

    def put() -> None:
        before_first_call(RingSlots, "write", kill_itself)
        ring.put(b"never written")

    Child(put).killed()
    ring.put(b"6")
    clock.advance(HOLE_TIMEOUT_MS // 2)  # it has looked shortly before
    assert reader.get() is None
    clock.advance(HOLE_TIMEOUT_MS)
    assert reader.get() == b"6"
    assert (reader.holes, reader.missed) == (1, 0)


def test_a_writer_stopped_for_a_lap_overwrites_nothing_and_takes_another_number(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 4)

    def put() -> int:
        before_first_call(RingSlots, "write", stop_itself)
        return ring.put(b"late").number

    child = Child(put)
    child.stopped()
    for number in range(1, 7):
        ring.put(b"%d" % number)
    child.go_on()
    assert child.result() == 7
    reader = ring.reader(on_missed=lambda missed: None)
    assert reader.get_many() == [b"4", b"5", b"6", b"late"]


def test_a_claim_that_was_lapped_is_refused(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 2)
    claim = ring.claim()
    ring.put_many([b"1", b"2"])
    with pytest.raises(ClaimLost):
        claim.write(b"0")


def test_a_writer_of_a_lost_epoch_overwrites_nothing_of_the_new_one(servers: Servers, cache: CacheProcess) -> None:
    ring = RingQueue(servers, "events", 2)
    claim = ring.claim()
    Client(cache.address).flush_all(noreply=False)
    ring.put(b"new")
    with pytest.raises(ClaimLost):
        claim.write(b"old")
    assert ring.reader().get() == b"new"


def test_what_is_left_of_a_lost_epoch_is_overwritten(servers: Servers, cache: CacheProcess) -> None:
    ring = RingQueue(servers, "events", 2)
    ring.put_many([b"a", b"b"])
    Client(cache.address).delete("ring:events:head", noreply=False)
    ring.put_many([b"c", b"d"])
    assert ring.reader().get_many() == [b"c", b"d"]


def test_what_a_reader_has_not_read_of_a_lost_epoch_comes_before_the_new_one(
    servers: Servers, cache: CacheProcess
) -> None:
    ring = RingQueue(servers, "events", 8)
    missed: list[MessagesMissed] = []
    reader = ring.reader(on_missed=missed.append)
    ring.put(b"a")
    assert reader.get() == b"a"
    ring.put_many([b"b", b"c"])
    Client(cache.address).delete("ring:events:head", noreply=False)
    ring.put(b"d")
    assert [reader.get(timeout=WAIT_S) for _ in range(3)] == [b"b", b"c", b"d"]
    assert [one.reason for one in missed] == ["epoch"]


def test_batches_are_one_slot_each(servers: Servers) -> None:
    ring = RingQueue(servers, "events", 2, compress_from_bytes=100)
    with ring.batch(messages_max=50) as batch:
        for number in range(100):
            batch.put(b"message %d" % number)
    reader = ring.reader()
    assert [*reader.get_many(60), *reader.get_many(60)] == [b"message %d" % number for number in range(100)]


def test_a_ring_without_slots_is_refused() -> None:
    with pytest.raises(InvalidValue, match="slots must be an int of at least 1"):
        RingQueue(Servers(), "events", 0)


def test_a_claim_that_a_reader_has_told_as_missing_is_refused(servers: Servers) -> None:
    ring = RingQueue(servers, "chat", 8, hole_timeout=0)
    claim = ring.claim()
    ring.put(b"b")
    reader = ring.reader()
    with pytest.raises(MessagesMissed, match="1 messages evicted, expired or never written"):
        reader.get(timeout=WAIT_S)
    with pytest.raises(ClaimLost):
        claim.write(b"a")
    assert [reader.get(), reader.get()] == [b"b", None]
