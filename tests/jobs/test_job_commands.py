"""Disque's commands, where the recorded scenarios leave something open."""

import socket
from contextlib import ExitStack

import pytest

from tests.support.daemon import Daemon
from tests.support.resp import NIL_ARRAY, RespClient, request, resp_client

UNKNOWN = "D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
BAD_ID = b"BADID Invalid Job ID format."


def take(client: RespClient, queue: str) -> bytes:
    """The id of a job that is there."""
    ((_, job_id, _),) = client("GETJOB", "NOHANG", "FROM", queue)
    assert isinstance(job_id, bytes)
    return job_id


@pytest.mark.parametrize("command", ["ACKJOB", "FASTACK", "DELJOB"])
def test_jobs_that_are_acknowledged_or_deleted_are_counted_and_gone(client: RespClient, command: str) -> None:
    first, second = client.job("q"), client.job("q")
    assert client(command, first, second, UNKNOWN) == 2
    assert client(command, first) == 0
    assert client("SHOW", first) is None
    assert client("QLEN", "q") == 0


@pytest.mark.parametrize("command", ["ACKJOB", "FASTACK", "DELJOB", "NACK", "ENQUEUE", "DEQUEUE"])
def test_commands_without_ids_do_nothing(client: RespClient, command: str) -> None:
    assert client(command) == 0


@pytest.mark.parametrize("command", ["ACKJOB", "FASTACK", "DELJOB", "NACK", "ENQUEUE", "DEQUEUE"])
def test_one_wrong_id_keeps_a_command_from_doing_anything(client: RespClient, command: str) -> None:
    job_id = client.job("q")
    assert client(command, job_id, "nonsense") == BAD_ID
    assert client.fields("SHOW", job_id)["state"] == b"queued"


def test_a_job_taken_from_its_queue_keeps_its_requeue_time(client: RespClient) -> None:
    job_id = client.job("q", "x", "RETRY", 100)
    before = client.fields("SHOW", job_id)["next-requeue-within"]
    assert client("DEQUEUE", job_id) == 1
    shown = client.fields("SHOW", job_id)
    assert (shown["state"], client("QLEN", "q")) == (b"active", 0)
    assert before - 5000 < shown["next-requeue-within"] <= before
    assert client("ENQUEUE", job_id) == 1
    assert client.fields("SHOW", job_id)["additional-deliveries"] == 1


def test_a_job_delivered_at_most_once_cannot_be_queued_again(client: RespClient) -> None:
    job_id = client.job("q", "x", "RETRY", 0)
    assert take(client, "q") == job_id
    assert (client("ENQUEUE", job_id), client("NACK", job_id)) == (0, 0)
    other_id = client.job("q", "x", "RETRY", 0)
    assert client("DEQUEUE", other_id) == 1
    assert client("ENQUEUE", other_id) == 0
    assert client.fields("SHOW", other_id)["next-requeue-within"] is None


@pytest.mark.parametrize("command", ["NACK", "ENQUEUE"])
def test_a_delayed_job_can_be_queued_early_and_that_is_no_additional_delivery(client: RespClient, command: str) -> None:
    job_id = client.job("q", "x", "DELAY", 1000)
    assert client(command, job_id) == 1
    assert client.fields("SHOW", job_id)["additional-deliveries"] == 0
    assert take(client, "q") == job_id


def test_a_job_that_is_not_acknowledged_in_time_is_delivered_again(client: RespClient) -> None:
    job_id = client.job("q", "x", "RETRY", 1)
    assert take(client, "q") == job_id
    (again,) = client("GETJOB", "TIMEOUT", 50_000, "WITHCOUNTERS", "FROM", "q")
    assert again == [b"q", job_id, b"x", b"nacks", 0, b"additional-deliveries", 1]


