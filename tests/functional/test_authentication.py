"""Who gets in: memcached's login in text, on the real daemon. memcached 1.6 answers the same if it answers at all."""

import random
import re
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pymemcache import Client
from pymemcache.exceptions import MemcacheClientError

from tests.support import forked
from tests.support.accounts import LoggingInClient, login, quick_hash
from tests.support.daemon import ROOT, STOP_S, Daemon, running_daemon
from tests.support.process import cpu_ms, environment
from tests.support.queue_client import QueueClient
from tests.support.wire import connected

UNAUTHENTICATED = b"CLIENT_ERROR unauthenticated\r\n"
WRONG = b"CLIENT_ERROR authentication failure\r\n"
HASH = quick_hash("secret")
USERS = f"""
listen: {{admin: null}}
users:
  alice: {{password: "{HASH}", rights: {{"*": all}}}}
  bob: {{password: "{quick_hash("two words")}", rights: {{"*": [put, get]}}}}
  cert-only: {{certificate: somebody, rights: {{"*": all}}}}
"""


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return USERS


@pytest.fixture
def stranger(daemon: Daemon) -> Iterator[QueueClient]:
    """Connected, and not logged in."""
    with QueueClient(daemon.port) as client:
        yield client


def test_a_set_logs_in_and_is_not_stored(stranger, queue):
    stranger.ask(b"set %b 7 0 12\r\nalice secret\r\n" % queue.encode(), b"STORED\r\n")
    assert stranger.get(queue) is None
    stranger.put(queue, b"an ordinary item")
    assert stranger.get(queue) == b"an ordinary item"


@pytest.mark.parametrize(
    "command",
    [
        b"get q",
        b"version",
        b"quit",
        b"stats",
        b"shutdown",
        b"flush_all",
        b"delete q",
        b"",
        b"set a 0 0",
        b"SET a 0 0 3",
    ],
)
def test_before_it_nothing_else_is_carried_out(stranger, command):
    stranger.ask(command + b"\r\n", UNAUTHENTICATED)
    stranger.ask(b"version\r\n", UNAUTHENTICATED)


@pytest.mark.parametrize("line", [b"add q 0 0 28", b"cas q 0 0 28 1", b"ms q 28"])
def test_the_data_of_what_is_refused_is_not_taken_for_a_login(stranger, line):
    data = b"set x 0 0 12\r\nalice secret\r\n"
    assert len(data) == 28
    stranger.ask(line + b"\r\n" + data + b"\r\nversion\r\n", UNAUTHENTICATED * 2)


def test_the_rest_of_the_login_line_does_not_matter_nor_does_noreply(stranger):
    stranger.ask(b"set any/key flags expiry 12 noreply\r\nalice secret\r\n", b"STORED\r\n")


def test_a_password_may_have_blanks(stranger):
    stranger.ask(login("bob", "two words"), b"STORED\r\n")


@pytest.mark.parametrize(
    ("name", "password"),
    [("alice", "wrong"), ("alice", ""), ("nobody", "secret"), ("", "secret"), ("cert-only", ""), ("alice", HASH)],
)
def test_a_wrong_password_or_name_may_be_mended(stranger, name, password):
    stranger.ask(login(name, password), WRONG)
    stranger.ask(b"version\r\n", UNAUTHENTICATED)
    stranger.ask(login("alice", "secret"), b"STORED\r\n")


def test_a_login_without_a_blank_has_a_bad_format(stranger):
    stranger.ask(b"set a 0 0 11\r\nalicesecret\r\n", b"CLIENT_ERROR bad authentication token format\r\n")


def test_a_login_that_is_too_long_is_swallowed(stranger):
    stranger.ask(b"set a 0 0 5000\r\n" + b"x" * 5000 + b"\r\n", b"CLIENT_ERROR bad authentication token format\r\n")
    stranger.ask(login("alice", "secret"), b"STORED\r\n")


def test_the_third_wrong_try_is_answered_late_and_the_last(stranger, connect, queue):
    stranger.ask(login("alice", "1"), WRONG)
    stranger.ask(login("alice", "2"), WRONG)
    started = time.monotonic()
    stranger.send(login("alice", "3"))
    # Nobody else waits for it.
    other = connect()
    other.ask(login("alice", "secret"), b"STORED\r\n")
    other.put(queue, b"meanwhile")
    answered = select.select([stranger.socket], [], [], 0)[0]
    assert not answered or time.monotonic() - started >= 1
    stranger.expect_end(WRONG)
    assert time.monotonic() - started >= 1


