"""What Disque's users wished for: delays of NACK, ids of clients, dead letters, waiting for an acknowledgement."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from kestreld.config.config_file import load_file
from kestreld.errors import ConfigError
from kestreld.files import FileLayer
from tests.jobs.test_job_commands import UNKNOWN, add_many, take
from tests.support.daemon import running_daemon
from tests.support.resp import NIL_ARRAY, RespClient, resp_client
from tests.support.waiting import until


def test_a_job_given_back_with_a_delay_is_queued_when_that_is_over(client: RespClient) -> None:
    job_id = client.job("q")
    take(client, "q")
    assert client("NACK", job_id, "DELAY", 2) == 1
    shown = client.fields("SHOW", job_id)
    assert (shown["state"], shown["nacks"]) == (b"active", 1)
    assert 0 < shown["next-requeue-within"] <= 2000
    assert client("GETJOB", "NOHANG", "FROM", "q") == NIL_ARRAY
    (again,) = client("GETJOB", "TIMEOUT", 50_000, "WITHCOUNTERS", "FROM", "q")
    assert again[4::2] == [1, 0]


@pytest.mark.parametrize("delay", ["x", "-1", "99999999999"])
def test_a_delay_that_is_none_is_refused(client: RespClient, delay: str) -> None:
    job_id = client.job("q")
    take(client, "q")
    assert client("NACK", job_id, "DELAY", delay) == b"ERR DELAY time must be a non negative number"
    assert client.fields("SHOW", job_id)["nacks"] == 0


def test_a_job_with_an_id_of_the_client_is_added_once(client: RespClient) -> None:
    job_id = client.job("q", "x", "ID", "order 7")
    assert client.job("q", "y", "ID", "order 7") == job_id
    assert client("QLEN", "q") == 1
    assert client.job("q", "z", "ID", "order 8") != job_id
    assert client("ACKJOB", job_id) == 1
    assert client.job("q", "y", "ID", "order 7") == job_id, "remembered for a while"
    assert client("QLEN", "q") == 1


def test_a_repeated_job_is_known_also_where_a_new_one_would_be_refused(client: RespClient) -> None:
    job_id = client.job("q", "x", "ID", "order 7", "MAXLEN", 1)
    assert client.job("q", "x", "ID", "order 7", "MAXLEN", 1) == job_id
    assert client("PAUSE", "q", "in") == b"in"
    assert client.job("q", "x", "ID", "order 7") == job_id
    assert client("ADDJOB", "q", "x", 0, "ID", "order 8") == b"PAUSED Queue paused in input, try later"
    assert client("ADDJOB", "q", "x", 0, "ID", "order 7", "TTL", 1, "DELAY", 1).startswith(b"ERR ")


def test_an_id_of_the_client_belongs_to_its_queue(client: RespClient) -> None:
    """Also while its job is a dead letter, and when that is back."""
    of_mail, of_web = client.job("mail", "x", "ID", "order 7"), client.job("web", "x", "ID", "order 7")
    assert of_web != of_mail
    assert client("DEADJOB", of_mail) == 1
    assert client.job("mail", "y", "ID", "order 7") == of_mail
    assert client.job("mail.dead", "y", "ID", "order 7") not in (of_mail, of_web)
    assert client("REDRIVE", "mail.dead") == 1
    assert client.job("mail", "y", "ID", "order 7") == of_mail
    assert client("ACKJOB", of_mail) == 1
    assert client.job("mail", "y", "ID", "order 7") == of_mail
    assert client("QLEN", "mail") == 0


def test_a_job_put_back_too_often_goes_to_the_dead_letters(client: RespClient) -> None:
    job_id = client.job("mail", "x", "RETRIES", 1)
    take(client, "mail")
    assert client("NACK", job_id) == 1
    take(client, "mail")
    assert client("NACK", job_id) == 1
    assert (client("QLEN", "mail"), client("QLEN", "mail.dead")) == (0, 1)
    dead = client.fields("DEADSHOW", job_id)
    assert (dead["origin"], dead["reason"], dead["nacks"], dead["queue"]) == (b"mail", b"retries", 2, b"mail.dead")
    ((*_, origin, _, reason),) = client("GETJOB", "WITHORIGIN", "FROM", "mail.dead")
    assert (origin, reason) == (b"mail", b"retries")


def test_dead_letters_are_driven_back_to_where_they_come_from(client: RespClient) -> None:
    first, second, third = (client.job("mail", body) for body in ("1", "2", "3"))
    assert client("DEADJOB", first, second, UNKNOWN) == 2
    assert client("DEADJOB", first) == 0, "it is there already"
    stray = client.job("mail.dead")
    assert client("REDRIVE", "mail.dead", "COUNT", 1) == 1
    assert client("DEADSHOW", first) == NIL_ARRAY
    assert client("REDRIVE", "mail.dead") == 1
    assert [job[1] for job in client("QPEEK", "mail", 9)] == [first, second, third], "in their old order"
    assert [job[1] for job in client("QPEEK", "mail.dead", 9)] == [stray]
    assert client("REDRIVE", "unknown") == 0
    assert client("REDRIVE", "mail.dead", "COUNT", 0) == b"ERR COUNT must be a number greater than zero"


def test_who_added_a_job_can_wait_until_it_is_acknowledged(client: RespClient, other: RespClient) -> None:
    job_id = client.job("q")
    other.send("WAITJOB", job_id, 0)
    other.send("PING")
    other.expect_silence(50)
    assert client("ACKJOB", job_id) == 1
    assert other.reply() == b"acked"
    assert other.reply() == b"PONG"


def test_a_wait_for_a_job_ends_with_what_becomes_of_it_or_its_time(client: RespClient, other: RespClient) -> None:
    assert client("WAITJOB", client.job("q"), 20) is None
    assert client("WAITJOB", UNKNOWN, 0) == b"NOJOB Job not known in the context of this node."
    assert client("WAITJOB", UNKNOWN, "x") == b"ERR timeout is not an integer or out of range"
    assert client("WAITJOB", "x", 0) == b"BADID Invalid Job ID format."
    assert client("WAITJOB", client.job("q", "x", "TTL", 2), 0) == b"expired"
    job_id = client.job("q")
    other.send("WAITJOB", job_id, 50_000)
    other.expect_silence(30)
    assert client("DELJOB", job_id) == 1
    assert other.reply() == b"deleted"


def test_jobs_of_queues_like_a_pattern_are_fetched(client: RespClient) -> None:
    for name in ("mail.a", "mail.b", "web.a"):
        client.job(name, name)
    assert client("GETJOB", "NOHANG", "MATCH", "FROM", "nothing.*") == NIL_ARRAY
    found = client("GETJOB", "MATCH", "COUNT", 9, "FROM", "mail.*")
    assert sorted(job[0] for job in found) == [b"mail.a", b"mail.b"]
    assert client("GETJOB", "NOHANG", "FROM", "web.*") == NIL_ARRAY, "behind FROM names are literal"
    assert client("QLEN", "web.a") == 1


def test_who_waits_for_a_pattern_is_served_by_queues_that_come_later(client: RespClient, other: RespClient) -> None:
    other.send("GETJOB", "MATCH", "FROM", "late.*", "never.*")
    while b"blocked_clients:0" in client("INFO", "clients"):
        pass
    client.job("else.where")
    job_id = client.job("late.queue", "x")
    assert other.reply() == [[b"late.queue", job_id, b"x"]]


def test_waiting_for_a_pattern_keeps_the_order_of_those_who_wait(client: RespClient, other: RespClient) -> None:
    other.send("GETJOB", "MATCH", "FROM", "q*")
    while b"blocked_clients:0" in client("INFO", "clients"):
        pass
    client.send("GETJOB", "TIMEOUT", 50_000, "FROM", "q")
    client.expect_silence(30)
    adder = RespClient(":".join(map(str, client.socket.getpeername())))
    first, second = adder.job("q"), adder.job("q")
    adder.close()
    assert other.reply() == [[b"q", first, b"body"]]
    assert client.reply() == [[b"q", second, b"body"]]


def test_a_queue_is_deleted_with_all_its_jobs(client: RespClient) -> None:
    queued, taken, delayed = client.job("q"), client.job("p"), client.job("q", "x", "DELAY", 100)
    kept = client.job("other")
    active = client.job("q")
    assert take(client, "q") == queued
    assert client("QDEL", "q") == 3
    assert [client("SHOW", job_id) for job_id in (queued, delayed, active)] == [None] * 3
    assert client.fields("SHOW", kept)["state"] == client.fields("SHOW", taken)["state"] == b"queued"
    assert client("QDEL", "unknown") == 0
    add_many(client, "q", 900)
    assert client("QDEL", "q") == 900


def test_jobs_are_counted_by_state(client: RespClient) -> None:
    for _ in range(3):
        client.job("q")
    client.job("q", "x", "DELAY", 100)
    take(client, "q")
    assert client.fields("QCOUNT", "q") == {"queued": 2, "active": 1, "delayed": 1}
    assert client.fields("QCOUNT", "unknown") == {"queued": 0, "active": 0, "delayed": 0}


def test_a_scan_of_jobs_takes_several_queues(client: RespClient) -> None:
    first, second, _ = client.job("a"), client.job("b"), client.job("c")
    _, found = client("JSCAN", "BUSYLOOP", "QUEUE", "a", "QUEUE", "b")
    assert set(found) == {first, second}


@pytest.mark.parametrize("words", [("QSTAT", "a", "b"), ("SHOW", UNKNOWN, "b"), ("HELLO", "x")])
def test_no_arity_of_disque_has_changed(client: RespClient, words: tuple[str, ...]) -> None:
    name = words[0].lower()
    assert client(*words) == f"ERR wrong number of arguments for '{name}' command".encode()


def test_who_asks_for_another_protocol_is_told_that_there_is_none(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0") as daemon:
        client, stranger = RespClient(daemon.disque), RespClient(daemon.disque)
        with closing(client), closing(stranger):
            assert client("CONFIG", "SET", "requirepass", "secret") == b"OK"
            for asked in (client, stranger):  # who is logged in, and who is not
                for words in (("HELLO", 3), ("HELLO", 2), ("HELLO", 3, "AUTH", "default", "secret")):
                    assert asked(*words).startswith(b"NOPROTO "), words


def test_a_queues_rules_say_how_long_jobs_wait_and_where_they_end(tmp_path: Path) -> None:
    rules = '{"mail.*": {retry_delays: [1ms, 40s], max_retries: 2, move_failed_to: "mail dead"}, "*": {max_retries: 0}}'
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0", config=f"jobs: {{queues: {rules}}}") as daemon:
        client = RespClient(daemon.disque)
        job_id = client.job("mail.a")
        take(client, "mail.a")
        assert client("NACK", job_id) == 1
        assert client("GETJOB", "TIMEOUT", 50_000, "FROM", "mail.a") == [[b"mail.a", job_id, b"body"]]
        assert client("NACK", job_id) == 1
        assert 30_000 < client.fields("SHOW", job_id)["next-requeue-within"] <= 40_000
        assert client("ENQUEUE", job_id) == 1
        take(client, "mail.a")
        assert client("NACK", job_id) == 1
        assert client.fields("DEADSHOW", job_id)["queue"] == b"mail dead"
        other_id = client.job("web")
        take(client, "web")
        assert client("NACK", other_id) == 1
        assert client("QLEN", "web.dead") == 1
        client.close()


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("5", "expected a mapping of patterns"),
        ("{a: 5}", "expected a mapping such as"),
        ("{a: {retries: 5}}", "unknown setting 'retries' of 'a'"),
        ("{a: {max_retries: -1}}", "max_retries of 'a': expected a whole number, not '-1'"),
        ("{a: {retry_delays: [0]}}", "too small"),
    ],
)
def test_rules_that_are_wrong_are_refused(tmp_path: Path, rules: str, problem: str) -> None:
    (tmp_path / "kestreld.yaml").write_text(f"jobs: {{queues: {rules}}}")
    with pytest.raises(ConfigError) as error:
        load_file(FileLayer(), str(tmp_path / "kestreld.yaml"), [])
    assert problem in str(error.value.problems[0])


def test_a_reload_changes_the_limits_of_jobs(tmp_path: Path) -> None:
    limits = "max_queues: 1\nmax_item_size: 10\n"
    with (
        running_daemon(tmp_path, "listen.disque=127.0.0.1:0", config=limits) as daemon,
        resp_client(daemon.disque) as client,
    ):
        client.job("q", "x" * 10)
        assert client("ADDJOB", "q", "x" * 11, 0) == b"ERR job body too large: the maximum is 10 bytes"
        assert client("ADDJOB", "r", "x", 0) == b"ERR too many queues"
        daemon.config_path.write_text("max_queues: 2\nmax_item_size: 11\n")
        daemon.signal(signal.SIGHUP)
        daemon.logged("reloaded ")
        until(lambda: not client("ADDJOB", "r", "x" * 11, 0).startswith(b"ERR"), "larger limits")
