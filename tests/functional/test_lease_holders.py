"""Who holds a lease, as the admin port says: an address or a name, also after a kill of the server, and how it ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.functional.conftest import Connect
from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import Answer, ask, basic
from tests.support.queue_client import QueueClient

HOUR_MS = 3_600_000
RETRIES = ("max_retries=5", "move_failed_to=dead")
LONGEST = "".join(map(chr, range(0x21, 0x2F))) + 50 * "x"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), admin="127.0.0.1:0") as running:
        yield running


def lease(client: QueueClient, queue: str, options: str = "") -> int:
    """Lease an item for an hour; the token."""
    client.send(f"gets {queue}/open/lease={HOUR_MS}{options}\r\n".encode())
    return leased(client)


def leased(client: QueueClient) -> int:
    words = client.expect_line(b"VALUE ").split(b" ")
    client.read(int(words[3]) + 2)
    client.expect(b"END\r\n")
    return int(words[4])


def address(client: QueueClient) -> str:
    host, port = client.socket.getsockname()
    return f"{host}:{port}"


def items(daemon: Daemon, queue: str, headers: dict[str, str] | None = None) -> list[Any]:
    answer = ask(daemon, f"/queues/{queue}/items?state=leased", headers=headers)
    assert answer.status == 200, answer
    return answer.lines


def holders(daemon: Daemon, queue: str, headers: dict[str, str] | None = None) -> list[Any]:
    answer = ask(daemon, f"/queues/{queue}/consumers", headers=headers)
    assert answer.status == 200, answer
    found: list[Any] = answer.json["leasing"]
    return found


def post(daemon: Daemon, path: str) -> Answer:
    return ask(daemon, f"/queues/{path}", "POST")


# Names


def test_a_lease_is_of_the_name_in_its_command_or_else_of_the_address(
    daemon: Daemon, connect: Connect, queue: str
) -> None:
    client = connect()
    client.put(queue, b"1", b"2", b"3", b"4")
    for options in ("/by=worker-7", "", "/by=worker-8", f"/by={LONGEST}"):
        lease(client, queue, options)
    found = items(daemon, queue)
    assert [one["holder"] for one in found] == ["worker-7", address(client), "worker-8", LONGEST]
    assert {one["client"] for one in found} == {address(client)}
    assert {(one["extended"], one["seen"]) for one in found} == {(0, True)}


@pytest.mark.parametrize(
    "line",
    [
        "gets {0}/by=worker-7/t=60000/open/lease=3600000",
        "gets other/open/lease=9/t=60000 {0}/open/lease=9999/t=60000/by=worker-7",
    ],
    ids=["one queue", "the first of several"],
)
def test_a_client_that_waits_for_an_item_gets_it_by_its_name(
    daemon: Daemon, connect: Connect, queue: str, line: str
) -> None:
    client, other = connect(), connect()
    client.send(line.format(queue).encode() + b"\r\n")
    other.get("nobody")
    other.put(queue, b"1")
    leased(client)
    (found,) = items(daemon, queue)
    assert (found["holder"], found["client"]) == ("worker-7", address(client))
    other.put(queue, b"2")
    lease(client, queue)
    assert [one["holder"] for one in items(daemon, queue)] == ["worker-7", address(client)]


def test_each_of_several_queues_has_a_name_of_its_own(daemon: Daemon, connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1")
    client.put(f"{queue}-b", b"2", b"3")
    client.send(
        f"gets {queue}/open/lease=9999/by=a {queue}-b/open/lease=9999/by=b {queue}-b/open/lease=9999\r\n".encode()
    )
    assert client.read_until(b"END\r\n").count(b"VALUE ") == 3
    assert [one["holder"] for one in items(daemon, queue)] == ["a"]
    assert [one["holder"] for one in items(daemon, f"{queue}-b")] == ["b", address(client)]


BAD_NAME = "by= needs a name that has from 1 to 64 printable ASCII characters, without blanks and /"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("/open/lease=9/by=", BAD_NAME),
        ("/open/lease=9/by=" + 65 * "x", BAD_NAME),
        ("/open/lease=9/by=größe", BAD_NAME),
        ("/open/lease=9/by=\x7f", BAD_NAME),
        ("/open/lease=9/by=a\tb", BAD_NAME),
        ("/open/lease=9/by=a/b", BAD_NAME),
        ("/open/lease=9/by=a/", BAD_NAME),
        ("/open/lease=9/by=a/by=b", "by= is given twice"),
        ("/by=a", "by= needs lease="),
        ("/open/by=a", "by= needs lease="),
        ("/by=a/lease=9", "lease= needs open"),
    ],
)
def test_a_name_that_is_none_is_refused_and_nothing_is_taken(
    client: QueueClient, queue: str, options: str, words: str
) -> None:
    client.put(queue, b"1")
    client.do(f"gets {queue}{options}".encode(), f"CLIENT_ERROR {words}\r\n".encode())
    client.do(
        f"get {queue}/open/lease=9/by=a".encode(),
        b"CLIENT_ERROR lease= needs gets, whose reply has the token to confirm with\r\n",
    )
    client.do(f"touch {queue}/5/by=a 0".encode(), b"CLIENT_ERROR unknown option by=\r\n")
    assert client.drain(queue) == [b"1"]


def test_leases_of_one_name_are_added_up_wherever_it_took_them(daemon: Daemon, connect: Connect, queue: str) -> None:
    first, second = connect(), connect()
    first.put(queue, b"1", b"2", b"3", b"4")
    tokens = [lease(client, queue, "/by=worker-7") for client in (first, second, second)]
    lease(second, queue)
    for token in (tokens[0], tokens[0], tokens[2]):
        second.do(f"touch {queue}/{token} 60".encode(), b"TOUCHED\r\n")
    assert [one["extended"] for one in items(daemon, queue)] == [2, 0, 1, 0]
    assert {one["holder"] for one in items(daemon, queue)} == {"worker-7", address(second)}, "whoever extends it"
    named, unnamed = sorted(holders(daemon, queue), key=lambda one: -one["leases"])
    assert (named["holder"], named["client"], named["leases"], named["extended"]) == ("worker-7", address(first), 3, 3)
    assert (unnamed["holder"], unnamed["client"], unnamed["extended"]) == (address(second), address(second), 0)
    assert named["seen"] is unnamed["seen"] is True


def test_an_item_that_is_leased_again_by_its_token_is_of_whoever_extended_it(
    daemon: Daemon, connect: Connect, queue: str
) -> None:
    client, other = connect(), connect()
    client.put(queue, b"1")
    token = lease(client, queue, "/by=worker-7")
    client.do(f"touch {queue}/{token} 0".encode(), b"TOUCHED\r\n")
    other.do(f"touch {queue}/{token} 60".encode(), b"TOUCHED\r\n")
    assert [one["holder"] for one in items(daemon, queue)] == [address(other)]


def test_names_are_hidden_from_those_from_whom_addresses_are(tmp_path: Path) -> None:
    users = {
        "worker": {"password": quick_hash("w"), "rights": {"*": ["put", "get", "peek"]}},
        "boss": {"password": quick_hash("b"), "rights": {"*": ["admin", "peek"]}},
    }
    config = f"users: {json.dumps(users)}\n"
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.ask(login("worker", "w"), b"STORED\r\n")
        client.put("work", b"1")
        lease(client, "work", "/by=worker-7")
        for look in (items, holders):
            (found,) = look(daemon, "work", basic("boss", "b"))
            assert (found["holder"], found["client"]) == ("worker-7", address(client))
            (found,) = look(daemon, "work", basic("worker", "w"))
            assert not {"holder", "client"} & found.keys()
            assert (found["extended"], found["seen"]) == (0, True)


# After a kill, and by hand


def test_a_lease_that_outlived_a_kill_is_not_seen_until_its_token_is(tmp_path: Path) -> None:
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"1", b"2", b"3", b"4")
            tokens = [lease(client, "work", "/by=worker-7") for _ in range(2)] + [lease(client, "work")]
            client.do(b"touch work/%d 3600" % tokens[0], b"TOUCHED\r\n")
            at = address(client)
        daemon.kill()
        daemon.start()
        found = items(daemon, "work")
        assert [(one["holder"], one["client"]) for one in found] == [("worker-7", at), ("worker-7", at), (at, at)]
        assert {(one["extended"], one["seen"]) for one in found} == {(0, False)}
        assert [(one["holder"], one["leases"], one["seen"]) for one in holders(daemon, "work")] == [
            ("worker-7", 2, False),
            (at, 1, False),
        ]
        with QueueClient(daemon.port) as client:
            client.do(b"touch work/%d 3600" % tokens[1], b"TOUCHED\r\n")
            assert [(one["id"], one["holder"], one["extended"], one["seen"]) for one in items(daemon, "work")] == [
                (1, "worker-7", 0, False),
                (2, "worker-7", 1, True),
                (3, at, 0, False),
            ]
            assert [(one["holder"], one["seen"]) for one in holders(daemon, "work")] == [
                ("worker-7", True),
                (at, False),
            ]
            assert post(daemon, "work/items/3/extend?lease_ms=60000").status == 200
            assert items(daemon, "work")[2]["seen"] is False, "an operator has not seen the holder"

            assert post(daemon, "work/items/1/give-back?delay_ms=0").status == 200
            assert post(daemon, "work/items/3/give-back").status == 200
            for token in (tokens[0], tokens[2]):
                client.do(b"touch work/%d 60" % token, b"NOT_FOUND\r\n")
                client.do(b"delete work/%d" % token, b"NOT_FOUND\r\n")
            client.do(b"delete work/%d" % tokens[1], b"DELETED\r\n")
            assert client.drain("work") == [b"1", b"3", b"4"]


@pytest.mark.parametrize("delay", ["", "?delay_ms=3600000"], ids=["it waits", "it is delayed"])
def test_the_token_of_a_lease_that_was_ended_by_hand_is_good_for_nothing(tmp_path: Path, delay: str) -> None:
    with running_daemon(tmp_path, *RETRIES, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("work", b"1")
        token = lease(client, "work", "/by=worker-7")
        assert post(daemon, f"work/items/1/give-back{delay}").status == 200
        daemon.restart()
        with QueueClient(daemon.port) as later:
            for line in (b"touch work/%d 60", b"touch work/%d 0", b"touch work/%d/failed 0", b"delete work/%d"):
                later.do(line % token, b"NOT_FOUND\r\n")
            if delay:
                assert post(daemon, "work/items/1/run-now").status == 200
            assert lease(later, "work") != token
            later.do(b"delete work/%d" % token, b"NOT_FOUND\r\n")


def test_an_open_read_with_a_time_limit_is_no_lease(tmp_path: Path) -> None:
    limit = "open_transaction_timeout=1h"
    with running_daemon(tmp_path, limit, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("work", b"1")
        client.get("work/open")
        assert items(daemon, "work") == holders(daemon, "work") == []
        (found,) = ask(daemon, "/queues/work/items?waiting=1&format=ndjson").lines
        assert not {"holder", "seen", "extended"} & found.keys()
