"""kestrelctl jobs: what it prints, its exit codes, and which node it means."""

import base64
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.resp import resp_client
from tests.support.shell import Kestrelctl, Outcome

PAGE: Final = Path(__file__).parents[2] / "docs" / "kestrelctl.md"
UNKNOWN: Final = "D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
ANY_BYTES: Final = bytes(range(256)) + b"\r\n"


def document(run: Outcome) -> Any:
    assert run.code == 0, run.err
    return json.loads(run.out)


def add(kestrelctl: Kestrelctl, queue: str, body: str = "x", *options: str) -> str:
    run = kestrelctl("jobs", "add", queue, body, *options)
    assert (run.code, run.err) == (0, "")
    return run.out.decode().strip()


# Jobs


def test_a_body_comes_back_as_the_bytes_that_were_added(kestrelctl: Kestrelctl, queue: str) -> None:
    run = kestrelctl("jobs", "add", queue, stdin=ANY_BYTES)
    assert run.code == 0
    (job,) = document(kestrelctl("jobs", "peek", queue, "-o", "json"))
    assert base64.b64decode(job["body_base64"]) == ANY_BYTES
    assert job["id"] == run.out.decode().strip()
    (line,) = kestrelctl("jobs", "peek", queue, "--no-headers").out.splitlines()
    assert line.split(b"\t")[-1].endswith(rb"\\xfd\\xfe\\xff\r\n"), "no byte of it reaches a terminal as it is"
    assert kestrelctl("jobs", "get", queue, "--raw", "--ack") == Outcome(0, ANY_BYTES, "")
    assert kestrelctl("jobs", "get", queue).code == 1


def test_what_stands_alone_behind_two_dashes_is_the_body_itself(kestrelctl: Kestrelctl, queue: str) -> None:
    assert kestrelctl("jobs", "add", queue, "--", "@home").code == 0
    assert kestrelctl("jobs", "get", queue, "--raw", "--ack").out == b"@home"


def test_a_job_is_fetched_and_acknowledged_by_its_id(kestrelctl: Kestrelctl, queue: str) -> None:
    job_id = add(kestrelctl, queue, "hello", "--retry", "1m", "--ttl", "1h", "--retries", "3")
    (job,) = document(kestrelctl("jobs", "get", queue, "-o", "json"))
    assert job == {"id": job_id, "queue": queue, "nacks": 0, "additional_deliveries": 0, "body": "hello"}
    assert kestrelctl("jobs", "working", job_id).out == b"60\n"
    shown = document(kestrelctl("jobs", "show", job_id, "-o", "json"))
    assert (shown["state"], shown["retry"], shown["body"]) == ("active", 60, "hello")
    assert kestrelctl("jobs", "nack", job_id).code == 0
    assert document(kestrelctl("jobs", "count", queue, "-o", "json")) == {"queued": 1, "active": 0, "delayed": 0}
    for verb, code in (("ack", 0), ("ack", 1), ("fastack", 1), ("nack", 1), ("working", 1), ("show", 1), ("wait", 1)):
        assert kestrelctl("jobs", verb, job_id) == Outcome(code, b"", ""), verb


def test_an_operator_queues_takes_out_and_deletes_jobs(kestrelctl: Kestrelctl, queue: str) -> None:
    ids = "\n".join([add(kestrelctl, queue) for _ in range(2)]).encode()
    for verb, code, queued in (("enqueue", 1, 2), ("dequeue", 0, 0), ("dequeue", 1, 0), ("enqueue", 0, 2)):
        assert kestrelctl("jobs", verb, "-", stdin=ids).code == code, verb
        assert document(kestrelctl("jobs", "count", queue, "-o", "json"))["queued"] == queued, verb
    first = ids.split()[0].decode()
    assert kestrelctl("jobs", "delete", first) == Outcome(0, b"", "")
    assert kestrelctl("jobs", "delete", "-", stdin=ids).code == 1
    for verb in ("enqueue", "dequeue", "delete"):
        assert kestrelctl("jobs", verb, first) == Outcome(1, b"", ""), verb


