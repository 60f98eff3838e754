"""JobClient and AsyncJobClient, on real nodes: a job's way, heartbeats, and what goes wrong on the way."""

import logging
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kestreld.client import Job, JobClient, JobRefused, ServersAway, job_calls, job_nodes
from kestreld.client.job_calls import Ask
from kestreld.client.job_nodes import beat_after_s
from kestreld.client.jobs import JobWork
from kestreld.client.resp import request
from kestreld.errors import (
    ConnectionLost,
    InvalidArgument,
    KestrelError,
    LoginRefused,
    ServerRefused,
    UnexpectedReply,
)
from tests.support.accounts import quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.forking import in_child
from tests.support.interrupting import Interrupted, interrupted_at
from tests.support.peer import Exchange, scripted_peer
from tests.support.resp import RespClient, resp_client
from tests.support.waiting import until

HELLO = b"*3\r\n:1\r\n$40\r\n" + b"a" * 40 + b"\r\n*4\r\n$1\r\na\r\n$0\r\n\r\n$1\r\n1\r\n$1\r\n1\r\n"
LONG_S = 60  # no test waits so long
ANY_BYTES = bytes(range(256)) + b"\r\n$5\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("jobs"), "listen.disque=127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture
def wire(server: Daemon) -> Iterator[RespClient]:
    with resp_client(server.disque) as client:
        assert client("DEBUG", "FLUSHALL") == b"OK"
        yield client


@pytest.fixture
def client(server: Daemon, wire: RespClient) -> Iterator[JobClient]:
    with JobClient([server.disque]) as client:
        yield client


def until_blocked(wire: RespClient, clients: int) -> None:
    """So many clients wait."""
    until(lambda: b"blocked_clients:%d\r" % clients in wire("INFO", "clients"), f"{clients} clients to wait")


# A job's way


def test_a_job_is_added_fetched_and_acknowledged(client: JobClient, wire: RespClient) -> None:
    job_id = client.add("mail", ANY_BYTES, retry=60, ttl=3600)
    assert client.qlen("mail") == 1
    job = client.get("nothing", "mail")
    assert job is not None
    assert (job.id, job.queue, job.body, job.nacks) == (job_id, "mail", ANY_BYTES, 0)
    shown = client.show(job)
    assert shown is not None
    assert (shown["state"], shown["retry"], shown["body"]) == ("active", 60, ANY_BYTES)
    assert client.ack(job) == 1
    assert client.ack(job_id.encode()) == 0
    assert client.show(job_id) is None
    assert client.get("mail", timeout=0) is None


def test_names_are_any_bytes_and_come_back_as_text_that_means_the_same(client: JobClient) -> None:
    for name in (b"\xff\x00\r\n", b"", "Zoë/a b"):
        job_id = client.add(name, b"")
        job = client.get(name)
        assert job is not None
        assert job.id == job_id
        assert client.qstat(job.queue) is not None
        assert client.fastack(job) == 1


def test_spans_keys_and_limits_reach_the_server(client: JobClient) -> None:
    job_id = client.add("q", b"1", delay=100, retries=3, key="order 7")
    assert client.add("q", b"2", key="order 7") == job_id
    shown = client.show(job_id)
    assert shown is not None
    assert shown["delay"] == 100
    client.add("q", b"3")
    with pytest.raises(JobRefused, match="already longer") as refused:
        client.add("q", b"4", maxlen=1)
    assert refused.value.code == "MAXLEN"
    assert client.qlen("q") == 1, "a refusal costs a connection at most"


