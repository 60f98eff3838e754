"""The settings of the cache: where it listens, how much it holds, and what a reload changes."""

import subprocess
import sys
from pathlib import Path

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.wire import connected

HERE = "listen.cache=127.0.0.1:0"


def figure(address: str, name: bytes, group: bytes = b"") -> int:
    with connected(address) as client:
        client.send(b"stats %b\r\n" % group if group else b"stats\r\n")
        lines = client.read_until(b"END\r\n").splitlines()
    return int(next(line.split()[2] for line in lines if line.split()[1:2] == [name]))


def reload(daemon: Daemon) -> bytes:
    with connected(daemon.address) as client:
        client.send(b"reload\r\n")
        return client.read_line()


def test_without_the_setting_there_is_no_cache_and_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert (daemon.cache, " cache=" in daemon.logged("ready")) == ("", False)
        with connected(daemon.address) as client:
            client.send(b"stats\r\n")
            assert b"cache_" not in client.read_until(b"END\r\n")
    program = "import kestreld.daemon, sys; print([name for name in sys.modules if 'cache' in name.split('.')])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


def test_it_listens_at_every_address_and_is_one_dictionary(short_path: Path) -> None:
    path = short_path / "run" / "c.sock"
    with running_daemon(short_path, f"listen.cache=[127.0.0.1:0, 'unix:{path}']") as daemon:
        tcp, unix = daemon.cache.split(",")
        assert unix == f"unix:{path}"
        assert f"cache={daemon.cache}" in (daemon.spool / ".lock").read_text()
        with connected(tcp) as one, connected(unix) as other:
            one.ask(b"set k 5 0 1\r\nx\r\n", b"STORED\r\n")
            other.ask(b"get k\r\n", b"VALUE k 5 1\r\nx\r\nEND\r\n")
        with connected(daemon.address) as client:
            client.ask(b"get k\r\n", b"END\r\n")
        daemon.stop()
    assert not path.exists()


def test_nothing_of_it_outlives_a_restart(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE) as daemon:
        address = daemon.cache
        with connected(daemon.cache) as client:
            client.ask(b"set k 0 0 1\r\nx\r\n", b"STORED\r\n")
        daemon.restart()
        assert daemon.cache == address
        with connected(daemon.cache) as client:
            client.ask(b"get k\r\n", b"END\r\n")


def test_limits_change_on_reload_and_addresses_at_the_next_start(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE, config="cache_memory: 4MiB\ncache_item_size_max: 10KiB\n") as daemon:
        assert figure(daemon.cache, b"limit_maxbytes") == 4 * 1024**2
        assert figure(daemon.cache, b"item_size_max", b"settings") == 10 * 1024
        value = bytes(20 * 1024)
        with connected(daemon.cache) as client:
            client.ask(b"set k 0 0 %d\r\n%b\r\n" % (len(value), value), b"SERVER_ERROR object too large for cache\r\n")
            daemon.config_path.write_text("cache_memory: 8MiB\n")
            assert reload(daemon) == b"Reloaded config."
            assert figure(daemon.cache, b"limit_maxbytes") == 8 * 1024**2
            client.ask(b"set k 0 0 %d\r\n%b\r\n" % (len(value), value), b"STORED\r\n")
    with running_daemon(tmp_path, config="listen: {cache: 127.0.0.1:0}\n") as daemon:
        daemon.config_path.write_text("listen: {cache: null}\n")
        assert b"listen.cache" in reload(daemon)
        with connected(daemon.cache) as client:
            client.ask(b"get k\r\n", b"END\r\n")


def test_less_memory_evicts_what_there_is_too_much(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE, config="cache_memory: 8MiB\n") as daemon:
        with connected(daemon.cache) as client:
            for number in range(60):
                client.ask(b"set k%d 0 0 100000\r\n%b\r\n" % (number, bytes(100_000)), b"STORED\r\n")
            assert figure(daemon.cache, b"curr_items") == 60
            daemon.config_path.write_text("cache_memory: 2MiB\n")
            reload(daemon)
            client.ask(b"set one_more 0 0 1\r\nx\r\n", b"STORED\r\n")
        assert figure(daemon.cache, b"bytes") <= 2 * 1024**2
        assert figure(daemon.cache, b"evictions") >= 40


def test_an_address_that_others_can_reach_is_refused_while_nobody_has_to_log_in(tmp_path: Path) -> None:
    ended = Daemon(tmp_path, ["listen.cache=0.0.0.0:0"]).run()
    assert ended.returncode == 78
    assert "listen.cache: 0.0.0.0:0 is reachable from other machines without authentication" in ended.stderr
    user = f'users:\n  a: {{password: "{quick_hash("pw")}", cache: {{"*": get}}}}\n'
    open_to_all = running_daemon(tmp_path / "users", "listen.cache=0.0.0.0:0", config=user)
    with open_to_all as daemon, connected(daemon.cache_port) as client:
        client.ask(b"get k\r\n", b"CLIENT_ERROR unauthenticated\r\n")


def test_an_address_in_use_ends_the_start_with_69(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "first", HERE) as daemon:
        ended = Daemon(tmp_path / "second", [f"listen.cache={daemon.cache}"]).run()
    assert ended.returncode == 69
    assert f"cannot listen on {daemon.cache}: " in ended.stderr
