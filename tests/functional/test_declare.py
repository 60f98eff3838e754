"""`declare`: settings of queues that clients make, kept until the queue is deleted."""

import re
import signal
from pathlib import Path

import pytest

from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

CONFIG = """
listen: {admin: null}
max_age: 1h
idle_delete: 1d
queues:
  mail-*: {max_items: 3}
"""


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


def settings(client: QueueClient, queue: str) -> dict[str, str]:
    """Settings of a queue in force, and where they are from."""
    client.send(b"dump_config origins\r\n")
    text = client.read_until(b"END\r\n").decode("latin-1")
    block = text.partition(f"queue '{queue}' {{\r\n")[2].partition("}")[0]
    return dict(line.strip().split("=", 1) for line in block.splitlines())


def refusal(client: QueueClient, line: str) -> str:
    client.send(line.encode() + b"\r\n")
    answer = client.read_until(b"\r\n").decode("utf-8", "replace")
    assert answer.startswith("CLIENT_ERROR "), answer
    return answer[len("CLIENT_ERROR ") : -2]


def declared(client: QueueClient, line: str) -> None:
    client.do(f"declare {line}".encode(), b"DECLARED\r\n")


def test_what_is_declared_is_in_force_and_says_by_whom(client: QueueClient, queue: str) -> None:
    declared(client, f"{queue} max_items=2 max_age=60000 key_time=10m idle_delete=10m discard_old_when_full=true")
    assert client.items(queue) == 0, "it was created"
    client.put(queue, b"1", b"2", b"3")
    assert client.drain(queue) == [b"2", b"3"]
    found = settings(client, queue)
    assert (found["max_items"], found["max_age"], found["idle_delete"]) == ("2", "60000", "600")
    assert re.fullmatch(r"declared by 127\.0\.0\.1:\d+ at \d{4}-\d\d-\d\dT[\d:.]+Z", found["max_items_from"])
    assert found["max_size_from"] == "default"


def test_the_same_again_is_no_change_and_another_value_is_refused(client: QueueClient, queue: str) -> None:
    declared(client, f"{queue} max_items=2 max_age=60000")
    before = settings(client, queue)
    declared(client, f"{queue} max_age=60s")
    declared(client, f"{queue} max_items=2 max_age=1m")
    assert settings(client, queue) == before
    problem = refusal(client, f"declare {queue} max_age=60000 max_items=3")
    assert problem.startswith(f"max_items of '{queue}' is 2: declared by 127.0.0.1:")
    assert settings(client, queue) == before


def test_a_block_of_the_configuration_wins_and_its_defaults_are_limits(daemon: Daemon, client: QueueClient) -> None:
    declared(client, "mail-1 max_items=3 idle_delete=1h")
    place = f"{daemon.config_path}:6 (mail-*)"
    assert refusal(client, "declare mail-1 max_items=4") == f"max_items of 'mail-1' is 3 in the configuration: {place}"
    assert settings(client, "mail-1")["max_items_from"] == place
    assert refusal(client, "declare other max_age=2h") == "max_age=7200000: the configuration allows 3600000"
    assert refusal(client, "declare other idle_delete=none") == "idle_delete=none: the configuration allows 86400"
    client.do(b"get other/peek", b"END\r\n")
    assert not settings(client, "other"), "it was not created"
    client.do(b"delete mail-1", b"DELETED\r\n")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("declare", "declare needs a queue name and options, such as max_age=60000"),
        ("declare q max_age", "declare needs options such as max_age=60000, not 'max_age'"),
        ("declare q max_age=1 max_age=2", "max_age= is given twice"),
        ("declare q max_size=5", "max_size: unknown option; expected max_age, max_items, discard_old_when_full, "),
        ("declare q max_items=-1", "max_items=-1: expected a whole number, not '-1'"),
        ("declare q max_items=0", "max_items=0: 0 is too small: the minimum is 1"),
        ("declare q journal=maybe", "journal=maybe: expected true or false, not 'maybe'"),
        ("declare q idle_delete=", "idle_delete=: expected a duration"),
        ("declare q key_time=\u00e9\u20ac", "key_time="),
        ("declare q+c fanout_only=true", "fanout_only is for a parent only: declare it for 'q'"),
        ("declare a.b max_items=1", "queue name must not contain '.'"),
    ],
)
def test_what_cannot_be_declared_is_named(client: QueueClient, line: str, reason: str) -> None:
    assert refusal(client, line).startswith(reason)
    assert not settings(client, "q")


