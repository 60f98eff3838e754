"""Queues of jobs in the console: what a real server has, what comes and goes, and the jobs of one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.resp import RespClient, resp_client
from tests.support.shell import Kestrelctl
from tests.tui.sights import console, drive, line_of, lines, put, until, until_true
from tui.board import ALL_SERVERS, Board
from tui.job_rows import job_rows_of, summed_jobs
from tui.polling import Poller
from tui.recording import Recorder, load
from tui.snapshots import JOB_KEYS, JobFigures, Snapshot

ODD = "odd\r\n'\\ käse"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, "listen.disque=127.0.0.1:0", admin="127.0.0.1:0") as daemon:
        put(daemon.address, "mail", b"an item", b"of a queue")
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RespClient]:
    """Queues of jobs: mail with one job queued, one active, one delayed; one that is paused."""
    with resp_client(daemon.disque) as client:
        client("DEBUG", "FLUSHALL")
        client("CONFIG", "SET", "maxmemory", "1gb")
        client("ADDJOB", "mail", "first", 0, "RETRY", 60)
        client("ADDJOB", "mail", "second", 0, "RETRY", 60)
        client("GETJOB", "FROM", "mail")
        client("ADDJOB", "mail", "later", 0, "DELAY", 80_000)
        client("ADDJOB", ODD, "x", 0, "RETRY", 0)
        client("PAUSE", ODD, "out")
        yield client


def figures(**known: int | str) -> JobFigures:
    return tuple([known.get(key, "none" if key == "pause" else 0) for key in JOB_KEYS])


def test_queues_of_jobs_have_a_table_of_their_own_and_a_list_of_jobs(daemon: Daemon, client: RespClient) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await until(
            pilot,
            "queues 1  items 2",
            "└ jobs (g)  memory 1.0M of 1.0G  queued 2  active 1  delayed 1  clients waiting 0",
        )
        await pilot.press("g")
        await until(pilot, "jobs  queues 2", "› mail", "import/s")
        await pilot.press("question_mark")
        await until(pilot, "Everywhere")
        assert "flush" not in lines(pilot)[-1]  # it would be of a queue below
        await pilot.press("escape")
        await until(pilot, "› mail")
        odd = line_of(pilot, "odd··")
        assert odd.split()[:4] == ["odd··'\\", "käse", "out", "1"]
        client("ADDJOB", "mail", "third", 0)
        await until_true(pilot, lambda: line_of(pilot, "› mail").split()[2:5] == ["2", "1", "1"], "another job")
        await pilot.press("f", "d", "J")  # which act on queues, not on those of jobs
        await pilot.press("enter")
        await until(pilot, "queued jobs, 2", "second", "third", "next requeue")
        assert line_of(pilot, "second").split()[1:3] == ["queued", "in"]
        await pilot.press("i")
        await until(pilot, "active jobs, 1", "first")
        await pilot.press("i")
        await until(pilot, "delayed jobs, 1", "later", "in 22h")
        await pilot.press("escape")
        await until(pilot, "jobs  queues 2")
        await pilot.press("o", "home", "enter")
        await until(pilot, "odd··", "queued jobs, 1", "never")
        await pilot.press("escape", "g")
        await until(pilot, "queues 1  items 2")

    drive(console(daemon.address), driving, (160, 40))


def test_memory_that_runs_short_is_said_on_both_screens(daemon: Daemon, client: RespClient) -> None:
    used_bytes = int(client("INFO", "memory").partition(b"used_memory:")[2].split()[0])

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "└ jobs")
        client("CONFIG", "SET", "maxmemory", used_bytes * 100 // 80)
        await until(pilot, "ABOVE 75%", "JOBS use more than 75% of maxmemory: new jobs are refused")
        client("CONFIG", "SET", "maxmemory", used_bytes * 100 // 97)
        await pilot.press("g")
        await until(pilot, "ABOVE 95%", "commands that need memory are refused")

    drive(console(daemon.address), driving, (160, 40))


def test_both_ways_of_looking_say_the_same_of_jobs(daemon: Daemon, client: RespClient) -> None:
    poller = Poller(daemon.address, 5000, 1000)
    by_memcache, by_feed = poller.poll(), poller.poll()
    poller.close()
    assert isinstance(by_memcache, Snapshot)
    assert isinstance(by_feed, Snapshot)
    assert by_feed.jobs.keys() == by_memcache.jobs.keys() == {"mail", ODD}
    for name, found in by_feed.jobs.items():
        assert found[:-1] == by_memcache.jobs[name][:-1]
        assert abs(int(found[-1] or 0) - int(by_memcache.jobs[name][-1] or 0)) < 1000
    assert by_feed.counters.keys() == by_memcache.counters.keys()


def test_jobs_as_text_and_json(daemon: Daemon, client: RespClient, tmp_path: Path) -> None:
    kestrelctl = Kestrelctl(daemon.address, tmp_path)
    text = kestrelctl("top", "--once", "--plain", "-i", "20ms").out.decode().splitlines()
    at = next(place for place, line in enumerate(text) if line.startswith("queue of jobs"))
    assert text[at + 1].split()[:4] == ["mail", "1", "1", "1"]
    record = json.loads(kestrelctl("top", "--once", "--json", "-i", "20ms").out)
    mail, odd = record["job_queues"]
    assert (mail["queue"], mail["queued"], mail["active"], mail["delayed"], mail["in_per_s"]) == ("mail", 1, 1, 1, 0.0)
    assert (odd["queue"], odd["pause"]) == (ODD, "out")


def test_without_an_admin_port_the_list_says_so(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0") as daemon, resp_client(daemon.disque) as client:
        client("ADDJOB", "mail", "x", 0)

        async def driving(pilot: Pilot[None]) -> None:
            await until(pilot, "└ jobs")
            await pilot.press("g", "enter")
            await until(pilot, "cannot show its jobs: no admin port", "queued 1")

        drive(console(daemon.address), driving, (120, 30))


def test_a_server_without_jobs_has_none_to_show(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as client:
        client.put("work", b"x")

        async def driving(pilot: Pilot[None]) -> None:
            await until(pilot, "queues 1")
            assert "jobs" not in "\n".join(lines(pilot))
            await pilot.press("g")
            await until(pilot, "no server has jobs")

        drive(console(daemon.address), driving, (120, 30))


def test_rates_are_of_two_samples_and_a_counter_that_falls_has_none() -> None:
    before = Snapshot("a:1", 1000, 1000, {}, {}, jobs={"q": figures(jobs_in=10, jobs_out=5), "r": figures(jobs_in=9)})
    later = {"q": figures(queued=3, jobs_in=20, jobs_out=9, oldest_at_ms=500), "r": figures(jobs_in=1), "s": figures()}
    now = Snapshot("a:1", 3000, 3000, {}, {}, jobs=later)
    rows = {row.queue: row for row in job_rows_of(before, now)}
    assert (rows["q"].in_per_s, rows["q"].out_per_s, rows["q"].oldest_ms) == (5.0, 2.0, 2500)
    assert (rows["r"].in_per_s, rows["s"].in_per_s) == (None, None)
    assert job_rows_of(None, now)[0].in_per_s is None
    (both,) = summed_jobs([[rows["q"]], [job_rows_of(None, now)[0]]])
    assert (both.queued, both.in_per_s, both.oldest_ms, both.pause) == (6, 5.0, 2500, "none")


def test_a_recording_gives_back_queues_of_jobs(tmp_path: Path) -> None:
    looks = [Snapshot("a:1", at_ms, at_ms, {}, {}, jobs={"q": figures(queued=at_ms)}) for at_ms in (1, 1001)]
    recorder = Recorder(str(tmp_path / "seen.jsonl"), 500)
    for look in looks:
        recorder.write(look)
    recorder.close()
    player, board = load(str(tmp_path / "seen.jsonl")), Board(["a:1"])
    assert list(player.samples) == looks
    player.seek(1, board)
    assert [row.queued for row in board.job_rows(ALL_SERVERS)] == [1001]