def test_who_waits_at_a_queue_paused_in_output_is_served_when_the_pause_ends(
    client: RespClient, other: RespClient
) -> None:
    assert client("PAUSE", "q", "out") == b"out"
    job_id = client.job("q")
    assert client("GETJOB", "NOHANG", "FROM", "q") == NIL_ARRAY
    other.send("GETJOB", "FROM", "q")
    while client.fields("QSTAT", "q")["blocked"] == 0:
        pass
    assert client("PAUSE", "q", "none") == b"none"
    assert other.reply() == [[b"q", job_id, b"body"]]


def test_who_wants_many_jobs_waits_at_a_paused_queue(client: RespClient, other: RespClient) -> None:
    client.send_bytes(request("ADDJOB", "q", "x", 0) * 300)
    for _ in range(300):
        client.reply()
    assert client("PAUSE", "q", "out") == b"out"
    assert client("GETJOB", "NOHANG", "COUNT", 999, "FROM", "q") == NIL_ARRAY
    other.send("GETJOB", "COUNT", 999, "FROM", "q")
    while client.fields("QSTAT", "q")["blocked"] == 0:
        pass
    assert client("PAUSE", "q", "none") == b"none"
    assert len(other.reply()) == 1


@pytest.mark.parametrize("words", [("QDEL", "q"), ("REDRIVE", "q"), ("GETJOB", "NOHANG", "COUNT", 99_999, "FROM", "q")])
def test_jobs_may_all_go_while_a_command_is_at_them(
    client: RespClient, other: RespClient, words: tuple[str | int, ...]
) -> None:
    for _ in range(20):
        client.send_bytes(request("ADDJOB", "q", "x", 0, "RETRY", 1) * 1000)
        for _ in range(1000):
            client.reply()
    client.send(*words)
    assert other("DEBUG", "FLUSHALL") == b"OK"
    job_id = other.job("q")
    client.reply()
    assert other.fields("QCOUNT", "q") == {"queued": 1, "active": 0, "delayed": 0}
    assert other("GETJOB", "FROM", "q") == [[b"q", job_id, b"body"]]


def test_a_long_reply_comes_before_those_to_the_commands_behind_it(client: RespClient) -> None:
    """Also where the queues of a pattern are looked for in slices."""
    for number in range(300):
        client.send("ADDJOB", f"q{number}", "x", 0)
        client.send("ADDJOB", "q0", "x", 0)
    for _ in range(600):
        client.reply()
    client.send("GETJOB", "MATCH", "COUNT", 1000, "FROM", "*")
    client.send("PING")
    client.send("GETJOB", "MATCH", "TIMEOUT", 1, "FROM", "*")
    client.send("PING", "behind")
    assert len(client.reply()) == 600
    assert client.reply() == b"PONG"
    assert client.reply() == NIL_ARRAY
    assert client.reply() == b"behind"


def test_many_large_bodies_do_not_pile_up_for_who_does_not_read(server: Daemon, client: RespClient) -> None:
    body = b"x" * (1 << 20)
    ids = [client.job("q", body) for _ in range(32)]
    wanted = [[b"q", job_id, body] for job_id in ids]
    assert client("QPEEK", "q", 32) == wanted
    assert client("QPEEK", "q", -2) == wanted[:-3:-1]
    cursor, found = client("JSCAN", 0, "COUNT", 200, "REPLY", "all")
    assert (cursor, sorted(one[1] for one in found), found[0][29]) == (b"0", sorted(ids), body)

    def resident_bytes() -> int:
        (line,) = [one for one in client("INFO", "memory").split(b"\r\n") if one.startswith(b"used_memory_rss:")]
        return int(line.partition(b":")[2])

    before_bytes = resident_bytes()
    with ExitStack() as stack:
        for words in [("QPEEK", "q", 32), ("JSCAN", "REPLY", "all")] * 4:
            stack.enter_context(resp_client(server.disque)).send(*words)
        assert client("PING") == b"PONG"
        assert resident_bytes() - before_bytes < 64 << 20  # 256 MiB are asked for
    assert client("GETJOB", "COUNT", 32, "FROM", "q") == wanted


