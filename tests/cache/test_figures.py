"""What operators see of the cache: statistics, metrics and the console."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kestreld.cache.prefixes import PREFIXES_MAX
from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.shell import Kestrelctl
from tests.support.waiting import until
from tests.support.wire import connected

PAGE = Path(__file__).parents[2] / "docs/cache.md"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Two values, three hits and two misses."""
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, "listen.cache=127.0.0.1:0", "cache_memory=2MiB", admin="127.0.0.1:0") as daemon:
        with connected(daemon.cache) as client:
            client.ask(b"set a 0 0 1\r\n1\r\nset b 0 0 2\r\n22\r\n", b"STORED\r\nSTORED\r\n")
            client.send(b"get a\r\nget a b\r\nget gone\r\nget none\r\nmn\r\n")
            client.read_until(b"MN\r\n")
        yield daemon


def counters(daemon: Daemon) -> dict[str, int]:
    with connected(daemon.address) as client:
        client.send(b"stats\r\n")
        lines = [line.split() for line in client.read_until(b"END\r\n").decode().splitlines()]
    return {line[1]: int(line[2]) for line in lines if line[0] == "STAT" and line[1].startswith("cache_")}


def test_the_server_tells_of_its_cache_by_stats_json_and_metrics(used: Daemon) -> None:
    stats = counters(used)
    held_bytes = stats.pop("cache_bytes")
    assert 0 < held_bytes < 1000
    assert stats == {
        "cache_items": 2,
        "cache_limit_bytes": 2 * 1024**2,
        "cache_hits": 3,
        "cache_misses": 2,
        "cache_sets": 2,
        "cache_evictions": 0,
        "cache_expired": 0,
    }
    server = ask(used, "/stats.json").json["server"]
    assert {name: server[name] for name in stats} == stats
    page = ask(used, "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    metrics = {one.name: one.value for one in samples if one.name.startswith("kestrel_cache_")}
    gauges = {"cache_bytes": held_bytes, **{name: stats.pop(name) for name in ("cache_items", "cache_limit_bytes")}}
    assert metrics == {
        **{f"kestrel_{name}": value for name, value in gauges.items()},
        **{f"kestrel_{name}_total": value for name, value in stats.items()},
    }


def test_a_value_that_nobody_asks_for_any_more_expires_and_is_counted(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "listen.cache=127.0.0.1:0") as daemon, connected(daemon.cache) as client:
        client.ask(b"set gone 0 1 1\r\n1\r\n", b"STORED\r\n")
        until(lambda: counters(daemon)["cache_expired"] > 0, "the end of a value")
        assert counters(daemon)["cache_items"] == 0


def test_the_console_has_a_line_for_a_cache_below_its_server(used: Daemon, tmp_path: Path) -> None:
    kestrelctl = Kestrelctl(used.address, tmp_path)
    lines = kestrelctl("top", "--once", "--plain").out.decode().splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("● "))
    assert lines[at + 1].startswith("└ cache  items 2  bytes ")
    assert " of 2.0M  gets/s 0  sets/s 0  evictions/s 0  expired/s 0" in lines[at + 1]
    (server,) = json.loads(kestrelctl("top", "--once", "--json").out)["servers"]
    assert server["counters"]["cache_items"] == 2


def test_without_a_cache_nobody_hears_of_one(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "daemon", admin="127.0.0.1:0") as daemon:
        assert "kestrel_cache_" not in ask(daemon, "/metrics").body.decode()
        assert "cache_items" not in ask(daemon, "/stats.json").json["server"]
        assert b"cache" not in Kestrelctl(daemon.address, tmp_path)("top", "--once", "--plain").out


def stats(address: str | int) -> dict[str, str]:
    with connected(address) as client:
        client.send(b"stats\r\n")
        lines = [line.split() for line in client.read_until(b"END\r\n").decode().splitlines()]
    return {line[1]: line[2] for line in lines if line[0] == "STAT"}


def test_it_has_the_figures_of_memcached_but_for_those_that_the_page_lists(
    memcached_port: int, cache_port: int
) -> None:
    table = PAGE.read_text().partition("\n| not there | since |\n")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    memcached = stats(memcached_port)
    assert len(listed) == len(set(listed))
    assert set(stats(cache_port)) == set(memcached) - set(listed)
    assert set(listed) <= set(memcached)


