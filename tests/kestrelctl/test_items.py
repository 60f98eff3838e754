"""items and tail: looking into a queue by item ids, which takes nothing and moves no reader."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.shell import Kestrelctl
from tests.support.wire import connected


def heads(daemon: Daemon, queue: str) -> dict[str, int]:
    """Where each reader of a queue is."""
    return {one["reader"]: one["head"] for one in ask(daemon, f"/queues/{queue}").json["readers"]}


def ids(out: bytes) -> list[int]:
    return [json.loads(line)["id"] for line in out.splitlines()]


@pytest.fixture
def own_admin(tmp_path: Path) -> Iterator[Kestrelctl]:
    """Of a server of its own, with an admin port, where failed items wait for an hour."""
    with running_daemon(tmp_path, "queues.work.retry_delays=[1h]", admin="127.0.0.1:0") as daemon:
        yield Kestrelctl(daemon.address, tmp_path)


# items


def test_items_shows_what_is_known_of_each_and_takes_nothing(
    kestrelctl: Kestrelctl, daemon: Daemon, queue: str
) -> None:
    with connected(kestrelctl.address) as client:
        client.ask(
            f"set {queue} 7 0 5\r\nfirst\r\nset {queue} 0 600 2\r\n\xff\x01\r\n".encode("latin-1"), b"STORED\r\n" * 2
        )
    before = heads(daemon, queue)
    first, second = json.loads(kestrelctl("items", queue, "-o", "json").out)
    assert (first["id"], first["data"], first["bytes"], first["flags"]) == (1, "first", 5, 7)
    assert 0 <= first["age_ms"] < 600_000
    assert "expire_ms" not in first
    assert (second["data_base64"], second["expire_ms"] > second["add_ms"]) == ("/wE=", True)
    lines = kestrelctl("items", queue).out.split(b"\n")
    assert lines[0].split(b"\t") == b"id add_ms age_ms expire_ms bytes flags is_open state text".split()
    assert lines[1].endswith(b"\t\t5\t7\t\t\tfirst")
    assert kestrelctl("items", queue, "-o", "table", "--no-headers").out.count(b"\n") == 2
    assert heads(daemon, queue) == before
    assert kestrelctl("get", queue).out == b"first"


def test_items_begins_at_an_offset_ends_at_a_limit_and_finds_by_a_pattern(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"".join(b"%d\n" % number for number in range(1, 1501)))

    def found(*options: str) -> list[int]:
        return ids(kestrelctl("items", queue, "-o", "ndjson", *options).out)

    assert found() == list(range(1, 101))
    assert found("--offset", "1200", "--limit", "2") == [1201, 1202]
    assert found("--all") == list(range(1, 1501))
    assert found("--grep", "^11.$", "--all") == list(range(110, 120))
    assert found("--grep", "^1", "--offset", "1100", "--limit", "3") == [1101, 1102, 1103]
    assert kestrelctl("items", queue, "--grep", "none of them").code == 1
    assert kestrelctl("items", queue, "--offset", "1500", "-o", "json").out == b"[]\n"


def test_items_are_those_that_are_left_and_open_reads_are_marked(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\nc\n")
    kestrelctl("get", queue)
    with connected(kestrelctl.address) as worker:
        worker.send(f"get {queue}/open\r\n".encode())
        worker.read_until(b"END\r\n")
        rows = json.loads(kestrelctl("items", queue, "-o", "json").out)
    assert [(row["data"], row["is_open"]) for row in rows] == [("b", True), ("c", False)]


def test_what_does_not_wait_for_delivery_is_marked_in_the_table_too(own_admin: Kestrelctl) -> None:
    ctl = own_admin
    ctl("put", "work", "--lines", stdin=b"failed\nheld\nopen\n")
    ctl("put", "work", "later", "--delay", "1h")
    ctl("put", "work", "waits")
    assert ctl("get", "work", "--lease", "1h", "--exec", "false").code == 85
    assert ctl("get", "work", "--lease", "1h", "--json").code == 0
    with connected(ctl.address) as worker:
        worker.send(b"get work/open\r\n")
        worker.read_until(b"END\r\n")
        rows = [line.split(b"\t") for line in ctl("items", "work").out.splitlines()[1:]]
    assert {row[-1].decode(): row[-2].decode() for row in rows} == {
        "failed": "retrying",
        "held": "leased",
        "open": "open",
        "later": "delayed",
        "waits": "",
    }


def test_a_child_has_items_of_its_own_and_no_such_queue_is_exit_1(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("get", f"{queue}+child")
    kestrelctl("put", queue, "x")
    kestrelctl("get", queue)
    assert (kestrelctl("items", queue).code, kestrelctl("items", f"{queue}+child").code) == (1, 0)
    missing = kestrelctl("items", f"{queue}-missing", "-o", "json")
    assert (missing.code, missing.out) == (1, b"")


@pytest.mark.parametrize("verb", ["items", "tail"])
def test_a_server_without_an_admin_port_is_exit_77_and_says_what_is_missing(
    kestrelctl: Kestrelctl, own_kestrelctl: Kestrelctl, verb: str
) -> None:
    own_kestrelctl("put", "q", "x")
    run = own_kestrelctl(verb, "q")
    assert (run.code, run.err.count("\n")) == (77, 1)
    assert "has no admin port" in run.err
    with scripted_peer(
        [WHO_IS_THERE, Exchange(b"stats\r\n", b"STAT uptime 1\r\nSTAT version 2.4.8\r\nEND\r\n")]
    ) as peer:
        old = kestrelctl(verb, "q", "-s", peer.address)
    assert (old.code, "version 2.4.8" in old.err) == (77, True)


def test_an_admin_port_takes_the_same_login_and_the_right_peek(tmp_path: Path) -> None:
    secret = quick_hash("pw")
    config = f"""
