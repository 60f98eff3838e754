"""LogQueue: numbers by incr, messages by add, readers with positions of their own."""

import json
import re
from contextlib import suppress

import pytest
from pymemcache import Client

from kestreld.errors import InvalidValue
from kestreld.recipes import CacheRefused, ClaimLost, LogQueue, LogReader, MessagesMissed, Position, Servers
from kestreld.recipes.reader import MARKS_MAX
from kestreld.recipes.slots import MARK_EXPIRY_S_MIN, Slots
from tests.support.cache_server import CacheProcess, expire, hits
from tests.support.clock import FakeClock
from tests.support.forking import Child, before_first_call, kill_itself, stop_itself

WAIT_S = 60
HOLE_TIMEOUT_MS = 3000


def watching(log: LogQueue) -> tuple[LogReader, FakeClock]:
    """A reader, and the clock by which it waits for a number that was given out: it stands still."""
    reader, clock = log.reader(), FakeClock()
    reader._clock = clock
    return reader, clock


def test_the_first_number_is_0_and_readers_get_messages_in_the_order_of_their_numbers(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    reader = log.reader()
    assert reader.get() is None
    positions = [log.put(message) for message in (b"a", b"b", b"c")]
    assert [position.number for position in positions] == [0, 1, 2]
    assert len({position.epoch for position in positions}) == 1
    assert reader.entries() == list(zip(positions, (b"a", b"b", b"c"), strict=True))
    assert reader.get() is None
    assert log.size() == 3


def test_each_reader_gets_every_message_and_knows_nothing_of_the_others(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    early = log.reader()
    log.put_many([b"a", b"b"])
    assert early.get() == b"a"
    late = log.reader()
    assert [late.get(), late.get(), late.get()] == [b"a", b"b", None]
    assert early.get() == b"b"
    assert late.lag() == 0


def test_a_reader_goes_on_from_a_position_that_was_saved(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    log.put_many([b"a", b"b", b"c"])
    reader = log.reader()
    reader.get()
    saved = str(reader.position)
    assert log.reader(saved).get_many() == [b"b", b"c"]
    assert log.reader(Position.parse(saved)).get_many() == [b"b", b"c"]
    assert log.reader(saved).lag() == 2


def test_a_position_of_a_part_of_a_batch_is_saved_as_well(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    log.put_batch([b"a", b"b", b"c"])
    reader = log.reader()
    reader.get()
    assert str(reader.position).endswith("-0.1")
    assert log.reader(str(reader.position)).get_many() == [b"b", b"c"]


@pytest.mark.parametrize("text", ["", "17", "x-1", "1-x", "1-1.x"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Position.parse(text)


def test_a_reader_at_the_end_gets_only_what_comes_later(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    log.put(b"before")
    reader = log.reader(at_end=True)
    log.put(b"after")
    assert reader.get() == b"after"


def test_the_end_of_a_log_without_messages_is_its_beginning(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    reader = log.reader(at_end=True)
    log.put(b"first")
    assert reader.get() == b"first"


def test_a_reader_waits_for_a_message(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    child = Child(lambda: LogQueue(servers, "events").reader().get(timeout=WAIT_S))
    log.put(b"late")
    assert child.result() == b"late"


def test_a_loop_over_a_reader_waits_for_more(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    log.put_many([b"a", b"b"])
    seen = []
    for message in log.reader():
        seen.append(message)
        if message == b"b":
            log.put(b"c")
        if message == b"c":
            break
    assert seen == [b"a", b"b", b"c"]


def test_messages_are_plain_values_under_keys_with_the_name_of_the_queue(servers: Servers, cache: CacheProcess) -> None:
    position = LogQueue(servers, "events").put(b"plain \x00 bytes")
    key = f"log:events:{position.epoch:08x}:0"
    assert Client(cache.address).get(key) == b"plain \x00 bytes"


def test_queues_of_other_names_have_nothing_in_common(servers: Servers) -> None:
    LogQueue(servers, "a").put(b"of a")
    assert LogQueue(servers, "b").reader().get() is None
    assert LogQueue(servers, "a:head").reader().get() is None


@pytest.mark.parametrize("name", ["", "with space", "line\r\n", "über", "x" * 201])
def test_a_name_that_cannot_be_part_of_a_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue):
        LogQueue(Servers(), name)


def test_one_incr_reserves_numbers_for_several_messages(servers: Servers) -> None:
    log = LogQueue(servers, "events")
    claim = log.claim(3)
    log.put(b"d")
    assert [claim.write(message).number for message in (b"a", b"b", b"c")] == [0, 1, 2]
    assert log.reader().get_many() == [b"a", b"b", b"c", b"d"]


def test_readers_wait_for_a_claimed_number_until_it_is_written(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=WAIT_S)
    reader = log.reader()
    claim = log.claim()
    log.put(b"second")
    assert reader.get(timeout=0.05) is None
    claim.write(b"first")
    assert reader.get_many(timeout=WAIT_S) == [b"first", b"second"]


def test_what_a_claim_gives_up_is_passed_at_once_and_counted(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=WAIT_S)
    with log.claim(3) as claim:
        claim.write(b"a")
    log.put(b"d")
    reader = log.reader()
    assert [reader.get(), reader.get()] == [b"a", b"d"]
    assert (reader.holes, reader.missed) == (2, 0)


def test_a_reader_that_catches_up_asks_again_only_for_what_is_missing(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events", hole_timeout=WAIT_S)
    claim = log.claim()
    log.put_many([b"%d" % number for number in range(1, 6)])
    reader = log.reader()
    before = hits(cache.address)
    assert reader.get(timeout=0.1) is None  # asks for number 0 several times
    counter_looks_and_messages = hits(cache.address) - before
    assert reader.get(timeout=0.1) is None
    counter_looks = hits(cache.address) - before - counter_looks_and_messages
    claim.write(b"0")
    assert reader.get_many(timeout=WAIT_S) == [b"%d" % number for number in range(6)]
    assert counter_looks_and_messages >= 5
    assert 0 < counter_looks <= counter_looks_and_messages + 5
    assert hits(cache.address) - before == counter_looks_and_messages + counter_looks + 2  # the counter, and number 0


def test_a_writer_killed_between_incr_and_add_leaves_a_hole_that_is_skipped_after_a_deadline(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=HOLE_TIMEOUT_MS / 1000)
    reader, clock = watching(log)
    log.put(b"first")
    assert reader.get() == b"first"

    def put() -> None:
        before_first_call(Slots, "write", kill_itself)
        log.put(b"never written")

    Child(put).killed()
    log.put(b"third")
    clock.advance(HOLE_TIMEOUT_MS // 2)  # it has looked shortly before
    assert reader.get() is None
    clock.advance(HOLE_TIMEOUT_MS - 1)
    assert reader.get() is None
    clock.advance(1)
    assert reader.get() == b"third"
    assert (reader.holes, reader.missed) == (1, 0)
    another = log.reader()
    assert another.get_many() == [b"first", b"third"]  # at once: the first reader has closed the number
    assert another.holes == 1


def test_a_writer_stopped_for_longer_than_readers_wait_is_refused_and_takes_another_number(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=HOLE_TIMEOUT_MS / 1000)
    reader, clock = watching(log)
    log.put(b"first")
    assert reader.get() == b"first"

    def put() -> int:
        before_first_call(Slots, "write", stop_itself)
        return log.put(b"late").number

    child = Child(put)
    child.stopped()
    log.put(b"third")
    clock.advance(HOLE_TIMEOUT_MS // 2)  # it has looked shortly before
    assert reader.get() is None
    clock.advance(HOLE_TIMEOUT_MS - 1)
    assert reader.get() is None
    clock.advance(1)
    assert reader.get() == b"third"
    child.go_on()
    assert child.result() == 3
    assert [reader.get(timeout=WAIT_S), reader.get()] == [b"late", None]
    assert log.reader().get_many() == [b"first", b"third", b"late"]


def test_a_claim_written_too_late_is_refused(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=HOLE_TIMEOUT_MS / 1000)
    reader, clock = watching(log)
    log.put(b"a")
    reader.get()
    claim = log.claim()
    log.put(b"c")
    clock.advance(HOLE_TIMEOUT_MS // 2)  # it has looked shortly before
    assert reader.get() is None
    clock.advance(HOLE_TIMEOUT_MS)
    assert reader.get() == b"c"
    with pytest.raises(ClaimLost, match="closed before its message was written"):
        claim.write(b"b")
    assert log.reader().get_many() == [b"a", b"c"]


def test_a_writer_refused_after_readers_came_late_to_its_number_takes_another(servers: Servers) -> None:
    """A reader that looks less often than its hole_timeout cannot rule out an eviction: it tells, and closes."""
    log = LogQueue(servers, "events", hole_timeout=HOLE_TIMEOUT_MS / 1000)
    reader, clock = watching(log)
    log.put(b"first")
    assert reader.get() == b"first"

    def put() -> int:
        before_first_call(Slots, "write", stop_itself)
        return log.put(b"late").number

    child = Child(put)
    child.stopped()
    log.put(b"third")
    clock.advance(HOLE_TIMEOUT_MS * 2)
    assert reader.get() is None
    clock.advance(HOLE_TIMEOUT_MS * 2)
    with pytest.raises(MessagesMissed, match="1 messages evicted, expired or never written"):
        reader.get()
    assert reader.get() == b"third"
    child.go_on()
    assert child.result() == 3
    assert [reader.get(timeout=WAIT_S), reader.get()] == [b"late", None]


def test_several_messages_of_a_writer_that_comes_too_late_get_other_numbers(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=HOLE_TIMEOUT_MS / 1000)
    reader, clock = watching(log)
    assert reader.get() is None

    def put() -> list[int]:
        before_first_call(Slots, "write", stop_itself)
        return [position.number for position in log.put_many([b"%d" % number for number in range(30)])]

    child = Child(put)
    child.stopped()
    with suppress(MessagesMissed):  # of those that it had not looked for yet
        for _ in range(3):
            clock.advance(HOLE_TIMEOUT_MS // 2)
            assert reader.get() is None
    assert reader.holes + reader.missed == 30
    child.go_on()
    assert child.result() == list(range(30, 60))
    assert reader.get_many(timeout=WAIT_S) == [b"%d" % number for number in range(30)]


def test_what_one_reader_has_told_as_missing_is_told_to_the_others(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events", hole_timeout=0.05)
    positions = log.put_many([b"a", b"b"])
    gone = positions[0]
    assert Client(cache.address).delete(f"log:events:{gone.epoch:08x}:{gone.number}", noreply=False)
    for _ in range(2):
        reader = log.reader()
        with pytest.raises(MessagesMissed) as told:
            reader.get(timeout=WAIT_S)
        assert (told.value.reason, told.value.count) == ("missing", 1)
        assert (reader.get(), reader.holes) == (b"b", 0)


def test_a_long_run_of_missing_messages_is_told_without_a_mark_for_each(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events", hole_timeout=0)
    client = Client(cache.address, default_noreply=False)
    log.put(b"first")
    client.incr("log:events:head", MARKS_MAX + 100)  # as if so many had been evicted
    log.put(b"last")
    missed: list[MessagesMissed] = []
    reader = log.reader(on_missed=missed.append)
    assert [reader.get(timeout=WAIT_S), reader.get(timeout=WAIT_S)] == [b"first", b"last"]
    assert (reader.missed, reader.holes) == (MARKS_MAX + 100, 0)
    assert int(client.stats()[b"curr_items"]) <= MARKS_MAX + 3


def test_what_closes_a_number_outlives_short_lived_messages(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events", message_expiry=2)
    with log.claim(1) as claim:
        key = b"log:events:%08x:%d" % (claim.position.epoch, claim.position.number)
    expire(cache.address, key, within_s=MARK_EXPIRY_S_MIN)
    with pytest.raises(AssertionError, match="EN"):
        expire(cache.address, key, within_s=MARK_EXPIRY_S_MIN)


def test_readers_are_told_of_a_counter_that_vanished_though_nothing_was_put_since(
    servers: Servers, cache: CacheProcess
) -> None:
    log = LogQueue(servers, "events")
    readers = [log.reader(), log.reader()]
    assert readers[0].get() is None  # it has begun the log
    log.put(b"a")
    assert readers[1].get() == b"a"
    Client(cache.address).flush_all(noreply=False)
    for reader in readers:
        with pytest.raises(MessagesMissed, match="a counter vanished"):
            reader.get(timeout=WAIT_S)
        assert reader.get() is None
    log.put(b"b")
    assert [reader.get() for reader in readers] == [b"b", b"b"]


def test_flush_all_begins_a_new_epoch_and_readers_are_told(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events")
    reader = log.reader()
    old = log.put_many([b"a", b"b"])
    assert reader.get() == b"a"
    Client(cache.address).flush_all(noreply=False)
    new = log.put(b"c")
    assert new.number == 0
    assert new.epoch != old[0].epoch
    assert reader.get() == b"b"  # it was fetched with the first
    with pytest.raises(MessagesMissed, match="a counter vanished") as told:
        reader.get(timeout=WAIT_S)
    assert (told.value.reason, told.value.is_exact, told.value.position) == ("epoch", False, new)
    assert reader.get() == b"c"


def test_a_counter_that_is_evicted_begins_a_new_epoch_behind_what_is_left_of_the_old_one(
    servers: Servers, cache: CacheProcess
) -> None:
    log = LogQueue(servers, "events")
    log.put_many([b"a", b"b", b"c"])
    missed: list[MessagesMissed] = []
    reader = log.reader(on_missed=missed.append)
    assert reader.get() == b"a"
    log.put_many([b"d", b"e"])
    Client(cache.address).delete("log:events:head", noreply=False)
    new = log.put(b"f")
    assert new.number == 0
    assert [reader.get(timeout=WAIT_S) for _ in range(5)] == [b"b", b"c", b"d", b"e", b"f"]
    assert [one.reason for one in missed] == ["epoch"]


def test_a_saved_position_of_a_lost_epoch_is_told_and_reading_goes_on_in_the_new_one(
    servers: Servers, cache: CacheProcess
) -> None:
    log = LogQueue(servers, "events")
    saved = log.put(b"a")
    Client(cache.address).flush_all(noreply=False)
    log.put(b"b")
    reader = log.reader(saved)
    with pytest.raises(MessagesMissed):
        reader.get()
    assert reader.get() == b"b"


def test_a_server_restarted_under_a_running_log_begins_a_new_epoch(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events")
    missed: list[MessagesMissed] = []
    reader = log.reader(on_missed=missed.append)
    old = log.put(b"a")
    assert reader.get() == b"a"
    cache.restart()
    new = log.put(b"b")
    assert new.epoch != old.epoch
    assert reader.get(timeout=WAIT_S) == b"b"
    assert [one.reason for one in missed] == ["epoch"]


def test_a_message_that_was_evicted_is_told_as_missed(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events", hole_timeout=0.1)
    positions = log.put_many([b"a", b"b", b"c", b"d"])
    client = Client(cache.address, default_noreply=False)
    for gone in positions[1:3]:
        assert client.delete(f"log:events:{gone.epoch:08x}:{gone.number}")
    reader = log.reader()
    assert reader.get() == b"a"
    with pytest.raises(MessagesMissed, match="2 messages evicted, expired or never written") as told:
        reader.get(timeout=WAIT_S)
    assert (told.value.reason, told.value.count, told.value.position) == ("missing", 2, positions[3])
    assert reader.get() == b"d"
    assert reader.missed == 2


def test_the_counter_carries_into_the_next_epoch_without_a_gap(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events")
    Client(cache.address).set("log:events:head", str((7 << 32) + (1 << 32) - 2), noreply=False)
    positions = log.put_many([b"a", b"b", b"c"])
    assert [str(position) for position in positions] == ["00000007-4294967294", "00000007-4294967295", "00000008-0"]
    reader = log.reader(positions[0])
    assert reader.get_many() == [b"a", b"b", b"c"]
    assert reader.missed == 0


def test_messages_expire(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "events", message_expiry=60, hole_timeout=0.1)
    position = log.put(b"short-lived")
    assert log.reader().get() == b"short-lived"
    expire(cache.address, b"log:events:%08x:%d" % (position.epoch, position.number), within_s=60)
    with pytest.raises(MessagesMissed) as told:
        log.reader().get(timeout=WAIT_S)
    assert (told.value.reason, told.value.count) == ("missing", 1)


def test_small_messages_are_batched_and_compressed(servers: Servers, cache: CacheProcess) -> None:
    log = LogQueue(servers, "chat", compress_from_bytes=200)
    messages = [json.dumps({"user": number, "joined": True}).encode() for number in range(250)]
    before = int(Client(cache.address).stats()[b"bytes"])
    with log.batch(messages_max=100) as batch:
        for message in messages:
            batch.put(message)
    assert log.size() == 3
    assert int(Client(cache.address).stats()[b"bytes"]) - before < sum(map(len, messages)) / 2
    reader = log.reader()
    assert reader.get_many(7) == messages[:7]
    assert [*reader.get_many(1000), *reader.get_many(1000)] == messages[7:]


def test_a_message_too_large_for_the_server_is_an_error_and_no_reader_waits_for_it(servers: Servers) -> None:
    log = LogQueue(servers, "events", hole_timeout=WAIT_S)
    with pytest.raises(CacheRefused, match=re.escape(servers.of(b"log:events:head").address)):
        log.put(b"x" * (2 << 20))
    log.put(b"small")
    reader = log.reader()
    assert reader.get() == b"small"
    assert (reader.holes, reader.missed) == (1, 0)
