"""What a session may do and must not: passwords, pauses, kills, monitors, and input that is no command."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.resp import RespClient, request, resp_client

NO_AUTH = b"NOAUTH Authentication required."


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: here\r\n"])
def test_browsers_are_hung_up_on(client: RespClient, line: bytes) -> None:
    client.send_bytes(line + b"Content-Length: 20\r\n\r\nADDJOB smuggled x 0\r\n")
    replies = client.rest()
    assert replies
    assert all(reply.startswith(b"ERR unknown command") for reply in replies)
    assert not any(b"ADDJOB" in reply for reply in replies)


def test_nothing_behind_malformed_input_is_executed(client: RespClient, other: RespClient) -> None:
    client.send_bytes(b"*1\r\n$4\r\nPING\r\n*2\r\n:1\r\n" + request("ADDJOB", "q", "x", 0))
    assert client.reply() == b"PONG"
    assert client.reply() == b"ERR Protocol error: expected '$', got ':'"
    client.expect_end()
    assert other("QLEN", "q") == 0


def test_an_unknown_command_is_named_as_it_was_sent(client: RespClient) -> None:
    name = b"x" * 50_000
    assert client(name) == b"ERR unknown command '%b'" % name
    assert client("POST" * 100_000) == b"ERR unknown command '%b'" % (b"POST" * 100_000)[:65536]


def test_error_texts_never_break_a_line(client: RespClient) -> None:
    assert client(b"a\r\n+OK") == b"ERR unknown command 'a  +OK'"
    assert client("DEBUG", b"x\r\n$5") == b"ERR Unknown DEBUG subcommand or wrong number of arguments for 'x  $5'"
    assert client("CONFIG", "SET", "maxmemory", b"\r\n:1").startswith(b"ERR Invalid argument")
    assert client("PING") == b"PONG"


def test_the_log_is_not_turned_off_while_it_is_loaded(tmp_path: Path) -> None:
    jobs = 5_000
    with (
        running_daemon(tmp_path, "listen.disque=127.0.0.1:0", "jobs.journal=true") as daemon,
        resp_client(daemon.disque) as client,
        resp_client(daemon.disque) as other,
    ):
        client.send_bytes(request("ADDJOB", "q", "x", 0) * jobs)
        for _ in range(jobs):
            assert client.reply().startswith(b"D-")
        for _ in range(50):
            client.send("DEBUG", "LOADAOF")
            reply = other("CONFIG", "SET", "appendonly", "no")
            assert client.reply() == b"OK"
            if reply.startswith(b"LOADING"):
                break
            assert other("CONFIG", "SET", "appendonly", "yes") == b"OK"  # it was loaded already
        assert reply.startswith(b"LOADING")
        assert other("CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert b"aof_enabled:1" in other("INFO", "persistence")


def test_a_password_is_asked_for_once_it_is_set(client: RespClient, other: RespClient) -> None:
    assert client("AUTH", "x") == b"ERR Client sent AUTH, but no password is set"
    assert client("AUTH", "user", "x") == b"ERR wrong number of arguments for 'auth' command"
    assert client("CONFIG", "SET", "requirepass", "secret") == b"OK"
    try:
        assert client("PING") == other("ADDJOB", "q", "x", 0) == NO_AUTH
        assert other("FOO") == b"ERR unknown command 'FOO'"
        assert client("AUTH", "wrong") == b"ERR invalid password"
        assert client("AUTH", "secret") == b"OK"
        assert client("PING") == b"PONG"
        assert client("AUTH", "wrong") == b"ERR invalid password"
        assert client("PING") == NO_AUTH
    finally:
        assert client("AUTH", "secret") == b"OK"
        assert client("CONFIG", "SET", "requirepass", "") == b"OK"
    assert other("PING") == b"PONG"


def test_before_the_password_little_is_read_and_behind_it_as_much_as_ever(server: Daemon, client: RespClient) -> None:
    assert client("CONFIG", "SET", "requirepass", "secret") == b"OK"
    try:
        with resp_client(server.disque) as stranger:
            assert stranger(*["ACKJOB"] * 11) == b"ERR Protocol error: unauthenticated multibulk length"
            stranger.expect_end()
        with resp_client(server.disque) as late:
            late.send_bytes(request("AUTH", "secret") + request("ADDJOB", "q", "x" * 100_000, 0) + request("PING"))
            assert late.reply() == b"OK"
            assert late.reply().startswith(b"D-")
            assert late.reply() == b"PONG"
    finally:
        assert client("AUTH", "secret") == b"OK"
        assert client("CONFIG", "SET", "requirepass", "") == b"OK"


def test_a_client_is_killed_by_its_number_or_address(client: RespClient, other: RespClient) -> None:
    assert other("CLIENT", "SETNAME", "victim") == b"OK"
    line = next(line for line in client("CLIENT", "LIST").splitlines() if b"name=victim" in line)
    fields = dict(word.split(b"=", 1) for word in line.split())
    assert client("CLIENT", "KILL", "ID", fields[b"id"]) == 1
    other.expect_end()
    assert client("CLIENT", "KILL", fields[b"addr"]) == b"ERR No such client"
    assert client("CLIENT", "KILL", "TYPE", "nonsense") == b"ERR Unknown client type 'nonsense'"


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ((), b"ERR syntax error"),
        (("ID", "x"), b"ERR value is not an integer or out of range"),
        (("TYPE", "slave", "ID", "x"), b"ERR Unknown client type 'slave'"),
        (("ID", "x", "TYPE", "slave"), b"ERR value is not an integer or out of range"),
        (("SKIPME", "maybe"), b"ERR syntax error"),
        (("TYPE", "NORMAL", "ID"), b"ERR syntax error"),
        (("TYPE", "normal", "ID", 999_999_999, "skipme", "NO"), 0),
    ],
)
def test_the_first_mistake_in_what_is_to_be_killed_is_named(
    client: RespClient, words: tuple[str | int, ...], reply: bytes | int
) -> None:
    assert client("CLIENT", "KILL", *words) == reply


def test_a_blocked_client_can_be_killed(client: RespClient, other: RespClient) -> None:
    assert other("CLIENT", "SETNAME", "waiting") == b"OK"
    other.send("GETJOB", "FROM", "q")
    while b"flags=b" not in (listed := client("CLIENT", "LIST")):
        pass
    line = next(line for line in listed.splitlines() if b"name=waiting" in line)
    assert client("CLIENT", "KILL", "ID", line.split(b" ", 1)[0].removeprefix(b"id=")) == 1
    other.expect_end()
    assert client.fields("QSTAT", "q")["blocked"] == 0


def test_a_pause_holds_commands_back_until_it_is_over(client: RespClient, other: RespClient) -> None:
    started_s = time.monotonic()
    assert client("CLIENT", "PAUSE", 300) == b"OK"
    other.send("ADDJOB", "q", "x", 0)
    other.send("QLEN", "q")
    assert other.reply().startswith(b"D-")
    assert other.reply() == 1
    assert time.monotonic() - started_s > 0.25


def test_of_two_pauses_the_one_that_ends_later_counts(client: RespClient, other: RespClient) -> None:
    started_s = time.monotonic()
    for span_ms in (1, 300, 1):
        assert client("CLIENT", "PAUSE", span_ms) == b"OK"
    assert other("PING") == b"PONG"
    assert time.monotonic() - started_s > 0.25


def test_a_pause_has_a_span(client: RespClient) -> None:
    assert client("CLIENT", "PAUSE", -1) == b"ERR timeout is negative"
    assert client("CLIENT", "PAUSE", "x") == b"ERR timeout is not an integer or out of range"


def test_a_sleep_delays_its_client_only(server: Daemon, client: RespClient, other: RespClient) -> None:
    with resp_client(server.disque) as sleeping:
        sleeping.send("DEBUG", "SLEEP", "3600")
        assert other("PING") == b"PONG"
    started_s = time.monotonic()
    client.send("DEBUG", "SLEEP", "0.3")
    client.send("PING")
    assert (client.reply(), client.reply()) == (b"OK", b"PONG")
    assert time.monotonic() - started_s >= 0.29


def test_subcommands_that_would_end_the_server_are_unknown(client: RespClient) -> None:
    for word in ("SEGFAULT", "ASSERT", "OOM", "RESTART", "CRASH-AND-RECOVER", "STRUCTSIZE"):
        wanted = f"ERR Unknown DEBUG subcommand or wrong number of arguments for '{word}'"
        assert client("DEBUG", word) == wanted.encode()


def test_who_watches_commands_sees_no_secrets(client: RespClient, other: RespClient) -> None:
    assert other("MONITOR") == b"OK"
    client("AUTH", "secret")
    client("CONFIG", "GET", "requirepass")
    client("ADDJOB", "q", "body", 0)
    assert b'"ADDJOB" "q" "body" "0"' in other.reply()


def test_who_watches_sees_what_administrators_do(client: RespClient, other: RespClient, server: Daemon) -> None:
    assert other("MONITOR") == b"OK"
    client("CLUSTER", "MYID")
    client("QUIT")
    with closing(RespClient(server.disque)) as third:
        third("DEBUG", "FLUSHALL")
    assert other.reply().endswith(b'"CLUSTER" "MYID"')
    assert other.reply().endswith(b'"DEBUG" "FLUSHALL"')


def test_no_secret_is_in_any_log(tmp_path: Path) -> None:
    """Whoever looks at MONITOR, SLOWLOG, LATENCY, CLIENT LIST, the figures or the server's log."""
    secrets = ("old-secret", "new-secret", "wrong-secret", "users-secret")
    config = f"users: {{ann: {{password: '{quick_hash('users-secret')}', rights: {{'*': all}}}}}}\n"
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0", config=config) as daemon:
        with resp_client(daemon.disque) as watcher, resp_client(daemon.disque) as client:
            for one in (watcher, client):
                assert one("AUTH", "ann", "users-secret") == b"OK"
            for name in ("slowlog-log-slower-than", "latency-monitor-threshold"):
                assert client("CONFIG", "SET", name, 0 if name.startswith("slow") else 1) == b"OK"
            assert watcher("MONITOR") == b"OK"
            assert client("cOnFiG", "sEt", "requirepass", "old-secret") == b"OK"
            assert client("CONFIG", "SET", "requirepass", "x" * 600 + "new-secret")[:4] == b"ERR "
            assert client("CONFIG", "SET", "requirepass", "new-secret") == b"OK"
            assert client("CONFIG", "REWRITE") == b"OK"
            with resp_client(daemon.disque) as stranger:
                assert stranger("AUTH", "ann", "wrong-secret") == b"ERR invalid password"
                stranger("AUTH", "new-secret")
                stranger("AUTH", "ann", "wrong-secret", "old-secret")
                stranger("HELLO", 3, "AUTH", "ann", "users-secret")
            client("ADDJOB", "q", "the-end", 0)
            seen = [client("SLOWLOG", "GET", 1000), client("LATENCY", "LATEST"), client("CLIENT", "LIST")]
            seen += [client("INFO", "all"), client("LATENCY", "DOCTOR")]
            while b"the-end" not in seen[-1]:
                seen.append(watcher.reply())
        (saved,) = daemon.spool.glob(".jobs.conf")
        assert saved.stat().st_mode & 0o077 == 0
        saved.write_bytes(saved.read_bytes() + b"requirepass wrong-secret old-secret\nreqirepass wrong-secret\n")
        daemon.restart()
        daemon.logged(".jobs.conf:")
        daemon.stop()
        shown = repr(seen) + "\n".join(daemon.log)
    assert "'ADDJOB'" in shown
    assert [secret for secret in secrets if secret in shown] == []


