"""Which commands make a queue: puts and gets, within `max_queues` and the right to; never a look."""

import base64
import http.client
from pathlib import Path

import pytest

from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import PATIENCE_S

FULL = b"SERVER_ERROR too many queues\r\n"


def queues(client: QueueClient) -> set[str]:
    client.send(b"dump_stats\r\n")
    answer = client.read_until(b"END\r\n").decode()
    return {line.split("'")[1] for line in answer.split("\r\n") if line.startswith("queue '")}


@pytest.mark.exhaustive("get q/peek", "gets q", "close")
@pytest.mark.parametrize(
    "look",
    [b"get q/peek", b"get q/peek/t=5", b"gets q/peek", b"get q/peek r/peek", b"get q+child/peek", b"get q/close",
     b"get q/abort", b"flush q", b"flush_expired q", b"delete q", b"stats", b"dump_stats q"],
)  # fmt: skip
def test_a_look_makes_no_queue(tmp_path: Path, look: bytes) -> None:
    with running_daemon(tmp_path, "compat=none") as daemon, QueueClient(daemon.port) as client:
        client.send(look + b"\r\nversion\r\n")
        client.read_until(b"VERSION")
        assert queues(client) == set()
        assert [path.name for path in daemon.spool.iterdir() if path.suffix == ".journal"] == []


