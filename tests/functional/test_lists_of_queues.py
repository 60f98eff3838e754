"""`wait ~list` and `gets ~list/...`: to wait for an item of many queues that are named once."""

import json
from pathlib import Path

import pytest

from tests.functional.conftest import Connect
from tests.support.accounts import login, quick_hash
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient

NEEDS = b"CLIENT_ERROR wait needs the name of a list, ~ and up to 64 characters without /, and queues\r\n"
ONLY_LEASES = (
    b"CLIENT_ERROR of a list of queues items can only be leased:"
    b" gets ~list/open/lease=, t=, by=, deliveries and turn\r\n"
)


def names(queue: str, count: int) -> list[str]:
    return [f"{queue}-{number:03}" for number in range(count)]


def register(client: QueueClient, *queues: str, to: str = "~l") -> None:
    client.do(" ".join(["wait", to, *queues]).encode(), b"OK\r\n")


def leased(client: QueueClient, options: str = "") -> tuple[str, bytes, int]:
    """An item from the list: its queue, data and token. An answer to what `options` ask for."""
    client.send(f"gets ~l/open/lease=60000{options}\r\n".encode())
    return answer(client)


def answer(client: QueueClient) -> tuple[str, bytes, int]:
    words = client.expect_line(b"VALUE ").decode().split(" ")
    data = client.read(int(words[3]))
    client.expect(b"\r\nEND\r\n")
    queue, _, options = words[1].partition("/")
    assert options.startswith("open/lease=60000")
    assert "turn" not in options
    return queue, data, int(words[4])


def test_an_item_comes_from_the_first_queue_that_has_one_and_its_token_is_good(client: QueueClient, queue: str) -> None:
    high, low = names(queue, 2)
    register(client, high, low)
    client.do(b"gets ~l/open/lease=60000", b"END\r\n")
    client.put(low, b"l1", b"l2")
    client.put(high, b"h1")
    found = [leased(client) for _ in range(3)]
    assert [one[:2] for one in found] == [(high, b"h1"), (low, b"l1"), (low, b"l2")]
    for name, _, token in found:
        client.do(f"delete {name}/{token}".encode(), b"DELETED\r\n")


def test_many_queues_are_named_in_several_lines_and_waited_for_at_once(
    connect: Connect, client: QueueClient, queue: str
) -> None:
    """More than one line could name each time: the wait ends once."""
    waiting, queues = connect(), names(queue, 500)
    for first in range(0, len(queues), 100):
        register(waiting, *queues[first : first + 100])
    for name in (queues[499], queues[0]):
        waiting.send(b"gets ~l/open/lease=60000/t=600000\r\n")
        waiting.expect_no_answer_yet()
        client.put(name, b"x")
        assert answer(waiting)[:2] == (name, b"x")
    client.until(queues[3], waiters=0)
    waiting.do(b"gets ~l/open/lease=60000/t=1", b"END\r\n")


def test_with_turn_each_queue_is_the_first_in_turn(client: QueueClient, queue: str) -> None:
    queues = names(queue, 3)
    register(client, *queues)
    for name in queues:
        client.put(name, b"1", b"2", b"3")
    order = [leased(client, "/turn")[0] for _ in range(5)]
    assert order == [*queues, *queues[:2]]
    assert leased(client)[0] == queues[0], "without it the order is as it was given"
    assert leased(client, "/turn/t=100")[0] == queues[1]


def test_a_list_is_of_its_connection_and_holds_each_queue_once_until_it_is_dropped(
    connect: Connect, client: QueueClient, queue: str
) -> None:
    unknown = b"CLIENT_ERROR no list ~l: wait ~l and queues makes one\r\n"
    register(client, queue, queue)
    register(client, queue)
    connect().do(b"gets ~l/open/lease=60000", unknown)
    client.put(queue, b"x")
    assert leased(client, "/by=worker-7")[0] == queue
    client.send(b"leases by=worker-7 %b\r\n" % queue.encode())
    client.expect_line(b"LEASE %b 1 " % queue.encode())
    client.expect(b"END\r\n")
    register(client)
    client.do(b"gets ~l/open/lease=60000", unknown)
    register(client)


