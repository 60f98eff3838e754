"""Who may do what in the cache: rights by pattern of keys, logins, certificates, and what a reload takes away."""

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymemcache import Client
from pymemcache.exceptions import MemcacheClientError

from kestreld.server.cache.administration import VERSION as TOLD
from tests.support.accounts import LoggingInClient, login, quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.wire import WireClient, connected

VERSION = f"VERSION {TOLD}\r\n".encode()
HASH = quick_hash("pw")
HERE = "listen.cache=127.0.0.1:0"
USERS = {
    "getter": "cache: {'s:*': [get]}",
    "putter": "cache: {'s:*': [put]}",
    "both": "cache: {'s:*': [get, put]}",
    "deleter": "cache: {'s:*': [delete]}",
    "flusher": "cache: {'*': [flush]}",
    "partly": "cache: {'s:*': [flush, admin]}",
    "admin": "cache: {'*': [admin]}",
    "all": "cache: {'*': all}",
    "king": "rights: {'*': all}",
    "queues": "rights: {'*': [put, get, peek, flush, delete]}",
}
# A command -> how its answer begins where it is allowed.
COMMANDS = {
    b"get s:1": b"END",
    b"gets s:1 s:2": b"END",
    b"mg s:1": b"EN",
    b"me s:2": b"EN",
    b"set s:1 0 0 1\r\n1": b"STORED",
    b"add s:1 0 0 1\r\n1": b"NOT_STORED",
    b"replace s:1 0 0 1\r\n1": b"STORED",
    b"append s:1 0 0 1\r\n1": b"STORED",
    b"prepend s:1 0 0 1\r\n1": b"STORED",
    b"cas s:1 0 0 1 1\r\n1": b"EXISTS",
    b"incr s:1 1": b"112",
    b"decr s:1 1": b"111",
    b"touch s:1 0": b"TOUCHED",
    b"ms s:1 1\r\n1": b"HD",
    b"ma s:1": b"HD",
    b"gat 0 s:2": b"END",
    b"gats 0 s:2": b"END",
    b"mg s:2 T0": b"EN",
    b"delete s:1": b"DELETED",
    b"md s:1": b"NF",
    b"flush_all": b"OK",
    b"verbosity 1": b"OK",
    b"stats reset": b"RESET",
    b"stats detail off": b"OK",
    b"stats": b"STAT",
    b"version": b"VERSION",
    b"mn": b"MN",
}
GETS = {b"get s:1", b"gets s:1 s:2", b"mg s:1", b"me s:2"}
TOUCHING_GETS = {b"gat 0 s:2", b"gats 0 s:2", b"mg s:2 T0"}
DELETES = {b"delete s:1", b"md s:1"}
OPERATORS = {b"verbosity 1", b"stats reset", b"stats detail off"}
FREE = {b"stats", b"version", b"mn"}
PUTS = set(COMMANDS) - GETS - TOUCHING_GETS - DELETES - OPERATORS - FREE - {b"flush_all"}
MAY = {
    "getter": GETS,
    "putter": PUTS,
    "both": GETS | PUTS | TOUCHING_GETS,
    "deleter": DELETES,
    "flusher": {b"flush_all"},
    "partly": set[bytes](),
    "admin": OPERATORS,
    "all": set(COMMANDS),
    "king": set(COMMANDS),
    "queues": set[bytes](),
}


def config(users: dict[str, str]) -> str:
    lines = [f'  {name}: {{password: "{HASH}", {rights}}}\n' for name, rights in users.items()]
    return f"users:\n{''.join(lines)}"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), HERE, config=config(USERS)) as daemon:
        yield daemon


def logged_in(daemon: Daemon, user: str) -> WireClient:
    client = WireClient(daemon.cache)
    client.ask(login(user, "pw"), b"STORED\r\n")
    return client


@pytest.mark.parametrize("user", MAY)
def test_each_command_takes_its_right(daemon: Daemon, user: str) -> None:
    with connected(daemon.cache) as king, connected(daemon.cache) as client:
        for one, name in ((king, "king"), (client, user)):
            one.ask(login(name, "pw"), b"STORED\r\n")
        king.ask(b"flush_all\r\n", b"OK\r\n")
        refused = set()
        for command, answer in COMMANDS.items():
            client.send(command + b"\r\nversion\r\n")
            said = client.read_until(VERSION)
            if command == b"version":
                said += client.read_until(VERSION)
            if said.startswith(b"CLIENT_ERROR not allowed: "):
                refused.add(command)
            elif MAY[user] >= PUTS:  # else there is nothing to find
                assert said.startswith(answer), (command, said)
        assert set(COMMANDS) - refused - FREE == MAY[user] - FREE


