"""Who may be a node: a shared secret, certificates, and what becomes of anything else that connects to the bus."""

import os
import socket
import ssl
import time
from pathlib import Path

import pytest

from kestreld.cluster.frames import MESSAGES, LinkProtocol
from tests.kestreld.cluster.test_frames import hello
from tests.support.certificates import Authority
from tests.support.cluster_nodes import TIMEOUT_S, ClusterNode, cluster_of
from tests.support.process import resident_bytes, stop
from tests.support.waiting import until

GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"DbuZ" + bytes(140),
    b"*1\r\n$4\r\nPING\r\n",
    b"KB\x01\x01\xff\xff\xff\xff" + bytes(24),
    b"KB\x09" + bytes(29),
    os.urandom(4096),
)


def secret_of(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text + "\n")
    return f"cluster.secret_file={path}"


def certificates(folder: Path, authority: Authority, name: str) -> list[str]:
    certificate, key = authority.issue(name)
    files = [f"tls.certificate={certificate}", f"tls.key={key}", f"tls.client_ca={authority.certificate}"]
    return [*files, "cluster.tls=true"]


def is_up(node: ClusterNode) -> bool:
    return node("PING") == b"PONG"


def test_nodes_with_the_same_secret_are_a_cluster(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3, secret_of(tmp_path, "secret", "0123456789abcdef")) as nodes:
        assert nodes[0].sees(nodes[1:])


@pytest.mark.parametrize("other_secret", ["fedcba9876543210", None])
def test_a_node_with_another_secret_or_none_is_refused_and_both_say_why_once(
    tmp_path: Path, other_secret: str | None
) -> None:
    with cluster_of(tmp_path, 2, secret_of(tmp_path, "secret", "0123456789abcdef")) as nodes:
        settings = [] if other_secret is None else [secret_of(tmp_path, "other", other_secret)]
        stranger = ClusterNode(tmp_path / "stranger", *settings)
        stranger.start()
        try:
            assert stranger.meet(nodes[0]) == b"OK"
            text = "cluster secrets differ" if other_secret else "a cluster secret, "
            for node in (nodes[0], stranger):
                assert "secret file" in node.logged(text)
            until(lambda: stranger.sees([]), "the end of the handshake")
            until(lambda: nodes[0].sees([nodes[1]]), "the cluster as it was")
            for node in (nodes[0], stranger):
                assert sum("cluster bus: link" in line for line in node.log) == 1
        finally:
            stranger.end()


def test_a_secret_is_changed_by_reloads_without_breaking_the_cluster(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, secret_of(tmp_path, "secret", "0123456789abcdef")) as nodes:
        one, other = nodes
        secret_of(tmp_path, "secret", "another secret of 32 characters.")
        for node in nodes:
            node.signal(1)
            node.logged("reloaded")
        until(lambda: one.sees([other]), "the cluster as it was")
        other.kill()
        other.start()
        until(lambda: one.sees([other]) and other.sees([one]), "the cluster under its new secret")
        (tmp_path / "secret").write_text("short")
        one.signal(1)
        assert "a secret of 5 bytes: expected 16 to 4096" in one.logged("reload refused")


@pytest.mark.long
def test_nodes_with_certificates_of_one_authority_are_a_cluster_and_others_are_refused(tmp_path: Path) -> None:
    authority, foreign = Authority(tmp_path / "ca"), Authority(tmp_path / "foreign", "foreign")
    with cluster_of(tmp_path, 2, *certificates(tmp_path, authority, "node")) as nodes:
        assert nodes[0].sees([nodes[1]])
        for number, settings in enumerate((certificates(tmp_path, foreign, "stranger"), [])):
            stranger = ClusterNode(tmp_path / f"stranger{number}", *settings)
            stranger.start()
            try:
                assert stranger.meet(nodes[0]) == b"OK"
                nodes[0].logged("link from 127.0.0.1")
                stranger.logged(f"cannot meet a node at 127.0.0.1:{nodes[0].client_port}")
                until(lambda: stranger.sees([]), "the end of the handshake")  # noqa: B023
            finally:
                stranger.end()
        assert nodes[0].sees([nodes[1]])


def test_garbage_is_refused_and_logged_once_and_the_node_goes_on(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, secret_of(tmp_path, "secret", "0123456789abcdef")) as (one, other):
        for data in GARBAGE * 3:
            with socket.create_connection(("127.0.0.1", one.bus_port)) as attacker:
                attacker.settimeout(60)
                attacker.sendall(data)
                try:
                    while attacker.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        assert is_up(one)
        until(lambda: one.sees([other]), "the cluster as it was")
        one.logged("cluster bus: link from")
        assert sum("cluster bus: link from" in line for line in one.log) == 1


