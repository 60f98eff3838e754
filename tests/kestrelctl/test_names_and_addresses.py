"""Names with letters that look like blanks or turn a line around, and IPv6 addresses wherever an address goes."""

import json
import socket
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.ports import free_port
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

OK, USAGE = 0, 2
ODD = ("a\u00a0b", "a\u3000b", "a\u2028b", "a\u202eb", "a\u200bb")


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_kestrelctl_takes_every_name_that_the_server_takes(kestrelctl: Kestrelctl, name: str) -> None:
    assert kestrelctl("put", name, "item").code == OK
    assert kestrelctl("ls", name).out.decode() == f"{name}\n"
    assert json.loads(kestrelctl("stats", name, "-o", "json").out)[0]["queue"] == name
    assert kestrelctl("readers", "create", name, name).code == OK
    assert kestrelctl("readers", "drop", name, name).code == OK
    assert kestrelctl("get", name).out == b"item"
    assert kestrelctl("delete", name, "--yes").code == OK


@pytest.mark.parametrize("name", ["a b", "a/b", "a\tb", "a\x01b", "a\x7fb"])
def test_what_no_queue_can_be_called_is_exit_2(kestrelctl: Kestrelctl, name: str) -> None:
    run = kestrelctl("put", name, "item")
    assert (run.code, "is not a queue name" in run.err) == (USAGE, True)


def test_a_table_shows_no_letter_raw_that_a_terminal_would_obey(kestrelctl: Kestrelctl, queue: str) -> None:
    name = f"{queue}\u202e\u2028\x9b\u3000"
    assert kestrelctl("put", name, "item").code == OK
    table = kestrelctl("stats", name, "-o", "table").out.decode()
    assert f"{queue}\\u202e\\u2028\\x9b\\u3000" in table
    assert all(line.isprintable() for line in table.split("\n"))
    assert name.encode() in kestrelctl("stats", name, "-o", "tsv").out


def test_a_set_with_a_surplus_word_is_refused_and_its_data_is_no_command(daemon: Daemon, queue: str) -> None:
    with QueueClient(daemon.port) as client:
        for word in (b"9", b"9 noreply"):
            client.send(b"set %b 0 0 9 %b\r\nflush_all\r\n" % (queue.encode(), word))
            client.expect(b"CLIENT_ERROR too many words for set\r\n")
        assert client.get(queue) is None


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("::1:22133", "[::1]:22133"),
        ("tls:fe80::1", "tls:[fe80::1]"),
        ("2001:db8::7:22133", "[2001:db8::7]:22133"),
    ],
)
def test_an_ipv6_address_without_brackets_is_told_to_have_them(
    kestrelctl: Kestrelctl, address: str, advice: str
) -> None:
    run = kestrelctl("stats", "-s", address)
    assert run.code == USAGE
    assert "an IPv6 address in brackets" in run.err
    assert advice in run.err


def test_everything_works_over_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6")
    kinds = ("memcache", "admin", "cache", "disque")
    at = {kind: f"[::1]:{free_port()}" for kind in kinds}
    settings = [f"listen.{kind}=['{at[kind]}']" for kind in ("cache", "disque")]
    with running_daemon(tmp_path / "daemon", *settings, listen=f"['{at['memcache']}']", admin=f"'{at['admin']}'"):
        ctl = Kestrelctl(at["memcache"], tmp_path, at["cache"], at["disque"])
        assert ctl("put", "q", "item").code == OK
        assert b"item" in ctl("items", "q").out
        assert ctl("check").code == OK
        assert ctl("get", "q").out == b"item"
        assert ctl("cache", "set", "k", "value").code == OK
        assert ctl("cache", "get", "k").out == b"value"
        assert ctl("jobs", "add", "jobs", "body").code == OK
        assert ctl("jobs", "get", "jobs", "--ack", "--raw").out == b"body"
        top = ctl("top", "--plain", "-n", "1")
        assert (top.code, at["memcache"] in top.out.decode()) == (OK, True), top