def test_who_watches_and_does_not_read_is_let_go(server: Daemon, client: RespClient) -> None:
    with resp_client(server.disque) as monitor:
        assert monitor("MONITOR") == b"OK"
        body = "x" * 60_000
        for _ in range(300):
            client.send("ADDJOB", "q", body, 0)
            assert client.reply().startswith(b"D-")
        listed = client("CLIENT", "LIST")
        assert b"flags=O" not in listed
    assert client("PING") == b"PONG"


def test_replies_can_be_switched_off(client: RespClient) -> None:
    for words in (("CLIENT", "REPLY", "OFF"), ("PING",), ("GETJOB", "TIMEOUT", 1, "FROM", "q"), ("FOO",)):
        client.send(*words)
    client.send("CLIENT", "REPLY", "ON")
    assert client.reply() == b"OK"


@pytest.mark.parametrize("skip", ["OFF", "SKIP"])
@pytest.mark.parametrize("words", [("GETJOB", "COUNT", 999, "FROM", "q"), ("QPEEK", "q", 999), ("QDEL", "q")])
def test_long_replies_are_switched_off_as_short_ones(
    client: RespClient, skip: str, words: tuple[str | int, ...]
) -> None:
    client.send_bytes(request("ADDJOB", "q", "x", 0, "DELAY", 9) + request("ADDJOB", "q", "x", 0) * 300)
    for _ in range(301):
        client.reply()
    for sent in (("CLIENT", "REPLY", skip), words, ("CLIENT", "REPLY", "ON"), ("PING",)):
        client.send(*sent)
    assert [client.reply(), client.reply()] == [b"OK", b"PONG"]