@pytest.mark.long
def test_who_says_nothing_is_let_go_and_only_so_many_are_waited_for(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2) as (one, other):
        silent = [socket.create_connection(("127.0.0.1", one.bus_port)) for _ in range(200)]
        try:
            one.logged("too many connections")
            until(lambda: one.sees([other]), "the cluster as it was")
            for connection in silent:
                connection.settimeout(60)
                assert connection.recv(1) == b""
        finally:
            for connection in silent:
                connection.close()
        until(lambda: one.sees([other]), "the cluster as it was")


def linked(node: ClusterNode) -> tuple[socket.socket, LinkProtocol]:
    """A link of a process that is no member but knows the protocol."""
    connection = socket.create_connection(("127.0.0.1", node.bus_port))
    connection.settimeout(60)
    link = LinkProtocol(hello(7), os.urandom(32), lambda: 0, is_caller=True, secret=b"")
    connection.sendall(link.take_output())
    while not link.is_ready:
        link.feed(connection.recv(4096))
    connection.sendall(link.take_output())
    return connection, link


def test_a_message_that_cannot_be_read_ends_the_link_and_one_that_is_unknown_does_not(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 1) as (one,):
        connection, link = linked(one)
        connection.sendall(link._frame(MESSAGES, b"\xc8\x03\x00\x00\x00new"))  # of a later version
        connection.sendall(link._frame(MESSAGES, b"\x01\x06\x00\x00\x00\0\0\0\0\0\0"))  # PING
        assert link.feed(connection.recv(4096)), "a PONG"
        connection.sendall(link._frame(MESSAGES, b"\x01\x03\x00\x00\x00bad"))
        assert connection.recv(4096) == b""
        assert "a message of type 1 is invalid" in one.logged("cluster bus: link from")
        assert is_up(one)


def test_half_a_frame_takes_little_memory_and_a_member_that_sends_no_end_takes_no_more_than_a_message(
    tmp_path: Path,
) -> None:
    with cluster_of(tmp_path, 1) as (one,):
        before_bytes = resident_bytes(one.pid)
        links = [linked(one) for _ in range(20)]
        for connection, link in links:
            connection.sendall(link._frame(MESSAGES, bytes(900_000))[:500_000])
        until(lambda: is_up(one), "an answer")
        assert resident_bytes(one.pid) - before_bytes < 60 << 20
        for connection, _ in links:
            connection.close()


@pytest.mark.long
def test_a_node_that_hangs_makes_no_client_of_another_wait(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as (one, other, slow):
        client = one.client()

        def slowest_ms() -> float:
            worst_s = 0.0
            for _ in range(2000):
                began_s = time.monotonic()
                client("PING")
                worst_s = max(worst_s, time.monotonic() - began_s)
            return worst_s * 1000

        before_ms = slowest_ms()
        stop(slow.pid)
        until(lambda: "fail" in one.flags_of(slow), "a flag")
        after_ms = slowest_ms()
        assert after_ms < max(3 * before_ms, 20)
        assert one.flags_of(other) == "noflags"
        assert TIMEOUT_S
        client.close()


def greeted_by(context: ssl.SSLContext, called: socket.socket) -> bytes:
    """What somebody who is called says once the handshake of TLS is over."""
    with context.wrap_socket(called, server_side=True) as secured:
        return secured.recv(4096)


def test_a_node_demands_a_certificate_of_whoever_calls_and_of_whom_it_calls(tmp_path: Path) -> None:
    authority, foreign = Authority(tmp_path / "ca"), Authority(tmp_path / "foreign", "foreign")
    certificate, key = foreign.issue("stranger")
    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    with cluster_of(tmp_path, 1, *certificates(tmp_path, authority, "node")) as (one,):
        for has_certificate in (False, True):
            if has_certificate:
                careless.load_cert_chain(certificate, key)
            plain = socket.create_connection(("127.0.0.1", one.bus_port), 60)
            with plain, careless.wrap_socket(plain) as caller, pytest.raises(ssl.SSLError, match="alert"):
                caller.recv(4096)
        pretender = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pretender.load_cert_chain(certificate, key)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert one("CLUSTER", "MEET", "127.0.0.1", 7711, listener.getsockname()[1]) == b"OK"
            called, _ = listener.accept()
            called.settimeout(60)
            with called, pytest.raises(ssl.SSLError, match="alert"):
                greeted_by(pretender, called)
        assert is_up(one)
        until(lambda: one.sees([]), "the end of the handshake")