def test_several_jobs_are_fetched_and_ended_at_once(client: JobClient) -> None:
    ids = [client.add("q", b"%d" % number) for number in range(5)]
    assert [job.id for job in client.qpeek("q", 2)] == ids[:2]
    assert [job.id for job in client.qpeek("q", -2)] == [ids[4], ids[3]]
    jobs = client.get_many("q", count=9)
    assert [job.id for job in jobs] == ids
    assert client.nack(*jobs[:2]) == 2
    assert client.nack(jobs[2], delay=100) == 1
    assert [(job.id, job.nacks) for job in client.get_many("q", count=9)] == [(ids[0], 1), (ids[1], 1)]
    assert client.enqueue(jobs[3]) == 1
    assert (client.dequeue(*jobs[3:]), client.dequeue(jobs[3])) == (1, 0)
    assert (client.delete(client.add("q", b"x")), client.delete("D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1")) == (1, 0)
    assert client.ack(*jobs) == 5
    assert client.ack() == 0


def test_queues_like_a_pattern_are_fetched_from(client: JobClient) -> None:
    client.add("mail.a", b"x")
    job = client.get("mail.*", pattern=True, timeout=5)
    assert job is not None
    assert job.queue == "mail.a"


def test_whoever_adds_a_job_can_wait_for_its_end(client: JobClient, wire: RespClient) -> None:
    job_id = client.add("q", b"x")
    assert client.wait(job_id, timeout=0.02) is None

    def work() -> None:
        until_blocked(wire, 1)
        client.ack(job_id)

    worker = threading.Thread(target=work)
    worker.start()
    assert client.wait(job_id, timeout=LONG_S) == "acked"
    worker.join()
    with pytest.raises(JobRefused, match="not known") as refused:
        client.wait(job_id)
    assert refused.value.code == "NOJOB"


