"""`journal-verify` as cron runs it: again and again, over much that is unchanged, silent unless something is wrong."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.engine import Engine
from tests.support.queue_client import QueueClient
from tests.support.shell import ROOT, Kestrelctl

PACKAGING: Final = ROOT / "packaging"
SEGMENTS: Final = 6


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Of a server that has stopped: `work` with six segments, `naïve:queue` with one."""
    engine = Engine(tmp_path / "spool", max_journal_size_bytes=100)
    for number in range(SEGMENTS - 1):
        engine.put("work", b"%d" % number * 100)
        engine.end_turn()
    engine.put("na\xc3\xafve:queue", b"x")
    engine.end_turn()
    engine.collection.close()
    return tmp_path / "spool"


def verify(kestrelctl: Kestrelctl, spool: Path, *options: str) -> tuple[int, set[str]]:
    """The exit code, and the segments that were read."""
    run = kestrelctl("journal-verify", str(spool), "-o", "ndjson", *options)
    assert run.err == ""
    return run.code, {row["segment"] for row in map(json.loads, run.out.splitlines()) if row["queue"] == "work"}


def segments(spool: Path) -> list[Path]:
    return sorted((spool / "work.journal").glob("*.seg"))


def flip(path: Path, *, keep_time: bool) -> None:
    """Damage the middle of a file."""
    found, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_what_was_whole_is_not_read_again_until_it_changes(spool: Path, kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    state = str(tmp_path / "state.json")
    names = [path.name for path in segments(spool)]
    assert len(names) == SEGMENTS
    assert verify(kestrelctl, spool, "--state", state) == (0, set(names))
    assert verify(kestrelctl, spool, "--state", state) == (0, set())
    flip(segments(spool)[2], keep_time=True)
    assert verify(kestrelctl, spool, "--state", state) == (0, set()), "size, time and inode are the same"
    assert verify(kestrelctl, spool)[0] == 65
    flip(segments(spool)[2], keep_time=False)
    flip(segments(spool)[2], keep_time=False)
    # The one behind it says how much of it counts.
    assert verify(kestrelctl, spool, "--state", state) == (65, set(names[2:4]))
    assert verify(kestrelctl, spool, "--state", state)[0] == 65, "what is bad is said every time"
    assert verify(kestrelctl, spool)[0] == 65


def test_since_reads_what_was_written_to_lately(spool: Path, kestrelctl: Kestrelctl) -> None:
    first, *rest = segments(spool)
    os.utime(first, (1_700_000_000, 1_700_000_000))
    assert verify(kestrelctl, spool, "--since", "24h") == (0, {path.name for path in rest})
    flip(first, keep_time=True)
    assert verify(kestrelctl, spool, "--since", "24h")[0] == 0
    assert verify(kestrelctl, spool)[0] == 65


def test_a_state_that_is_none_is_said_and_written_anew(spool: Path, kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("words")
    run = kestrelctl("journal-verify", str(spool), "-q", "--state", str(state))
    assert (run.code, run.out) == (0, b"")
    assert run.err.startswith(f"kestrelctl: {state}: not a state file of journal-verify: all files are read")
    assert verify(kestrelctl, spool, "--state", str(state)) == (0, set())
    nowhere = kestrelctl("journal-verify", str(spool), "-q", "--state", f"{tmp_path}/nowhere/state")
    assert (nowhere.code, nowhere.out) == (74, b"")
    assert nowhere.err == f"kestrelctl: cannot write {tmp_path}/nowhere/state: no such file or directory\n"


def test_overlapping_runs_leave_a_whole_state_and_no_other_file(
    spool: Path, kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    state = tmp_path / "of-its-own" / "state"
    state.parent.mkdir()
    runs = [kestrelctl.start("journal-verify", str(spool), "-q", "--state", str(state)) for _ in range(4)]
    assert [run.communicate() for run in runs] == [(b"", b"")] * 4
    assert [run.returncode for run in runs] == [0] * 4
    assert list(state.parent.iterdir()) == [state]
    assert verify(kestrelctl, spool, "--state", str(state)) == (0, set())


def test_nagios_gets_its_line_and_its_exit_codes(spool: Path, kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    def nagios(folder: Path = spool) -> tuple[int, str]:
        run = kestrelctl("journal-verify", str(folder), "-o", "nagios", "--state", str(tmp_path / "state"))
        assert run.err == ""
        return run.code, run.out.decode()

    ok = "KESTREL JOURNALS OK - {} files read, {} unchanged and intact | read={} known={} findings=0\n"
    assert nagios() == (0, ok.format(7, 0, 7, 0))
    assert nagios() == (0, ok.format(0, 7, 0, 7))
    live = segments(spool)[-1]
    with live.open("ab") as file:
        file.write(b"\x40\0\0\0half")
    code, line = nagios()
    assert (code, line.partition(":")[0]) == (1, f"KESTREL JOURNALS WARNING - work {live.name}")
    flip(segments(spool)[0], keep_time=False)
    code, line = nagios()
    assert (code, line.partition(":")[0]) == (2, f"KESTREL JOURNALS CRITICAL - work {segments(spool)[0].name}")
    assert line.endswith("known=4 findings=2\n")
    assert nagios(tmp_path / "nope") == (3, f"KESTREL JOURNALS UNKNOWN - {tmp_path}/nope: no such folder\n")


def test_a_spool_that_a_server_writes_rolls_and_empties_meanwhile_is_sound_every_time(
    tmp_path: Path, kestrelctl: Kestrelctl
) -> None:
    settings = ("max_journal_size=64KiB", "max_journal_overflow=2", f"archive_path={tmp_path}/archive")
    with running_daemon(tmp_path, *settings) as daemon:
        stop, archived = threading.Event(), threading.Event()

        def flow() -> None:
            with QueueClient(daemon.port) as client:
                while not stop.is_set():
                    client.put("work", *[b"." * 4096] * 64)
                    assert len(client.drain("work")) == 64
                    client.put("short-lived", b"x")
                    client.do(b"delete short-lived", b"DELETED\r\n")
                    if any((tmp_path / "archive").rglob("*.seg")):
                        archived.set()

        flowing = threading.Thread(target=flow)
        flowing.start()
        try:
            for folder in ["spool", "archive"] * 2:
                assert archived.wait(60)
                command = ["journal-verify", str(tmp_path / folder), "-q", "--state", str(tmp_path / "state")]
                run = kestrelctl(*command)
                assert (run.code, run.out, run.err) == (0, b"", "")
        finally:
            stop.set()
            flowing.join()


def test_what_an_import_left_behind_and_an_archive_are_verified_alike(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    own_kestrelctl("put", "work", "x")
    own_daemon.stop()
    own_kestrelctl("journal", "export", str(own_daemon.spool), "--to", str(tmp_path / "old"))
    own_kestrelctl("journal", "import", str(tmp_path / "old"), "--to", str(tmp_path / "old"))
    imported = tmp_path / "old" / ".imported"
    (file,) = (imported / os.listdir(imported)[0]).iterdir()
    state = ["--state", str(tmp_path / "state")]
    assert own_kestrelctl("journal-verify", str(imported), *state, "--no-headers").out.split(b"\t")[:2] == [b"work"] * 2
    assert own_kestrelctl("journal-verify", str(imported), *state, "--no-headers").out == b""
    file.write_bytes(b"\x55" + file.read_bytes())
    assert own_kestrelctl("journal-verify", str(imported), *state, "-q").code == 65


# --- What ships.


def crontab() -> list[str]:
    """The commands of the crontab."""
    lines = (PACKAGING / "cron" / "kestrel-journal-verify").read_text().splitlines()
    found = [re.fullmatch(r"\d+ \d+ \* \* \S root (.*)", line) for line in lines]
    commands = [match[1] for match in found if match is not None]
    assert not any("%" in command for command in commands), "cron would end the line there"
    return commands


def as_cron_does(command: str, folder: Path, spool: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run it in cron's environment, with the paths of the test for those that ship."""
    program = folder / "kestrelctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kestrelctl "$@"\n')
    program.chmod(0o755)
    command = re.sub(r"\bkestrelctl(?= )", str(program), command)
    command = command.replace("/var/lib/kestreld/spool", str(spool)).replace("/var/cache/", f"{folder}/")
    bare = ["env", "-i", "PATH=/usr/bin:/bin", f"HOME={folder}", "SHELL=/bin/sh", "LOGNAME=root", "/bin/sh", "-c"]
    return subprocess.run([*bare, command], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)


@pytest.mark.long
def test_the_crontab_says_nothing_of_sound_journals_and_all_of_others(spool: Path, tmp_path: Path) -> None:
    nightly, weekly = crontab()
    for command in (nightly, weekly, nightly):
        run = as_cron_does(command, tmp_path, spool)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    (segment,) = (spool / "na%C3%AFve%3Aqueue.journal").glob("*.seg")
    flip(segment, keep_time=True)
    assert as_cron_does(nightly, tmp_path, spool).returncode == 0
    run = as_cron_does(weekly, tmp_path, spool)
    assert (run.returncode, run.stderr) == (65, b"")
    assert run.stdout.decode().splitlines()[1].startswith(f"naïve:queue\t{segment.name}\t")
    gone = as_cron_does(nightly, tmp_path, tmp_path / "gone")
    assert (gone.returncode, gone.stdout) == (66, b"")
    assert gone.stderr.decode() == f"kestrelctl: {tmp_path}/gone: no such folder\n"


def test_the_timer_starts_what_the_crontab_does() -> None:
    unit = (PACKAGING / "systemd" / "kestrel-journal-verify.service").read_text()
    (started,) = re.findall(r"^ExecStart=/usr/bin/(.*) --state", unit, re.MULTILINE)
    assert started == crontab()[0].removeprefix("nice ").partition(" --state")[0]


def test_on_a_terminal_a_bar_shows_how_far_it_is_and_leaves_nothing_behind(spool: Path, kestrelctl: Kestrelctl) -> None:
    run = kestrelctl.script(
        "bash", "script -qec \"kestrelctl journal-verify '$SPOOL' -q\" /dev/null </dev/null", SPOOL=str(spool)
    )
    assert run.code == 0
    assert "verifying" in run.out.decode()
    assert run.out.decode().rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "the line is cleared"