users:
  alice: {{password: "{secret}", rights: {{"*": [put, peek]}}}}
  bob: {{password: "{secret}", rights: {{"*": put}}}}
"""
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon:
        ctl = Kestrelctl(daemon.address, tmp_path)
        ctl.environment |= {"KESTREL_PASSWORD": "pw", "KESTRELCTL_USER": "alice"}
        ctl("put", "q", "x")
        assert json.loads(ctl("items", "q", "-o", "json").out)[0]["data"] == "x"
        ctl.environment["KESTRELCTL_USER"] = "bob"
        run = ctl("items", "q")
        assert (run.code, run.err.count("\n")) == (83, 1)


def test_a_context_says_where_the_admin_port_is(
    kestrelctl: Kestrelctl, daemon: Daemon, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kestrelctl("put", queue, "x")
    monkeypatch.setitem(kestrelctl.environment, "XDG_CONFIG_HOME", str(tmp_path))
    for name, port in (("right", daemon.admin.rpartition(":")[2]), ("wrong", "1")):
        assert kestrelctl("context", "add", name, daemon.address, "--admin-port", port).code == 0
    assert kestrelctl("items", queue, "-c", "right").code == 0
    run = kestrelctl("items", queue, "-c", "wrong")
    assert (run.code, run.err.count("\n")) == (69, 1)


# tail


def test_tail_shows_the_last_items_put_taken_or_not(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"".join(b"%d\n" % number for number in range(20)))
    kestrelctl("get", queue, "-n", "15")
    assert kestrelctl("tail", queue).out == b"".join(b"%d\n" % number for number in range(10, 20))
    assert kestrelctl("tail", queue, "-n", "2", "--null").out == b"18\x0019\0"
    assert kestrelctl("tail", queue, "-n", "0").out == b""
    assert ids(kestrelctl("tail", queue, "-n", "3", "--json").out) == [18, 19, 20]
    assert kestrelctl("tail", f"{queue}-missing").code == 1


def test_tail_f_shows_each_item_as_it_comes_and_steals_none(kestrelctl: Kestrelctl, daemon: Daemon, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"before\nlast\n")
    tail = kestrelctl.start("tail", "-f", queue, "-n", "1")
    assert tail.stdout is not None
    assert tail.stdout.readline() == b"last\n"
    before = heads(daemon, queue)
    for number in range(3):
        kestrelctl("put", queue, f"item {number}")
        assert tail.stdout.readline() == b"item %d\n" % number
    assert heads(daemon, queue) == before
    # One that is taken by a waiting worker at once is seen all the same.
    kestrelctl("get", queue, "--all")
    worker = kestrelctl.start("get", queue, "--wait", "60s")
    kestrelctl("wait", queue, "--empty")
    kestrelctl("put", queue, "taken at once")
    assert worker.communicate()[0] == b"taken at once"
    assert tail.stdout.readline() == b"taken at once\n"
    tail.terminate()
    assert tail.wait() == 143


def test_tail_f_ends_when_its_reader_has_gone_or_the_queue_is_deleted(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    left = kestrelctl.start("tail", "-f", queue, "-n", "1")
    assert left.stdout is not None
    assert left.stdout.readline() == b"x\n"
    left.stdout.close()  # and nothing more comes
    assert left.wait(60) == 141
    deleted = kestrelctl.start("tail", "-f", queue, "-n", "1")
    assert deleted.stdout is not None
    assert deleted.stdout.readline() == b"x\n"
    kestrelctl("delete", queue)
    assert deleted.wait(60) == 1
    deleted.communicate()
