"""kestrelctl cache: what it prints, its exit codes, and which cache it means."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl


@pytest.fixture
def key(queue: str) -> str:
    return f"of:{queue}"


def test_what_stands_alone_behind_two_dashes_is_the_value_itself(kestrelctl: Kestrelctl, queue: str) -> None:
    assert kestrelctl("cache", "set", queue, "--", "@home").code == 0
    assert kestrelctl("cache", "get", queue).out == b"@home"


def test_a_value_comes_back_as_the_bytes_that_were_stored(kestrelctl: Kestrelctl, key: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "value").write_bytes(data)
    assert kestrelctl("cache", "set", key, f"@{tmp_path}/value").code == 0
    run = kestrelctl("cache", "get", key)
    assert (run.code, run.out, run.err) == (0, data, "")
    assert kestrelctl("cache", "set", key, stdin=b"from a pipe\n").code == 0
    assert kestrelctl("cache", "get", key).out == b"from a pipe\n"
    assert kestrelctl("cache", "set", key, "").code == 0
    assert kestrelctl("cache", "get", key).out == b""


def test_what_is_not_there_is_exit_1_without_a_word(kestrelctl: Kestrelctl, key: str) -> None:
    for verb in ("get", "incr", "delete"):
        run = kestrelctl("cache", verb, key)
        assert (run.code, run.out, run.err) == (1, b"", ""), verb
    assert kestrelctl("cache", "delete", key, "--missing-ok").code == 0


def test_add_succeeds_for_one_only(kestrelctl: Kestrelctl, key: str) -> None:
    assert kestrelctl("cache", "add", key, "first").code == 0
    run = kestrelctl("cache", "add", key, "second")
    assert (run.code, run.out, run.err) == (1, b"", "")
    assert kestrelctl("cache", "get", key).out == b"first"
    assert kestrelctl("cache", "delete", key).code == 0
    assert kestrelctl("cache", "add", key, "third").code == 0


def test_counting_prints_the_number_and_stops_at_0(kestrelctl: Kestrelctl, key: str) -> None:
    kestrelctl("cache", "set", key, "41")
    assert kestrelctl("cache", "incr", key).out == b"42\n"
    assert kestrelctl("cache", "incr", key, "--by", "18446744073709551574").out == b"0\n"
    assert kestrelctl("cache", "incr", key, "--by", "7").out == b"7\n"
    assert kestrelctl("cache", "incr", key, "--by", "-2").out == b"5\n"
    assert kestrelctl("cache", "incr", key, "--by", "-9").out == b"0\n"
    kestrelctl("cache", "set", key, "no number")
    run = kestrelctl("cache", "incr", key)
    assert run.code == 77
    assert run.err.endswith("refused: cannot increment or decrement non-numeric value\n")


def test_an_expiry_in_the_past_month_or_beyond_is_the_servers(kestrelctl: Kestrelctl, key: str) -> None:
    assert kestrelctl("cache", "set", key, "x", "--expire", "90d").code == 0
    assert kestrelctl("cache", "get", key).out == b"x"
    assert kestrelctl("cache", "set", key, "x", "--expire", "soon").code == 2


def test_a_value_that_is_too_large_is_exit_77(kestrelctl: Kestrelctl, key: str) -> None:
    run = kestrelctl("cache", "set", key, stdin=bytes(1024**2))
    assert run.code == 77
    assert run.err.endswith("answered: object too large for cache\n")


def test_what_no_cache_takes_as_a_key_is_exit_2(kestrelctl: Kestrelctl) -> None:
    for verb in ("get", "set", "delete"):
        for bad in ("a b", "", "a\nb", "k" * 251):
            run = kestrelctl("cache", verb, bad)
            assert run.code == 2, (verb, bad)
            assert run.err.count("\n") == 1


def test_statistics_are_memcacheds(kestrelctl: Kestrelctl, key: str) -> None:
    kestrelctl("cache", "set", key, "x")
    kestrelctl("cache", "get", key)
    shown = json.loads(kestrelctl("cache", "stats", "-o", "json").out)
    assert shown["get_hits"] >= 1
    assert shown["limit_maxbytes"] == 64 * 1024**2
    assert json.loads(kestrelctl("cache", "stats", "settings", "-o", "json").out)["item_size_max"] == 1024**2
    assert kestrelctl("cache", "stats", "items").code == 0
    assert kestrelctl("cache", "stats", "nonsense").code == 2


# Which cache


def test_the_cache_is_that_of_the_line_the_context_or_the_environment(daemon: Daemon, tmp_path: Path) -> None:
    kestrelctl = Kestrelctl(daemon.address, tmp_path, "127.0.0.1:1")
    kestrelctl.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    assert kestrelctl("cache", "set", "mine", "x").code == 69
    assert kestrelctl("cache", "set", "mine", "x", "-s", daemon.cache).code == 0
    assert kestrelctl("-s", daemon.cache, "cache", "get", "mine").out == b"x"
    kestrelctl("context", "add", "here", daemon.address, "--cache", daemon.cache, "--select")
    kestrelctl("context", "add", "there", daemon.address)
    assert kestrelctl("cache", "get", "mine").code == 69  # the environment goes before the selected context
    assert kestrelctl("cache", "get", "mine", "-c", "here").out == b"x"
    del kestrelctl.environment["KESTRELCTL_CACHE"], kestrelctl.environment["KESTRELCTL_SERVER"]
    assert kestrelctl("cache", "get", "mine").out == b"x"
    assert json.loads(kestrelctl("context", "show", "-o", "json").out)["cache"] == daemon.cache
    run = kestrelctl("cache", "get", "mine", "-c", "there")
    assert run.code == 2
    assert run.err.startswith("kestrelctl: context there has no cache: use -s HOST:PORT")
    assert kestrelctl("context", "add", "bad", daemon.address, "--cache", "a b").code == 2


def test_without_a_cache_there_it_is_exit_69_and_says_what_to_look_at(daemon: Daemon, tmp_path: Path) -> None:
    run = Kestrelctl(daemon.address, tmp_path, "127.0.0.1:1")("cache", "get", "x")
    assert run.code == 69
    assert "cannot reach 127.0.0.1:1: " in run.err
    assert "is listen.cache set?" in run.err


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Kestrelctl]:
    users = f'users:\n  web: {{password: "{quick_hash("pw")}", cache: {{"s:*": [get, put]}}}}\n'
    with running_daemon(tmp_path / "daemon", "listen.cache=127.0.0.1:0", config=users) as daemon:
        yield Kestrelctl(daemon.address, tmp_path, daemon.cache)


def test_a_login_is_asked_for_and_rights_are_exit_83(guarded: Kestrelctl) -> None:
    run = guarded("cache", "get", "s:1")
    assert run.code == 82
    assert "authentication required" in run.err
    guarded.environment["KESTREL_PASSWORD"] = "wrong"
    assert guarded("cache", "get", "s:1", "--user", "web").code == 82
    guarded.environment["KESTREL_PASSWORD"] = "pw"
    assert guarded("cache", "set", "s:1", "x", "--user", "web").code == 0
    assert guarded("cache", "get", "s:1", "--user", "web").out == b"x"
    for line in (("get", "other"), ("delete", "s:1")):
        run = guarded("cache", *line, "--user", "web")
        assert (run.code, run.out) == (83, b"")
        assert "not allowed" in run.err
