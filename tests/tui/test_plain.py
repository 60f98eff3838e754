"""kestrelctl top without a terminal."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.peer import Exchange, scripted_peer
from tests.support.process import environment
from tests.support.shell import Kestrelctl
from tests.support.tampering import tampering_proxy
from tests.tui.sights import PATIENCE_S, put
from tui.recording import load
from tui.snapshots import Snapshot

USERS = f"""
users:
  alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}
"""
PATIENT = ("--timeout", "60s")
QUICK = ("--once", "-i", "20ms", *PATIENT)
# As Kestrel 1.3 was seen to answer: no open reads, no flushes, nothing of ours.
OLD_DUMP = (
    b"queue 'work' {\r\n  items=2\r\n  bytes=10\r\n  total_items=5\r\n  logsize=99\r\n  expired_items=0\r\n"
    b"  mem_items=2\r\n  mem_bytes=10\r\n  age=7\r\n  discarded=0\r\n}\r\nEND\r\n"
)
OLD_STATS = b"STAT uptime 9\r\nSTAT version 1.3.0\r\nSTAT curr_items 2\r\nSTAT queue_work_items 2\r\nEND\r\n"


def test_once_prints_totals_servers_and_a_line_for_each_queue(
    daemon: Daemon, kestrelctl: Kestrelctl, queue: str
) -> None:
    put(daemon.address, queue, b"hello", b"world")
    put(daemon.address, f"{queue}+child", b"!")
    run = kestrelctl("top", *QUICK, "--filter", queue)
    assert (run.code, run.err) == (0, "")
    totals, server, *_, heads, first, second = run.out.decode().splitlines()
    assert "queues 2  items 3  bytes 11" in totals
    assert server.startswith(f"● {daemon.address}")
    assert heads.split()[:4] == ["queue", "items", "in/s", "out/s"]
    assert first.split()[:4] == [queue, "2", "0", "0"]
    assert second.split()[:2] == [f"{queue}+child", "1"]


def test_json_is_one_object_on_a_line_for_each_look(daemon: Daemon, kestrelctl: Kestrelctl, queue: str) -> None:
    put(daemon.address, queue, b"hello")
    run = kestrelctl("top", "--json", "-n", "2", "-i", "20ms", "--filter", queue)
    looks = [json.loads(line) for line in run.out.splitlines()]
    assert len(looks) == 2
    assert looks[1]["at_ms"] > looks[0]["at_ms"]
    assert looks[0]["totals"]["items"] == 1
    (found,) = looks[0]["queues"]
    assert (found["queue"], found["bytes"], found["in_per_s"], found["is_stopped"]) == (queue, 5, 0.0, False)
    (server,) = looks[0]["servers"]
    assert (server["server"], server["answers"]) == (daemon.address, True)
    assert server["counters"]["version"] == "1.0.0"


def test_several_servers_are_added_up_and_one_that_is_down_is_said_to_be(
    daemon: Daemon, own_daemon: Daemon, kestrelctl: Kestrelctl, queue: str
) -> None:
    for address in (daemon.address, own_daemon.address):
        put(address, queue, b"hello")
    servers = ("-s", daemon.address, "-s", own_daemon.address, "-s", "127.0.0.1:1")
    run = kestrelctl("top", *QUICK, "--json", "--filter", queue, *servers)
    look = json.loads(run.out)
    assert run.code == 0
    assert look["queues"][0]["items"] == 2
    assert [server["answers"] for server in look["servers"]] == [True, True, False]
    assert "refused" in look["servers"][2]["reason"]


def test_exit_69_when_no_server_answers(kestrelctl: Kestrelctl) -> None:
    run = kestrelctl("top", *QUICK, "-s", "127.0.0.1:1")
    assert run.code == 69
    assert "cannot reach 127.0.0.1:1" in run.err


def test_an_old_kestrel_has_blanks_where_it_says_nothing(kestrelctl: Kestrelctl) -> None:
    look = [Exchange(b"dump_stats\r\n", OLD_DUMP), Exchange(b"stats\r\n", OLD_STATS)]
    with scripted_peer(look * 2) as peer:
        run = kestrelctl("top", *QUICK, "--json", "-s", peer.address)
    (work,) = json.loads(run.out)["queues"]
    assert (work["items"], work["age_ms"], work["waiters"], work["open_reads"]) == (2, 7, None, None)


def test_a_server_that_refuses_dump_stats_is_an_outage_with_its_words(daemon: Daemon, kestrelctl: Kestrelctl) -> None:
    # Where the machine is busy it is asked a second time, on a new connection.
    with tampering_proxy(daemon.port, lambda reply: b"CLIENT_ERROR not allowed\r\n") as address:
        run = kestrelctl("top", "-n", "1", "-i", "20ms", *PATIENT, "--json", "-s", address)
    (server,) = json.loads(run.out)["servers"]
    assert (run.code, server["answers"]) == (69, False)
    assert "refused: not allowed" in server["reason"]


def test_a_recording_needs_no_terminal(daemon: Daemon, kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    put(daemon.address, queue, b"hello")
    path = tmp_path / "seen.jsonl"
    run = kestrelctl("top", "--record", str(path), "-n", "2", "-i", "20ms")
    assert (run.code, run.out, run.err) == (0, b"", "")
    samples = load(str(path)).samples
    assert len(samples) == 3  # rates need one before
    assert all(isinstance(sample, Snapshot) and queue in sample.queues for sample in samples)
    again = kestrelctl("top", "--record", str(path), "--once")
    assert (again.code, "file exists" in again.err) == (73, True)


def test_a_recording_without_a_terminal_ends_when_it_is_told_to(
    daemon: Daemon, kestrelctl: Kestrelctl, queue: str, tmp_path: Path
) -> None:
    put(daemon.address, queue, b"hello")
    path = tmp_path / "seen.jsonl"
    with kestrelctl.start("top", "--record", str(path), "-i", "20ms") as process:
        end = time.monotonic() + PATIENCE_S
        while not path.exists() or path.read_bytes().count(b"\n") < 4:
            assert time.monotonic() < end, "waited for four lines of the recording"
            time.sleep(0.01)
        process.terminate()
        assert process.wait(PATIENCE_S) == 143
    assert len(load(str(path)).samples) >= 3


def test_a_recording_goes_along_with_what_is_printed(
    daemon: Daemon, kestrelctl: Kestrelctl, queue: str, tmp_path: Path
) -> None:
    put(daemon.address, queue, b"hello")
    path = tmp_path / "seen.jsonl"
    run = kestrelctl("top", "--json", "--once", "-i", "20ms", "--record", str(path), "--filter", queue)
    assert json.loads(run.out)["totals"]["items"] == 1
    assert len(load(str(path)).samples) == 2


@pytest.mark.usefixtures("installed_programs")
def test_a_recording_on_a_full_disk_is_exit_74(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    script = "ulimit -f 1; trap '' XFSZ; kestrelctl top --record \"$FILE\" -i 1ms"
    run = kestrelctl.script("bash", script, FILE=str(tmp_path / "seen.jsonl"))
    assert (run.code, "cannot record to" in run.err) == (74, True)


@pytest.mark.parametrize("arguments", [["--once"], ["--record", "seen.jsonl"]])
def test_a_wrong_password_is_exit_82(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with running_daemon(tmp_path, config=USERS) as daemon:
        kestrelctl = Kestrelctl(daemon.address, tmp_path)
        kestrelctl.environment |= {"KESTRELCTL_USER": "alice", "KESTREL_PASSWORD": "a guess"}
        run = kestrelctl("top", *arguments)
    assert (run.code, run.out) == (82, b"")
    assert "authentication" in run.err


def test_a_console_without_a_terminal_is_refused_and_plain_recommended(kestrelctl: Kestrelctl) -> None:
    run = kestrelctl("top")
    assert run.code == 2
    assert "--plain" in run.err


def test_mistakes_on_the_command_line_are_named(kestrelctl: Kestrelctl) -> None:
    for arguments, words in [
        (("--sort", "size"), "no column 'size'"),
        (("--interval", "0"), "greater than 0"),
        (("--once", "--replay", "x"), "--replay requires the console"),
    ]:
        run = kestrelctl("top", *arguments)
        assert run.code == 2
        assert words in run.err


def test_python_m_tui_is_kestrelctl_top(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "tui", "--once", "-i", "20ms", "-s", daemon.address]
    run = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert f"● {daemon.address}" in run.stdout


def test_only_the_console_itself_loads_textual(daemon: Daemon) -> None:
    for verb in (["stats"], ["top", "--once", "-i", "20ms"]):
        command = [sys.executable, "-X", "importtime", "-m", "kestrelctl", *verb, "-s", daemon.address]
        run = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
        assert run.returncode == 0
        loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in run.stderr.splitlines()}
        assert "kestrelctl" in loaded
        assert loaded & {"textual", "rich"} == set()
        assert ("tui" in loaded) == (verb[0] == "top")
