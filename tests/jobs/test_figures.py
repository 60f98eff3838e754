"""What operators see of jobs: statistics, metrics, pages of the admin port."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask, basic
from tests.support.resp import RespClient, resp_client
from tests.support.waiting import until
from tests.support.wire import connected

COUNTERS = {
    *("jobs_in", "jobs_out", "jobs_default_copies_below_three", "jobs_async_copies_missed", "jobs_given"),
    "jobs_taken",
}
ODD = b"odd /\r\n'\\\xff"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """To look at only. Three jobs of mail: one queued, one with a worker, one for later; one of an odd name, paused."""
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, "listen.disque=127.0.0.1:0", "jobs.journal=true", admin="127.0.0.1:0") as daemon:
        with resp_client(daemon.disque) as client:
            client("ADDJOB", "mail", "first", 0, "RETRY", 3600)
            client("ADDJOB", "mail", "second", 0, "RETRY", 3600)
            client("ADDJOB", "mail", "later", 0, "DELAY", 3600)
            client("GETJOB", "FROM", "mail")
            client("ADDJOB", ODD, b"\xff\0", 0, "RETRY", 0)
            client("PAUSE", ODD, "out")
        yield daemon


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Daemon]:
    """To change."""
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0", admin="127.0.0.1:0") as daemon:
        yield daemon


def counters(daemon: Daemon) -> dict[str, int]:
    with connected(daemon.address) as client:
        client.send(b"stats\r\n")
        lines = [line.split() for line in client.read_until(b"END\r\n").decode().splitlines()]
    return {line[1]: int(line[2]) for line in lines if line[0] == "STAT" and line[1].startswith("jobs_")}


def metrics(daemon: Daemon) -> dict[tuple[str, ...], float]:
    """Name and labels' values -> value."""
    page = ask(daemon, "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {(one.name, *one.labels.values()): one.value for one in samples if one.name.startswith("kestrel_jobs_")}


def jobs_of(daemon: Daemon, **words: Any) -> dict[str, Any]:
    found: dict[str, Any] = ask(daemon, f"/jobs?{urlencode(words)}").json
    return found


def test_the_server_tells_of_its_jobs_by_stats_json_and_metrics(used: Daemon) -> None:
    stats = counters(used)
    memory_bytes, log_bytes = stats.pop("jobs_memory_bytes"), stats.pop("jobs_log_bytes")
    assert 0 < memory_bytes < 2 << 20
    assert log_bytes > 0
    assert stats == {
        "jobs_registered": 4,
        "jobs_queued": 2,
        "jobs_active": 1,
        "jobs_delayed": 1,
        "jobs_queues": 2,
        "jobs_queues_paused": 1,
        "jobs_in": 3,
        "jobs_out": 1,
        "jobs_import_rate": 0,
        "jobs_clients": 0,
        "jobs_blocked_clients": 0,
        "jobs_memory_limit_bytes": 1 << 30,
        "jobs_memory_level": 0,
        "jobs_log_failed": 0,
        "jobs_stopped": 0,
        "jobs_loading": 0,
        "jobs_acked": 0,
        "jobs_being_added": 0,
        "jobs_default_copies": 1,
        "jobs_default_copies_below_three": 0,
        "jobs_async_copies_missed": 0,
        "jobs_given": 0,
        "jobs_taken": 0,
        "jobs_cluster_size": 1,
        "jobs_cluster_known": 1,
        "jobs_cluster_reachable": 0,
        "jobs_cluster_down": 0,
        "jobs_cluster_strangers": 0,
        "jobs_cluster_copied_spools": 0,
        "jobs_cluster_leaving": 0,
    }
    document = ask(used, "/stats.json").json
    assert {name: document["server"][name] for name in stats} == stats
    found = metrics(used)
    for name, value in stats.items():
        assert found[f"kestrel_{name}" + ("_total" if name in COUNTERS else ""),] == value
    assert found["kestrel_jobs_commands_total", "addjob"] == 4
    assert found["kestrel_jobs_command_seconds_total", "addjob"] > 0
    assert found["kestrel_jobs_queues_shown",] == 2
    assert found["kestrel_jobs_queue_queued", "mail"] == 1
    assert found["kestrel_jobs_queue_in_total", "mail"] == 2
    assert found["kestrel_jobs_queue_oldest_seconds", "mail"] >= 0
    assert {labels[1]: value for labels, value in found.items() if labels[0] == "kestrel_jobs_queue_paused"} == {
        "mail": 0,
        "odd /\\x0d\\x0a'\\\\xff": 2,
    }


def test_a_row_for_each_queue_of_jobs_in_stats_json_and_a_page_of_them(used: Daemon) -> None:
    document = ask(used, "/stats.json").json
    rows = {row[0]: dict(zip(document["job_columns"], row, strict=True)) for row in document["job_rows"]}
    odd = ODD.decode("utf-8", "surrogateescape")
    assert rows.keys() == {"mail", odd}
    mail = rows["mail"]
    assert [mail[name] for name in ("jobs", "queued", "active", "delayed")] == [3, 1, 1, 1]
    assert [mail[name] for name in ("jobs_in", "jobs_out", "import_rate", "pause")] == [2, 1, 0, "none"]
    assert 0 <= document["now_ms"] - mail["oldest_at_ms"] < 600_000
    assert (rows[odd]["queued"], rows[odd]["pause"]) == (1, "out")
    seen, after = [], ""
    while after is not None:
        page = ask(used, f"/jobs/queues?limit=1&after={after}").json
        assert page["columns"] == document["job_columns"]
        seen += page["rows"]
        after = page["next"]
    instants = [name.endswith("_at_ms") for name in document["job_columns"]].index(True)  # by the clock of each answer
    assert sorted([row[:instants] for row in seen]) == sorted([row[:instants] for row in document["job_rows"]])


def test_the_memcache_port_lists_queues_of_jobs_and_no_name_ends_a_line(used: Daemon) -> None:
    with connected(used.address) as client:
        client.send(b"dump_job_queues\r\n")
        blocks = client.read_until(b"END\r\n").decode("latin-1")
    assert "queue 'mail' {\r\n  jobs=3\r\n  queued=1\r\n  active=1\r\n  delayed=1\r\n" in blocks
    assert "queue 'odd /\\x0d\\x0a'\\x5c" in blocks
    with connected(used.address) as client:
        client.ask(b"dump_stats\r\n", b"END\r\n")


def test_jobs_of_a_queue_by_state_with_their_next_requeue(used: Daemon) -> None:
    found = {state: jobs_of(used, queue="mail", state=state, bytes=3) for state in ("queued", "active", "delayed")}
    ((queued,), (active,), (delayed,)) = (answer["jobs"] for answer in found.values())
    assert [one["data"] for one in (queued, active, delayed)] == ["sec", "fir", "lat"]
    assert [one["state"] for one in (queued, active, delayed)] == list(found)
    now_ms = found["active"]["now_ms"]
    assert 0 < active["next_requeue_at_ms"] - now_ms <= 3_600_250
    assert 3_000_000 < delayed["next_requeue_at_ms"] - now_ms <= 3_600_250
    assert (active["retry_ms"], active["body_bytes"], active["nacks"]) == (3_600_000, 5, 0)
    assert abs(active["expires_at_ms"] - active["created_at_ms"] - 86_400_000) < 1000
    (odd,) = ask(used, f"/jobs?queue={quote(ODD)}&bytes=2").json["jobs"]
    assert (odd["next_requeue_at_ms"], odd["base64"]) == (None, "/wA=")
    assert len(jobs_of(used, state="active")["jobs"]) == 1
    assert len(jobs_of(used)["jobs"]) == 4
    nothing = jobs_of(used, queue="nobody's", state="queued")
    assert (nothing["jobs"], nothing["next"]) == ([], None)


def test_long_lists_come_in_pages(server: Daemon, client: RespClient) -> None:
    ids = [client("ADDJOB", "long", "x", 0).decode() for _ in range(25)]
    seen, after = list[str](), ""
    while after is not None:
        page = jobs_of(server, queue="long", state="queued", limit=10, after=after)
        assert len(page["jobs"]) <= 10
        seen += [one["id"] for one in page["jobs"]]
        after = page["next"]
    assert seen == ids, "the oldest first"
    scanned, after = set[str](), ""
    while after is not None:
        page = jobs_of(server, queue="long", limit=5, after=after)
        scanned |= {one["id"] for one in page["jobs"]}
        after = page["next"]
    assert scanned == set(ids)


@pytest.mark.parametrize(
    "path", ["/jobs?state=lost", "/jobs?limit=0", "/jobs?after=x", "/jobs?state=queued&queue=q&after=1-zz"]
)
def test_what_is_no_question_is_refused(used: Daemon, path: str) -> None:
    assert ask(used, path).status == 400
    assert ask(used, "/jobs/nowhere").status == 404
    assert ask(used, "/jobs", "POST").status == 405


def test_the_level_of_memory_is_75_95_or_100(server: Daemon, client: RespClient) -> None:
    used_bytes = counters(server)["jobs_memory_bytes"]
    for percent, level in ((70, 0), (80, 75), (97, 95), (101, 100)):
        assert client("CONFIG", "SET", "maxmemory", used_bytes * 100 // percent) == b"OK"
        assert counters(server)["jobs_memory_level"] == level
        assert b"maxmemory_level_percent:%d\r\n" % level in client("INFO", "memory")


def test_clients_that_wait_are_counted_by_queue_and_in_all(server: Daemon, client: RespClient) -> None:
    with resp_client(server.disque) as other:
        client.send("GETJOB", "FROM", "wanted")
        other.send("GETJOB", "MATCH", "FROM", "want*")
        until(lambda: counters(server)["jobs_blocked_clients"] == 2, "two clients that wait")
        assert metrics(server)["kestrel_jobs_queue_blocked_clients", "wanted"] == 2


def test_queues_have_metrics_as_far_as_the_configuration_says(tmp_path: Path) -> None:
    settings = ("listen.disque=127.0.0.1:0", "metrics.per_queue=top:2")
    with running_daemon(tmp_path, *settings, admin="127.0.0.1:0") as daemon, resp_client(daemon.disque) as client:
        for number in range(5):
            for _ in range(number):
                client("ADDJOB", f"q{number}", "x", 0)
        found = metrics(daemon)
    assert {labels[1] for labels in found if labels[0] == "kestrel_jobs_queue_queued"} == {"q4", "q3"}
    assert (found["kestrel_jobs_queues_shown",], found["kestrel_jobs_queues",]) == (2, 4)


def test_users_see_the_queues_of_jobs_that_they_have_a_right_on(tmp_path: Path) -> None:
    users = {"peeper": "{mail: [peek]}", "putter": "{mail: [put]}"}
    lines = [f"  {name}: {{password: '{quick_hash('pw')}', jobs: {jobs}}}\n" for name, jobs in users.items()]
    config = "users:\n" + "".join(lines) + f"  all: {{password: '{quick_hash('pw')}', rights: {{'*': all}}}}\n"
    with (
        running_daemon(tmp_path, "listen.disque=127.0.0.1:0", config=config, admin="127.0.0.1:0") as daemon,
        resp_client(daemon.disque) as client,
    ):
        assert client("AUTH", "all", "pw") == b"OK"
        for queue in ("mail", "other"):
            client("ADDJOB", queue, "x", 0)

        def asked(user: str, path: str) -> Any:
            return ask(daemon, path, headers=basic(user, "pw")).json

        for user in users:
            assert [row[0] for row in asked(user, "/stats.json")["job_rows"]] == ["mail"]
            assert [row[0] for row in asked(user, "/jobs/queues")["rows"]] == ["mail"]
        assert [one["queue"] for one in asked("peeper", "/jobs")["jobs"]] == ["mail"]
        assert asked("putter", "/jobs")["jobs"] == []
        assert "peek on" in asked("putter", "/jobs?queue=mail")["error"]
        assert len(asked("all", "/jobs")["jobs"]) == 2


def test_without_jobs_nobody_hears_of_any(tmp_path: Path) -> None:
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        assert "kestrel_jobs_" not in ask(daemon, "/metrics").body.decode()
        document = ask(daemon, "/stats.json").json
        assert not {"job_columns", "job_rows", "jobs_registered"} & {*document, *document["server"]}
        assert ask(daemon, "/jobs").status == 404
        with connected(daemon.address) as client:
            client.ask(b"dump_job_queues\r\n", b"END\r\n")
