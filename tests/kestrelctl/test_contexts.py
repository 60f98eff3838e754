"""Contexts: a server or several under a name, the one that a command line means, and several servers used as one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("second")) as daemon:
        yield daemon


@pytest.fixture
def ctl(daemon: Daemon, tmp_path: Path) -> Kestrelctl:
    """With a file of contexts of its own, and no server but theirs."""
    ctl = Kestrelctl(daemon.address, tmp_path)
    del ctl.environment["KESTRELCTL_SERVER"]
    ctl.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return ctl


@pytest.fixture
def both(ctl: Kestrelctl, daemon: Daemon, second: Daemon) -> Kestrelctl:
    """The context `both` is selected: two servers."""
    assert ctl("context", "add", "both", daemon.address, second.address, "--select").code == 0
    return ctl


def on(ctl: Kestrelctl, address: str, *arguments: str) -> bytes:
    return ctl(*arguments, "-s", address).out


# Which servers a line means


def test_a_context_is_added_shown_selected_and_removed(ctl: Kestrelctl) -> None:
    assert ctl("context", "add", "prod", "q1:22133", "q2", "--user", "shop", "--ca", "ca.pem").code == 0
    assert ctl("context", "add", "here", "127.0.0.1:1", "--admin-port", "2223", "--select").code == 0
    rows = json.loads(ctl("context", "ls", "-o", "json").out)
    assert [(row["context"], row["selected"], row["servers"], row["user"]) for row in rows] == [
        ("here", "*", "127.0.0.1:1", ""),
        ("prod", "", "q1:22133,q2", "shop"),
    ]
    shown = json.loads(ctl("context", "show", "prod", "-o", "json").out)
    assert shown["ca"] == os.path.abspath("ca.pem")  # another folder would be another file
    assert json.loads(ctl("context", "show", "-o", "json").out) == {
        "context": "here",
        "servers": "127.0.0.1:1",
        "admin_port": 2223,
    }
    assert ctl("context", "select", "prod").code == 0
    assert ctl("context", "rm", "prod").code == 0
    assert json.loads(ctl("context", "show", "-o", "json").out)["servers"] == "127.0.0.1:22133"


def test_a_name_that_is_taken_is_exit_73_and_one_that_is_not_there_66(ctl: Kestrelctl) -> None:
    assert ctl("context", "add", "a", "h1").code == 0
    assert ctl("context", "add", "a", "h2").code == 73
    assert ctl("context", "add", "a", "h2", "--replace").code == 0
    assert b"h2" in ctl("context", "show", "a").out
    for line in (["context", "show", "b"], ["context", "rm", "b"], ["context", "select", "b"], ["ls", "-c", "b"]):
        run = ctl(*line)
        assert (run.code, run.err) == (66, "kestrelctl: no context 'b': there are a\n")


@pytest.mark.parametrize("line", [["1", "h"], ["a b", "h"], ["a", "h:port"], ["a", "h", "--admin-port", "0"], ["a"]])
def test_what_cannot_be_a_context_is_exit_2(ctl: Kestrelctl, line: list[str]) -> None:
    run = ctl("context", "add", *line)
    assert (run.code, run.err.count("\n")) == (2, 1)


def test_the_line_beats_the_environment_and_that_the_selected_context(
    both: Kestrelctl, daemon: Daemon, second: Daemon
) -> None:
    both("context", "add", "dead", "127.0.0.1:1")
    both("context", "add", "second", second.address)

    def means(*before: str, **variables: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "kestrelctl", *before, "context", "show", "-o", "json"],
            env=both.environment | variables,
            capture_output=True,
            check=True,
        )
        return str(json.loads(run.stdout)["servers"])

    assert means() == f"{daemon.address},{second.address}"
    assert means(KESTRELCTL_SERVER="a:1") == "a:1"
    assert means(KESTRELCTL_SERVER="a:1", KESTRELCTL_CONTEXT="dead") == "127.0.0.1:1"
    assert means("-c", "second", KESTRELCTL_SERVER="a:1", KESTRELCTL_CONTEXT="dead") == second.address
    assert means("-s", "b:2", KESTRELCTL_SERVER="a:1", KESTRELCTL_CONTEXT="dead") == "b:2"
    assert means("-c", "second", "-s", "b:2") == "b:2"
    assert both("version", "-c", "second").code == 0  # behind the verb, too
    assert both("-c", "dead", "version").code == 69


def test_the_user_of_a_context_logs_in_at_its_servers_and_nowhere_else(ctl: Kestrelctl, tmp_path: Path) -> None:
    config = f'users: {{alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}}}\n'
    secret = tmp_path / "secret"
    secret.write_text("all of it\n")
    with running_daemon(tmp_path / "guarded", config=config) as guarded:
        ways = ["--user", "alice", "--password-file", str(secret)]
        assert ctl("context", "add", "guarded", guarded.address, *ways, "--select").code == 0
        assert ctl("put", "q", "x").code == 0
        assert ctl("top", "--once", "--json").code == 0
        assert ctl("-s", guarded.address, "-c", "guarded", "get", "q").out == b"x"
        assert ctl("-s", guarded.address, "get", "q").code == 82
        ctl.environment["KESTRELCTL_CONTEXT"] = "guarded"
        assert ctl("-s", guarded.address, "get", "q").code == 82


def test_a_file_that_a_person_wrote_is_read_and_a_mistake_in_it_named(ctl: Kestrelctl, second: Daemon) -> None:
    path = Path(ctl.environment["XDG_CONFIG_HOME"]) / "kestrelctl" / "contexts.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"# ours\nselected: here\ncontexts:\n  here:\n    servers: ['{second.address}']\n    tls: false\n")
    assert ctl("version").code == 0
    for text, reason in (
        ("contexts: {a: {server: [x]}}", "contexts.a: unknown key 'server'"),
        ("contexts: {a: {servers: x}}", "contexts.a.servers: expected a list"),
        ("contexts: {a: {servers: [x], tls: 1}}", "contexts.a.tls: expected true or false"),
        ("selected: b", "selected: no context 'b'"),
        ("contexts: [", "while parsing"),
    ):
        path.write_text(text)
        run = ctl("version")
        assert (run.code, run.err.count("\n")) == (78, 1)
        assert f"{path}: {reason}" in run.err
    assert ctl("version", "-s", second.address).code == 0  # the file is not asked


def test_stats_with_a_context_imports_nothing_that_is_slow_to_start(both: Kestrelctl) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kestrelctl", "stats", "-o", "json", "-c", "both"],
        env=both.environment,
        capture_output=True,
        check=True,
    )
    imported = set(re.findall(r"\| +([a-z_0-9]+)(?:\.|$)", run.stderr.decode(), re.MULTILINE))
    assert "kestreld" in imported
    assert not imported & {"rich", "yaml", "asyncio", "textual", "pydantic", "xxhash", "pymemcache", "ssl"}


# Several servers as one


def test_a_queue_is_created_at_no_server_if_that_is_not_wanted(
    both: Kestrelctl, daemon: Daemon, second: Daemon, queue: str
) -> None:
    assert both("get", queue, "--no-create").code == 1
    assert on(both, second.address, "put", queue, "x") == b""
    assert both("get", queue, "--no-create").out == b"x"
    assert both("get", queue, "--no-create").code == 1
    assert on(both, daemon.address, "ls", queue, "-o", "name") == b""


def test_leases_of_a_holder_are_listed_with_the_server_that_has_each(
    both: Kestrelctl, daemon: Daemon, second: Daemon, queue: str
) -> None:
    for address in (daemon.address, second.address):
        on(both, address, "put", queue, "one")
        on(both, address, "get", queue, "--lease", "1h", "--by", queue, "--json")
    rows = json.loads(both("leases", "--by", queue, "-o", "json").out)
    assert [(row["server"], row["queue"]) for row in rows] == [(daemon.address, queue), (second.address, queue)]


def test_figures_of_a_queue_are_added_up_or_shown_for_each_server(
    both: Kestrelctl, daemon: Daemon, second: Daemon, queue: str
) -> None:
    on(both, daemon.address, "put", queue, "one")
    both("put", queue, "--lines", "-s", second.address, stdin=b"two\nthree\n")
    (row,) = json.loads(both("stats", queue, "-o", "json").out)
    assert (row["items"], row["bytes"], "head_id" in row) == (3, 11, False)
    each = json.loads(both("stats", queue, "--per-server", "-o", "json").out)
    assert [(row["server"], row["items"]) for row in each] == [(daemon.address, 1), (second.address, 2)]
    assert both("ls", queue).out == queue.encode() + b"\n"
    listed = both("ls", queue, "--per-server").out.decode().splitlines()
    assert [line.split("\t")[:3] for line in listed[1:]] == [[queue, daemon.address, "1"], [queue, second.address, "2"]]
    dump = both("dump-stats").out.decode(errors="replace")  # other tests have queues with other names
    assert f"queue '{queue}' {{\n  items=3\n" in dump
    assert f"queue '{queue}' {{\n  server={daemon.address}\n  items=1\n" in both(
        "dump-stats", "--per-server"
    ).out.decode(errors="replace")
    wide = json.loads(both("stats", "--server-wide", "-o", "json").out)
    assert [one["server"] for one in wide] == [daemon.address, second.address]
    assert both("version").out.decode().splitlines()[1].startswith(f"{second.address}\t")
    assert json.loads(both("check", queue, "-o", "json").out)["queues"][0]["items"] == 3
    assert both("wait", queue, "--items", "=3").code == 0


def test_puts_are_spread_and_get_finds_the_item_wherever_it_is(
    both: Kestrelctl, daemon: Daemon, second: Daemon, queue: str
) -> None:
    on(both, second.address, "put", queue, "x")
    assert json.loads(both("peek", queue, "--json").out) == {"data": "x", "server": second.address}
    assert both("get", queue).out == b"x"
    assert both("get", queue).code == 1
    assert both("get", queue, "--wait", "20ms").code == 124
    placed = 0
    while not (
        on(both, daemon.address, "ls", queue, "-o", "tsv") and on(both, second.address, "ls", queue, "-o", "tsv")
    ):
        assert both("put", queue, "y").code == 0
        placed += 1
        assert placed < 50  # each goes to one of the two at random
    assert both("get", queue, "--all").out == b"y\n" * placed


def test_an_item_that_comes_late_to_any_server_ends_the_wait(both: Kestrelctl, second: Daemon, queue: str) -> None:
    waiting = both.start("get", queue, "--wait", "60s")
    on(both, second.address, "put", queue, "late")
    assert waiting.communicate() == (b"late", b"")


def test_what_clears_a_queue_goes_to_all_servers(both: Kestrelctl, daemon: Daemon, second: Daemon, queue: str) -> None:
    for address in (daemon.address, second.address):
        on(both, address, "put", queue, "x")
    assert both("flush", queue).code == 0
    assert both("stats", queue, "-o", "tsv", "--no-headers").out.split(b"\t")[1] == b"0"
    assert both("flush-expired", queue).out == b"0\n"
    assert both("undo", queue).code == 1
    assert both("delete", queue).code == 0
    assert both("delete", queue).code == 1
    assert both("reload").code == 0


def test_what_is_for_one_server_wants_one_chosen(both: Kestrelctl, second: Daemon, queue: str) -> None:
    for line in (["repair", queue], ["shutdown"], ["dump-config"], ["bench", "flood"]):
        run = both(*line)
        assert (run.code, run.err) == (
            2,
            "kestrelctl: context both has 2 servers, but this command uses one: choose it with -s\n",
        )
    assert both("dump-config", "-s", second.address).code == 0


def test_a_server_that_is_away_is_named_and_in_the_exit_code(both: Kestrelctl, daemon: Daemon, queue: str) -> None:
    both("context", "add", "half", daemon.address, "127.0.0.1:1")
    both("put", queue, "x", "-s", daemon.address)
    for line in (["stats", queue], ["ls", queue], ["dump-stats"], ["version"], ["stats", "--server-wide"]):
        run = both(*line, "-c", "half")
        assert (run.code, run.err.count("\n")) == (69, 1), line
        assert "cannot reach 127.0.0.1:1" in run.err
        assert run.out != b""
    assert both("check", queue, "-c", "half").code == 2
    assert both("get", queue, "-c", "half").out == b"x"
    empty = both("get", queue, "-c", "half")  # there may be an item on the other one
    assert (empty.code, "cannot reach" in empty.err) == (69, True)
    put = both("put", queue, "y", "-c", "half")
    assert put.code == 0  # it is stored
    assert both("flush", queue, "-c", "half").code == 69
    assert both("get", queue, "-s", daemon.address).code == 1
    both("context", "add", "none", "127.0.0.1:1", "127.0.0.1:2")
    for line in (["stats"], ["get", queue], ["put", queue, "z"], ["flush", queue]):
        run = both(*line, "-c", "none")
        assert (run.code, run.out, run.err.count("\n")) == (69, b"", 2), line
