"""Fanout queues: what goes into `orders` goes into `orders+audit` too, and otherwise each is a queue of its own."""

import threading
from pathlib import Path

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("no_queues")

ENOUGH = 500
CONFIG = """
listen: {admin: null}
queues:
  full: {max_items: 3}
  full+roomy: {max_items: 100}
  small-child: {}
  small-child+three: {max_items: 3}
  small-child+latest: {max_items: 3, discard_old_when_full: true}
  short-child+short: {max_item_size: 10}
  aging: {max_age: 50}
  aging+kept: {max_age: 0}
  discarding: {max_items: 3, discard_old_when_full: true}
  discarding+strict: {discard_old_when_full: false}
"""


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


def folders(daemon: Daemon) -> list[str]:
    return sorted(path.name for path in daemon.spool.iterdir() if not path.name.startswith("."))


def test_an_item_goes_to_the_parent_and_every_child(client: QueueClient, queue: str) -> None:
    names = [queue, f"{queue}+audit", f"{queue}+backup", f"{queue}+more"]
    for name in names:
        client.get(name)
    client.put(queue, b"1", b"2")
    client.put(queue, b"3", flags=9)
    for name in names:
        assert client.get(name) == b"1"
        assert client.get(f"{name}/open") == b"2"
        client.do(b"get %b/close" % name.encode(), b"END\r\n")
        client.do(b"get " + name.encode(), b"VALUE %b 9 1\r\n3\r\nEND\r\n" % name.encode())
        assert client.get(name) is None


def test_a_child_gets_nothing_of_what_was_there_before_it(client: QueueClient, queue: str) -> None:
    client.put(queue, b"before")
    assert client.get(f"{queue}+late") is None
    client.put(queue, b"after")
    assert client.drain(f"{queue}+late") == [b"after"]
    assert client.drain(queue) == [b"before", b"after"]