def test_ids_and_bodies_come_from_pipes(kestrelctl: Kestrelctl, queue: str) -> None:
    run = kestrelctl("jobs", "add", queue, "--lines", stdin=b"1\n2\n3\n")
    ids = run.out.split()
    assert len(ids) == 3
    jobs = document(kestrelctl("jobs", "get", queue, "-n", "9", "-o", "json"))
    assert [(job["id"].encode(), job["body"]) for job in jobs] == list(zip(ids, "123", strict=True))
    assert kestrelctl("jobs", "nack", "-", "--delay", "10m", stdin=run.out).code == 0
    found = document(kestrelctl("jobs", "scan", "--in", queue, "--state", "active", "-o", "json"))
    assert sorted(job["id"].encode() for job in found) == sorted(ids)
    assert all(500_000 < job["next_requeue_within"] <= 600_000 for job in found)
    assert kestrelctl("jobs", "ack", "-", stdin=run.out).code == 0
    assert kestrelctl("jobs", "ack", "-", stdin=b"").code == 1


def test_adding_is_refused_with_an_exit_code_that_says_why(kestrelctl: Kestrelctl, queue: str) -> None:
    job_id = add(kestrelctl, queue, "x", "--id", "order 7")
    assert add(kestrelctl, queue, "y", "--id", "order 7") == job_id
    run = kestrelctl("jobs", "add", queue, "x", "--maxlen", "1")
    assert (run.code, run.out) == (80, b"")
    assert "already longer than the specified MAXLEN" in run.err
    run = kestrelctl("jobs", "add", queue, "--lines", "--maxlen", "2", stdin=b"1\n2\n3\n")
    assert (run.code, len(run.out.splitlines())) == (81, 1)
    assert run.err.endswith("; added 1 job\n")
    assert kestrelctl("jobs", "pause", queue, "in").out == b"in\n"
    assert kestrelctl("jobs", "add", queue, "x").code == 75
    assert kestrelctl("jobs", "pause", queue, "state").out == b"in\n"
    assert kestrelctl("jobs", "pause", queue, "none").out == b"none\n"
    for wrong in (("--ttl", "0"), ("--delay", "1500ms"), ("--retry", "soon"), ("--delay", "2d", "--ttl", "1d")):
        assert kestrelctl("jobs", "add", queue, "x", *wrong).code in (2, 77), wrong


def test_waiting_for_a_job_and_for_its_end(kestrelctl: Kestrelctl, queue: str) -> None:
    assert kestrelctl("jobs", "get", queue, "--wait", "100ms").code == 124
    assert kestrelctl("jobs", "get", queue, "--wait", "100ms", "--empty-ok").code == 0
    job_id = add(kestrelctl, queue, "x")
    assert kestrelctl("jobs", "wait", job_id, "--wait", "100ms") == Outcome(124, b"", "")
    waiting = kestrelctl.start("jobs", "wait", job_id)
    worker = threading.Thread(target=lambda: kestrelctl("jobs", "get", queue, "--ack"))
    worker.start()
    said, _ = waiting.communicate(timeout=60)
    worker.join()
    assert (waiting.returncode, said) in ((0, b"acked\n"), (1, b""))  # where it was gone before it was waited for


