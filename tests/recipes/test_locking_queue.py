"""LockingQueue: two locks, two counters; each message to one reader, at most once, in order."""

import pytest
from pymemcache import Client

from kestreld.recipes import CacheRefused, Lock, LockingQueue, LockTimeout, MessagesMissed, Servers, TooManyWaiting
from kestreld.recipes.servers import CacheServer
from kestreld.recipes.slots import Slots
from tests.support.cache_server import CacheProcess, expire
from tests.support.forking import Child, before_first_call, kill_itself, stop_itself

WAIT_S = 60
EXPIRY_S = 60
EXPIRY_S_MIN = 2


def test_each_message_goes_to_one_reader_in_order(servers: Servers) -> None:
    queue, other = LockingQueue(servers, "jobs"), LockingQueue(servers, "jobs")
    queue.put(b"a")
    other.put_many([b"b", b"c"])
    assert [queue.get(), other.get(), queue.get(), other.get()] == [b"a", b"b", b"c", None]


def test_several_messages_are_taken_under_one_lock(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs")
    queue.put_many([b"%d" % number for number in range(7)])
    assert queue.get_many(5) == [b"0", b"1", b"2", b"3", b"4"]
    assert queue.get_many(5) == [b"5", b"6"]


def test_several_messages_are_written_next_to_each_other_under_one_lock(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs")
    with queue.writing() as writer:
        writer.put(b"a")
        assert queue.get() == b"a"  # readers have a lock of their own
        with pytest.raises(LockTimeout, match="lock:jobs:write_lock"):
            LockingQueue(servers, "jobs").put(b"not now", timeout=0.05)
        writer.put(b"b")
    queue.put(b"c")
    assert queue.get_many() == [b"b", b"c"]


def test_a_reader_that_finds_nothing_loses_nothing(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs")
    assert queue.get() is None
    queue.put(b"a")
    assert queue.get() == b"a"
    for _ in range(5):
        assert queue.get() is None
    assert queue.waiting() == 0
    queue.put(b"b")
    assert queue.get() == b"b"


def test_a_reader_waits_for_a_message(servers: Servers) -> None:
    child = Child(lambda: LockingQueue(servers, "jobs").get(timeout=WAIT_S))
    LockingQueue(servers, "jobs").put(b"late")
    assert child.result() == b"late"


def test_a_loop_waits_for_more(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs")
    queue.put(b"a")
    seen = []
    for message in queue:
        seen.append(message)
        if message == b"b":
            break
        queue.put(b"b")
    assert seen == [b"a", b"b"]


@pytest.mark.parametrize(("deletes", "left"), [(True, 2), (False, 4)])
def test_messages_are_deleted_after_reading_or_left_to_their_expiry(
    servers: Servers, cache: CacheProcess, deletes: bool, left: int
) -> None:
    queue = LockingQueue(servers, "jobs", delete_after_reading=deletes, message_expiry=600)
    queue.put_many([b"a", b"b"])
    assert queue.get_many() == [b"a", b"b"]
    client = Client(cache.address)
    values = [client.get(key) for key in _keys_of_jobs(client, 2)]
    assert values == ([None, None] if deletes else [b"a", b"b"])
    assert int(client.stats()[b"curr_items"]) >= left
    assert queue.get() is None


def _keys_of_jobs(client: Client, count: int) -> list[str]:
    epoch = int(client.get("lock:jobs:head")) >> 32
    return [f"lock:jobs:{epoch:08x}:{number}" for number in range(count)]


def test_messages_are_taken_from_a_batch_one_by_one(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs", compress_from_bytes=10)
    with queue.batch(messages_max=3) as batch:
        for number in range(5):
            batch.put(b"%d" % number)
    assert queue.waiting() == 2
    assert [queue.get(), queue.get_many()] == [b"0", [b"1", b"2"]]
    assert queue.get_many() == [b"3", b"4"]


def test_too_many_waiting_messages_are_detected(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs", waiting_max=3)
    queue.put_many([b"a", b"b", b"c"])
    with pytest.raises(TooManyWaiting, match="jobs: 3 messages are waiting"):
        queue.put(b"d")
    assert queue.get() == b"a"
    queue.put(b"d")
    assert queue.get_many() == [b"b", b"c", b"d"]


def test_counters_carry_into_the_next_epoch_without_a_gap(servers: Servers, cache: CacheProcess) -> None:
    queue = LockingQueue(servers, "jobs")
    client = Client(cache.address, default_noreply=False)
    for counter in ("head", "tail"):
        client.set(f"lock:jobs:{counter}", str((7 << 32) + (1 << 32) - 2))
    queue.put_many([b"a", b"b", b"c"])
    assert queue.waiting() == 3
    assert queue.get_many() == [b"a", b"b", b"c"]
    assert queue.missed == 0


def test_a_writer_killed_with_the_lock_blocks_writers_until_it_expires_and_leaves_a_number_behind(
    servers: Servers, cache: CacheProcess
) -> None:
    queue = LockingQueue(servers, "jobs", lock_expiry=EXPIRY_S)
    queue.put(b"a")

    def put() -> None:
        before_first_call(Slots, "write", kill_itself)
        queue.put(b"never written")

    Child(put).killed()
    assert queue.get() == b"a"
    with pytest.raises(LockTimeout):
        queue.put(b"c", timeout=0)
    expire(cache.address, b"lock:jobs:write_lock", EXPIRY_S)
    queue.put(b"c", timeout=0)
    with pytest.raises(MessagesMissed, match="1 messages evicted, expired or never written"):
        queue.get(timeout=WAIT_S)
    assert queue.get() == b"c"


def test_readers_wait_for_the_message_of_a_writer_that_has_the_lock(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs", lock_expiry=60)

    def put() -> None:
        before_first_call(Slots, "write", stop_itself)
        queue.put(b"slow")

    child = Child(put)
    child.stopped()
    assert queue.get(timeout=0.1) is None
    child.go_on()
    assert queue.get(timeout=WAIT_S) == b"slow"
    child.result()


def test_a_reader_killed_with_the_lock_blocks_readers_until_it_expires_and_takes_nothing(
    servers: Servers, cache: CacheProcess
) -> None:
    queue = LockingQueue(servers, "jobs", lock_expiry=EXPIRY_S)
    queue.put_many([b"a", b"b"])

    def get() -> None:
        before_first_call(CacheServer, "cas", kill_itself)
        queue.get()

    Child(get).killed()
    assert not Lock(servers, b"lock:jobs:read_lock").acquire(timeout=0)
    expire(cache.address, b"lock:jobs:read_lock", EXPIRY_S)
    assert queue.get_many(timeout=WAIT_S) == [b"a", b"b"]


def test_a_writer_stopped_past_the_expiry_and_continued_overwrites_nothing_and_loses_nothing(servers: Servers) -> None:
    """Time goes by: that it was stopped for so long the writer learns from its own clock."""
    queue = LockingQueue(servers, "jobs", lock_expiry=EXPIRY_S_MIN, on_missed=lambda missed: None)

    def put() -> None:
        before_first_call(Slots, "write", stop_itself)
        queue.put(b"stopped")

    child = Child(put)
    child.stopped()
    queue.put(b"another", timeout=WAIT_S)
    assert queue.get(timeout=WAIT_S) == b"another"
    assert queue.missed == 1
    child.go_on()
    child.result()
    assert queue.get_many() == [b"stopped"]


def test_a_reader_stopped_past_the_expiry_and_continued_takes_nothing_twice(
    servers: Servers, cache: CacheProcess
) -> None:
    queue = LockingQueue(servers, "jobs", lock_expiry=EXPIRY_S)
    queue.put_many([b"a", b"b"])

    def get() -> bytes | None:
        before_first_call(CacheServer, "cas", stop_itself)
        return queue.get()

    child = Child(get)
    child.stopped()
    expire(cache.address, b"lock:jobs:read_lock", EXPIRY_S)
    assert queue.get(timeout=WAIT_S) == b"a"
    child.go_on()
    assert child.result() == b"b"
    assert queue.get() is None


def test_flush_all_begins_a_new_epoch_and_readers_are_told_though_nothing_was_put_since(
    servers: Servers, cache: CacheProcess
) -> None:
    queue, reader = LockingQueue(servers, "jobs"), LockingQueue(servers, "jobs")
    queue.put_many([b"a", b"b"])
    assert reader.get() == b"a"
    Client(cache.address).flush_all(noreply=False)
    for each in (queue, reader):
        with pytest.raises(MessagesMissed, match="a counter vanished") as told:
            each.get()
        assert (told.value.reason, told.value.is_exact, told.value.position.number) == ("epoch", False, 0)
    assert reader.get() is None
    queue.put(b"c")
    assert reader.get_many() == [b"c"]


def test_a_loss_before_the_first_look_that_found_a_message_is_told(servers: Servers, cache: CacheProcess) -> None:
    reader = LockingQueue(servers, "jobs")
    assert reader.get() is None
    LockingQueue(servers, "jobs").put(b"a")
    Client(cache.address).flush_all(noreply=False)
    LockingQueue(servers, "jobs").put(b"b")
    with pytest.raises(MessagesMissed, match="a counter vanished"):
        reader.get()
    assert reader.get() == b"b"


@pytest.mark.parametrize("begins", ["the writer that knows", "another writer"])
def test_a_reader_that_came_after_a_loss_is_told_by_a_writer_that_was_there_before(
    servers: Servers, cache: CacheProcess, begins: str
) -> None:
    writer = LockingQueue(servers, "jobs")
    writer.put(b"a")
    Client(cache.address).flush_all(noreply=False)
    expected = [b"b"]
    if begins == "another writer":
        LockingQueue(servers, "jobs").put(b"of another")
        expected = [b"of another", b"b"]
    writer.put(b"b")
    told: list[MessagesMissed] = []
    reader = LockingQueue(servers, "jobs", on_missed=told.append)
    assert [reader.get() for _ in expected] == expected
    assert [(one.reason, one.count) for one in told] == [("epoch", 0)]
    assert (reader.get(), reader.holes) == (None, 0)


def test_one_loss_is_told_once_to_each_reader_that_was_there_before(servers: Servers, cache: CacheProcess) -> None:
    told: list[MessagesMissed] = []
    reader = LockingQueue(servers, "jobs", on_missed=told.append)
    writer = LockingQueue(servers, "jobs")
    writer.put(b"a")
    assert reader.get() == b"a"
    Client(cache.address).flush_all(noreply=False)
    writer.put_many([b"b", b"c"])
    assert reader.get_many(2) == [b"b", b"c"]
    assert [one.reason for one in told] == ["epoch"]


def test_what_a_reader_closed_before_it_was_killed_is_told_to_the_next_one(
    servers: Servers, cache: CacheProcess
) -> None:
    queue = LockingQueue(servers, "jobs", lock_expiry=EXPIRY_S)
    queue.put_many([b"a", b"b", b"c"])
    client = Client(cache.address, default_noreply=False)
    for key in _keys_of_jobs(client, 2):
        assert client.delete(key)

    def get() -> None:
        before_first_call(CacheServer, "cas", kill_itself)
        queue.get()

    Child(get).killed()
    expire(cache.address, b"lock:jobs:read_lock", EXPIRY_S)
    with pytest.raises(MessagesMissed) as told:
        queue.get_many(timeout=WAIT_S)
    assert (told.value.reason, told.value.count) == ("missing", 2)
    assert (queue.get(), queue.holes) == (b"c", 0)


def test_a_writer_that_comes_when_readers_have_passed_its_closed_number_is_refused(servers: Servers) -> None:
    """One reader has closed the number, and another has taken it for read: what closes it stays."""
    queue = LockingQueue(servers, "jobs", lock_expiry=EXPIRY_S_MIN, on_missed=lambda missed: None)

    def put() -> None:
        before_first_call(Slots, "write", stop_itself)
        queue.put(b"stopped")

    child = Child(put)
    child.stopped()
    queue.put(b"another", timeout=WAIT_S)

    def get() -> None:
        before_first_call(LockingQueue, "_move_tail", kill_itself)
        queue.get(timeout=WAIT_S)

    Child(get).killed()
    assert queue.get(timeout=WAIT_S) == b"another"
    child.go_on()
    child.result()
    assert queue.get_many(timeout=WAIT_S) == [b"stopped"]


def test_a_head_that_vanished_begins_a_new_epoch_behind_what_is_left_and_readers_are_told(
    servers: Servers, cache: CacheProcess
) -> None:
    queue = LockingQueue(servers, "jobs")
    queue.put_many([b"a", b"b"])
    Client(cache.address).delete("lock:jobs:head", noreply=False)
    queue.put(b"c")
    assert queue.get_many() == [b"a", b"b"]
    with pytest.raises(MessagesMissed, match="a counter vanished"):
        queue.get()
    assert queue.get() == b"c"


def test_what_is_left_behind_an_evicted_message_of_an_old_epoch_is_read_first(
    servers: Servers, cache: CacheProcess
) -> None:
    told: list[tuple[str, int]] = []
    queue = LockingQueue(servers, "jobs", on_missed=lambda missed: told.append((missed.reason, missed.count)))
    queue.put_many([b"a", b"b", b"c"])
    client = Client(cache.address, default_noreply=False)
    client.delete(_keys_of_jobs(client, 1)[0])
    client.delete("lock:jobs:head")
    queue.put(b"d")
    assert [queue.get() for _ in range(3)] == [b"b", b"c", b"d"]
    assert told == [("missing", 1), ("epoch", 0)]


def test_something_else_under_the_key_of_a_counter_is_an_error(servers: Servers, cache: CacheProcess) -> None:
    client = Client(cache.address, default_noreply=False)
    client.set("lock:jobs:head", b"something else")
    client.set("lock:jobs:tail", b"0")
    queue = LockingQueue(servers, "jobs")
    for use in (lambda: queue.put(b"a"), queue.get, queue.waiting):
        with pytest.raises(CacheRefused):
            use()


def test_a_forked_child_has_nothing_of_what_its_parent_has_taken(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs")
    queue.put_batch([b"a", b"b"])
    assert queue.get() == b"a"
    assert Child(queue.get).result() is None
    assert queue.get() == b"b"


@pytest.mark.parametrize(("deletes", "expected"), [(True, [b"b", b"c"]), (False, [])])
def test_a_tail_that_vanished_is_found_by_what_is_not_deleted_and_readers_are_told(
    servers: Servers, cache: CacheProcess, deletes: bool, expected: list[bytes]
) -> None:
    queue = LockingQueue(servers, "jobs", delete_after_reading=deletes)
    queue.put_many([b"a", b"b", b"c"])
    assert queue.get() == b"a"
    Client(cache.address).delete("lock:jobs:tail", noreply=False)
    with pytest.raises(MessagesMissed, match="a counter vanished"):
        queue.get()
    assert queue.get_many() == expected
    queue.put(b"d")
    assert queue.get() == b"d"


def test_messages_that_were_evicted_are_told_and_the_others_stay_in_order(
    servers: Servers, cache: CacheProcess
) -> None:
    queue = LockingQueue(servers, "jobs")
    queue.put_many([b"a", b"b", b"c", b"d"])
    client = Client(cache.address, default_noreply=False)
    for key in _keys_of_jobs(client, 3)[1:]:
        assert client.delete(key)
    assert queue.get_many() == [b"a"]
    with pytest.raises(MessagesMissed) as told:
        queue.get()
    assert (told.value.count, told.value.reason) == (2, "missing")
    assert queue.get() == b"d"


def test_a_server_restarted_under_a_running_queue_begins_anew(servers: Servers, cache: CacheProcess) -> None:
    queue = LockingQueue(servers, "jobs")
    queue.put(b"a")
    cache.restart()
    with pytest.raises(MessagesMissed, match="a counter vanished"):
        queue.get()
    queue.put(b"b")
    assert queue.get() == b"b"


def test_a_message_too_large_for_the_server_is_an_error_and_blocks_nobody(servers: Servers) -> None:
    queue = LockingQueue(servers, "jobs")
    with pytest.raises(CacheRefused):
        queue.put(b"x" * (2 << 20))
    queue.put(b"small")
    assert queue.get() == b"small"
    assert queue.holes == 1
