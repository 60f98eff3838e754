"""`compat: kestrel-1` beyond the recorded conversations: what the guide and the source of Kestrel 1.3 say."""

import time
from pathlib import Path
from typing import Final

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient

pytestmark = pytest.mark.usefixtures("no_queues")

SERVER_KEYS: Final = [
    "uptime",
    "time",
    "version",
    "curr_items",
    "total_items",
    "bytes",
    "curr_connections",
    "total_connections",
    "cmd_get",
    "cmd_set",
    "cmd_peek",
    "get_hits",
    "get_misses",
    "bytes_read",
    "bytes_written",
]
QUEUE_KEYS: Final = [
    "items",
    "bytes",
    "total_items",
    "logsize",
    "expired_items",
    "mem_items",
    "mem_bytes",
    "age",
    "discarded",
    "waiters",
    "open_transactions",
]


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return "listen: {admin: null}\ncompat: kestrel-1\n"


def value(queue: str, data: bytes) -> bytes:
    """An item as it is answered."""
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue.encode(), len(data), data)


def test_flags_are_read_and_forgotten_and_options_are_not_in_the_key(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", flags=77)
    client.put(queue, b"2", flags=-1)
    client.do(f"get {queue}/peek".encode(), value(queue, b"1"))
    client.do(f"GET {queue}/t=10/open".encode(), value(queue, b"1"))
    client.do(f"Get {queue}/open//close/odd".encode(), value(queue, b"2"))


def test_gets_is_get(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2")
    client.do(f"gets {queue}".encode(), value(queue, b"1"))
    client.do(f"gets {queue}/open {queue}".encode(), value(queue, b"2"))


def test_noreply_is_answered(client: QueueClient, queue: str) -> None:
    name = queue.encode()
    client.do(b"set %b 0 0 1 noreply\r\nx" % name, b"STORED\r\n")
    client.do(b"flush %b noreply" % name, b"END\r\n")
    client.do(b"flush_expired %b noreply" % name, b"0\r\n")
    client.do(b"flush_all_expired noreply", b"0\r\n")
    client.do(b"delete %b noreply" % name, b"END\r\n")
    client.do(b"flush_all noreply", b"Flushed all queues.\r\n")
    client.do(b"flush_all 10", b"Flushed all queues.\r\n")


@pytest.mark.parametrize(
    ("expiry_s", "comes"),
    [(0, True), (1, True), (999_999, True), (1_000_000, False), (2_592_001, False), (-1, False), (-(2**31), False)],
)
def test_expiry_counts_from_now_below_a_million_and_from_1970_above(
    client: QueueClient, queue: str, expiry_s: int, comes: bool
) -> None:
    client.send(b"set %b 0 %d 1\r\nx\r\nget %b\r\n" % (queue.encode(), expiry_s, queue.encode()))  # at once
    client.expect(b"STORED\r\n")
    assert client.read_value() == (b"x" if comes else None)


def test_an_absolute_expiry_to_come_lets_the_item_live_till_then(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x", expiry_s=int(time.time()) + 60)
    assert client.get(queue) == b"x"


def test_flushing_a_queue_makes_it_and_deleting_it_does_not(client: QueueClient, queue: str) -> None:
    client.do(f"flush {queue}".encode(), b"END\r\n")
    client.do(f"flush_expired {queue}+child".encode(), b"0\r\n")
    client.do(f"delete {queue}-other".encode(), b"END\r\n")
    stats = client.stats()
    assert stats[f"queue_{queue}_items"] == stats[f"queue_{queue}+child_items"] == "0"
    assert f"queue_{queue}-other_items" not in stats


# Open reads: one for each connection, over all queues


@pytest.mark.parametrize("second", ["{q}/open", "{q}B/open", "{q}B", "{q}B/t=10", "{q}B/close", "{q}B/abort"])
def test_anything_but_the_end_of_the_open_read_is_an_error_and_ends_the_connection(
    connect: Connect, queue: str, second: str
) -> None:
    client, other = connect(), connect()
    other.put(queue, b"1", b"2")
    other.put(f"{queue}B", b"B")
    assert client.get(f"{queue}/open") == b"1"
    client.send(f"get {second}\r\n".replace("{q}", queue).encode())
    client.expect_end(b"ERROR\r\n")
    assert other.drain(queue) == [b"1", b"2"]
    assert other.drain(f"{queue}B") == [b"B"]


def test_a_peek_is_allowed_with_an_open_read_and_never_waits(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1")
    assert client.get(f"{queue}/open") == b"1"
    client.do(f"get {queue}/peek/t=10000".encode(), b"END\r\n")
    client.do(f"get {queue}B/peek".encode(), b"END\r\n")
    client.do(f"get {queue}/abort".encode(), b"END\r\n")
    assert client.get(f"{queue}/peek") == b"1"


# Mistakes


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" version",
        b"get  q",
        b"get /open",
        b"get /t=1",
        b"get q/open/abort",
        b"get q/peek/close",
        b"get q/abort/peek",
        b"incr q 1",
        b"status",
        b"confirm q 1",
        b"monitor q 1",
        b"verbosity 1",
        b"replace q 0 0 3",
        b"prepend q 0 0 3",
        b"get\tq",
    ],
    ids=bytes.decode,
)
def test_some_mistakes_are_a_bare_word_and_end_the_connection(connect: Connect, line: bytes) -> None:
    client = connect()
    client.send(line + b"\r\nversion\r\n")
    client.expect_end(b"CLIENT_ERROR\r\n")


@pytest.mark.parametrize("key", [b"/", b"//"])
def test_slashes_alone_are_no_name_and_the_connection_goes_on(client: QueueClient, key: bytes) -> None:
    client.do(b"get " + key, b"CLIENT_ERROR\r\n")
    client.expect_nothing_more()


def test_a_refused_queue_says_why_and_the_connection_goes_on(client: QueueClient) -> None:
    for command in (b"get a/b", b"get a.b", b"flush a.b", b"flush_expired a~b"):
        client.send(command + b"\r\n")
        if command != b"get a/b":
            assert client.read_line().startswith(b"CLIENT_ERROR queue name must not contain ")
        else:
            assert client.read_line() == b"END", "what follows a slash is an option"
    client.expect_nothing_more()


# Figures


def test_stats_are_the_guides_and_no_more(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    client.get(f"{queue}+b")
    client.get(f"{queue}+a")
    keys = list(client.stats())
    assert keys[: len(SERVER_KEYS)] == SERVER_KEYS
    own = [key.removeprefix(f"queue_{queue}_") for key in keys if key.startswith(f"queue_{queue}_")]
    child = [key.removeprefix(f"queue_{queue}+a_") for key in keys if key.startswith(f"queue_{queue}+a_")]
    assert (own, child) == ([*QUEUE_KEYS, "children"], QUEUE_KEYS)
    assert client.stats()[f"queue_{queue}_children"] == f"{queue}+a,{queue}+b"


def test_dump_stats_shows_every_queue_whatever_is_named(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    client.send(b"dump_stats nosuch\r\n")
    text = client.read_until(b"}\r\nEND\r\n").decode()
    assert f"queue '{queue}' {{\r\n  items=1\r\n  bytes=1\r\n  total_items=1\r\n" in text
    assert "nosuch" not in text


def test_without_a_queue_the_dumps_are_an_empty_line_and_end(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.do(b"dump_stats", b"\r\nEND\r\n")
        client.do(b"dump_config", b"\r\nEND\r\n")


def test_the_servers_counters_never_go_back(client: QueueClient, queue: str) -> None:
    """A deleted queue takes nothing with it; a copy is an item, but not a SET."""

    def counted() -> list[int]:
        stats = client.stats()
        return [
            int(stats[name]) for name in ("total_items", "cmd_set", "cmd_get", "get_hits", "get_misses", "cmd_peek")
        ]

    before = counted()
    client.get(f"{queue}+child/peek")
    client.put(queue, b"1", b"2")
    client.put(f"{queue}+child", b"its own")
    assert client.drain(queue) == [b"1", b"2"]
    expected = [5, 3, 3, 2, 1, 1]
    assert [now - then for now, then in zip(counted(), before, strict=True)] == expected
    client.do(f"delete {queue}".encode(), b"END\r\n")
    client.do(f"delete {queue}+child".encode(), b"END\r\n")
    assert [now - then for now, then in zip(counted(), before, strict=True)] == expected


def test_an_items_age_is_how_long_it_had_waited_and_0_when_nothing_waits(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2")
    time.sleep(0.05)
    assert client.get(queue) == b"1"
    assert 50 <= int(client.stats()[f"queue_{queue}_age"]) < 100_000
    assert client.get(queue) == b"2"
    assert client.stats()[f"queue_{queue}_age"] == "0"


def test_reload_and_shutdown_answer_as_kestrel_does(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.do(b"RELOAD", b"Reloaded config.\r\n")
        client.send(b"shutdown\r\n")
        client.expect_end()
        assert daemon.wait() == 0
