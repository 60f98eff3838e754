"""Recipes as a user of a kestreld that requires a login."""

from pathlib import Path

import pytest

from kestreld.recipes import CacheRefused, LockingQueue, LogQueue, MessagesMissed, RingQueue, Servers
from tests.support.accounts import quick_hash
from tests.support.daemon import running_daemon

CONFIG = f"""
users:
  ann:
    password: "{quick_hash("secret")}"
    cache: {{"log:*": [get, put], "ring:*": [get, put], "lock:*": [get, put, delete]}}
"""


def test_a_user_with_rights_on_the_keys_of_a_queue_uses_it(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "listen.cache=127.0.0.1:0", config=CONFIG) as daemon,
        Servers(daemon.cache, login=("ann", "secret")) as servers,
    ):
        log, ring, queue = LogQueue(servers, "x"), RingQueue(servers, "x", 4), LockingQueue(servers, "x")
        log.put(b"log")
        ring.put(b"ring")
        queue.put(b"queue")
        assert (log.reader().get(), ring.reader().get(), queue.get()) == (b"log", b"ring", b"queue")


def test_a_user_who_may_only_get_reads_a_log(tmp_path: Path) -> None:
    config = (
        CONFIG.replace("[get, put]", "[get, put, delete]")
        + f"""
  bob:
    password: "{quick_hash("secret")}"
    cache: {{"log:*": [get]}}
"""
    )
    with (
        running_daemon(tmp_path, "listen.cache=127.0.0.1:0", config=config) as daemon,
        Servers(daemon.cache, login=("ann", "secret")) as writing,
        Servers(daemon.cache, login=("bob", "secret")) as reading,
    ):
        log = LogQueue(writing, "x", hole_timeout=0)
        missed: list[MessagesMissed] = []
        reader = LogQueue(reading, "x", hole_timeout=0).reader(on_missed=missed.append)
        assert reader.get() is None
        gone = log.put(b"gone")
        writing.delete_many([b"log:x:%08x:0" % gone.epoch])
        log.put(b"log")
        assert reader.get(timeout=60) == b"log"
        assert reader.missed == 1


@pytest.mark.parametrize("login", [None, ("ann", "wrong"), ("bob", "secret")])
def test_whoever_is_not_logged_in_is_refused(tmp_path: Path, login: tuple[str, str] | None) -> None:
    with (
        running_daemon(tmp_path, "listen.cache=127.0.0.1:0", config=CONFIG) as daemon,
        Servers(daemon.cache, login=login) as servers,
        pytest.raises(CacheRefused, match=r"unauthenticated|authentication"),
    ):
        LogQueue(servers, "x").put(b"log")