def test_a_command_ends_its_job_or_gives_it_back(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    ids = [add(kestrelctl, queue, body, "--retry", "3s", "--ttl", "1m") for body in "ab"]
    run = kestrelctl("jobs", "get", queue, "-n", "9", "--exec", f"cat >>{tmp_path}/bodies; sleep 2.4")
    assert run == Outcome(0, b"", "")
    assert (tmp_path / "bodies").read_bytes() == b"ab", (
        "once each, though together they took longer than the retry time"
    )
    assert kestrelctl("jobs", "show", ids[0]).code == 1
    job_id = add(kestrelctl, queue, "c")
    run = kestrelctl("jobs", "get", queue, "--exec", "exit 3")
    assert (run.code, run.err) == (85, "kestrelctl: the command exited with 3; its job is given back\n")
    assert document(kestrelctl("jobs", "show", job_id, "-o", "json"))["nacks"] == 1
    assert kestrelctl("jobs", "get", queue, "--exec", "true", "--ack").code == 2
    assert kestrelctl("jobs", "get", queue, "--exec", "true", "-n", "2").code == 0
    assert kestrelctl("jobs", "get", queue, "--exec", "true").code == 1


def test_what_is_no_id_is_exit_2_and_says_so(kestrelctl: Kestrelctl) -> None:
    for verb in ("ack", "nack", "enqueue", "dequeue", "delete", "working", "show", "wait"):
        run = kestrelctl("jobs", verb, "nonsense")
        assert (run.code, run.out) == (2, b""), verb
        assert "Invalid Job ID" in run.err
    assert kestrelctl("jobs", "get", "q", "--raw").code == 2


# Queues


def test_queues_are_listed_with_their_figures(kestrelctl: Kestrelctl, queue: str) -> None:
    add(kestrelctl, f"{queue}.a")
    add(kestrelctl, f"{queue}.a", "x", "--delay", "1h")
    add(kestrelctl, f"{queue}.b")
    rows = document(kestrelctl("jobs", "ls", f"{queue}.*", "-o", "json"))
    assert [(row["queue"], row["queued"], row["delayed"]) for row in rows] == [
        (f"{queue}.a", 1, 1),
        (f"{queue}.b", 1, 0),
    ]
    stat = document(kestrelctl("jobs", "stat", f"{queue}.a", "-o", "json"))
    assert (stat["queued"], stat["jobs_in"], stat["jobs_out"], stat["pause"]) == (1, 1, 0, "none")
    assert kestrelctl("jobs", "ls", f"{queue}.nothing").code == 1
    assert kestrelctl("jobs", "stat", f"{queue}.nothing").code == 1
    assert kestrelctl("jobs", "qdel", f"{queue}.a").out == b"2\n"
    assert kestrelctl("jobs", "qdel", f"{queue}.a").code == 1


def test_a_scan_goes_on_to_its_end(kestrelctl: Kestrelctl, queue: str) -> None:
    bodies = b"".join(b"%d\n" % number for number in range(700))
    ids = kestrelctl("jobs", "add", queue, "--lines", stdin=bodies).out.split()
    assert sorted(kestrelctl("jobs", "scan", "--in", queue, "-o", "name").out.split()) == sorted(ids)
    assert len(kestrelctl("jobs", "scan", "--in", queue, "--limit", "5", "-o", "name").out.split()) == 5
    kestrelctl("jobs", "qdel", queue)


def test_names_of_any_bytes_are_escaped_where_people_see_them(
    daemon: Daemon, kestrelctl: Kestrelctl, queue: str
) -> None:
    with resp_client(daemon.disque) as client:
        job_id = client.job(f"{queue}\x1b[2J\n")  # type: ignore[arg-type]
    run = kestrelctl("jobs", "scan", "--in", f"{queue}\x1b[2J\n", "--no-headers")
    assert run.code == 0
    assert b"\x1b" not in run.out
    assert run.out.startswith(job_id)
    assert run.out.count(b"\n") == 1


def test_dead_letters_are_shown_with_where_they_come_from_and_sent_back(kestrelctl: Kestrelctl, queue: str) -> None:
    job_id = add(kestrelctl, queue, "x", "--retries", "0")
    kestrelctl("jobs", "get", queue)
    assert kestrelctl("jobs", "nack", job_id).code == 0
    (dead,) = document(kestrelctl("jobs", "peek", f"{queue}.dead", "--origin", "-o", "json"))
    assert (dead["id"], dead["origin"], dead["reason"], dead["nacks"]) == (job_id, queue, "retries", 1)
    shown = document(kestrelctl("jobs", "show", job_id, "-o", "json"))
    assert shown["origin"] == queue
    add(kestrelctl, f"{queue}.dead", "put here")
    (letter,) = document(kestrelctl("jobs", "dead", f"{queue}.dead", "-o", "json"))
    assert letter == dead | {"put_at_ms": shown["ctime"] // 1_000_000, "dead_at_ms": dead["dead_since"]}
    assert letter["put_at_ms"] <= letter["dead_at_ms"]
    header, row = kestrelctl("jobs", "dead", f"{queue}.dead").out.decode().splitlines()
    assert header == "id\torigin\treason\tnacks\tadditional_deliveries\tput_at_ms\tdead_at_ms\tbody"
    assert row.split("\t")[:4] == [job_id, queue, "retries", "1"]
    assert kestrelctl("jobs", "dead", queue).code == 1
    assert kestrelctl("jobs", "redrive", f"{queue}.dead").out == b"1\n"
    assert kestrelctl("jobs", "redrive", f"{queue}.dead").code == 1
    (row,) = kestrelctl("jobs", "peek", queue, "--no-headers", "--fields", "id,origin").out.splitlines() or [b""]
    assert row.split(b"\t")[0] in (job_id.encode(), b"")


def test_a_controlled_restart_brings_the_queues_back(tmp_path: Path) -> None:
    settings = ("listen.disque=127.0.0.1:0", "jobs.journal=true")
    with running_daemon(tmp_path / "daemon", *settings) as daemon:
        kestrelctl = Kestrelctl(daemon.address, tmp_path, jobs=daemon.disque)
        ids = kestrelctl("jobs", "add", "mail", "--lines", stdin=b"1\n2\n").out
        assert kestrelctl("jobs", "restart", "--wait", "100ms") == Outcome(124, b"", "")
        assert daemon.wait() == 0
        daemon.start()
        peeked = kestrelctl("jobs", "peek", "mail", "--no-headers")
        assert [line.split(b"\t")[0] for line in peeked.out.splitlines()] == ids.split()
        daemon.stop()
        daemon.start()
        assert kestrelctl("jobs", "peek", "mail").code == 1, "once only"
        assert document(kestrelctl("jobs", "count", "mail", "-o", "json"))["queued"] == 0
        waiting = kestrelctl.start("jobs", "restart", "--wait", "60s", "--yes")
        assert daemon.wait() == 0
        daemon.start()
        waiting.communicate(timeout=60)
        assert waiting.returncode == 0


# Which node


def test_the_node_is_that_of_the_line_the_context_or_the_environment(daemon: Daemon, tmp_path: Path) -> None:
    kestrelctl = Kestrelctl(daemon.address, tmp_path)
    kestrelctl.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    run = kestrelctl("jobs", "count", "mine")
    assert run.code == 69
    assert "is listen.disque set?" in run.err
    assert kestrelctl("jobs", "count", "mine", "-s", daemon.disque).code == 0
    kestrelctl("context", "add", "here", daemon.address, "--jobs", daemon.disque, "--select")
    kestrelctl("context", "add", "there", daemon.address)
    assert kestrelctl("jobs", "count", "mine").code == 69  # the environment goes before the selected context
    assert kestrelctl("jobs", "count", "mine", "-c", "here").code == 0
    del kestrelctl.environment["KESTRELCTL_JOBS"], kestrelctl.environment["KESTRELCTL_SERVER"]
    assert kestrelctl("jobs", "count", "mine").code == 0
    assert json.loads(kestrelctl("context", "show", "-o", "json").out)["jobs"] == daemon.disque
    run = kestrelctl("jobs", "count", "mine", "-c", "there")
    assert run.code == 2
    assert run.err.startswith("kestrelctl: context there has no jobs: use -s HOST:PORT")
    assert kestrelctl("jobs", "count", "mine", "-s", daemon.address).code == 76


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Kestrelctl]:
    users = f'users:\n  web: {{password: "{quick_hash("pw")}", jobs: {{"mail*": [get, put]}}}}\n'
    with running_daemon(tmp_path / "daemon", "listen.disque=127.0.0.1:0", config=users) as daemon:
        yield Kestrelctl(daemon.address, tmp_path, jobs=daemon.disque)


def test_a_login_is_asked_for_and_rights_are_exit_83(guarded: Kestrelctl) -> None:
    run = guarded("jobs", "add", "mail", "x")
    assert run.code == 82
    assert "requires a password" in run.err
    guarded.environment["KESTREL_PASSWORD"] = "wrong"
    assert guarded("jobs", "add", "mail", "x", "--user", "web").code == 82
    guarded.environment["KESTREL_PASSWORD"] = "pw"
    assert guarded("jobs", "add", "mail", "x", "--user", "web").code == 0
    run = guarded("jobs", "add", "other", "x", "--user", "web")
    assert (run.code, run.out) == (83, b"")
    assert "no right to put on other" in run.err


# The page


def test_the_examples_on_the_page_do_what_they_say(daemon: Daemon, kestrelctl: Kestrelctl) -> None:
    section = PAGE.read_text().partition("\n## Jobs\n")[2].partition("\n## ")[0]
    block = re.findall(r"^    (\S.*)$", section, re.MULTILINE)
    assert len(block) >= 12
    assert all("kestrelctl jobs " in line for line in block)
    done = subprocess.run(
        ["sh", "-euc", "\n".join(block)], env=kestrelctl.environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
