"""TLS on the memcache port: with and without clients' certificates, with pymemcache and openssl as clients."""

import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymemcache import Client
from pymemcache.exceptions import MemcacheClientError

from tests.support.accounts import LoggingInClient, login, quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.noise import make_noise
from tests.support.process import resident_bytes
from tests.support.queue_client import QueueClient
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
HASH = quick_hash("pw")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.issue_server()
    made.issue("worker", "DNS:worker.example.org")
    made.issue("nobody")
    made.issue("both", "DNS:worker.example.org", "DNS:other.example.org")
    return made


def settings(authority: Authority, more: str = "") -> str:
    folder = authority.folder
    return f"listen: {{admin: null}}\ntls: {{certificate: {folder}/server.pem, key: {folder}/server.key{more}}}\n"


def with_clients(authority: Authority, which: str = "required") -> str:
    return settings(authority, f", client_ca: {authority.certificate}, client_certificate: {which}") + (
        "users:\n"
        "  worker: {certificate: worker.example.org, rights: {'*': [put, get]}}\n"
        "  other: {certificate: [other.example.org, other], rights: {'*': all}}\n"
        f"  alice: {{password: '{HASH}', rights: {{'*': all}}}}\n"
    )


@contextmanager
def tls_daemon(folder: Path, config: str) -> Iterator[Daemon]:
    with running_daemon(folder, config=config, listen="tls:127.0.0.1:0") as daemon:
        assert daemon.address.startswith("tls:127.0.0.1:")
        yield daemon


def context(authority: Authority, name: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.certificate))
    if name:
        made.load_cert_chain(authority.folder / f"{name}.pem", authority.folder / f"{name}.key")
    return made


def memcache(daemon: Daemon, authority: Authority, name: str = "", kind: type[Client] = Client, **more: Any) -> Client:
    return kind(
        ("127.0.0.1", daemon.port),
        default_noreply=False,
        timeout=PATIENCE_S,
        tls_context=context(authority, name),
        **more,
    )


def wrapped(daemon: Daemon, used: ssl.SSLContext) -> QueueClient:
    client = QueueClient(daemon.port)
    client.socket = used.wrap_socket(client.socket, server_hostname="localhost")
    return client


@pytest.fixture(scope="module")
def plain_tls(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Daemon]:
    with tls_daemon(tmp_path_factory.mktemp("tls"), settings(authority)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Daemon]:
    with tls_daemon(tmp_path_factory.mktemp("mtls"), with_clients(authority)) as daemon:
        yield daemon


def test_pymemcache_puts_and_takes_items_of_all_sizes(plain_tls, authority, queue):
    client = memcache(plain_tls, authority)
    for size in (0, 1, 16383, 16384, 16385, 100_000, 5_000_000):
        assert client.set(queue, b"x" * size)
        assert client.get(queue) == b"x" * size
    client.close()


def test_many_commands_in_one_piece_are_all_answered(plain_tls, authority, queue):
    client = wrapped(plain_tls, context(authority))
    name = queue.encode()
    client.send(b"".join([b"set %b 0 0 7\r\n%07d\r\n" % (name, number) for number in range(20_000)]))
    client.expect(b"STORED\r\n" * 20_000)
    client.send(b"get %b\r\n" % name * 20_000)
    client.expect(b"".join([b"VALUE %b 0 7\r\n%07d\r\nEND\r\n" % (name, number) for number in range(20_000)]))
    client.close()


def test_a_get_waits_and_an_open_read_comes_back_when_its_client_goes(plain_tls, authority, queue):
    one, other = (wrapped(plain_tls, context(authority)) for _ in range(2))
    one.ask_for(f"{queue}/t=600000/open")
    other.put(queue, b"work")
    assert one.read_value() == b"work"
    assert other.get(queue) is None
    other.ask_for(f"{queue}/t=600000")
    one.close()
    assert other.read_value() == b"work"
    other.close()


def test_answers_wait_for_a_client_that_does_not_read(plain_tls, authority, queue):
    client = wrapped(plain_tls, context(authority))
    item = b"x" * 1_000_000
    for _ in range(20):
        client.put(queue, item)
    client.send(b"get %b\r\n" % queue.encode() * 20)
    with QueueClient(plain_tls.port) as witness:
        witness.socket = context(authority).wrap_socket(witness.socket, server_hostname="localhost")
        witness.do(b"get nothing", b"END\r\n")
    for _ in range(20):
        assert client.read_value() == item
    client.close()


def test_a_client_that_ends_its_input_still_gets_its_answers(plain_tls, authority, queue):
    client = wrapped(plain_tls, context(authority))
    client.send(b"set %b 0 0 1\r\nx\r\nget %b\r\nquit\r\n" % (queue.encode(), queue.encode()))
    assert client.read_all() == b"STORED\r\nVALUE %b 0 1\r\nx\r\nEND\r\n" % queue.encode()


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_can_talk_to_it(plain_tls, authority, version):
    done = s_client(plain_tls, authority, version)
    assert b"VERSION " in done.stdout
    assert b"Verify return code: 0 (ok)" in done.stdout


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_versions_are_refused(plain_tls, authority, version):
    assert b"VERSION " not in s_client(plain_tls, authority, version, "-cipher", "ALL:@SECLEVEL=0").stdout