def test_a_login_and_commands_may_come_in_one_piece_or_byte_by_byte(stranger, connect, queue):
    commands = login("alice", "secret") + b"set %b 0 0 1\r\nx\r\nget %b\r\n" % (queue.encode(), queue.encode())
    answers = b"STORED\r\nSTORED\r\nVALUE %b 0 1\r\nx\r\nEND\r\n" % queue.encode()
    stranger.ask(commands, answers)
    slow = connect()
    for at in range(len(commands)):
        slow.send(commands[at : at + 1])
    slow.expect(answers)


def test_a_client_may_end_its_input_after_its_commands(stranger, queue):
    stranger.send(login("alice", "secret") + b"set %b 0 0 1\r\nx\r\n" % queue.encode())
    stranger.end_input()
    stranger.expect_end(b"STORED\r\nSTORED\r\n")


def test_an_http_request_is_hung_up_on(stranger):
    stranger.send(b"POST /queues HTTP/1.1\r\nHost: x\r\n\r\n")
    stranger.expect_end(UNAUTHENTICATED)


def test_a_line_without_end_is_hung_up_on(stranger):
    stranger.send(b"x" * 9000)
    stranger.expect_end(b"CLIENT_ERROR line too long\r\n")


def test_nothing_that_is_no_login_gets_in_however_it_is_cut(daemon, connect):
    chance = random.Random(1)
    pieces = [
        b"set", b" ", b"a", b" 0", b" 12", b" 13", b"\r\n", b"\n", b"alice secret", b"alice", b"secret", b"get q",
        b"\0", b"add q 0 0 3", b" noreply", b"-1", b"99999999999", b"VERSION", b"shutdown\r\n", b"flush_all\r\n",
        b"\xff\xfe",
    ]  # fmt: skip
    admin = connect()
    admin.ask(login("alice", "secret"), b"STORED\r\n")
    before = {name for name in admin.stats() if name.startswith("queue_")}
    for _ in range(300):
        data = b"".join(chance.choices(pieces, k=chance.randint(1, 12)))
        with connect() as stranger:
            if re.search(rb"set +\S+ +\S+ +\S+ +12[^\n]*\nalice secret\r\n", data):
                continue
            at = chance.randint(0, len(data))
            stranger.send(data[:at])
            stranger.send(data[at:])
            stranger.end_input()
            answers = stranger.read_all().splitlines()
            assert {line.partition(b" ")[0] for line in answers} <= {b"CLIENT_ERROR"}, data
    assert {name for name in admin.stats() if name.startswith("queue_")} == before


def test_who_never_logs_in_is_disconnected_in_the_end(tmp_path):
    with running_daemon(tmp_path, config=USERS) as daemon, QueueClient(daemon.port) as client:
        client.ask(b"version\r\n", UNAUTHENTICATED)
        daemon.reload(USERS + "request_timeout: 1ms\n")
        client.expect_end()


def test_pymemcache_works_with_a_login_on_every_connection(daemon, queue):
    client = LoggingInClient(("127.0.0.1", daemon.port), user="bob", password="two words", default_noreply=False)
    assert client.set(queue, b"one")
    client.close()
    assert client.get(queue) == b"one"
    with pytest.raises(MemcacheClientError, match="not allowed"):
        client.delete(queue)
    client.close()


def test_pymemcache_without_a_login_is_told(daemon, queue):
    client = Client(("127.0.0.1", daemon.port), default_noreply=False)
    with pytest.raises(MemcacheClientError, match="unauthenticated"):
        client.get(queue)


def hash_password(given: bytes) -> forked.Ended:
    command = [sys.executable, "-m", "kestreld", "hash-password"]
    return forked.run(command, given, STOP_S, cwd=ROOT, env=environment())


def test_a_password_that_was_right_once_is_recognised_at_once(daemon, connect):
    slow_hash = hash_password(b"secret\n").stdout.strip().decode()
    daemon.config_path.write_text(USERS + f'  slow: {{password: "{slow_hash}", rights: {{"*": all}}}}\n')
    admin = connect()
    admin.ask(login("alice", "secret"), b"STORED\r\n")
    admin.do(b"reload", b"Reloaded config.\r\n")
    used_ms = []
    for _ in range(2):
        client, before_ms = connect(), cpu_ms(daemon.pid)
        client.ask(login("slow", "secret"), b"STORED\r\n")
        used_ms.append(cpu_ms(daemon.pid) - before_ms)
    assert used_ms[1] < used_ms[0] / 3