def test_who_hangs_up_while_queues_are_looked_through_gets_no_job(client: RespClient, server: Daemon) -> None:
    client.send_bytes(b"".join([request("GETJOB", "NOHANG", "FROM", f"q{number}") for number in range(5000)]))
    for _ in range(5000):
        client.reply()
    for _ in range(3):
        with resp_client(server.disque) as gone:
            gone.send("GETJOB", "MATCH", "FROM", "*")
    with resp_client(server.disque) as gone:
        gone.send("GETJOB", "MATCH", "FROM", "*")
        gone.socket.shutdown(socket.SHUT_WR)
        gone.expect_end()
    client("GETJOB", "NOHANG", "MATCH", "FROM", "none*")  # is behind them
    assert client.fields("QSTAT", "q1")["blocked"] == 0


def test_names_and_bodies_are_any_bytes(client: RespClient) -> None:
    for name in (b"", b"a\0b", b"/x/../y", b"\r\n", bytes(range(256)), b"GETJOB"):
        body = name + b"\r\n$3\r\nabc\r\n"
        job_id = client("ADDJOB", name, body, 0)
        assert client("GETJOB", "NOHANG", "FROM", name) == [[name, job_id, body]]
        assert client.fields("SHOW", job_id)["queue"] == name


def test_peeking_shows_the_oldest_or_the_newest_first(client: RespClient) -> None:
    ids = [client.job("q", str(number)) for number in range(5)]
    jobs = [[b"q", job_id, b"%d" % number] for number, job_id in enumerate(ids)]
    assert client("QPEEK", "q", 3) == jobs[:3]
    assert client("QPEEK", "q", -3) == jobs[:1:-1]
    assert client("QPEEK", "q", 0) == client("QPEEK", "unknown", 5) == []
    assert client("QPEEK", "q", "x") == b"ERR value is not an integer or out of range"
    assert client("QPEEK", "q", 99) == jobs
    assert client("QLEN", "q") == 5


def add_many(client: RespClient, queue: str, count: int) -> list[bytes]:
    """So many jobs, pipelined; their ids."""
    client.send_bytes(b"".join([request("ADDJOB", queue, str(number), 0) for number in range(count)]))
    return [bytes(client.reply()) for _ in range(count)]


def test_replies_about_many_jobs_come_in_pieces_and_complete(client: RespClient, other: RespClient) -> None:
    ids = add_many(client, "q", 1200)
    assert [job[1] for job in client("QPEEK", "q", 1000)] == ids[:1000]
    assert [job[1] for job in client("QPEEK", "q", -1000)] == ids[:199:-1]
    cursor, found = client("JSCAN", "BUSYLOOP")
    assert (cursor, set(found)) == (b"0", set(ids))
    other.send("GETJOB", "COUNT", 1000, "FROM", "q")
    other.send("PING")
    assert [job[1] for job in other.reply()] == ids[:1000]
    assert other.reply() == b"PONG"
    assert client("ACKJOB", *ids) == 1200
    assert client("QLEN", "q") == 0


def test_a_scan_in_steps_finds_everything_once_and_ends(client: RespClient) -> None:
    ids = set(add_many(client, "q", 700))
    found: list[bytes] = []
    cursor, calls = b"0", 0
    while calls == 0 or cursor != b"0":
        cursor, some = client("JSCAN", cursor, "COUNT", 50)
        found += some
        calls += 1
    assert calls > 1
    assert sorted(found) == sorted(ids)


def test_a_scan_takes_any_cursor(client: RespClient) -> None:
    for cursor in ("-1", "18446744073709551615", "+7", "99999"):
        assert isinstance(client("QSCAN", cursor), list)
    assert client("QSCAN", "") == client("QSCAN")
    assert client("QSCAN", "18446744073709551616") == b"ERR invalid cursor or option name"


