"""Users of a configuration, and what they may do with jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.resp import NIL_ARRAY, RespClient, resp_client


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    users = {
        "ann": "jobs: {'mail.*': [put, peek], 'web': [get]}",
        "bob": "jobs: {'mail.*': all}",
        "dan": "jobs: {'*.free': [put, get]}",
        "eve": "rights: {'*': [put, get]}",
        "root": "rights: {'*': all}",
    }
    lines = "".join([f'  {name}: {{password: "{quick_hash(name)}", {rights}}}\n' for name, rights in users.items()])
    folder = tmp_path_factory.mktemp("guarded")
    with running_daemon(folder, "listen.disque=127.0.0.1:0", config=f"users:\n{lines}") as daemon:
        yield daemon


def session_of(daemon: Daemon, name: str) -> RespClient:
    client = RespClient(daemon.disque)
    assert client("AUTH", name, name) == b"OK"
    return client


def until_blocked(client: RespClient, count: int) -> None:
    while b"blocked_clients:%d\r\n" % count not in client("INFO", "clients"):
        pass


def test_nobody_does_anything_without_a_login(guarded: Daemon) -> None:
    with resp_client(guarded.disque) as stranger:
        assert stranger("PING") == b"NOAUTH Authentication required."
        assert stranger("AUTH", "password") == b"ERR Client sent AUTH, but no password is set"
        assert stranger("AUTH", "ann", "wrong") == b"ERR invalid password"
        assert stranger("ADDJOB", "mail.a", "x", 0) == b"NOAUTH Authentication required."
        assert stranger("AUTH", "nobody", "wrong") == b"ERR invalid password"
        assert stranger("AUTH", "ann", "wrong") == b"ERR invalid password"
        stranger.expect_end()


def test_users_do_what_they_have_rights_for(guarded: Daemon) -> None:
    ann, bob, root = (session_of(guarded, name) for name in ("ann", "bob", "root"))
    job_id = ann.job("mail.a")
    assert ann("ADDJOB", "web", "x", 0) == b"NOPERM this user has no right to put on web"
    assert ann("GETJOB", "NOHANG", "FROM", "web", "mail.a") == b"NOPERM this user has no right to get on mail.a"
    assert ann("QLEN", "mail.a") == 1
    assert ann("ACKJOB", job_id) == b"NOPERM this user has no right to get on mail.a"
    assert ann("DELJOB", job_id).startswith(b"NOPERM")
    assert bob("GETJOB", "FROM", "mail.a") == [[b"mail.a", job_id, b"body"]]
    assert bob("ACKJOB", job_id) == 1
    other_id = root.job("web")
    assert bob("SHOW", other_id) == b"NOPERM this user has no right to peek on web"
    assert root("DEBUG", "FLUSHALL") == b"OK"
    for client in (ann, bob, root):
        client.close()


@pytest.mark.parametrize(
    "words",
    [
        ("SHUTDOWN",),
        ("DEBUG", "FLUSHALL"),
        ("CONFIG", "GET", "*"),
        ("MONITOR",),
        ("CLIENT", "LIST"),
        ("CLIENT", "KILL", "ID", "1"),
        ("CLIENT", "PAUSE", "1"),
        ("SLOWLOG", "GET"),
        ("CLUSTER", "RESET"),
        ("BGREWRITEAOF",),
    ],
)
def test_the_servers_own_commands_are_for_administrators(guarded: Daemon, words: tuple[str, ...]) -> None:
    for name in ("bob", "eve"):
        client = session_of(guarded, name)
        assert client(*words) == b"NOPERM this user requires the admin right on all queues"
        client.close()


def test_scans_show_queues_that_a_user_may_know_of(guarded: Daemon) -> None:
    root, bob = session_of(guarded, "root"), session_of(guarded, "bob")
    seen, _ = root.job("mail.a"), root.job("secret")
    assert bob("JSCAN", "BUSYLOOP") == [b"0", [seen]]
    assert bob("QSCAN", "BUSYLOOP") == [b"0", [b"mail.a"]]
    assert bob("GETJOB", "NOHANG", "MATCH", "COUNT", 9, "FROM", "*").startswith(b"NOPERM")
    assert bob("GETJOB", "NOHANG", "MATCH", "COUNT", 9, "FROM", "mail.*") == [[b"mail.a", seen, b"body"]]
    assert root("DEBUG", "FLUSHALL") == b"OK"
    root.close()
    bob.close()


def test_a_pattern_gets_no_jobs_of_queues_without_the_right(guarded: Daemon) -> None:
    """Also by a pattern whose text alone is like those that he has it on."""
    root, dan = session_of(guarded, "root"), session_of(guarded, "dan")
    secret = root.job("web")
    assert dan("GETJOB", "NOHANG", "MATCH", "FROM", "*[^.free") == NIL_ARRAY
    dan.send("GETJOB", "MATCH", "FROM", "*[^.free", "*.free")
    until_blocked(root, 1)
    root.job("web")
    job_id = root.job("web.free")
    assert dan.reply() == [[b"web.free", job_id, b"body"]]
    assert root("GETJOB", "MATCH", "FROM", "*[^.free")[0][1] == secret
    assert root("DEBUG", "FLUSHALL") == b"OK"
    root.close()
    dan.close()


def test_rights_of_queues_are_none_on_jobs(guarded: Daemon) -> None:
    eve = session_of(guarded, "eve")
    assert eve("ADDJOB", "mail.a", "x", 0) == b"NOPERM this user has no right to put on mail.a"
    eve.close()


def test_a_configuration_with_wrong_rights_is_refused(tmp_path: Path) -> None:
    users = f"users: {{a: {{password: \"{quick_hash('a')}\", jobs: {{'*': [creat]}}}}}}\n"
    refused = pytest.raises(AssertionError, match="unknown right 'creat'")
    with refused, running_daemon(tmp_path, "listen.disque=127.0.0.1:0", config=users):
        pass