def test_arguments_that_are_wrong_are_named(client: JobClient) -> None:
    for wrong in (
        lambda: client.add("q", "text"),  # type: ignore[arg-type]
        lambda: client.add("q", b"x", ttl=0),
        lambda: client.add(5, b"x"),  # type: ignore[arg-type]
        lambda: client.add("q", b"x", delay=1.5),  # type: ignore[arg-type]
        lambda: client.get_many("q", count=0),
        lambda: client.get("q", timeout=-1),
        lambda: client.ack(7),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            wrong()
    for nodes in ([], "127.0.0.1:7711", ["a b"]):
        with pytest.raises(InvalidArgument, match="nodes"):
            JobClient(nodes)


# Work


def test_work_is_acknowledged_when_its_block_succeeds(client: JobClient) -> None:
    job_id = client.add("mail", b"x")
    with client.work("mail") as job:
        assert job.id == job_id
        assert client.qlen("mail") == 0
    assert client.show(job_id) is None
    with client.work("mail", timeout=0) as nothing:
        assert nothing is None


def failing(work: JobWork[Job], failure: BaseException) -> Job:
    """The job of a block that fails."""
    with pytest.raises(type(failure)), work as job:
        raise failure
    return job


def test_work_is_given_back_when_its_block_fails(client: JobClient) -> None:
    job_id = client.add("mail", b"x")
    first = failing(client.work("mail"), ZeroDivisionError())
    second = failing(client.work("mail"), KeyboardInterrupt())
    third = failing(client.work("mail", delay=100), ZeroDivisionError())
    assert [job.id for job in (first, second, third)] == [job_id] * 3
    assert [job.nacks for job in (first, second, third)] == [0, 1, 1], "an interruption is no failure"
    assert third.additional_deliveries == 1
    assert client.qlen("mail") == 0, "it waits for its delay"


def test_a_loop_acknowledges_each_job_when_it_asks_for_the_next(client: JobClient) -> None:
    ids = [client.add("mail", b"%d" % number) for number in range(3)]
    for job in client.jobs("mail"):
        if job.body == b"2":
            break
        assert client.show(job) is not None
    assert [client.show(job_id) is None for job_id in ids] == [True, True, False]
    assert client.qlen("mail") == 1, "whoever leaves the loop gives the job back"


@pytest.mark.long
def test_a_heartbeat_keeps_a_job_that_takes_longer_than_its_retry_time(client: JobClient) -> None:
    client.add("slow", b"x", retry=1, ttl=60)
    with client.work("slow", heartbeat=False) as job:
        again = client.get("slow", timeout=LONG_S)
        assert again is not None
        assert again.id == job.id
    client.add("slow", b"x", retry=6, ttl=600)
    with client.work("slow") as job:
        assert client.get("slow", timeout=7) is None
    assert client.show(job) is None


def beats(wire: RespClient) -> int:
    """How often the server was told that somebody works."""
    found = re.search(rb"cmdstat_working:calls=(\d+)", wire("INFO", "commandstats"))
    return int(found[1]) if found else 0


@pytest.fixture
def quick_beats(wire: RespClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats come every few milliseconds, and are counted from now on."""
    monkeypatch.setattr(job_nodes, "BEAT_SHARE", 0.0001)
    monkeypatch.setattr(job_calls, "BEAT_AGAIN_S", 0.01)
    wire("CONFIG", "RESETSTAT")


@pytest.mark.usefixtures("quick_beats")
def test_a_heartbeat_says_again_and_again_that_somebody_works_until_the_block_ends(
    client: JobClient, wire: RespClient
) -> None:
    client.add("slow", b"x", retry=60, ttl=600)
    with client.work("slow") as job:
        until(lambda: beats(wire) >= 3, "three heartbeats")
        assert client.qlen("slow") == 0
    assert client.show(job) is None
    said = beats(wire)
    assert [thread for thread in threading.enumerate() if job.id in thread.name] == []
    assert beats(wire) == said


@pytest.mark.parametrize(("retry_s", "after_s"), [(0, None), (1, 0.25), (2, 1.25), (60, 48)])
def test_working_is_said_at_80_percent_or_early_enough(retry_s: int, after_s: float | None) -> None:
    assert beat_after_s(retry_s) == after_s


@pytest.mark.usefixtures("quick_beats")
def test_a_heartbeat_that_is_refused_says_so_once(client: JobClient, caplog: pytest.LogCaptureFixture) -> None:
    client.add("q", b"x")
    with caplog.at_level(logging.WARNING, "kestreld.client"), client.work("q", heartbeat=False) as job:
        client.ack(job)
    assert "no longer existed when it was acknowledged" in caplog.text
    caplog.clear()
    client.add("q", b"x", retry=60, ttl=600)
    with caplog.at_level(logging.WARNING, "kestreld.client"), client.work("q") as job:
        client.ack(job)
        until(lambda: not any(job.id in thread.name for thread in threading.enumerate()), "its last heartbeat")
    assert caplog.text.count("may be delivered again") == 1


QUICK = 17  # every so many places are tried by the quick test


def has_no_heartbeat(job_id: str) -> bool:
    return not any(job_id in thread.name and thread.is_alive() for thread in threading.enumerate())


def interrupted_on_the_way(work: JobWork[Any], at: int) -> str | None:
    """Where the way into a block was interrupted; None = it has begun before that."""
    try:
        found = interrupted_at(at, work.__enter__)
    except RuntimeError as problem:
        if isinstance(problem.__context__, Interrupted):  # Python makes that of one in the middle of a lock of its own
            return "threading"
        raise
    return None if found is None else found[1]


def interrupt_everywhere(client: JobClient, step: int) -> int:
    """Have an exception at each place of the way into a block in turn. No heartbeat is left then, and a job that the
    client has got is queued again. How many places.
    """
    at = 1
    while True:
        job_id = client.add("q", b"x", retry=300, ttl=3600)
        work = client.work("q", timeout=LONG_S)
        where = interrupted_on_the_way(work, at)
        if where is None:
            work.__exit__(None, None, None)
            return at
        until(partial(has_no_heartbeat, job_id), where)
        shown = client.show(job_id)
        assert shown is not None
        assert shown["state"] == "queued" or work._job is None, where
        client.delete(job_id)
        at += step


def test_who_is_interrupted_on_the_way_into_a_block_leaves_no_heartbeat(client: JobClient) -> None:
    assert interrupt_everywhere(client, QUICK) > 10 * QUICK


@pytest.mark.long
def test_who_is_interrupted_anywhere_on_the_way_into_a_block_leaves_no_heartbeat(client: JobClient) -> None:
    interrupt_everywhere(client, 1)


def test_a_job_is_given_back_for_which_no_thread_can_be_started(
    client: JobClient, wire: RespClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    job_id = client.add("q", b"x", retry=300)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError):
        client.work("q").__enter__()
    assert wire("QLEN", "q") == 1
    assert client.show(job_id)["nacks"] == 0  # type: ignore[index]


class Noting(JobClient):
    """A client that keeps what it was refused."""

    def __init__(self, node: str) -> None:
        super().__init__([node])
        self.refusals: list[KestrelError] = []

    def _asked(self, step: Ask[Any]) -> Any:
        try:
            return super()._asked(step)
        except KestrelError as problem:
            self.refusals.append(problem)
            raise


@pytest.mark.usefixtures("quick_beats")
def test_a_heartbeat_outlives_a_password_that_is_set_for_a_while(server: Daemon, wire: RespClient) -> None:
    with Noting(server.disque) as client:
        client.add("q", b"x", retry=60, ttl=600)
        with client.work("q") as job:
            until(lambda: beats(wire) > 0, "a heartbeat")
            wire("CONFIG", "SET", "requirepass", "secret")
            wire("AUTH", "secret")
            until(lambda: bool(client.refusals), "a heartbeat that is refused")
            wire("CONFIG", "SET", "requirepass", "")
            said = beats(wire)
            until(lambda: beats(wire) > said + 1, "heartbeats after that")
            assert client.qlen("q") == 0
        assert client.show(job) is None


def test_closing_ends_the_waits_of_other_threads(server: Daemon, wire: RespClient) -> None:
    client = JobClient([server.disque])
    ends: list[object] = []

    def wait() -> None:
        try:
            client.get("nothing")
        except ServersAway as away:
            ends.append(away)

    def loop() -> None:
        ends.extend(client.jobs("nothing"))
        ends.append("loop")

    threads = [threading.Thread(target=wait), threading.Thread(target=loop)]
    for thread in threads:
        thread.start()
    until_blocked(wire, 2)
    client.close()
    for thread in threads:
        thread.join(LONG_S)
    assert sorted(map(str, ends)) == ["loop", f"no kestreld at {server.disque} (the client is closed)"]


def test_threads_share_a_client(client: JobClient) -> None:
    done: list[str] = []

    def work() -> None:
        while (job := client.get("shared", timeout=0)) is not None:
            client.ack(job)
            done.append(job.id)

    ids = [client.add("shared", b"x") for _ in range(100)]
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(ids)


def test_a_forked_child_has_connections_of_its_own(client: JobClient) -> None:
    job_id = client.add("q", b"x")
    assert in_child(lambda: client.show(job_id) is not None)
    assert client.qlen("q") == 1


# Nodes


def test_another_node_is_asked_where_one_is_away_and_it_is_found_again(server: Daemon, wire: RespClient) -> None:
    nodes = ["127.0.0.1:1", server.disque, "127.0.0.1:2"]
    for seed in range(4):
        with JobClient(nodes, chance=Random(seed)) as client:
            job_id = client.add("q", b"x")
            assert client.ack(job_id) == 1
    with JobClient(["127.0.0.1:1", "127.0.0.1:2"], patience=0) as client, pytest.raises(ServersAway) as away:
        client.qlen("q")
    assert set(away.value.reasons) == {"127.0.0.1:1", "127.0.0.1:2"}


def test_a_job_goes_back_to_the_node_that_it_is_from(server: Daemon, wire: RespClient, tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "listen.disque=127.0.0.1:0") as other,
        JobClient([server.disque, other.disque]) as client,
    ):
        ids = {}
        for node in (server, other):
            with JobClient([node.disque]) as one:
                ids[node.disque] = one.add("q", node.disque.encode())
        mine = client.get("q")
        assert mine is not None
        theirs = next(node for node in ids if node != mine.body.decode())
        with resp_client(theirs) as there:
            there("GETJOB", "FROM", "q")
        assert client.ack(mine) == 1
        client._connection(theirs)  # it has met both
        assert client.ack(*ids.values()) == 1
        assert [JobClient([node]).show(job_id) for node, job_id in ids.items()] == [None, None]


def test_a_restart_of_the_node_is_waited_for(tmp_path: Path) -> None:
    settings = ("listen.disque=127.0.0.1:0", "jobs.journal=true")
    with running_daemon(tmp_path, *settings) as daemon, JobClient([daemon.disque]) as client:
        job_id = client.add("q", b"x", ttl=3600)
        daemon.stop()
        starter = threading.Thread(target=daemon.start)
        starter.start()
        with JobClient([daemon.disque], patience=LONG_S) as patient:
            shown = patient.show(job_id)
        starter.join()
        assert shown is not None
        assert client.qlen("q") == 0, "a connection from before the restart is not used"


@pytest.fixture
def losing() -> Iterator[JobClient]:
    """A client of a node that closes the connection instead of answering the second command."""
    script = [Exchange(request(["HELLO"]), HELLO), Exchange(b"*", b"", closes=True)]
    with scripted_peer(script) as peer, JobClient([peer.address], patience=0) as client:
        yield client


def test_what_a_lost_node_may_have_done_is_not_done_twice(losing: JobClient) -> None:
    with pytest.raises(ConnectionLost, match="it may have executed the command"):
        losing.add("q", b"x")


def test_another_server_is_no_node(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, JobClient([daemon.address]) as client, pytest.raises(UnexpectedReply):
        client.qlen("q")


# The way in


def test_a_password_is_sent_where_the_node_asks_for_one(server: Daemon, wire: RespClient) -> None:
    assert wire("CONFIG", "SET", "requirepass", "secret") == b"OK"
    try:
        with JobClient([server.disque], password="secret") as client:
            assert client.qlen("q") == 0
        with (
            JobClient([server.disque], password="wrong") as client,
            pytest.raises(LoginRefused, match="invalid password"),
        ):
            client.qlen("q")
        with JobClient([server.disque]) as client, pytest.raises(ServerRefused, match="unauthenticated"):
            client.qlen("q")
    finally:
        assert wire("AUTH", "secret") == b"OK"
        assert wire("CONFIG", "SET", "requirepass", "") == b"OK"
    with JobClient([server.disque], password="secret") as client:
        assert client.qlen("q") == 0, "where none is required none is sent"


def test_users_log_in_over_tls_and_have_their_rights(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue_server()
    users = f'users: {{ann: {{password: "{quick_hash("pw")}", jobs: {{"mail*": [get, put]}}}}}}\n'
    tls = f"tls: {{certificate: {certificate}, key: {key}}}\n"
    with running_daemon(tmp_path / "daemon", "listen.disque=tls:127.0.0.1:0", config=users + tls) as daemon:
        port = daemon.disque.rpartition(":")[2]
        node = f"tls:localhost:{port}"
        with JobClient([node], user="ann", password="pw", ca=str(authority.certificate)) as client:
            job_id = client.add("mail.a", ANY_BYTES)
            with client.work("mail.a") as job:
                assert (job.id, job.body) == (job_id, ANY_BYTES)
            with pytest.raises(JobRefused, match="no right to put on other") as refused:
                client.add("other", b"x")
            assert refused.value.code == "NOPERM"
        wrong = JobClient([node], user="ann", password="no", ca=str(authority.certificate))
        with wrong, pytest.raises(LoginRefused, match="ann: invalid password"):
            wrong.qlen("mail.a")
        distrustful = JobClient([node], user="ann", password="pw", tls=True, patience=0)
        with distrustful, pytest.raises(ServersAway, match="certificate"):
            distrustful.qlen("mail.a")