def test_slow_commands_are_logged_without_secrets(client: RespClient) -> None:
    client("SLOWLOG", "RESET")
    assert client("CONFIG", "SET", "slowlog-log-slower-than", 0) == b"OK"
    try:
        client("ADDJOB", "q", "x" * 200, 0)
        client("ACKJOB", *["D-" + "x" * 8 + "-" + "y" * 24 + "-05a1"] * 40)
        newest, before = client("SLOWLOG", "GET", 2)
        assert newest[3][-1] == b"... (10 more arguments)"
        assert before[3][2] == b"x" * 128 + b"... (72 more bytes)"
        assert client("SLOWLOG", "LEN") >= 2
        assert len(client("SLOWLOG", "GET", -1)) >= 3
    finally:
        assert client("CONFIG", "SET", "slowlog-log-slower-than", 10000) == b"OK"


def test_what_takes_long_is_drawn(client: RespClient) -> None:
    assert client("LATENCY", "GRAPH", "command") == b"ERR No samples available for event 'command'"
    assert client("CONFIG", "SET", "latency-monitor-threshold", 1) == b"OK"
    try:
        while not client("LATENCY", "LATEST"):
            client("ACKJOB", *["D-" + "x" * 8 + "-" + "y" * 24 + "-05a1"] * 20_000)
        (event, _, spent_ms, longest_ms), *_ = client("LATENCY", "LATEST")
        assert event == b"fast-command"
        graph = client("LATENCY", "GRAPH", event)
        assert graph.startswith(b"fast-command - high %d ms, low " % spent_ms)
        assert b"(all time high %d ms)\n" % longest_ms in graph
    finally:
        assert client("CONFIG", "SET", "latency-monitor-threshold", 0) == b"OK"
        client("LATENCY", "RESET")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("hz", "0", b"1"),
        ("HZ", "501", b"500"),
        ("hz", "+7", b"7"),
        ("hz", "10", b"10"),
        ("cluster-node-timeout", "0", b"0"),
        ("cluster-node-timeout", "15000", b"15000"),
        ("client-output-buffer-limit", "slave 0 0 0", None),
        ("client-output-buffer-limit", "normal 0 0 0", b"normal 0 0 0"),
        ("timeout", " 1", None),
        ("timeout", "-1", None),
    ],
)
def test_numbers_are_set_as_they_are_written_in_commands(
    client: RespClient, name: str, value: str, shown: bytes | None
) -> None:
    refused = f"ERR Invalid argument '{value}' for CONFIG SET '{name}'".encode()
    assert client("CONFIG", "SET", name, value) == (refused if shown is None else b"OK")
    if shown is not None:
        assert client("CONFIG", "GET", name.lower()) == [name.lower().encode(), shown]