def test_the_figures_of_the_process_are_true(tmp_path: Path) -> None:
    users = f'users:\n  ann:\n    password: "{quick_hash("secret")}"\n    cache: {{"*": all}}\n'
    settings = ("listen.cache=127.0.0.1:0", "max_connections=2")
    with running_daemon(tmp_path, *settings, config=users) as daemon:
        with connected(daemon.cache) as client:
            client.ask(b"set x 0 0 9\r\nann wrong\r\n", b"CLIENT_ERROR authentication failure\r\n")
        with connected(daemon.cache) as client, connected(daemon.cache) as other:
            for each in (client, other):
                each.ask(b"set x 0 0 10\r\nann secret\r\n", b"STORED\r\n")
            with connected(daemon.cache) as third:
                assert third.read_line().startswith(b"SERVER_ERROR")
            client.send(b"stats\r\n")
            before = dict(line.split()[1:] for line in client.read_until(b"END\r\n").splitlines()[:-1])
            asked, told = b"get %b\r\n" % (b"k" * 200), b"END\r\n"
            for _ in range(100):
                client.ask(asked, told)
            client.send(b"stats\r\n")
            text = client.read_until(b"END\r\n")
            after = dict(line.split()[1:] for line in text.splitlines()[:-1])
        assert int(after[b"pid"]) == daemon.pid
    assert (after[b"max_connections"], after[b"rejected_connections"]) == (b"2", b"1")
    assert (after[b"auth_cmds"], after[b"auth_errors"]) == (b"3", b"1")
    used_s = [sum(float(each[name]) for name in (b"rusage_user", b"rusage_system")) for each in (before, after)]
    assert 0 < used_s[0] <= used_s[1]
    read, written = (int(after[name]) - int(before[name]) for name in (b"bytes_read", b"bytes_written"))
    assert read == 100 * len(asked) + len(b"stats\r\n")
    assert written == 100 * len(told) + sum(len(b"STAT %b %b\r\n" % line) for line in before.items()) + len(told)


def test_without_a_limit_of_its_own_it_tells_how_many_connections_there_may_be(cache_port: int) -> None:
    assert int(stats(cache_port)["max_connections"]) > 0


DETAILED = (
    b"set a:1 0 0 1\r\nx", b"get a:1", b"get a:2 a:1 b:1 none", b"gat 0 g:1 a:1", b"gets s:1", b"get :x", b"get x:y:z",
    b"add a:3 0 0 1\r\nx", b"add a:3 0 0 1\r\nx", b"append p:1 0 0 1\r\nx", b"cas c:1 0 0 1 1\r\nx", b"set c:1 0 0 x",
    b"delete a:1", b"delete d:1", b"delete none", b"incr i:1 1", b"touch t:1 0", b"mg a:3 v",
    b"ms m:1 1\r\nx", b"md m:1",
)  # fmt: skip


def detail(address: str | int, *commands: bytes) -> list[bytes]:
    """The counts by prefix, of commands that are sent one by one, and all at once."""
    with connected(address) as client:
        for command in (b"stats reset", b"delete a:3", *commands[:1], *DETAILED, *commands[1:], b"stats detail off"):
            client.send(command + b"\r\nmn\r\n")
            client.read_until(b"MN\r\n")
        client.send(b"stats detail dump\r\n")
        return sorted(client.read_until(b"END\r\n").splitlines())


def test_gets_sets_and_deletes_are_counted_by_prefix_as_by_memcached(memcached_port: int, cache_port: int) -> None:
    commands = (b"stats detail on", b"\r\n".join(DETAILED))
    counted = detail(cache_port, *commands)
    assert counted == detail(memcached_port, *commands)
    assert b"PREFIX a get 8 hit 6 set 6 del 2" in counted
    assert detail(cache_port, b"stats detail off") == [b"END"]


def test_what_is_counted_by_prefix_is_not_without_bound(cache_port: int) -> None:
    with connected(cache_port) as client:
        client.ask(b"stats detail on\r\n", b"OK\r\n")
        client.send(b"get %b\r\n" % b" ".join([b"%d:x" % number for number in range(PREFIXES_MAX + 100)]))
        client.read_until(b"END\r\n")
        client.send(b"stats detail dump\r\nstats reset\r\nstats detail off\r\n")
        assert client.read_until(b"RESET\r\nOK\r\n").count(b"PREFIX") == PREFIXES_MAX