def test_lists_have_a_bound(client: QueueClient, queue: str) -> None:
    too_many, queues = b"CLIENT_ERROR the lists of a connection have at most 512 queues\r\n", names(queue, 513)
    register(client, *queues[:300])
    register(client, *queues[:212], to="~other")
    client.do(f"wait ~l {queues[300]}".encode(), too_many)
    client.do(f"wait ~third {queues[0]}".encode(), too_many)
    register(client, *queues[:300])
    register(client, to="~other")
    register(client, *queues[300:512])
    client.do(f"wait ~l {queues[512]}".encode(), too_many)
    client.send(b"gets ~l/open/lease=60000\r\n" * 50)
    client.expect(b"END\r\n" * 50)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"wait", NEEDS),
        (b"wait l q", NEEDS),
        (b"wait ~ q", NEEDS),
        (b"wait ~a/b q", NEEDS),
        (b"wait ~" + 65 * b"x" + b" q", NEEDS),
        (b"wait ~l q r/s", b"CLIENT_ERROR queue name must not contain '/'\r\n"),
        (b"wait ~l q  r", b"CLIENT_ERROR queue name must not be empty\r\n"),
        (b"wait ~l ~m", b"CLIENT_ERROR queue name must not contain '~'\r\n"),
        (b"gets ~l", ONLY_LEASES),
        (b"gets ~l/open", ONLY_LEASES),
        (b"gets ~l/peek", ONLY_LEASES),
        (b"gets ~l/t=5", ONLY_LEASES),
        (b"gets ~l/open/lease=5/turn/turn", ONLY_LEASES),
        (b"gets ~l/open/lease=5/other", ONLY_LEASES),
        (b"gets ~l/open/lease=5 q", ONLY_LEASES),
        (b"gets ~l/open/lease=0", b"CLIENT_ERROR lease= needs a number of milliseconds from 1 on\r\n"),
        (b"gets ~l/lease=5", b"CLIENT_ERROR lease= needs open\r\n"),
        (b"gets ~l/turn=1/open/lease=5", b"CLIENT_ERROR unknown option turn=\r\n"),
        (b"get ~l/open/lease=5", b"CLIENT_ERROR lease= needs gets, whose reply has the token to confirm with\r\n"),
        (b"gets q ~l/open/lease=5", b"CLIENT_ERROR queue name must not contain '~'\r\n"),
    ],
)
def test_what_is_no_list_or_no_lease_from_one_is_refused(client: QueueClient, line: bytes, words: bytes) -> None:
    client.do(line, words)
    client.do(b"gets ~l/open/lease=5", b"CLIENT_ERROR no list ~l: wait ~l and queues makes one\r\n")


def test_kestrel_1_knows_no_lists(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.do(b"wait ~l q", b"CLIENT_ERROR\r\n")


def test_a_lease_from_a_list_may_be_as_long_as_each_of_its_queues_allows(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "queues.brief.max_lease=10") as daemon, QueueClient(daemon.port) as client:
        register(client, "work", "brief")
        client.do(b"gets ~l/open/lease=60000", b"CLIENT_ERROR lease= allows at most 10000 (max_lease) from brief\r\n")
        client.do(b"gets ~l/open/lease=9000", b"END\r\n")


def test_only_queues_that_one_may_get_from_can_be_listed_and_leased_from(tmp_path: Path) -> None:
    def config(rights: list[str]) -> str:
        users = {"ann": {"password": quick_hash("a"), "rights": {"work": rights, "other": ["get"], "late": ["put"]}}}
        return f"users: {json.dumps(users)}\n"

    with running_daemon(tmp_path, config=config(["get", "put"])) as daemon, QueueClient(daemon.port) as client:
        client.ask(login("ann", "a"), b"STORED\r\n")
        client.do(b"wait ~l work late", b"CLIENT_ERROR not allowed: get on 'late'\r\n")
        register(client, "other", "work")
        client.put("work", b"1")
        assert leased(client)[0] == "work"
        daemon.reload(config(["put"]))
        client.put("work", b"2")
        client.do(b"gets ~l/open/lease=60000", b"CLIENT_ERROR not allowed: get on 'work'\r\n")


def test_a_queue_that_is_stopped_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            for name in ("bad", "good"):
                client.put(name, b"1", b"2")
                assert client.get(name) == b"1"
        daemon.stop()
        segment = max((daemon.spool / "bad.journal").glob("*.seg"))
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 1
        segment.write_bytes(content)
        daemon.start()
        with QueueClient(daemon.port) as client:
            register(client, "bad", "good")
            assert leased(client)[:2] == ("good", b"2")
            client.do(b"gets ~l/open/lease=60000/t=1", b"END\r\n")
            register(client)
            register(client, "bad")
            client.send(b"gets ~l/open/lease=60000/t=1\r\n")
            client.expect_line(b"SERVER_ERROR corrupt ")


def test_a_queue_that_is_deleted_is_made_again_by_a_lease_from_the_list(
    connect: Connect, client: QueueClient, queue: str
) -> None:
    waiting, queues = connect(), names(queue, 3)
    register(waiting, *queues)
    waiting.send(b"gets ~l/open/lease=60000/t=600000\r\n")
    client.until(queues[2], waiters=1)
    for name in queues[:2]:
        client.do(b"delete %b" % name.encode(), b"DELETED\r\n")
    client.put(queues[2], b"x")
    assert answer(waiting)[0] == queues[2]
    client.put(queues[0], b"y")
    assert leased(waiting)[:2] == (queues[0], b"y")


def test_queues_that_are_missing_are_made_before_the_answer_and_again_when_they_were_deleted(
    connect: Connect, client: QueueClient, queue: str
) -> None:
    queues = names(queue, 20)
    register(client, *queues)
    other = connect()
    for name in queues:
        other.do(b"delete %b" % name.encode(), b"DELETED\r\n")
    client.send(b"gets ~l/open/lease=60000/t=600000\r\nversion\r\n")
    other.until(queues[19], waiters=1)
    for name in queues[:19]:
        assert other.queue_stats(name)["waiters"] == "1"
    other.put(queues[7], b"x")
    assert answer(client)[:2] == (queues[7], b"x")
    client.expect_line(b"VERSION ")


def test_what_cannot_be_made_is_not_listed(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "max_queues=2") as daemon, QueueClient(daemon.port) as client:
        client.do(b"wait ~l a b c", b"SERVER_ERROR too many queues\r\n")
        client.do(b"gets ~l/open/lease=60000", b"CLIENT_ERROR no list ~l: wait ~l and queues makes one\r\n")
        register(client, "a", "b")
        client.do(b"gets ~l/open/lease=60000", b"END\r\n")