def test_logins_are_counted(connect):
    client = connect()
    client.ask(login("alice", "wrong"), WRONG)
    client.ask(login("alice", "secret"), b"STORED\r\n")
    stats = client.stats()
    assert int(stats["auth_cmds"]) >= 2
    assert 1 <= int(stats["auth_errors"]) < int(stats["auth_cmds"])


# --- Reload.


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path, config="listen: {admin: null}\n") as daemon:
        yield daemon


def test_the_first_users_end_everybody_elses_connections(changing):
    with QueueClient(changing.port) as anonymous, QueueClient(changing.port) as waiting:
        anonymous.do(b"get q", b"END\r\n")
        waiting.ask_for("q/t=600000")
        anonymous.until("q", waiters=1)
        changing.reload(USERS)
        anonymous.expect_end()
        waiting.expect_end()
    with QueueClient(changing.port) as client:
        client.do(b"get q", UNAUTHENTICATED)


def test_a_removed_user_and_one_with_another_password_have_to_leave_others_stay(changing):
    changing.reload(USERS)
    with ExitStack() as clients:
        alice, bob = (clients.enter_context(QueueClient(changing.port)) for _ in range(2))
        alice.ask(login("alice", "secret"), b"STORED\r\n")
        bob.ask(login("bob", "two words"), b"STORED\r\n")
        changing.reload(USERS.replace(HASH, quick_hash("another")))
        alice.expect_end()
        bob.do(b"get q", b"END\r\n")
        again = clients.enter_context(QueueClient(changing.port))
        again.ask(login("alice", "secret"), WRONG)
        again.ask(login("alice", "another"), b"STORED\r\n")
        changing.reload("\n".join(line for line in USERS.splitlines() if "bob" not in line))
        bob.expect_end()


def test_rights_change_on_the_connection(changing):
    changing.reload(USERS)
    with QueueClient(changing.port) as bob:
        bob.ask(login("bob", "two words"), b"STORED\r\n")
        bob.put("q", b"x")
        changing.reload(USERS.replace("[put, get]", "[get]"))
        assert bob.offer("q", b"x") == b"CLIENT_ERROR not allowed: put on 'q'"
        assert bob.get("q") == b"x"


def test_a_reload_cannot_open_what_is_exposed_until_the_restart(tmp_path):
    with running_daemon(tmp_path, config=USERS, listen="0.0.0.0:0") as daemon:
        daemon.settings = []
        assert "reload refused" in daemon.reload("listen: {admin: null}\n")
        with connected(daemon.port) as client:
            client.ask(b"version\r\n", UNAUTHENTICATED)


class FileOnlyDaemon(Daemon):
    """A kestreld whose file alone says where it listens."""

    def command(self) -> list[str]:
        command = super().command()
        del command[command.index("--set") : command.index("--set") + 2]
        return command


def test_a_reload_cannot_take_the_users_away_before_the_address_is_another(tmp_path):
    daemon = FileOnlyDaemon(tmp_path, config=USERS.replace("{admin: null}", "{admin: null, memcache: 0.0.0.0:0}"))
    daemon.start()
    try:
        said = daemon.reload("listen: {admin: null, memcache: 127.0.0.1:0}\n")
        assert "reload refused" in said
        assert "before the restart, 0.0.0.0:0 is reachable from other machines" in said
        with connected(daemon.port) as client:
            client.ask(b"version\r\n", UNAUTHENTICATED)
    finally:
        daemon.kill()


# --- Where it listens.


def test_without_settings_it_is_reached_from_this_machine_only(tmp_path):
    with running_daemon(tmp_path) as daemon:
        assert daemon.address.startswith("127.0.0.1:")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"])
def test_an_address_that_others_can_reach_is_refused_while_nobody_has_to_log_in(tmp_path, address):
    daemon = Daemon(tmp_path, config=f"listen:\n  admin: null\n  memcache: '{address}'\n")
    daemon.listen = "127.0.0.1:0"
    command = [sys.executable, "-m", "kestreld", "--config", str(daemon.config_path)]
    done = forked.run(command, None, STOP_S, cwd=ROOT, env=environment(), text=True)
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert f"{daemon.config_path}:3:13: listen.memcache: {address} is reachable from other machines" in line
    assert "--insecure" in line
    check = forked.run([*command, "--check-config"], None, STOP_S, cwd=ROOT, env=environment())
    assert check.returncode == 78


