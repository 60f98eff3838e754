"""Commands on all queues: in slices, so that nobody waits for somebody else's, and each client's in order."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

QUEUES = 600  # many slices
CONFIG = "listen: {admin: null}\nexpiration_timer_frequency_seconds: 0\n"


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


@pytest.fixture
def client(connect: Connect) -> QueueClient:
    """All queues hold one item."""
    client = connect()
    client.do(b"flush_all", b"OK\r\n")
    fill(client)
    return client


def fill(client: QueueClient, data: bytes = b"x", expiry_s: int = 0) -> None:
    line = b" 0 %d %d\r\n%b\r\n" % (expiry_s, len(data), data)
    client.send(b"".join([b"set all%d%b" % (number, line) for number in range(QUEUES)]))
    client.expect(b"STORED\r\n" * QUEUES)


def names() -> Iterator[str]:
    return (f"all{number}" for number in range(QUEUES))


def test_commands_behind_a_flush_all_come_after_it(client: QueueClient) -> None:
    client.send(b"flush_all\r\nset all599 0 0 3\r\nnew\r\nflush_all noreply\r\nget all599\r\nversion\r\n")
    client.expect(b"OK\r\nSTORED\r\nEND\r\n")
    client.expect_line(b"VERSION ")


def test_commands_behind_stats_come_after_them(client: QueueClient) -> None:
    client.send(b"stats\r\nset all0 0 0 3\r\nnew\r\ndump_config\r\nget all1\r\n")
    lines = []
    while (line := client.read_line()) != b"END":
        lines.append(line)
    assert b"STAT queue_all0_items 1" in lines, "as it was before the put"
    client.expect(b"STORED\r\n")
    while client.read_line() != b"END":
        pass
    client.expect(b"VALUE all1 0 1\r\nx\r\nEND\r\n")


def test_nothing_that_is_put_after_the_answer_is_flushed(client: QueueClient, connect: Connect) -> None:
    other, flushed = connect(), []

    def keep_putting() -> None:
        while not flushed:
            fill(other, b"before")
        fill(other, b"after")

    putter = Thread(target=keep_putting)
    putter.start()
    for _ in range(3):
        client.do(b"flush_all", b"OK\r\n")
    flushed.append(True)
    putter.join()
    assert all(other.drain(name)[-1:] == [b"after"] for name in names())


def test_a_flush_all_reaches_children_and_leaves_open_reads(client: QueueClient, connect: Connect) -> None:
    worker = connect()
    assert client.get("kin+audit") is None
    client.put("kin", b"held", b"both")
    assert worker.get("kin/open") == b"held"
    client.do(b"flush_all", b"OK\r\n")
    assert client.get("kin+audit") is None
    worker.do(b"get kin/abort", b"END\r\n")
    assert client.drain("kin") == [b"held"]


def test_who_leaves_behind_a_flush_all_has_had_it_done(client: QueueClient, connect: Connect) -> None:
    leaver = connect()
    leaver.send(b"flush_all noreply\r\n")
    leaver.close()
    client.until("all599", items=0)
    assert [client.queue_stats(name)["items"] for name in ("all0", "all300")] == ["0", "0"]


def test_an_input_that_ends_behind_a_long_command_is_answered_whole(client: QueueClient, connect: Connect) -> None:
    half = connect()
    half.send(b"stats\r\nflush_all\r\nget all1\r\n")
    half.socket.shutdown(socket.SHUT_WR)
    answer = half.read_all()
    assert answer.count(b"STAT queue_all0_items 1\r\n") == 1
    assert answer.endswith(b"END\r\nOK\r\nEND\r\n")


def test_the_expired_items_of_all_queues_are_counted(client: QueueClient) -> None:
    client.do(b"flush_all", b"OK\r\n")
    fill(client, expiry_s=-1)
    client.do(b"flush_all_expired", b"%d\r\n" % QUEUES)
    client.do(b"flush_all_expired", b"0\r\n")


def test_who_does_not_read_his_stats_keeps_nobody_else_from_theirs(client: QueueClient, daemon: Daemon) -> None:
    items, idle = client.queue_stats("all599")["items"], []
    for _ in range(4):
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", daemon.port))
        deaf.sendall(b"stats\r\ndump_stats\r\n" * 200)
        idle.append(deaf)
    for _ in range(3):
        assert client.queue_stats("all599")["items"] == items
    assert daemon_rss_bytes(daemon) < 120 << 20, "what nobody reads is not made"
    for deaf in idle:
        deaf.close()
    assert client.queue_stats("all599")["items"] == items


def daemon_rss_bytes(daemon: Daemon) -> int:
    with open(f"/proc/{daemon.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def test_a_second_reload_waits_for_the_first(daemon: Daemon, client: QueueClient, connect: Connect) -> None:
    others = [connect() for _ in range(5)]
    daemon.config_path.write_text(CONFIG + "max_items: 1\n")
    for other in others:
        other.send(b"reload\r\nset all1 0 0 1\r\ny\r\nget all1\r\n")
    daemon.config_path.write_text(CONFIG)
    for other in others:
        other.expect(b"Reloaded config.\r\n")
        assert other.read_line() in (b"STORED", b"NOT_STORED")
    client.do(b"reload", b"Reloaded config.\r\n")
    client.send(b"set all2 0 0 1\r\ny\r\n")
    client.expect(b"STORED\r\n")


def test_with_sync_journal_all_of_a_flush_all_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "sync_journal=true", config=CONFIG) as daemon, QueueClient(daemon.port) as client:
        fill(client)
        client.send(b"flush_all\r\nset all0 0 0 3\r\nnew\r\n")
        client.expect(b"OK\r\nSTORED\r\n")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as again:
            assert again.drain("all0") == [b"new"]
            assert all(again.get(name) is None for name in names())


def test_a_stop_lets_a_long_answer_come_to_its_end(tmp_path: Path) -> None:
    config = CONFIG + "journal: false\n"
    with running_daemon(tmp_path, config=config) as daemon, QueueClient(daemon.port) as client:
        client.send(b"".join([b"set %d 0 0 1\r\nx\r\n" % number for number in range(QUEUES)]))
        client.expect(b"STORED\r\n" * QUEUES)
        client.send(b"stats\r\n")
        client.expect_line(b"STAT uptime")
        daemon.signal(signal.SIGTERM)
        answer = client.read_all()
        assert answer.endswith(b"END\r\n")
        assert answer.count(b"_next_id ") == QUEUES
        assert daemon.wait() == 0
