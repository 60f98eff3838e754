"""kestrelctl on servers where one has to log in: users and passwords, TLS and certificates, Unix sockets."""

import json
import os
import pty
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelctl.remote import access
from kestrelctl.remote.client import KestrelClient
from kestrelctl.shell.exit_codes import Failure
from tests.support.accounts import quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
USERS = f"""
listen: {{admin: null}}
users:
  alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}
  bob: {{password: "{quick_hash("bob")}", rights: {{"b*": [put]}}}}
  worker: {{certificate: worker.example.org, rights: {{"*": [put, get]}}}}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("guarded"), config=USERS) as daemon:
        yield daemon


@pytest.fixture
def ctl(guarded: Daemon, tmp_path: Path) -> Kestrelctl:
    return Kestrelctl(guarded.address, tmp_path)


def as_user(ctl: Kestrelctl, user: str, password: str) -> Kestrelctl:
    ctl.environment |= {"KESTRELCTL_USER": user, "KESTREL_PASSWORD": password}
    return ctl


def test_without_a_user_it_is_exit_82_and_says_what_to_do(ctl: Kestrelctl, queue: str) -> None:
    run = ctl("get", queue)
    assert run.code == 82
    assert "--user" in run.err


def test_the_password_comes_from_a_file_or_the_environment(ctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("all of it\nsecond line\n")
    assert ctl("--user", "alice", "--password-file", str(secret), "put", queue, "x").code == 0
    as_user(ctl, "alice", "all of it")
    assert ctl("get", queue).out == b"x"


def test_the_options_may_stand_behind_the_verb(ctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("all of it")
    assert ctl("put", queue, "x", "--user", "alice", "--password-file", str(secret)).code == 0


def test_a_wrong_password_is_exit_82_and_a_missing_right_83(ctl: Kestrelctl, queue: str) -> None:
    run = as_user(ctl, "bob", "wrong")("put", "b1", "x")
    assert (run.code, "refused bob: authentication failure" in run.err) == (82, True)
    run = as_user(ctl, "bob", "bob")("put", queue, "x")
    assert (run.code, f"not allowed: put on '{queue}'" in run.err) == (83, True)
    assert ctl("put", "b1", "x").code == 0


def test_without_a_terminal_nobody_is_asked(ctl: Kestrelctl) -> None:
    run = ctl("--user", "alice", "get", "q")
    assert (run.code, run.err.count("\n")) == (82, 1)
    assert "$KESTREL_PASSWORD" in run.err


def test_a_missing_password_file_is_exit_66(ctl: Kestrelctl) -> None:
    assert ctl("--user", "alice", "--password-file", "/nowhere", "get", "q").code == 66


def test_stats_top_and_bench_log_in_too(ctl: Kestrelctl, queue: str) -> None:
    as_user(ctl, "alice", "all of it")
    assert ctl("put", queue, "x").code == 0
    assert queue.encode() in ctl("stats").out
    look = json.loads(ctl("top", "--json", "--once").out.splitlines()[-1])
    assert queue in json.dumps(look)
    assert ctl("bench", "flood", "-n", "200", "-q", f"{queue}-bench").code == 0


def test_where_nobody_has_to_log_in_the_password_is_not_sent(
    kestrelctl: Kestrelctl, daemon: Daemon, queue: str, tmp_path: Path
) -> None:
    ctl = as_user(Kestrelctl(daemon.address, tmp_path), "alice", "all of it")
    assert ctl("put", queue, "x").code == 0
    assert b"login" not in kestrelctl("stats").out


def test_a_unix_socket_needs_no_user(short_path: Path) -> None:
    with running_daemon(short_path, config=USERS, listen=f"unix:{short_path}/k.sock") as daemon:
        ctl = Kestrelctl(daemon.address, short_path)
        assert ctl("put", "q", "x").code == 0
        assert as_user(ctl, "alice", "all of it")("get", "q").out == b"x"
        assert ctl("dump-config").code == 0


@needs_openssl
def test_tls_and_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue_server()
    worker, worker_key = authority.issue("worker", "DNS:worker.example.org")
    config = USERS + (
        f"tls: {{certificate: {certificate}, key: {key}, client_ca: {authority.certificate}, "
        "client_certificate: optional}\n"
    )
    with running_daemon(tmp_path / "daemon", config=config, listen="tls:127.0.0.1:0") as daemon:
        ctl = Kestrelctl(daemon.address.removeprefix("tls:"), tmp_path)
        ca = ["--ca", str(authority.certificate)]
        shows = [*ca, "--cert", str(worker), "--key", str(worker_key)]
        assert ctl(*shows, "put", "q", "x" * 100_000).code == 0
        assert ctl("get", "q", *shows).out == b"x" * 100_000
        assert ctl(*shows, "delete", "q", "--yes").code == 83

        untrusted = ctl("--tls", "get", "q")
        assert (untrusted.code, "--ca FILE" in untrusted.err) == (69, True)
        assert ctl(*ca, "get", "q").code == 82
        as_user(ctl, "alice", "all of it")
        assert ctl(*ca, "put", "q", "x").code == 0
        ctl.environment |= {"KESTRELCTL_CA": str(authority.certificate)}
        assert ctl("-s", daemon.address, "top", "--once").code == 0
        assert ctl("bench", "flood", "-n", "500").code == 0
        assert ctl("get", "q").out == b"x"


@needs_openssl
def test_a_server_that_insists_on_a_certificate_is_exit_82(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue_server()
    config = f"tls: {{certificate: {certificate}, key: {key}, client_ca: {authority.certificate}}}\n"
    with running_daemon(tmp_path / "daemon", config=config, listen="tls:127.0.0.1:0") as daemon:
        run = Kestrelctl(daemon.address, tmp_path)("--ca", str(authority.certificate), "get", "q")
        assert run.code == 82
        assert "certificate" in run.err


def test_a_plain_server_has_no_tls(kestrelctl: Kestrelctl) -> None:
    run = kestrelctl("--tls", "get", "q", "--timeout", "2s")
    assert (run.code, run.err.count("\n")) == (69, 1)


def test_a_login_is_a_value_of_its_own(guarded: Daemon, tmp_path: Path) -> None:
    """Two at a time in one process, and a password that is replaced is read by the next login."""
    (tmp_path / "alice").write_text("all of it")
    (tmp_path / "bob").write_text("wrong")
    alice, bob = (access.login_of(user, str(tmp_path / user)) for user in ("alice", "bob"))
    KestrelClient(guarded.address, 5000, alice).put(b"b1", b"x")
    with pytest.raises(Failure, match="refused bob"):
        KestrelClient(guarded.address, 5000, bob).put(b"b1", b"x")
    (tmp_path / "bob").write_text("bob")
    KestrelClient(guarded.address, 5000, access.login_of("bob", str(tmp_path / "bob"))).put(b"b1", b"x")
    assert KestrelClient(guarded.address, 5000, alice).fetch(b"b1") == b"x"


def test_a_password_that_is_typed_is_asked_for_once_by_each_login(
    guarded: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        return "all of it" if "alice" in prompt else "bob"

    terminal, ours = pty.openpty()
    with open(ours) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("getpass.getpass", typed)
        monkeypatch.delenv(access.PASSWORD_VARIABLE, raising=False)
        alice, bob = access.login_of("alice"), access.login_of("bob")
        for login in (alice, bob, alice, bob):
            KestrelClient(guarded.address, 5000, login).put(b"b1", b"x")
    os.close(terminal)
    assert asked == ["Password for alice: ", "Password for bob: "]


@needs_openssl
def test_each_login_trusts_its_own_authority(tmp_path: Path) -> None:
    trusted = [
        access.tls_context(access.login_of(ca=str(Authority(tmp_path, name).certificate))).get_ca_certs()
        for name in ("a", "b")
    ]
    assert trusted[0] != trusted[1]
