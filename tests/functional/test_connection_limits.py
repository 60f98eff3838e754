"""How many connections there may be, how much a user may ask for, and how long a client may take."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.waiting import PATIENCE_S, until

TOO_MANY = b"SERVER_ERROR too many connections\r\n"
QUIET = "listen: {admin: null}\n"
USERS = f"""
users:
  alice: {{password: "{quick_hash("pw")}", rights: {{"*": all}}}}
  slow: {{password: "{quick_hash("pw")}", rights: {{"*": all}}, max_rate: 400KiB}}
  slowest: {{password: "{quick_hash("pw")}", rights: {{"*": all}}, max_rate: 1KiB}}
"""


def test_one_connection_too_many_is_told_and_hung_up_on(tmp_path):
    with running_daemon(tmp_path, config=QUIET + "max_connections: 3\n") as daemon, ExitStack() as clients:
        inside = [clients.enter_context(QueueClient(daemon.port)) for _ in range(3)]
        for client in inside:
            client.do(b"get q", b"END\r\n")
        for _ in range(20):
            with QueueClient(daemon.port) as late:
                late.expect_end(TOO_MANY)
        daemon.logged("connection limit of")
        assert sum("connection limit of" in line for line in daemon.log) == 1
        assert int(inside[0].stats()["rejected_connections"]) == 20
        inside[1].close()
        until(lambda: inside[0].stats()["curr_connections"] == "2", "the one that has gone to be seen to go")
        again = clients.enter_context(QueueClient(daemon.port))
        again.do(b"get q", b"END\r\n")


def test_who_has_not_logged_in_counts_too_and_the_unix_socket_has_room_beyond(short_path):
    config = QUIET + USERS + "max_connections: 2\n"
    listen = f"[127.0.0.1:0, 'unix:{short_path}/k.sock']"
    daemon = Daemon(short_path, config=config, listen=listen)
    with ExitStack() as stack:
        daemon.start()
        stack.callback(daemon.kill)
        tcp, unix = daemon.address.split(",")
        for _ in range(2):
            stranger = stack.enter_context(QueueClient(tcp))
            stranger.do(b"version", b"CLIENT_ERROR unauthenticated\r\n")
        late = stack.enter_context(QueueClient(tcp))
        late.expect_end(TOO_MANY)
        operator = stack.enter_context(QueueClient(unix))
        assert operator.stats()["curr_connections"] == "3"


@contextmanager
def with_descriptors(folder: Path, limit: int, admin: str = "null") -> Iterator[Daemon]:
    """A daemon that may have so many descriptors."""
    daemon = Daemon(folder, config="", admin=admin)
    few = folder / "few"
    few.write_text(f'#!/bin/sh\nulimit -n {limit}\nexec "$@"\n')
    few.chmod(0o755)
    plain = daemon.command
    daemon.command = lambda: [str(few), *plain()]  # type: ignore[method-assign]
    daemon.start()
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.kill()


@pytest.mark.long
@pytest.mark.parametrize("limit", [64, 100])
def test_clients_are_turned_away_before_journals_run_out_of_descriptors(tmp_path: Path, limit: int) -> None:
    """Six in ten of what kestreld itself does not need are for clients, however many of them come."""
    with with_descriptors(tmp_path, limit, "127.0.0.1:0") as daemon, ExitStack() as stack:
        own = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))
        clients = []
        for _ in range(limit):
            client = stack.enter_context(QueueClient(daemon.port))
            client.send(b"get q\r\n")
            if client.read_line() == b"END":
                clients.append(client)
        port = int(daemon.admin.rpartition(":")[2])
        for _ in range(limit):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        assert ask(daemon, "/healthz").status == 200
        for number, client in enumerate(clients * 3):
            client.put(f"q{number}", b"x", b"y")
        for number, client in enumerate(clients * 3):
            assert client.get(f"q{number}") == b"x"
        clients[0].do(b"reload", b"Reloaded config.\r\n")
        assert clients[0].stats()["journals_failed"] == "0"
        assert not [line for line in daemon.log if "descriptor" in line or "Too many open files" in line], daemon.log
        assert abs(len(clients) - (limit - own) * 60 // 100) <= 2


def test_more_queues_than_descriptors_are_found_at_a_start(tmp_path: Path) -> None:
    with with_descriptors(tmp_path, 64) as daemon:
        with QueueClient(daemon.port) as client:
            for number in range(100):
                client.put(f"q{number}", b"x", b"y")
                assert client.get(f"q{number}") == b"x"
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert [client.get(f"q{number}") for number in range(100)] == [b"y"] * 100
            assert client.stats()["journals_failed"] == "0"


def test_an_ip_address_has_its_share(tmp_path):
    with running_daemon(tmp_path, config=QUIET + "max_connections_per_ip: 2\n") as daemon, ExitStack() as clients:
        one, two = (clients.enter_context(QueueClient(daemon.port)) for _ in range(2))
        for client in (one, two):
            client.do(b"get q", b"END\r\n")
        late = clients.enter_context(QueueClient(daemon.port))
        late.expect_end(TOO_MANY)
        one.close()

        def has_room() -> bool:
            with QueueClient(daemon.port) as again:
                again.send(b"get q\r\nquit\r\n")
                return again.read_all() == b"END\r\n"

        until(has_room, "room for the one that comes after")
        two.do(b"get q", b"END\r\n")


def test_an_ip_address_has_its_share_of_logins_too(tmp_path):
    config = QUIET + USERS + "max_connections_per_ip: 2\n"
    with running_daemon(tmp_path, config=config) as daemon, ExitStack() as clients:
        for _ in range(5):  # nothing is counted twice, or never given back
            with QueueClient(daemon.port) as one, QueueClient(daemon.port) as two:
                for client in (one, two):
                    client.ask(login("alice", "pw"), b"STORED\r\n")
                    client.send(b"quit\r\n")
                    client.expect_end()
        stay = [clients.enter_context(QueueClient(daemon.port)) for _ in range(2)]
        for client in stay:
            client.ask(login("alice", "pw"), b"STORED\r\n")
        late = clients.enter_context(QueueClient(daemon.port))
        late.expect_end(TOO_MANY)


def test_a_user_with_a_rate_waits_and_nobody_waits_for_him(tmp_path):
    with running_daemon(tmp_path, config=QUIET + USERS) as daemon:
        with QueueClient(daemon.port) as slow, QueueClient(daemon.port) as same:
            slow.ask(login("slow", "pw"), b"STORED\r\n")
            same.ask(login("slow", "pw"), b"STORED\r\n")
            started = time.monotonic()
            for client in (slow, same):
                client.send(b"set q 0 0 250000\r\n" + b"x" * 250_000 + b"\r\n")
            for client in (slow, same):
                client.expect(b"STORED\r\n")
            assert time.monotonic() - started > 0.15  # 500 kB together, of which a second's worth was saved
        with QueueClient(daemon.port) as slow:
            slow.ask(login("slow", "pw"), b"STORED\r\n")
            slow.send(b"set q 0 0 600000\r\n" + b"x" * 600_000 + b"\r\n")
        with QueueClient(daemon.port) as slowest, QueueClient(daemon.port) as fast:
            fast.ask(login("alice", "pw"), b"STORED\r\n")
            until(lambda: fast.stats()["curr_connections"] == "2", "a client with a rate to be seen to go")
            slowest.ask(login("slowest", "pw"), b"STORED\r\n")
            slowest.send(b"set q 0 0 600000\r\n" + b"x" * 600_000 + b"\r\n")  # ten minutes of its rate
            for _ in range(10):
                fast.put("other", b"y" * 100_000)
            slowest.expect_no_answer_yet()


def test_half_a_command_has_a_time_out_however_many_send_one(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with running_daemon(tmp_path, config=QUIET) as daemon, ExitStack() as clients:
            crowd = [clients.enter_context(QueueClient(daemon.port)) for _ in range(500)]
            for number, client in enumerate(crowd):
                client.send((b"get q", b"set q 0 0 100\r\nx", b"s", b"set q 0 0 10\r\n0123456789\r")[number % 4])
            patient = clients.enter_context(QueueClient(daemon.port))
            patient.put("q", b"x")
            daemon.reload(QUIET + "request_timeout: 1ms\n")
            for client in crowd:
                client.expect_end()
            assert patient.get("q") == b"x"
            assert patient.get("q") is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_idle_client_has_a_time_out(tmp_path):
    with running_daemon(tmp_path, config=QUIET + USERS) as daemon, QueueClient(daemon.port) as client:
        client.ask(login("alice", "pw"), b"STORED\r\n")
        daemon.reload(QUIET + USERS + "timeout: 1ms\n")
        client.expect_end()


def test_the_spool_is_closed_to_others(tmp_path):
    with running_daemon(tmp_path, config=QUIET) as daemon, QueueClient(daemon.port) as client:
        client.put("q", b"x")
        modes = {path: path.stat().st_mode & 0o777 for path in [daemon.spool, *daemon.spool.rglob("*")]}
        assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
        assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_a_spool_that_others_can_write_to_is_refused(tmp_path):
    daemon = Daemon(tmp_path, config=QUIET)
    daemon.spool.mkdir()
    daemon.spool.chmod(0o777)
    done = daemon.run()
    assert (done.returncode, len(done.stderr.splitlines())) == (73, 1)
    assert f"{daemon.spool}: writable by other accounts (mode 0777): run chmod go-w" in done.stderr
    assert list(daemon.spool.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    daemon = Daemon(tmp_path, config=QUIET)
    daemon.spool.mkdir(mode=0o700)
    (daemon.spool / ".lock").symlink_to(outside)
    done = daemon.run()
    assert (done.returncode, len(done.stderr.splitlines())) == (73, 1)
    assert outside.read_text() == "precious"


def test_a_link_in_the_place_of_a_segment_is_not_followed(tmp_path):
    """Nothing is served from it, and what it leads to is as it was."""
    daemon = Daemon(tmp_path, config=QUIET)
    daemon.start()
    with QueueClient(daemon.port) as client:
        client.put("work", b"item")
    daemon.kill()
    (segment,) = daemon.spool.glob("work.journal/*.seg")
    outside = segment.rename(tmp_path / "outside")
    content = outside.read_bytes()
    segment.symlink_to(outside)
    daemon.start()
    with QueueClient(daemon.port) as client:
        daemon.logged(f"work: stopped: {segment}: cannot be read: it is a symbolic link")
        client.send(b"get work\r\n")
        client.expect_line(b"SERVER_ERROR corrupt ")
    daemon.kill()
    assert outside.read_bytes() == content


def test_at_most_64_kib_are_read_ahead_of_a_command_that_waits(tmp_path):
    """What a client sends behind a get that waits stays with it, and is carried out in the end."""
    line = b"get empty\r\n"
    with (
        running_daemon(tmp_path, config=QUIET) as daemon,
        QueueClient(daemon.port) as one,
        QueueClient(daemon.port) as two,
    ):
        one.send(b"get work/t=600000\r\n")
        two.until("work", waiters=1)

        def read_bytes() -> int:
            """Of what the first client has sent; a look at it is `stats` and a line end."""
            nonlocal looks
            looks += 1
            return int(two.stats()["bytes_read"]) - before - 7 * looks

        looks, before = 0, int(two.stats()["bytes_read"])
        sending = threading.Thread(target=one.send, args=(line * 40_000,))
        sending.start()
        seen = [0] * 50
        while not seen[-1] or seen[-1] != seen[-50]:  # it reads on until it has enough
            seen.append(read_bytes())
        assert 65536 <= seen[-1] <= 65536 + 16384
        two.put("work", b"item")
        assert one.read_line().startswith(b"VALUE work")
        assert one.read(len(b"item\r\nEND\r\n")) == b"item\r\nEND\r\n"
        assert one.read(5 * 40_000) == b"END\r\n" * 40_000
        sending.join()


def test_nothing_a_client_names_lies_outside_the_spool(tmp_path):
    before = {path for path in tmp_path.rglob("*") if "spool" not in path.parts}
    with running_daemon(tmp_path / "in", config=QUIET) as daemon, QueueClient(daemon.port) as client:
        for name in (b"..", b"../x", b".lock", b"a/../../b", b"%2e%2e", b"%2F", b"\xff", b"..+x", b"x+..", b"~", b"\\"):
            for line in (b"set %b 0 0 1\r\nx\r\n", b"get %b\r\n", b"delete %b\r\n", b"flush %b\r\n"):
                client.send(line % name)
                while not client.read_line().startswith(
                    (b"STORED", b"END", b"DELETED", b"NOT_FOUND", b"CLIENT_ERROR", b"ERROR")
                ):
                    pass
        client.expect_nothing_more()
    inside = tmp_path / "in"
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(inside)} <= before | {inside}
    assert {path.name for path in inside.iterdir()} == {"kestreld.yaml", "spool"}