def test_a_peek_makes_no_child_of_a_queue(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as client:
        client.ask(b"set q 0 0 1\r\nx\r\nget q+child/peek\r\n", b"STORED\r\nEND\r\n")
        assert queues(client) == {"q"}


def test_in_kestrel_1_a_peek_makes_a_queue(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.ask(b"get q/peek\r\n", b"END\r\n")
        assert queues(client) == {"q"}


def test_a_peek_waits_for_a_queue_that_is_not_there(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as putter:
        peeks = [QueueClient(daemon.port) for _ in range(3)]
        for client in peeks:
            client.send(b"get q/peek/t=30000\r\n")
        brief, gone = QueueClient(daemon.port), QueueClient(daemon.port)
        brief.ask(b"get q/peek/t=10\r\n", b"END\r\n")
        gone.send(b"get q/peek/t=30000\r\n")
        gone.close()
        assert queues(putter) == set()
        putter.ask(b"set q 0 0 1\r\nx\r\n", b"STORED\r\n")
        for client in peeks:
            client.expect(b"VALUE q/peek/t=30000 0 1\r\nx\r\nEND\r\n")
            client.close()
        brief.close()


def test_a_get_that_makes_the_queue_leaves_the_peek_waiting(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as peek, QueueClient(daemon.port) as client:
        peek.send(b"get q/peek/t=30000\r\n")
        client.ask(b"get q\r\nset q 0 0 1\r\nx\r\n", b"END\r\nSTORED\r\n")
        peek.expect(b"VALUE q/peek/t=30000 0 1\r\nx\r\nEND\r\n")


def test_a_peek_for_a_queue_that_never_comes_ends_with_the_server(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as peek:
        peek.send(b"version\r\nget q/peek/t=30000\r\n")
        peek.read_until(b"VERSION")
        assert daemon.stop() == 0
        assert peek.read_all().endswith(b"END\r\n")


def test_beyond_max_queues_no_queue_is_made_and_those_there_go_on(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "max_queues=2") as daemon, QueueClient(daemon.port) as client:
        client.ask(b"set a 0 0 1\r\nx\r\nget a+child\r\n", b"STORED\r\nEND\r\n")
        for command in (
            b"set b 0 0 1\r\nx",
            b"set b 7 0 1\r\nx",
            b"get b",
            b"get b/open",
            b"get b/t=1",
            b"get a+other",
        ):
            client.ask(command + b"\r\n", FULL)
        client.ask(
            b"set b 0 0 1 noreply\r\nx\r\nset a 0 0 1\r\ny\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
        )
        assert queues(client) == {"a", "a+child"}
        client.ask(b"delete a+child\r\nset b 0 0 1\r\nx\r\n", b"DELETED\r\nSTORED\r\n")


def test_a_start_and_a_reload_take_more_queues_than_max_queues(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as client:
        client.ask(b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\n", b"STORED\r\nSTORED\r\n")
        daemon.kill()
    with running_daemon(tmp_path, "max_queues=1") as daemon, QueueClient(daemon.port) as client:
        assert queues(client) == {"a", "b"}
        client.ask(b"get a\r\nget b\r\nget c\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\nVALUE b 0 1\r\nx\r\nEND\r\n" + FULL)


def test_an_item_is_not_moved_to_a_queue_that_would_be_one_too_many(tmp_path: Path) -> None:
    settings = ("max_queues=1", "queues.a.max_retries=1", "queues.a.move_failed_to=failed")
    with running_daemon(tmp_path, *settings) as daemon, QueueClient(daemon.port) as client:
        client.ask(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n")
        for _ in range(2):
            client.ask(b"get a/open\r\nget a/abort\r\n", b"VALUE a/open 0 1\r\nx\r\nEND\r\nEND\r\n")
        assert queues(client) == {"a"}
        daemon.logged("failed: cannot accept a moved item: too many queues")


# The right to


def users(*rights: str) -> str:
    config = "users:\n"
    for number, right in enumerate(rights):
        config += f"  user{number}: {{password: '{quick_hash('pw')}', rights: {right}}}\n"
    return config


def logged_in(daemon: Daemon, number: int) -> QueueClient:
    client = QueueClient(daemon.port)
    client.ask(login(f"user{number}", "pw"), b"STORED\r\n")
    return client


def test_where_no_user_has_the_right_by_name_whoever_puts_or_gets_makes_queues(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, config=users("{'*': [put]}", "{'*': get}", "{'*': all}")) as daemon,
        logged_in(daemon, 0) as putter,
        logged_in(daemon, 1) as getter,
        logged_in(daemon, 2) as other,
    ):
        putter.ask(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n")
        getter.ask(b"get b\r\n", b"END\r\n")
        assert queues(other) == {"a", "b"}


def test_where_a_user_has_the_right_by_name_only_who_has_it_makes_queues(tmp_path: Path) -> None:
    config = users("{'*': [put, get]}", "{'a*': [put, create]}", "{'*': all}")
    with (
        running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon,
        logged_in(daemon, 0) as plain,
        logged_in(daemon, 1) as maker,
        logged_in(daemon, 2) as king,
    ):
        for command in (b"set a 0 0 1\r\nx", b"set a 7 0 1\r\nx", b"get a", b"get a/open"):
            plain.ask(command + b"\r\n", b"CLIENT_ERROR not allowed: create on 'a'\r\n")
        plain.ask(b"set a 0 0 1 noreply\r\nx\r\nget a/abort\r\n", b"END\r\n")
        assert created_by_reader(daemon, "user0") == 403
        maker.ask(b"set b 0 0 1\r\nx\r\n", b"CLIENT_ERROR not allowed: put on 'b'\r\n")
        assert queues(king) == set()
        maker.ask(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n")
        plain.ask(b"get a\r\nset a 0 0 1\r\ny\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\nSTORED\r\n")
        king.ask(b"set c 0 0 1\r\nx\r\n", b"STORED\r\n")
        assert created_by_reader(daemon, "user2") == 201


def created_by_reader(daemon: Daemon, user: str) -> int:
    """The status of making a reader on a queue that is not there."""
    host, _, port = daemon.admin.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    token = base64.b64encode(f"{user}:pw".encode()).decode()
    connection.request("POST", "/queues/new/readers/r", headers={"Authorization": f"Basic {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_reload_gives_the_right_its_meaning_and_takes_it(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, config=users("{'*': [put]}", "{'*': all}")) as daemon,
        logged_in(daemon, 0) as plain,
        logged_in(daemon, 1) as king,
    ):
        plain.ask(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n")
        daemon.config_path.write_text(users("{'*': [put]}", "{'*': all}", "{'*': create}"))
        king.ask(b"reload\r\n", b"Reloaded config.\r\n")
        plain.ask(b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\n", b"STORED\r\nCLIENT_ERROR not allowed: create on 'b'\r\n")
        daemon.config_path.write_text(users("{'*': [put]}", "{'*': all}"))
        king.ask(b"reload\r\n", b"Reloaded config.\r\n")
        plain.ask(b"set b 0 0 1\r\nx\r\n", b"STORED\r\n")
