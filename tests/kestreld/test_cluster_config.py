"""The settings of a cluster, right and wrong."""

from pathlib import Path

import pytest

from kestreld.config.cluster import Announce
from kestreld.config.config import BUS_PORT_OF_CLIENTS, Address, Config
from kestreld.config.config_dump import dump_config
from kestreld.config.config_file import load
from kestreld.config.settings import needs_restart
from kestreld.errors import ConfigError
from kestreld.files import FileLayer
from kestreld.server.disque.parts import announced

SECRET = "0123456789abcdef"


def read(text: str) -> Config:
    return load(text, "k.yaml", files=FileLayer())


def problems(text: str) -> list[str]:
    try:
        read(text)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_every_setting_of_a_cluster_reaches_its_field(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"\n {SECRET}\n")
    config = read(
        f"cluster: {{port: 17000, announce: 'n1:1:2', secret_file: {tmp_path}/secret, node_timeout: 250ms}}\n"
        "jobs: {min_replicate: 2}"
    )
    assert (config.cluster_port, config.cluster_announce) == (17_000, Announce("n1", 1, 2))
    assert (config.cluster_secret, config.cluster_node_timeout_ms) == (SECRET.encode(), 250)
    assert config.jobs_min_replicate == 2
    assert SECRET not in repr(config)
    assert SECRET not in dump_config(config)


@pytest.mark.parametrize(
    ("text", "port"), [("", BUS_PORT_OF_CLIENTS), ("auto", BUS_PORT_OF_CLIENTS), ("null", None), ("0", 0), ("5", 5)]
)
def test_the_port_of_the_bus_may_be_any_one_none_or_that_of_clients_and_ten_thousand(
    text: str, port: int | None
) -> None:
    config = read(f"cluster: {{port: {text}}}" if text else "")
    assert config.cluster_port == port
    assert read(dump_config(config)) == config


@pytest.mark.parametrize(
    ("text", "announce"),
    [
        ("10.0.0.1", Announce("10.0.0.1")),
        ("n1.example:7711", Announce("n1.example", 7711)),
        ("n1:7711:1", Announce("n1", 7711, 1)),
        ("[fe80::1]", Announce("fe80::1")),
        ("[::1]:1:65535", Announce("::1", 1, 65_535)),
    ],
)
def test_an_announced_address_is_written_as_it_is_read(text: str, announce: Announce) -> None:
    assert Announce.parse(text) == announce
    assert str(announce) == text
    config = read(f"cluster: {{announce: '{text}'}}")
    assert config.cluster_announce == announce
    assert read(dump_config(config)) == config


@pytest.mark.parametrize("text", ["", "a b", "n1:", "n1:0", "n1:1:65536", "n1:1:2:3", "::1", "[n1]:1", "[]"])
def test_what_is_no_address_is_not_announced(text: str) -> None:
    with pytest.raises(ValueError):
        Announce.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cluster: {port: 65536}", "cluster.port: 65536 is too large: the maximum is 65535"),
        ("cluster: {node_timeout: 99ms}", "cluster.node_timeout: 99ms is too small: the minimum is 100"),
        ("cluster: {tls: true}", "cluster.tls requires tls.certificate, tls.key and tls.client_ca"),
        ("cluster: {tls: true}\ntls: {certificate: x}", "cluster.tls requires tls.certificate"),
        ("cluster: {secret_file: /no/such/file}", "cluster.secret_file: /no/such/file: No such file or directory"),
        ("cluster: {announce: 'a b'}", "expected HOST, HOST:PORT or HOST:PORT:BUS_PORT"),
        ("cluster: {ports: 1}", "did you mean port?"),
        ("jobs: {min_replicate: 0}", "jobs.min_replicate: 0 is too small"),
        (
            "listen: {disque: 'tls:0.0.0.0:7711'}\ntls: {certificate: x, client_ca: y}\ncluster: {port: auto}",
            "cluster.port: 0.0.0.0 is reachable from other machines",
        ),
    ],
)
def test_a_mistake_is_told_with_its_reason(text: str, problem: str) -> None:
    assert any(problem in one for one in problems(text)), problems(text)


def test_a_secret_has_to_be_long_enough(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short\n")
    (told,) = problems(f"cluster: {{secret_file: {tmp_path}/secret}}")
    assert "a secret of 5 bytes: expected 16 to 4096; create one with: openssl rand -hex 32" in told
    assert "short" not in told


@pytest.mark.parametrize(
    "settings", ["insecure: true", "tls: {certificate: x, client_ca: y}\ncluster: {port: 1, tls: true}"]
)
def test_a_port_that_others_can_reach_may_be_asked_for_with_tls_or_on_purpose(settings: str) -> None:
    users = "users: {a: {certificate: c, jobs: {q: put}}}"
    cluster = "" if "cluster:" in settings else "\ncluster: {port: 1}"
    assert problems(f"listen: {{disque: '0.0.0.0:7711'}}\n{users}\n{settings}{cluster}") == []


def test_without_being_asked_for_it_is_no_mistake() -> None:
    assert problems("listen: {disque: '0.0.0.0:7711'}\nusers: {a: {certificate: c, jobs: {q: put}}}") == []


def test_a_restart_is_needed_for_places_and_tls_only() -> None:
    before = read("")
    after = read("cluster: {port: 1, announce: n1, node_timeout: 1s}\njobs: {min_replicate: 2}")
    assert needs_restart(before, after) == ["cluster.port", "cluster.announce"]


@pytest.mark.parametrize(
    ("announce", "hosts", "host", "is_fixed"),
    [
        ("null", ["127.0.0.1"], "127.0.0.1", False),
        ("null", ["127.0.0.1", "10.0.0.1"], "10.0.0.1", False),
        ("null", ["0.0.0.0"], "", False),
        ("null", ["::"], "", False),
        ("n1", ["0.0.0.0"], "n1", True),
    ],
)
def test_a_node_says_that_it_is_where_others_reach_it_or_leaves_it_to_them_to_see(
    announce: str, hosts: list[str], host: str, is_fixed: bool
) -> None:
    found = announced(read(f"cluster: {{announce: {announce}}}"), [Address(one, 17_711) for one in hosts], 7711)
    assert (found.address.host, found.is_fixed) == (host, is_fixed)
    assert (found.address.port, found.address.bus_port) == (7711, 17_711)
