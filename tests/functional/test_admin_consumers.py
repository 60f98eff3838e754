"""What the admin port says of who consumes a queue: who waits, who holds open reads, how far readers are behind."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.functional.conftest import Connect
from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask, basic
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

LONG_WAIT = "t=600000"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("kestreld")
    with running_daemon(folder, "max_open_reads=3", admin="127.0.0.1:0") as running:
        yield running


def consumers(daemon: Daemon, queue: str, query: str = "", headers: dict[str, str] | None = None) -> Any:
    answer = ask(daemon, f"/queues/{queue.replace('+', '%2B')}/consumers{query}", headers=headers)
    assert answer.status == 200, answer
    return answer.json


def address(client: QueueClient) -> str:
    host, port = client.socket.getsockname()
    return f"{host}:{port}"


def wait_at(client: QueueClient, queue: str) -> None:
    """A get that waits; it does so once a later client has been answered."""
    client.send(f"get {queue}/{LONG_WAIT}\r\n".encode())


def test_who_waits_is_named_with_the_address_and_since_and_until_when(
    daemon: Daemon, connect: Connect, queue: str
) -> None:
    first, second, elsewhere = connect(), connect(), connect()
    before_ms = ask(daemon, "/stats.json").json["now_ms"]
    wait_at(first, queue)
    connect().get(queue)
    second.send(f"get {queue}/t=60000/open\r\n".encode())
    wait_at(elsewhere, f"{queue}+child")
    connect().get(queue)
    found = consumers(daemon, queue)
    assert [one["client"] for one in found["waiting"]] == [address(first), address(second)]
    for one, wait_ms in zip(found["waiting"], (600_000, 60_000), strict=True):
        assert before_ms <= one["since_at_ms"] <= found["now_ms"]
        assert one["until_at_ms"] - one["since_at_ms"] == wait_ms
    assert (found["queue"], found["waiters"], found["open"], found["holding"]) == (queue, 2, 0, [])
    assert [one["client"] for one in consumers(daemon, f"{queue}+child")["waiting"]] == [address(elsewhere)]


def test_who_holds_open_reads_is_named_with_how_many_and_which_first_until_they_are_done(
    daemon: Daemon, connect: Connect, queue: str
) -> None:
    first, second = connect(), connect()
    first.put(queue, *[b"%d" % number for number in range(1, 6)])
    first.get(f"{queue}/open")
    for _ in range(3):
        second.get(f"{queue}/open")
    found = consumers(daemon, queue)
    assert [(one["client"], one["open"], one["first_id"]) for one in found["holding"]] == [
        (address(first), 1, 1),
        (address(second), 3, 2),
    ]
    assert (found["open"], found["waiting"]) == (4, [])
    assert all(0 < one["since_at_ms"] <= found["now_ms"] for one in found["holding"])
    since_at_ms = found["holding"][0]["since_at_ms"]
    until(lambda: ask(daemon, "/stats.json").json["now_ms"] > since_at_ms + 1, "the clock to go on")
    first.get(f"{queue}/close/open")
    second.get(f"{queue}/close")
    found = consumers(daemon, queue)
    assert [(one["client"], one["open"], one["first_id"]) for one in found["holding"]] == [
        (address(second), 2, 3),
        (address(first), 1, 5),
    ], "those that have held one for longest come first"
    assert found["holding"][1]["since_at_ms"] > since_at_ms
    second.close()
    first.get(f"{queue}/close")
    first.get("other/open")
    assert consumers(daemon, queue)["holding"] == []


def test_an_answer_has_the_longest_of_each_kind_and_the_numbers_of_all(
    daemon: Daemon, connect: Connect, queue: str
) -> None:
    clients = [connect() for _ in range(6)]
    clients[0].put(queue, b"1", b"2", b"3")
    for client in clients[:3]:
        client.get(f"{queue}/open")
    for client in clients[3:]:
        wait_at(client, queue)
        connect().get(queue)
    found = consumers(daemon, queue, "?limit=2")
    assert [one["client"] for one in found["holding"]] == [address(client) for client in clients[:2]]
    assert [one["client"] for one in found["waiting"]] == [address(client) for client in clients[3:5]]
    assert (found["open"], found["waiters"]) == (3, 3)
    for limit in ("0", "1001", "x"):
        assert ask(daemon, f"/queues/{queue}/consumers?limit={limit}").status == 400


def test_readers_are_listed_with_how_far_they_are_behind(daemon: Daemon, connect: Connect, queue: str) -> None:
    client = connect()
    client.get(f"{queue}+audit")
    client.put(queue, b"1", b"2", b"3")
    client.get(queue)
    assert ask(daemon, f"/queues/{queue}/readers/lake?from=2", "POST").status == 201
    found = consumers(daemon, queue)
    lags = {one["reader"]: (one["kind"], one["head"], one["behind"]) for one in found["readers"]}
    assert lags == {"": ("queue", 2, 2), "audit": ("queue", 1, 3), "lake": ("stream", 2, 2)}
    assert all(0 < one["oldest_at_ms"] <= found["now_ms"] for one in found["readers"] if one["kind"] == "queue")


def test_there_are_none_of_a_queue_that_is_not_there(daemon: Daemon, queue: str) -> None:
    assert ask(daemon, f"/queues/{queue}/consumers").status == 404
    assert ask(daemon, f"/queues/{queue}/consumers", "DELETE").status == 405


def test_a_client_on_a_unix_socket_is_named_by_its_process(short_path: Path) -> None:
    listen = f"unix:{short_path / 'socket'}"
    with running_daemon(short_path, listen=listen, admin="127.0.0.1:0") as daemon, QueueClient(listen) as one:
        one.put("work", b"1")
        one.get("work/open")
        assert [each["client"] for each in consumers(daemon, "work")["holding"]] == [f"unix:pid={os.getpid()}"]


def test_users_are_named_to_those_with_the_right_admin_and_clients_only_to_them(tmp_path: Path) -> None:
    users = {
        "worker": {"password": quick_hash("w"), "rights": {"*": ["put", "get"]}},
        "boss": {"password": quick_hash("b"), "rights": {"*": ["admin"]}},
        "other": {"password": quick_hash("o"), "rights": {"mine": ["get"]}},
    }
    config = f"users: {json.dumps(users)}\n"
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.ask(login("worker", "w"), b"STORED\r\n")
        client.put("work", b"1")
        client.get("work/open")
        (seen,) = consumers(daemon, "work", headers=basic("boss", "b"))["holding"]
        assert (seen["client"], seen["user"]) == (address(client), "worker")
        (seen,) = consumers(daemon, "work", headers=basic("worker", "w"))["holding"]
        assert set(seen) == {"since_at_ms", "open", "first_id"}
        assert ask(daemon, "/queues/work/consumers", headers=basic("other", "o")).status == 403
        assert ask(daemon, "/queues/work/consumers").status == 401
