"""packaging/cron and the timer: a nightly look at the journals that speaks only when something is wrong."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.daemon import ROOT, running_daemon
from tests.support.queue_client import QueueClient

PROGRAM: Final = Path(sys.executable).parent / "kestrelctl"
SPOOL: Final = "/var/lib/kestreld/spool"
UNIT: Final = ROOT / "packaging" / "systemd" / "kestrel-journal-verify.service"


def command_of_cron() -> str:
    """What stands behind the times and the account."""
    text = (ROOT / "packaging" / "cron" / "kestrel-journal-verify").read_text()
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    times, account, command = re.fullmatch(r"((?:\S+ +){5}) (\S+) +(.*)", line).groups()  # type: ignore[union-attr]
    assert (len(times.split()), account) == (5, "root")
    assert "%" not in command  # a new line, to cron
    return str(command)


def command_of_unit() -> str:
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    return str(command)


def as_cron_runs_it(command: str, spool: Path, home: Path) -> "subprocess.CompletedProcess[str]":
    """With cron's few variables and its shell, without a terminal."""
    here = command.replace("/usr/bin/kestrelctl", shlex.quote(str(PROGRAM))).replace(SPOOL, shlex.quote(str(spool)))
    assert here.count(str(PROGRAM)) == here.count(str(spool)) == 1
    variables = {"HOME": str(home), "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        ["/bin/sh", "-c", here],
        cwd=home,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_check_is_silent_while_all_is_well_and_names_what_is_not(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"x" * 100, b"y")
            client.put("mail", b"z")
        for command in (command_of_cron(), command_of_unit()):
            done = as_cron_runs_it(command, daemon.spool, tmp_path)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        (segment,) = daemon.spool.glob("work.journal/*.seg")
        content = bytearray(segment.read_bytes())
        content[content.index(b"xxx")] ^= 1
        segment.write_bytes(content)
        for command in (command_of_cron(), command_of_unit()):
            done = as_cron_runs_it(command, daemon.spool, tmp_path)
            assert done.returncode == 65
            assert "work" in done.stdout
            assert "mail" not in done.stdout


def test_a_spool_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = as_cron_runs_it(command_of_cron(), tmp_path / "spool", tmp_path)
    assert (done.returncode, done.stdout) == (66, "")
    assert f"{tmp_path}/spool: no such folder" in done.stderr


def test_the_timer_and_the_line_of_cron_look_at_the_spool_of_the_unit() -> None:
    spool = re.search(r"--set queue_path=(\S+)", (UNIT.parent / "kestreld.service").read_text())
    assert spool is not None
    assert spool[1] == SPOOL
    assert shlex.split(command_of_unit())[-1] == shlex.split(command_of_cron())[-1] == SPOOL