def s_client(daemon: Daemon, authority: Authority, *options: str) -> "subprocess.CompletedProcess[bytes]":
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{daemon.port}", "-CAfile", str(authority.certificate),
               "-ign_eof", *options]  # fmt: skip
    return subprocess.run(command, input=b"version\r\nquit\r\n", capture_output=True, timeout=PATIENCE_S)


def test_plain_text_and_noise_are_hung_up_on_and_nobody_else_notices(plain_tls, authority, queue):
    client = memcache(plain_tls, authority)
    client.set(queue, b"x")
    for noise in (b"version\r\n" * 10, b"\x16\x03\x01\x02\x00" + b"\x00" * 600, b"GET / HTTP/1.1\r\n\r\n", b"\x80" * 3):
        with QueueClient(plain_tls.port) as stranger:
            stranger.send(noise)
            stranger.end_input()
            assert b"VERSION" not in stranger.read_all()
    assert client.get(queue) == b"x"
    client.close()


def test_a_handshake_has_a_time_out(tmp_path, authority):
    config = settings(authority) + "request_timeout: 50ms\n"
    with tls_daemon(tmp_path, config) as daemon, QueueClient(daemon.port) as slow:
        slow.send(b"\x16\x03\x01")
        slow.expect_end()


# --- Clients' certificates.


def test_a_certificate_logs_its_user_in(mutual, authority, queue):
    worker = memcache(mutual, authority, "worker")
    assert worker.set(queue, b"x")
    assert worker.get(queue) == b"x"
    with pytest.raises(MemcacheClientError, match="not allowed: delete on"):
        worker.delete(queue)
    worker.close()


def test_without_a_certificate_of_the_authority_nobody_gets_in(mutual, authority, tmp_path):
    with pytest.raises(OSError):
        memcache(mutual, authority).version()
    stranger = Authority(tmp_path, "stranger")
    stranger.issue("worker", "DNS:worker.example.org")
    used = ssl.create_default_context(cafile=str(authority.certificate))
    used.load_cert_chain(tmp_path / "worker.pem", tmp_path / "worker.key")
    with pytest.raises(OSError):
        Client(("127.0.0.1", mutual.port), timeout=PATIENCE_S, tls_context=used).version()


def test_who_has_no_certificate_is_told_what_is_wrong(mutual, authority):
    """However fast he sends his first commands: the connection is not broken before he has read it."""
    for _ in range(20):
        with QueueClient(mutual.port) as stranger:
            stranger.socket = context(authority).wrap_socket(stranger.socket, server_hostname="localhost")
            stranger.send(b"version\r\n" * 1000)
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                stranger.read_line()


def test_a_refusal_with_noreply_sends_nothing(mutual, authority, queue):
    worker = wrapped(mutual, context(authority, "worker"))
    worker.send(b"delete %b noreply\r\n" % queue.encode())
    worker.expect_nothing_more()
    worker.close()


@pytest.mark.parametrize("name", ["nobody", "both"])
def test_a_certificate_that_is_nobodys_or_two_users_leaves_the_password(mutual, authority, name):
    with pytest.raises(MemcacheClientError, match="unauthenticated"):
        memcache(mutual, authority, name).version()
    client = memcache(mutual, authority, name, LoggingInClient, user="alice", password="pw")
    assert client.version()
    client.close()


def test_optional_certificates_let_passwords_in(tmp_path, authority, queue):
    with tls_daemon(tmp_path, with_clients(authority, "optional")) as daemon:
        client = memcache(daemon, authority, "", LoggingInClient, user="alice", password="pw")
        assert client.set(queue, b"x")
        client.close()
        assert client.get(queue) == b"x"
        client.close()
        worker = memcache(daemon, authority, "worker")
        assert worker.get(queue) is None
        worker.close()


def test_certificates_alone_allow_an_address_that_others_can_reach(tmp_path, authority):
    certified = settings(authority, f", client_ca: {authority.certificate}")
    for config, code in ((certified, 0), (settings(authority), 78)):
        daemon = Daemon(tmp_path, config=config, listen="tls:0.0.0.0:0")
        assert daemon.run("--check-config").returncode == code


