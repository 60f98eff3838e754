"""What operators see of the cache: statistics, metrics and the console."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.shell import Kestrelctl
from tests.support.waiting import until
from tests.support.wire import connected


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