@pytest.mark.parametrize("way_out", ["--insecure", "insecure: true", "users"])
def test_it_is_allowed_with_users_or_if_it_is_meant(tmp_path, way_out):
    config = {"--insecure": "", "insecure: true": "insecure: true", "users": USERS}[way_out]
    daemon = Daemon(tmp_path, config=config, listen="0.0.0.0:0")
    done = daemon.run("--check-config", *(["--insecure"] if way_out == "--insecure" else []))
    assert done.returncode == 0, done.stderr


def test_a_unix_socket_needs_no_login_and_opens_for_its_owner_only(short_path):
    path = short_path / "run" / "k.sock"
    config = USERS
    daemon = Daemon(short_path, config=config, listen=f"[127.0.0.1:0, 'unix:{path}']")
    with ExitStack() as stack:
        daemon.start()
        stack.callback(daemon.kill)
        assert path.stat().st_mode & 0o777 == 0o600
        trusted = stack.enter_context(QueueClient(f"unix:{path}"))
        trusted.put("q", b"x")
        trusted.do(b"flush_all", b"OK\r\n")
        tcp = daemon.address.split(",")[0]
        stranger = stack.enter_context(QueueClient(tcp))
        stranger.do(b"version", UNAUTHENTICATED)
        daemon.config_path.write_text(config.replace("alice", "carol"))
        trusted.do(b"reload", b"Reloaded config.\r\n")
        trusted.do(b"get q", b"END\r\n")


def test_a_socket_nobody_listens_on_is_replaced_and_removed_at_the_end(short_path):
    path = short_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with running_daemon(short_path, config="listen: {admin: null}\n", listen=f"unix:{path}") as daemon:
        with QueueClient(f"unix:{path}") as client:
            client.do(b"get q", b"END\r\n")
        other = Daemon(short_path / "other", listen=f"unix:{path}").run()
        assert other.returncode == 69
        daemon.stop()
    assert not path.exists()


def test_a_file_in_the_place_of_the_socket_is_left_alone(short_path):
    path = short_path / "precious"
    path.write_text("data")
    assert Daemon(short_path, listen=f"unix:{path}").run().returncode == 69
    assert path.read_text() == "data"


# --- Passwords.


def test_hash_password_reads_standard_input_and_prints_what_the_configuration_takes(tmp_path):
    run = [hash_password(b"hunter2\n") for _ in range(2)]
    assert [done.returncode for done in run] == [0, 0]
    assert run[0].stdout != run[1].stdout  # salted
    assert b"hunter2" not in run[0].stdout + run[0].stderr
    (tmp_path / "hash").write_bytes(run[0].stdout)
    config = f"users:\n  a: {{password_file: {tmp_path}/hash, rights: {{'*': all}}}}\n"
    with running_daemon(tmp_path, config=config) as daemon, QueueClient(daemon.port) as client:
        client.ask(login("a", "hunter2"), b"STORED\r\n")


@pytest.mark.parametrize("given", [b"", b"\n", b"x" * 600 + b"\n"])
def test_hash_password_refuses_what_is_no_password(given):
    done = hash_password(given)
    assert done.returncode == 2
    assert done.stdout == b""


def test_hashes_are_in_no_answer_and_no_log(tmp_path):
    with running_daemon(tmp_path, config=USERS) as daemon:
        with QueueClient(daemon.port) as client:
            client.ask(login("alice", "secret"), b"STORED\r\n")
            client.put("q", b"x")
            client.send(b"dump_config\r\nstats\r\ndump_stats\r\nreload\r\nquit\r\n")
            answers = client.read_all()
        command_line = Path(f"/proc/{daemon.pid}/cmdline").read_text()
        daemon.stop()
        said = "\n".join([answers.decode(), command_line, *daemon.log])
    for secret in ("scrypt", HASH.split(":")[-1], "secret"):
        assert secret not in said


def test_a_plain_password_in_the_configuration_is_refused_and_not_repeated(tmp_path):
    daemon = Daemon(tmp_path, config="users:\n  a:\n    password: hunter2\n    rights: {'*': all}\n")
    done = daemon.run()
    assert done.returncode == 78
    assert f"{daemon.config_path}:3:15: users.a.password: expected a line printed by" in done.stderr
    assert "hunter2" not in done.stderr