def test_a_queue_that_exists_keeps_its_journal_and_its_items(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1")
    assert refusal(client, f"declare {queue} journal=false") == (
        f"journal of '{queue}' cannot change while the queue exists"
    )
    assert refusal(client, f"declare {queue} fanout_only=true") == (
        f"fanout_only=true: 1 items wait in '{queue}'; flush it first"
    )
    declared(client, f"{queue} journal=true")
    assert client.drain(queue) == [b"1"]
    declared(client, f"{queue} fanout_only=true")
    client.get(f"{queue}+a")
    client.put(queue, b"2")
    assert (client.get(queue), client.get(f"{queue}+a")) == (None, b"2")


def test_declarations_outlive_kills_and_stops_and_go_with_the_queue(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as own:
        with QueueClient(own.port) as client:
            declared(client, "kept max_items=2 idle_delete=1h")
            declared(client, "brief journal=false max_items=1")
            declared(client, "gone max_items=1")
            client.do(b"delete gone", b"DELETED\r\n")
            client.put("gone", b"1", b"2")
            before = settings(client, "kept")
        for end in (own.kill, own.restart):
            end()
            if end == own.kill:
                own.start()
            with QueueClient(own.port) as client:
                assert settings(client, "kept") == before
                assert settings(client, "brief")["journal"] == "false", "it is there, for idle_delete to see it"
                assert settings(client, "gone")["max_items"] == "infinite"
                assert client.offer("brief", b"1") == b"STORED"
                assert client.offer("brief", b"2") == b"NOT_STORED"
                client.do(b"delete kept", b"DELETED\r\n")
                declared(client, "kept max_items=2 idle_delete=1h")
                before = settings(client, "kept")
        assert not (own.spool / "brief.journal").exists()


def test_a_reload_keeps_declarations_but_for_what_a_block_now_says(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG) as own, QueueClient(own.port) as client:
        declared(client, "work max_items=2 max_age=5s")
        own.config_path.write_text(CONFIG + "  work: {max_items: 9}\n")
        own.signal(signal.SIGHUP)
        until(lambda: settings(client, "work")["max_items"] == "9", "the reload")
        assert settings(client, "work")["max_age"] == "5000"
        own.config_path.write_text(CONFIG)
        client.do(b"reload", b"Reloaded config.\r\n")
        assert settings(client, "work")["max_items"] == "2"


def test_so_many_queues_may_be_declared_and_no_more(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "max_declared=2") as own, QueueClient(own.port) as client:
        declared(client, "a max_items=1")
        declared(client, "b max_items=1")
        assert refusal(client, "declare c max_items=1") == "too many declared queues: the maximum is 2"
        declared(client, "c")
        declared(client, "b max_age=5")
        client.do(b"delete a", b"DELETED\r\n")
        declared(client, "c max_items=1")


def test_a_declared_queue_that_nobody_reads_goes_with_its_declaration(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as own, QueueClient(own.port) as client:
        declared(client, "reply-1 idle_delete=1ms")
        until(lambda: not settings(client, "reply-1"), "the end of the queue")
        client.put("reply-1", b"x")
        assert settings(client, "reply-1")["idle_delete"] == "none"


def test_a_declared_queue_that_nobody_reads_goes_with_its_bindings(tmp_path: Path) -> None:
    """By these it would be made anew, without its settings, and never end."""
    with running_daemon(tmp_path) as own, QueueClient(own.port) as client:
        client.do(b"bind replies reply-1 key", b"OK\r\n")
        client.do(b"bind replies reply-2 key", b"OK\r\n")
        declared(client, "reply-1 idle_delete=1ms")
        until(lambda: not settings(client, "reply-1"), "the end of the queue")
        client.do(b"bindings", b"BINDING replies reply-2 key %\r\nEND\r\n")


def test_a_queue_on_the_list_of_a_connection_counts_as_read(tmp_path: Path) -> None:
    """Whoever listens there may be busy for longer. Another queue is gone by then."""
    with running_daemon(tmp_path) as own, QueueClient(own.port) as client:
        with QueueClient(own.port) as listener:
            listener.do(b"wait ~mine reply-1 reply-2", b"OK\r\n")
            for name in ("reply-1", "reply-2", "other"):
                declared(client, f"{name} idle_delete=1ms")
            until(lambda: not settings(client, "other"), "the end of a queue that is on no list")
            assert settings(client, "reply-1")
            listener.do(b"wait ~mine", b"OK\r\n")
            until(lambda: not settings(client, "reply-1"), "the end of a queue that is on no list any more")
            listener.do(b"wait ~mine reply-2", b"OK\r\n")
            declared(client, "reply-2 idle_delete=1ms")
        until(lambda: not settings(client, "reply-2"), "the end of a queue whose listener has gone")


def test_declaring_takes_the_right_to_create_and_over_others_queues_to_delete(tmp_path: Path) -> None:
    rights = {"maker": "{'r*': [put, create]}", "owner": "{'r*': [get, create, delete]}", "putter": "{'r*': put}"}
    users = "".join(f"  {name}: {{password: '{quick_hash('pw')}', rights: {one}}}\n" for name, one in rights.items())
    with running_daemon(tmp_path, config=f"listen: {{admin: null}}\nusers:\n{users}") as own:
        clients = {name: QueueClient(own.port) for name in rights}
        for name, client in clients.items():
            client.ask(login(name, "pw"), b"STORED\r\n")
        maker, owner, putter = clients.values()
        declared(maker, "r1 max_items=1")
        declared(maker, "r1 max_items=1")
        assert refusal(putter, "declare r1 max_items=1") == "not allowed: create on 'r1'"
        assert refusal(maker, "declare x max_items=1") == "not allowed: create on 'x'"
        assert refusal(maker, "declare r1 max_age=1") == (
            "not allowed: delete on 'r1', which exists: max_age may drop items"
        )
        declared(owner, "r1 max_age=1")
        assert "is 1: declared by owner/127.0.0.1:" in refusal(maker, "declare r1 max_age=2")
        for client in clients.values():
            client.close()


def test_kestrel_does_not_know_the_command(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as own, QueueClient(own.port) as client:
        client.send(b"declare q max_items=1\r\n")
        assert client.read_until(b"\r\n") == b"CLIENT_ERROR\r\n"
