"""Lock: an owner's token that expires."""

import pytest
from pymemcache import Client

from kestreld.errors import InvalidValue
from kestreld.recipes import Lock, LockLost, Servers
from tests.support.cache_server import CacheProcess, expire
from tests.support.forking import Child, kill_itself, stop_itself
from tests.support.interrupting import interrupted_at

KEY = b"lock of a test"[:4]
EXPIRY_S = 2
WAIT_S = 60


def test_one_has_it_at_a_time(servers: Servers) -> None:
    mine, other = Lock(servers, KEY), Lock(servers, KEY)
    assert mine.acquire()
    assert not other.acquire(timeout=0.05)
    assert mine.release()
    assert other.acquire(timeout=0)
    assert other.release()


def test_it_is_held_for_a_block(servers: Servers) -> None:
    with Lock(servers, KEY) as mine:
        assert mine.holder() is not None
    assert mine.holder() is None


def test_a_dead_holder_blocks_others_for_no_longer_than_the_expiry(servers: Servers, cache: CacheProcess) -> None:
    def take() -> None:
        Lock(servers, KEY, WAIT_S).acquire()
        kill_itself()

    Child(take).killed()
    assert not Lock(servers, KEY).acquire(timeout=0)
    expire(cache.address, KEY, within_s=WAIT_S)
    assert Lock(servers, KEY).acquire(timeout=0)


def test_a_holder_stopped_past_the_expiry_and_continued_leaves_the_next_holder_its_lock(servers: Servers) -> None:
    def take() -> bool:
        lock = Lock(servers, KEY, EXPIRY_S)
        lock.acquire()
        stop_itself()
        with pytest.raises(LockLost):
            lock.check()
        return lock.release()

    child = Child(take)
    child.stopped()
    mine = Lock(servers, KEY)
    assert mine.acquire(timeout=WAIT_S)
    held = mine.holder()
    child.go_on()
    assert child.result() is False
    assert mine.holder() == held is not None
    assert mine.release()


def test_a_lock_that_was_taken_over_is_not_released_by_its_former_holder(servers: Servers, cache: CacheProcess) -> None:
    lock = Lock(servers, KEY)
    lock.acquire()
    client = Client(cache.address, default_noreply=False)
    client.set(KEY, b"another's token")
    assert not lock.release()
    assert client.get(KEY) == b"another's token"


def test_a_block_that_lost_the_lock_is_told(servers: Servers, cache: CacheProcess) -> None:
    with pytest.raises(LockLost, match="lock: expired while it was held"), Lock(servers, KEY):
        Client(cache.address).delete(KEY, noreply=False)


def test_release_without_having_it_does_nothing(servers: Servers) -> None:
    other = Lock(servers, KEY)
    other.acquire()
    assert not Lock(servers, KEY).release()
    assert other.release()


@pytest.mark.parametrize("expiry", [1, 0, -1, 31 * 24 * 3600])
def test_an_expiry_that_memcached_would_take_otherwise_is_refused(expiry: int) -> None:
    with pytest.raises(InvalidValue):
        Lock(Servers(), KEY, expiry)


def test_who_is_interrupted_on_the_way_into_a_block_leaves_no_lock(servers: Servers) -> None:
    at, found = 1, (None, "")
    while found is not None:
        lock = Lock(servers, KEY, WAIT_S)
        found = interrupted_at(at, lock.__enter__)  # type: ignore[assignment]
        if found is None:
            assert lock.release()
        assert lock.holder() is None, found
        at += 7
    assert at > 20