def test_items_put_into_a_child_are_the_childs_alone_and_keep_their_place(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+other")
    client.put(f"{queue}+child", b"own 1")
    client.put(queue, b"shared 1")
    client.put(f"{queue}+child", b"own 2", flags=3)
    client.put(queue, b"shared 2")
    assert client.drain(f"{queue}+child") == [b"own 1", b"shared 1", b"own 2", b"shared 2"]
    assert client.drain(queue) == client.drain(f"{queue}+other") == [b"shared 1", b"shared 2"]


def test_a_child_can_come_before_its_parent(client: QueueClient, queue: str) -> None:
    client.put(f"{queue}+child", b"own")
    assert client.queue_stats(queue) == {}, "naming a child makes no parent"
    client.put(queue, b"shared")
    assert client.drain(f"{queue}+child") == [b"own", b"shared"]
    assert client.drain(queue) == [b"shared"]


def test_everything_after_the_first_plus_is_the_childs_name(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+b+c")
    client.get(f"{queue}+b")
    client.put(queue, b"all")
    client.put(f"{queue}+b", b"b only")
    assert client.drain(f"{queue}+b+c") == [b"all"]
    assert client.drain(f"{queue}+b") == [b"all", b"b only"]


def test_open_reads_and_flushes_are_each_queues_own(connect: Connect, queue: str) -> None:
    one, other = connect(), connect()
    one.get(f"{queue}+child")
    one.put(queue, b"1", b"2")
    assert one.get(f"{queue}/open") == b"1"
    assert other.get(f"{queue}+child/open") == b"1"
    other.do(b"get %b+child/abort" % queue.encode(), b"END\r\n")
    one.do(b"flush %b" % queue.encode(), b"END\r\n")
    assert other.drain(f"{queue}+child") == [b"1", b"2"]
    one.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    one.put(queue, b"3")
    one.do(b"flush %b+child" % queue.encode(), b"END\r\n")
    assert one.drain(queue) == [b"1", b"3"]
    assert one.get(f"{queue}+child") is None


def test_stats_name_the_children_of_a_parent(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    assert "children" not in client.queue_stats(queue)
    client.get(f"{queue}+b")
    client.get(f"{queue}+a")
    assert client.queue_stats(queue)["children"] == f"{queue}+a,{queue}+b"
    assert "children" not in client.queue_stats(f"{queue}+a")
    client.do(b"delete %b+a" % queue.encode(), b"DELETED\r\n")
    assert client.queue_stats(queue)["children"] == f"{queue}+b"


def test_a_family_has_one_journal(daemon: Daemon, client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+a")
    client.get(f"{queue}+b")
    client.put(queue, b"x" * 100_000)
    assert f"{queue}.journal" in folders(daemon)
    used_bytes = sum(path.stat().st_size for path in (daemon.spool / f"{queue}.journal").iterdir())
    assert used_bytes < 110_000, "the item is written once"


# Deleting


def test_a_deleted_child_gets_nothing_more_and_the_others_do(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+a")
    client.get(f"{queue}+b")
    client.put(queue, b"1")
    client.do(b"delete %b+a" % queue.encode(), b"DELETED\r\n")
    client.put(queue, b"2")
    assert client.queue_stats(f"{queue}+a") == {}
    assert client.drain(queue) == client.drain(f"{queue}+b") == [b"1", b"2"]
    assert client.get(f"{queue}+a") is None, "a new child of that name starts empty"
    client.put(queue, b"3")
    assert client.drain(f"{queue}+a") == [b"3"]


def test_children_outlive_their_parent_and_go_on_receiving(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+a")
    client.put(queue, b"1")
    client.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    assert client.queue_stats(queue) == {}
    assert client.items(f"{queue}+a") == 1
    client.put(queue, b"2")
    assert client.drain(f"{queue}+a") == [b"1", b"2"]
    assert client.drain(queue) == [b"2"]


def test_the_last_of_a_family_takes_the_journal_with_it(daemon: Daemon, client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+a")
    client.put(queue, b"1")
    for name in (queue, f"{queue}+a"):
        assert f"{queue}.journal" in folders(daemon)
        client.do(b"delete " + name.encode(), b"DELETED\r\n")
    assert f"{queue}.journal" not in folders(daemon)
    until(lambda: not list((daemon.spool / ".trash").iterdir()), "the deleted files to go, in the background")


# Limits


def test_a_full_parent_refuses_for_all(client: QueueClient) -> None:
    client.get("full+roomy")
    client.put("full", b"1", b"2", b"3")
    assert client.offer("full", b"4") == b"NOT_STORED"
    assert client.items("full+roomy") == 3
    client.put("full+roomy", b"own")
    assert client.drain("full+roomy") == [b"1", b"2", b"3", b"own"]
    assert client.offer("full", b"4") == b"NOT_STORED"
    assert client.drain("full") == [b"1", b"2", b"3"]


def test_a_full_child_refuses_for_all_and_one_that_discards_does_not(client: QueueClient) -> None:
    client.get("small-child+three")
    client.get("small-child+latest")
    client.put("small-child", b"1", b"2", b"3")
    assert client.offer("small-child", b"4") == b"NOT_STORED"
    assert client.items("small-child") == client.items("small-child+latest") == 3
    assert client.queue_stats("small-child+latest")["discarded"] == "0", "a refused put pushes nothing out"
    assert client.get("small-child+three") == b"1"
    client.put("small-child", b"4")
    assert client.drain("small-child") == [b"1", b"2", b"3", b"4"]
    assert client.drain("small-child+three") == client.drain("small-child+latest") == [b"2", b"3", b"4"]
    assert client.queue_stats("small-child+latest")["discarded"] == "1"


def test_a_full_child_refuses_what_is_put_into_itself(client: QueueClient) -> None:
    client.do(b"flush small-child+three", b"END\r\n")
    client.put("small-child+three", b"1", b"2", b"3")
    assert client.offer("small-child+three", b"4") == b"NOT_STORED"
    client.do(b"flush small-child+three", b"END\r\n")


def test_a_child_that_takes_only_short_items_refuses_for_all(client: QueueClient) -> None:
    client.get("short-child+short")
    assert client.offer("short-child", b"far too long") == b"NOT_STORED"
    client.put("short-child", b"short")
    assert client.drain("short-child") == client.drain("short-child+short") == [b"short"]


def test_a_child_inherits_its_parents_settings_and_has_its_own_over_them(client: QueueClient) -> None:
    client.get("discarding+strict")
    client.get("discarding+heir")
    client.put("discarding", b"1", b"2", b"3")
    assert client.offer("discarding", b"4") == b"NOT_STORED", "the strict child is full"
    client.do(b"delete discarding+strict", b"DELETED\r\n")
    client.put("discarding", b"4")
    assert client.drain("discarding") == client.drain("discarding+heir") == [b"2", b"3", b"4"]


def test_each_copy_expires_by_its_own_queues_rules(client: QueueClient) -> None:
    client.get("aging+heir")
    client.get("aging+kept")
    client.put("aging", b"forever")
    client.put("aging", b"over", expiry_s=-1)
    assert client.get("nobody/t=60") is None  # time goes by
    assert client.drain("aging") == client.drain("aging+heir") == []
    assert client.drain("aging+kept") == [b"forever"]
    assert client.queue_stats("aging")["expired_items"] == "2"
    assert client.queue_stats("aging+kept")["expired_items"] == "1"


# Restarts


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_family_comes_back_as_it_was(tmp_path: Path, how: str) -> None:
    with running_daemon(tmp_path, config=CONFIG) as daemon:
        with QueueClient(daemon.port) as client, QueueClient(daemon.port) as worker:
            client.put("orders", b"1", b"2")
            client.get("orders+audit")
            client.get("orders+gone")
            client.put("orders", b"3", b"4", b"5")
            client.put("orders+audit", b"own")
            client.do(b"delete orders+gone", b"DELETED\r\n")
            assert client.get("orders") == b"1"
            assert worker.get("orders+audit/open") == b"3"
            assert client.get("orders+audit") == b"4"
            client.get("alone+child")
            client.put("headless", b"x")
            client.get("headless+child")
            client.put("headless", b"1")
            client.do(b"delete headless", b"DELETED\r\n")
            daemon.stop() if how == "stop" else daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.queue_stats("orders+gone") == client.queue_stats("headless") == {}
            assert client.queue_stats("alone") == {}
            for name in ("orders", "alone", "headless"):
                client.put(name, b"new")
            assert client.drain("orders") == [b"2", b"3", b"4", b"5", b"new"]
            assert client.drain("orders+audit") == [b"3", b"5", b"own", b"new"]
            assert client.drain("alone+child") == [b"new"]
            assert client.drain("headless+child") == [b"1", b"new"]


def test_a_stored_item_is_in_the_parent_and_every_child_after_a_crash(tmp_path: Path) -> None:
    names = ["orders", *[f"orders+{number}" for number in range(5)]]
    with running_daemon(tmp_path, "max_journal_size=20000") as daemon:
        stored = 0
        enough = threading.Event()

        def write() -> None:
            nonlocal stored
            with QueueClient(daemon.port) as writer:
                for name in names:
                    writer.get(name)
                try:
                    while True:
                        writer.put("orders", *[b"%d" % number for number in range(stored, stored + 10)])
                        stored += 10
                        if stored == ENOUGH:
                            enough.set()
                except (AssertionError, ConnectionError):
                    return  # killed

        thread = threading.Thread(target=write)
        thread.start()
        assert enough.wait(PATIENCE_S), f"{stored} stored, waited for {ENOUGH}"
        daemon.kill()
        thread.join()
        daemon.start()
        with QueueClient(daemon.port) as client:
            drained = [client.drain(name) for name in names]
    assert drained[0] == [b"%d" % number for number in range(len(drained[0]))]
    assert len(drained[0]) >= stored
    assert all(one == drained[0] for one in drained)