@pytest.mark.parametrize(
    ("name", "arity", "flags"),
    [
        ("time", 1, [b"readonly", b"fast"]),
        ("qscan", -1, [b"readonly"]),
        ("debug", -2, [b"admin"]),
        ("auth", -2, [b"readonly", b"loading", b"fast"]),
        ("COMMAND", 0, [b"readonly", b"loading"]),
        ("loadjob", 2, [b"write"]),
    ],
)
def test_the_table_of_commands_has_their_flags(client: RespClient, name: str, arity: int, flags: list[bytes]) -> None:
    assert client("COMMAND", "INFO", name) == [[name.lower().encode(), arity, flags, 0, 0, 0]]
    assert client("LOADJOB") == b"ERR wrong number of arguments for 'loadjob' command"


def test_counters_begin_anew_when_they_are_reset(client: RespClient) -> None:
    client("PING", "x" * 10_000)
    assert client("CONFIG", "RESETSTAT") == b"OK"
    lines = dict(line.split(b":") for line in client("INFO", "stats").split(b"\r\n")[1:-1])
    assert int(lines[b"total_net_input_bytes"]) < 1000
    assert int(lines[b"total_net_output_bytes"]) < 1000
    assert int(lines[b"total_connections_received"]) == 0
    assert int(lines[b"total_commands_processed"]) <= 1


def test_too_many_clients_are_turned_away(server: Daemon, client: RespClient) -> None:
    assert client("CONFIG", "SET", "maxclients", 1) == b"OK"
    try:
        with closing(RespClient(server.disque)) as one_more:
            assert one_more.reply() == b"ERR max number of clients reached"
            one_more.expect_end()
    finally:
        assert client("CONFIG", "SET", "maxclients", 10000) == b"OK"


def test_a_stop_ends_every_wait(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0") as daemon, resp_client(daemon.disque) as waiting:
        waiting.send("GETJOB", "FROM", "q")
        with resp_client(daemon.disque) as client:
            while b"blocked_clients:1" not in client("INFO", "clients"):
                pass
            client.send("SHUTDOWN")
            client.expect_end()
        assert daemon.wait() == 0
