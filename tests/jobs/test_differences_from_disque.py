"""Where kestreld differs from stand-alone Disque 1.0-rc1 on purpose: with other tests, those of the table in
docs/compatibility.md.
"""

import re
import time
from pathlib import Path
from typing import Any

from tests.support.clock import FakeClock
from tests.support.daemon import Daemon, running_daemon
from tests.support.disque_server import disque_server
from tests.support.jobs import new_jobs, pass_time
from tests.support.ports import free_port
from tests.support.resp import NIL_ARRAY, RespClient, resp_client

UNKNOWN = "D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"


def timed(client: RespClient, *words: str | int) -> tuple[Any, float]:
    """A reply, and how many ms it took."""
    began_s = time.monotonic()
    return client(*words), (time.monotonic() - began_s) * 1000


def test_working_of_an_acknowledged_job_is_an_error(client: RespClient) -> None:
    job = client.job("q")
    assert client("ACKJOB", job) == 1
    assert client("WORKING", job) == b"NOJOB Job not known in the context of this node."


def test_ids_have_40_characters(client: RespClient) -> None:
    assert re.fullmatch(rb"D-[0-9a-f]{8}-[A-Za-z0-9+/]{24}-05a1", client.job("q"))
    assert len(client.job("q")) == 40


def test_ids_with_characters_that_are_not_visible_are_none(client: RespClient) -> None:
    for odd in (" ", "\r", "\n", "\x7f"):
        assert client("ACKJOB", UNKNOWN.replace("AA", f"A{odd}", 1)) == b"BADID Invalid Job ID format."
    assert client("ACKJOB", UNKNOWN.replace("AA", "A!", 1)) == 0


def test_the_state_of_an_acknowledged_job_is_called_acked(client: RespClient) -> None:
    assert client("JSCAN", "STATE", "acked") == [b"0", []]
    assert client("JSCAN", "STATE", "acknowledged") == b"ERR Invalid job state name"


def test_an_acknowledgement_of_an_unknown_job_leaves_nothing(client: RespClient) -> None:
    assert client("ACKJOB", UNKNOWN) == 0
    assert client("SHOW", UNKNOWN) is None
    assert b"registered_jobs:0" in client("INFO", "jobs")


def test_a_wait_ends_at_its_time_and_a_job_at_the_end_of_its_ttl() -> None:
    """Measured on a clock that stands still: on a busy machine a wait ends later than it should."""
    clock = FakeClock()
    jobs = new_jobs(clock, jitters=False)
    queue = jobs.queue(b"q")
    assert queue is not None
    clock.wall_ms += 999  # whole seconds of the system clock play no part
    job = jobs.add(b"body", queue.terms_of((1000, 500, 0, -1)))
    pass_time(jobs, clock, 996)
    assert jobs.table.get(job.id) is job
    pass_time(jobs, clock, 8)
    assert jobs.table.get(job.id) is None
    assert jobs.take(queue) is None


def test_a_blocked_client_waits_no_longer_than_it_has_asked_for(client: RespClient) -> None:
    reply, took_ms = timed(client, "GETJOB", "TIMEOUT", 300, "FROM", "q")
    assert reply == NIL_ARRAY
    assert took_ms >= 299


def test_an_expired_job_is_never_delivered() -> None:
    clock = FakeClock()
    jobs = new_jobs(clock)
    queue = jobs.queue(b"q")
    assert queue is not None
    jobs.add(b"body", queue.terms_of((1000, 0, 0, -1)))
    clock.advance(1000)  # before anything of what is due has been done
    assert jobs.take(queue) is None


def test_the_retry_time_may_count_from_delivery() -> None:
    clock = FakeClock()
    for from_delivery, left_ms in ((False, 10_000), (True, 60_000)):
        jobs = new_jobs(clock, jitters=False, retry_from_delivery=from_delivery)
        queue = jobs.queue(b"q")
        assert queue is not None
        job = jobs.add(b"body", queue.terms_of((86_400_000, 60_000, 0, -1)))
        pass_time(jobs, clock, 50_000)
        assert jobs.take(queue) is job
        assert job.requeue_at_ms - jobs.now_ms == left_ms


def test_retry_from_is_a_setting(tmp_path: Path) -> None:
    settings = ("listen.disque=127.0.0.1:0", "jobs.retry_from=delivery")
    with running_daemon(tmp_path, *settings) as daemon, resp_client(daemon.disque) as client:
        job = client.job("q", "x", "RETRY", 100)
        time.sleep(1)
        asked_s = time.monotonic()
        assert client("GETJOB", "FROM", "q")[0][1] == job
        left_ms = client.fields("SHOW", job)["next-requeue-within"]
        assert left_ms > 99_500 - (time.monotonic() - asked_s) * 1000


def test_a_folder_is_no_matter_of_clients(client: RespClient) -> None:
    (_, folder) = client("CONFIG", "GET", "dir")
    assert client("CONFIG", "SET", "dir", folder) == b"OK"
    assert client("CONFIG", "SET", "dir", "/tmp") == b"ERR Invalid argument '/tmp' for CONFIG SET 'dir'"


def test_a_rewrite_makes_a_file_that_a_server_starts_with(tmp_path: Path) -> None:
    with disque_server(tmp_path, conf=f"port {free_port()}\nmaxmemory 1gb\n") as server:
        client = server.client()
        assert client("CONFIG", "SET", "maxmemory", 0) == b"OK"
        assert client("CONFIG", "REWRITE") == b"OK"
        server.stop()
        client = server.start().client()
        assert client("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"0"]
        assert client("ADDJOB", "q", "x", 0).startswith(b"NOREPL"), "as Disque after CONFIG SET maxmemory 0"


def test_a_node_without_a_bus_joins_no_cluster(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "listen.disque=127.0.0.1:0", "cluster.port=null") as daemon,
        resp_client(daemon.disque) as client,
    ):
        assert client("CLUSTER", "MEET", "127.0.0.1", 7712) == b"ERR this node stands alone: cluster.port is null"
        assert client("CLUSTER", "MEET", "localhost", 7712) == b"ERR Invalid node address specified: localhost:7712"
        assert client("CLUSTER", "SAVECONFIG") == b"OK"
        assert client("CLUSTER", "RESET") == b"OK"
        assert "cluster=" not in daemon.log[-1]


def test_many_jobs_at_once_make_nobody_else_wait(server: Daemon, client: RespClient) -> None:
    client.send_bytes(b"".join([b"ADDJOB many %d 0\r\n" % number for number in range(5_000)]))
    for _ in range(5_000):
        client.reply()
    client.send("JSCAN", 0, "BUSYLOOP")
    client.send("GETJOB", "COUNT", 5_000, "FROM", "many")
    with resp_client(server.disque) as other:
        assert other("PING") == b"PONG"
    assert len(client.reply()[1]) == 5_000
    assert len(client.reply()) == 5_000