def test_a_greatest_length_of_minus_one_is_none(client: RespClient) -> None:
    add_many(client, "q", 2)
    assert client("QSCAN", "MAXLEN", -1, "MINLEN", -1, "IMPORTRATE", -1) == [b"0", [b"q"]]
    assert client("QSCAN", "MAXLEN", -2) == client("QSCAN", "MAXLEN", 1) == [b"0", []]


def test_one_client_waiting_for_many_queues_leaves_them_all_when_it_goes(client: RespClient, server: Daemon) -> None:
    with resp_client(server.disque) as waiting:
        waiting.send("GETJOB", "FROM", *[f"q{number}" for number in range(50)])
        while not isinstance(stat := client("QSTAT", "q49"), list) or stat[9] != 1:
            pass
    while client.fields("QSTAT", "q0")["blocked"]:
        pass
    assert [client.fields("QSTAT", f"q{number}")["blocked"] for number in range(50)] == [0] * 50


def test_a_node_that_is_leaving_sends_its_clients_elsewhere(client: RespClient, other: RespClient) -> None:
    leaving = b"LEAVING This node is leaving the cluster, please connect to a different one"
    other.send("GETJOB", "FROM", "q")
    while not isinstance(client("QSTAT", "q"), list):
        pass
    assert client("CLUSTER", "LEAVING", "yes") == b"OK"
    try:
        assert other.reply() == leaving
        assert client("GETJOB", "FROM", "q") == leaving
        assert client("GETJOB", "NOHANG", "FROM", "q") == NIL_ARRAY
        assert client("ADDJOB", "q", "x", 0).startswith(b"NOREPL Not enough reachable nodes")
        assert client("HELLO")[2][3] == b"100"
        assert client("CLUSTER", "LEAVING") == b"yes"
    finally:
        assert client("CLUSTER", "LEAVING", "no") == b"OK"


def test_memory_limits_refuse_jobs_and_evict_what_was_delivered_for_good(client: RespClient) -> None:
    once = client.job("q", "x", "RETRY", 0)
    assert take(client, "q") == once
    kept = client.job("q")
    used = int(client("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])
    try:
        assert client("CONFIG", "SET", "maxmemory", used * 100 // 80) == b"OK"
        assert client("ADDJOB", "q", "x", 0).endswith(b"I'm out of memory")
        assert client("SHOW", once) is not None
        assert client("CONFIG", "SET", "maxmemory", "1") == b"OK"
        assert client("ADDJOB", "q", "x", 0) == b"OOM command not allowed when used memory > 'maxmemory'."
        assert client("SHOW", once) is None
        assert client.fields("SHOW", kept)["state"] == b"queued"
        assert client("CONFIG", "SET", "maxmemory", "0") == b"OK"
        assert client("ADDJOB", "q", "x", 0).endswith(b"I'm out of memory")
    finally:
        assert client("CONFIG", "SET", "maxmemory", "1gb") == b"OK"


def test_spans_that_no_clock_holds_are_refused(client: RespClient) -> None:
    for options in (("TTL", 1 << 40), ("RETRY", 1 << 33), ("TTL", 4294967296)):
        assert client("ADDJOB", "q", "x", 0, *options) == b"ERR TTL and RETRY must not exceed 3153600000 seconds"
    assert client("ADDJOB", "q", "x", 0, "TTL", 1 << 63) == b"ERR TTL must be a number > 0"
    retry = client.fields("SHOW", client.job("q", "x", "RETRY", 4294968, "TTL", 10_000_000))
    assert retry["next-requeue-within"] > 4_000_000_000


def test_a_lone_node_has_no_replicas(client: RespClient) -> None:
    assert client("ADDJOB", "q", "x", 0, "REPLICATE", 2) == (
        b"NOREPL Not enough reachable nodes for the requested replication level"
    )
