"""`bindings`, `bind` and `unbind`, as operators type them."""

import json
from pathlib import Path

import pytest

from tests.support.daemon import running_daemon
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl


def test_what_is_bound_is_listed_until_it_is_unbound(kestrelctl: Kestrelctl) -> None:
    run = kestrelctl("bindings")
    assert (run.code, run.out) == (1, b"exchange\tqueue\trouting_key\tpattern\n")
    for words in (("celery", "work"), ("celery", "work", "user.#", "topic"), ("celery", "work", ""), ("é v", "q", "%")):
        run = kestrelctl("bind", *words)
        assert (run.code, run.out, run.err) == (0, b"", "")
    lines = kestrelctl("bindings").out.decode().splitlines()
    expected = ["celery\twork\t\t", "celery\twork\tuser.#\ttopic", "é v\tq\t%\t"]
    assert lines == ["exchange\tqueue\trouting_key\tpattern", *expected]
    assert json.loads(kestrelctl("bindings", "é v", "-o", "json").out) == [
        {"exchange": "é v", "queue": "q", "routing_key": "%", "pattern": ""}
    ]
    assert kestrelctl("unbind", "celery", "work", "").code == 0
    assert kestrelctl("bindings", "celery", "--no-headers").out == b"celery\twork\tuser.#\ttopic\n"
    assert kestrelctl("unbind", "celery", "work").code == kestrelctl("unbind", "celery", "work").code == 0
    assert kestrelctl("bindings", "celery").code == 1


def test_of_several_servers_bindings_are_made_on_all_and_listed_once(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "a") as one, running_daemon(tmp_path / "b") as other:
        both = Kestrelctl("", tmp_path)
        both.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        del both.environment["KESTRELCTL_SERVER"]
        assert both("context", "add", "both", one.address, other.address, "--select").code == 0
        assert both("bind", "e", "q").code == 0
        with QueueClient(other.port) as client:
            client.ask(b"bindings\r\n", b"BINDING e q % %\r\nEND\r\n")
            client.ask(b"bind e only_here\r\n", b"OK\r\n")
        assert both("bindings", "-o", "csv", "--no-headers").out.split() == [b"e,only_here,,", b"e,q,,"]
        assert both("unbind", "e", "q").code == 0
        with QueueClient(one.port) as client:
            client.ask(b"bindings\r\n", b"END\r\n")


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (b"SERVER_ERROR too many bindings\r\n", 77, "answered: too many bindings"),
        (b"SERVER_ERROR bindings /spool/.bindings: Input/output error\r\n", 74, "refused: bindings /spool/.bindings:"),
        (b"CLIENT_ERROR not allowed: put on 'q'\r\n", 83, "refused: not allowed: put on 'q'"),
        (b"ERROR\r\n", 77, "does not know the command bind"),
    ],
)
def test_a_refusal_says_why(kestrelctl: Kestrelctl, reply: bytes, code: int, words: str) -> None:
    with scripted_peer([WHO_IS_THERE, Exchange(b"bind e q % %\r\n", reply)]) as peer:
        run = kestrelctl("bind", "e", "q", "-s", peer.address)
    assert run.code == code
    assert words in run.err


def test_a_queue_name_that_cannot_be_is_refused_here(kestrelctl: Kestrelctl) -> None:
    assert kestrelctl("bind", "e", "a b").code == 2