def test_a_refusal_names_the_right_and_the_key_and_drops_the_data(daemon: Daemon) -> None:
    client = logged_in(daemon, "both")
    client.ask(b"set t:1 0 0 9\r\nget s:1\r\n\r\n", b"CLIENT_ERROR not allowed: put on 't:1'\r\n")
    client.ask(b"get s:9 t:1\r\n", b"CLIENT_ERROR not allowed: get on 't:1'\r\n")
    client.ask(b"delete s:1\r\n", b"CLIENT_ERROR not allowed: delete on 's:1'\r\n")
    client.ask(b"flush_all\r\n", b"CLIENT_ERROR not allowed: requires the flush right on all keys of the cache\r\n")
    client.ask(b"mg dDox b v\r\n", b"CLIENT_ERROR not allowed: get on 't:1'\r\n")  # t:1 in base64
    client.ask(b"mg dDox bx v\r\n", b"CLIENT_ERROR not allowed: get on 't:1'\r\n")
    client.ask(b"mg czpub25l b v\r\n", b"EN\r\n")  # s:none
    client.ask(b"set t:1 0 0 1 noreply\r\nx\r\ndelete s:1 noreply\r\nversion\r\n", VERSION)


def test_very_many_keys_at_once_take_a_right_on_all(daemon: Daemon) -> None:
    keys = b" s:1" * 10_001
    client = logged_in(daemon, "getter")
    client.ask(b"get%b\r\n" % keys, b"CLIENT_ERROR not allowed: get on more than 10000 keys at once\r\n")
    client.send(b"get%b\r\nversion\r\n" % keys[4:])
    assert client.read_until(VERSION).count(b"CLIENT_ERROR") == 0
    logged_in(daemon, "all").ask(b"flush_all\r\nget%b\r\n" % keys, b"OK\r\nEND\r\n")


def test_nothing_is_answered_before_a_login(daemon: Daemon) -> None:
    with connected(daemon.cache) as client:
        for command in (b"get s:1", b"mg s:1", b"mn", b"version", b"flush_all", b"add s:1 0 0 1\r\nx"):
            client.ask(command + b"\r\n", b"CLIENT_ERROR unauthenticated\r\n")
        client.ask(login("both", "wrong"), b"CLIENT_ERROR authentication failure\r\n")
        client.ask(login("both", "pw") + b"get s:1\r\n", b"STORED\r\n")


def test_a_client_of_memcached_logs_in(daemon: Daemon) -> None:
    client = LoggingInClient(("127.0.0.1", daemon.cache_port), user="both", password="pw", default_noreply=False)
    assert client.set("s:2", b"x")
    assert client.get("s:2") == b"x"
    with pytest.raises(MemcacheClientError, match="not allowed"):
        client.delete("s:2")


def test_a_unix_socket_is_trusted(short_path: Path) -> None:
    here = f"listen.cache=unix:{short_path}/c"
    with running_daemon(short_path, here, config=config(USERS)) as daemon, connected(daemon.cache) as client:
        client.ask(b"set any 0 0 1\r\nx\r\nflush_all\r\n", b"STORED\r\nOK\r\n")


def test_rights_that_a_reload_takes_away_are_gone_in_open_sessions(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE, config=config(USERS)) as daemon:
        client, stranger = logged_in(daemon, "both"), logged_in(daemon, "putter")
        client.ask(b"set s:1 0 0 1\r\nx\r\n", b"STORED\r\n")
        daemon.config_path.write_text(config({"both": "cache: {'s:*': [get]}", "king": USERS["king"]}))
        with connected(daemon.address) as king:
            king.ask(login("king", "pw") + b"reload\r\n", b"STORED\r\nReloaded config.\r\n")
        client.ask(b"set s:1 0 0 1\r\ny\r\n", b"CLIENT_ERROR not allowed: put on 's:1'\r\n")
        client.ask(b"get s:1\r\n", b"VALUE s:1 0 1\r\nx\r\nEND\r\n")
        stranger.expect_eof()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_tls_and_a_certificate_log_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue_server()
    authority.issue("worker", "DNS:worker.example.org")
    text = (
        f"tls: {{certificate: {tmp_path}/server.pem, key: {tmp_path}/server.key, client_ca: {authority.certificate}}}\n"
        "users:\n  worker: {certificate: worker.example.org, cache: {'s:*': [get, put]}}\n"
    )
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(tmp_path / "worker.pem", tmp_path / "worker.key")
    with running_daemon(tmp_path / "daemon", "listen.cache=tls:127.0.0.1:0", config=text) as daemon:
        assert daemon.cache.startswith("tls:127.0.0.1:")
        client = Client(("localhost", daemon.cache_port), tls_context=context, default_noreply=False)
        value = bytes(300_000)
        assert client.set("s:1", value)
        assert client.get("s:1") == value
        with pytest.raises(MemcacheClientError, match="get on 't:1'"):
            client.get("t:1")
        client.close()