def test_a_new_certificate_is_taken_by_reload_and_a_bad_one_refused(tmp_path, authority):
    other = Authority(tmp_path / "other", "other")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.write_bytes((authority.folder / "server.pem").read_bytes())
    key.write_bytes((authority.folder / "server.key").read_bytes())
    config = f"listen: {{admin: null}}\ntls: {{certificate: {certificate}, key: {key}}}\n"
    with tls_daemon(tmp_path / "daemon", config) as daemon:
        admin = wrapped(daemon, context(authority))
        key.write_text("no key")
        admin.send(b"reload\r\n")
        admin.expect_line(b"SERVER_ERROR config ")
        memcache(daemon, authority).version()
        for path, new in zip((certificate, key), other.issue_server(), strict=True):
            path.write_bytes(new.read_bytes())
        admin.do(b"reload", b"Reloaded config.\r\n")
        assert memcache(daemon, other).version()
        with pytest.raises(ssl.SSLCertVerificationError):
            memcache(daemon, authority).version()
        admin.do(b"get q", b"END\r\n")
        admin.close()


BAD = [
    ("tls: {certificate: /nowhere/a.pem}", "2:20", "/nowhere/a.pem: No such file"),
    ("tls: {certificate: CA}", "2:20", "CA: with the key in it: "),
    ("tls: {certificate: SERVER, key: OTHER}", "2:20", "key values mismatch"),
    ("tls: {certificate: SERVER, key: KEY, client_ca: KEY}", "2:", "tls.client_ca: "),
    ("tls: {certificate: SERVER, key: ENCRYPTED}", "2:20", "the key is encrypted"),
    ("tls: {key: KEY}", "2:12", "tls.key has no effect without tls.certificate"),
    ("tls: {certificat: SERVER}", "2:7", "did you mean certificate?"),
    ("tls: {client_certificate: maybe}", "2:27", "expected required or optional"),
]


@pytest.mark.exhaustive("CA}", "key: OTHER", "certificat:")
@pytest.mark.parametrize(("text", "place", "reason"), BAD, ids=[text for text, _, _ in BAD])
def test_mistakes_are_found_before_it_starts(tmp_path, authority, text, place, reason):
    folder = authority.folder
    if "ENCRYPTED" in text:
        command = ["openssl", "ec", "-in", folder / "server.key", "-aes128", "-passout", "pass:x", "-out",
                   folder / "encrypted.key"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    files = {"CA": authority.certificate, "SERVER": folder / "server.pem", "OTHER": folder / "worker.key"}
    files |= {"KEY": folder / "server.key", "ENCRYPTED": folder / "encrypted.key"}
    for word, path in files.items():
        text = re.sub(rf"\b{word}\b", str(path), text)
        reason = re.sub(rf"\b{word}\b", str(path), reason)
    daemon = Daemon(tmp_path, config=f"listen: {{admin: null}}\n{text}\n")
    done = daemon.run("--check-config")
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert f"{daemon.config_path}:{place}" in line
    assert reason in line


def test_a_tls_address_needs_a_certificate(tmp_path):
    daemon = Daemon(tmp_path, config="", listen="tls:127.0.0.1:0")
    done = daemon.run("--check-config")
    assert done.returncode == 78
    assert "listen.memcache: tls: requires tls.certificate and tls.key" in done.stderr


def test_idle_tls_connections_take_little_memory(plain_tls, authority):
    used = context(authority)
    with QueueClient(plain_tls.port) as first:
        first.socket = used.wrap_socket(first.socket, server_hostname="localhost")
        first.do(b"get q", b"END\r\n")
        before = resident_bytes(plain_tls.pid)
        clients = [wrapped(plain_tls, used) for _ in range(100)]
        for client in clients:
            client.do(b"get q", b"END\r\n")
        used_bytes = (resident_bytes(plain_tls.pid) - before) / len(clients)
        for client in clients:
            client.close()
    assert used_bytes < 60_000


def test_a_client_that_vanishes_in_the_handshake_leaves_nothing(plain_tls):
    clients = [socket.create_connection(("127.0.0.1", plain_tls.port)) for _ in range(20)]
    for client in clients:
        client.send(b"\x16\x03\x01\x00")
        client.close()
    descriptors = Path(f"/proc/{plain_tls.pid}/fd")
    until(lambda: len(list(descriptors.iterdir())) <= 30, "those that have gone to be seen to go")


def test_login_over_tls_may_come_with_the_first_commands(mutual, authority, queue):
    client = wrapped(mutual, context(authority, "nobody"))
    client.send(login("alice", "pw") + b"set %b 0 0 1\r\nx\r\nget %b\r\n" % (queue.encode(), queue.encode()))
    client.expect(b"STORED\r\nSTORED\r\nVALUE %b 0 1\r\nx\r\nEND\r\n" % queue.encode())
    client.close()


def test_garbled_commands_after_a_login_over_tls_harm_nobody_else(mutual, authority):
    def noisy() -> QueueClient:
        client = wrapped(mutual, used)
        client.ask(login("alice", "pw"), b"STORED\r\n")
        return client

    used = context(authority, "nobody")
    with wrapped(mutual, context(authority, "both")) as other:
        other.ask(login("alice", "pw"), b"STORED\r\n")
        make_noise(noisy, other, seed=5, rounds=10)
