"""Where a node listens for others, and where it says that it is."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster_nodes import ClusterNode, cluster_of
from tests.support.daemon import Daemon
from tests.support.disque_server import DisqueServer, disque_server
from tests.support.ports import free_port
from tests.support.resp import RespClient
from tests.support.waiting import until

SECRET = "0123456789abcdef"


@contextmanager
def taken_port() -> Iterator[int]:
    """A free port whose bus port somebody has."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 10_000)):
        yield port


def test_the_bus_is_ten_thousand_above_the_port_of_clients(tmp_path: Path) -> None:
    node = ClusterNode(tmp_path, f"listen.disque=127.0.0.1:{free_port()}")
    node.start()
    try:
        assert node.bus_port == node.client_port + 10_000
    finally:
        node.end()


def test_a_default_port_that_is_taken_leaves_the_node_alone_and_one_that_was_asked_for_ends_the_start(
    tmp_path: Path,
) -> None:
    with taken_port() as port:
        node = ClusterNode(tmp_path, f"listen.disque=127.0.0.1:{port}")
        node.start()
        try:
            assert node.bus == ""
            assert "Address already in use" in node.logged("cluster bus disabled: cannot listen on port")
            reply = node("CLUSTER", "MEET", "127.0.0.1", 7711)
            assert reply.startswith(b"ERR this node stands alone: cannot listen on port")
        finally:
            node.end()
        daemon = Daemon(tmp_path / "other", ["listen.disque=127.0.0.1:0", f"cluster.port={port + 10_000}"])
        ended = daemon.run()
        assert ended.returncode == 69
        assert f"cannot listen on 127.0.0.1:{port + 10_000}: Address already in use" in ended.stderr


def test_a_port_that_others_can_reach_is_opened_only_with_a_secret_tls_or_on_purpose(tmp_path: Path) -> None:
    users = "users: {a: {certificate: a, jobs: {'*': all}}}\n"
    node = Daemon(tmp_path / "alone", ["listen.disque=0.0.0.0:0"], users)
    node.start()
    try:
        assert "set cluster.secret_file or cluster.tls" in node.logged("cluster bus not opened")
    finally:
        node.kill()
    daemon = Daemon(tmp_path / "asked", ["listen.disque=0.0.0.0:0", "cluster.port=0"], users)
    ended = daemon.run()
    assert ended.returncode == 78
    assert "cluster.port: 0.0.0.0 is reachable from other machines" in ended.stderr
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    for number, settings in enumerate(([f"cluster.secret_file={secret}"], ["insecure=true"])):
        daemon = Daemon(tmp_path / f"opened{number}", ["listen.disque=0.0.0.0:0", "cluster.port=0", *settings], users)
        daemon.start()
        assert " cluster=0.0.0.0:" in daemon.log[-1]
        daemon.kill()


def test_a_reload_that_would_leave_the_bus_open_to_all_changes_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    config = "users: {a: {certificate: a, jobs: {'*': all}}}\n"
    daemon = Daemon(tmp_path / "node", ["listen.disque=0.0.0.0:0"], f"{config}cluster: {{secret_file: {secret}}}\n")
    daemon.start()
    try:
        daemon.config_path.write_text(config)
        daemon.signal(1)
        assert "other nodes are not authenticated" in daemon.logged("reload refused")
    finally:
        daemon.kill()


def test_nodes_and_clients_are_told_the_announced_address(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2) as nodes:
        port, bus_port = free_port(), free_port()
        announced = ClusterNode(
            tmp_path / "announced",
            f"listen.disque=127.0.0.1:{port}",
            f"cluster.port={bus_port}",
            f"cluster.announce=localhost:{port}:{bus_port}",
        )
        announced.start()
        try:
            assert announced.nodes()[announced.id][0] == f"localhost:{port}"
            assert announced.meet(nodes[0]) == b"OK"
            for node in nodes:
                until(lambda node=node: node.flags_of(announced) == "noflags", "the node")  # type: ignore[misc]
                assert node.nodes()[announced.id][0] == f"localhost:{port}"
                entries = [entry for entry in node("HELLO")[2:] if entry[0] == announced.id.encode()]  # type: ignore[index]
                assert entries == [[announced.id.encode(), b"localhost", b"%d" % port, b"1"]]  # type: ignore[comparison-overlap]
        finally:
            announced.end()


def test_disque_servers_are_a_cluster_by_redis_directives(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    ports = [free_port(), free_port()]
    conf = f"cluster-node-timeout 3600000\ncluster-secret-file {tmp_path}/secret\njobs-min-replicate 2\n"
    one_conf = f"port {ports[0]}\n{conf}"
    other_conf = f"port {ports[1]}\ncluster-port {ports[1] + 3}\ncluster-announce-ip 127.0.0.1\n{conf}"
    with (
        disque_server(tmp_path / "one", conf=one_conf) as one,
        disque_server(tmp_path / "other", conf=other_conf) as other,
    ):
        clients = [one.client(), other.client()]
        assert f"cluster=127.0.0.1:{ports[1] + 3}" in other.log[-1]
        assert clients[0]("CONFIG", "GET", "cluster-node-timeout") == [b"cluster-node-timeout", b"3600000"]
        assert clients[0]("CLUSTER", "MEET", "127.0.0.1", ports[1], ports[1] + 3) == b"OK"
        for client in clients:
            until(lambda client=client: client("CLUSTER", "NODES").count(b" connected") == 2, "a cluster")  # type: ignore[misc]
        assert clients[0]("CONFIG", "SET", "cluster-node-timeout", 300) == b"OK"
        other.kill()
        until(lambda: b"fail?" in clients[0]("CLUSTER", "NODES"), "a flag, not after an hour")


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ("bind 0.0.0.0\nrequirepass x\ncluster-port 17711", "set cluster-secret-file or tls-cluster"),
        ("tls-cluster yes", "tls-cluster requires tls-cert-file, tls-key-file and tls-ca-cert-file"),
        ("cluster-announce-port 7711", "require cluster-announce-ip"),
        ("cluster-announce-ip a_b!", "expected HOST, HOST:PORT or HOST:PORT:BUS_PORT"),
        ("cluster-secret-file nowhere", "No such file or directory"),
        ("cluster-port 65536", "invalid value '65536'"),
    ],
)
def test_a_mistake_about_the_cluster_in_a_disque_conf_ends_the_start(tmp_path: Path, conf: str, reason: str) -> None:
    code, said = DisqueServer(tmp_path, conf=f"port {free_port()}\n{conf}\n").fail()
    assert code == 1
    assert reason in said


def test_a_node_of_disque_that_is_met_by_mistake_is_named(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 1) as (one,), socket.create_server(("127.0.0.1", 0)) as disque:
        assert one("CLUSTER", "MEET", "127.0.0.1", 7711, disque.getsockname()[1]) == b"OK"
        connection, _ = disque.accept()
        connection.sendall(b"DbuZ" + bytes(140))
        assert "an original Disque node" in one.logged("cluster bus: link to 127.0.0.1")
        connection.close()


def test_a_client_port_of_the_ready_line_is_that_of_clients(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 1) as (one,):
        client = RespClient(one.disque)
        assert client("PING") == b"PONG"
        client.close()
