"""The console in a real terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.accounts import quick_hash
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.process import environment
from tests.tui.sights import PATIENCE_S, put

ALTERNATE_SCREEN, USUAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def read_until(terminal: int, condition: Callable[[bytes], bool]) -> bytes:
    """What was written to the terminal."""
    seen, end = b"", time.monotonic() + PATIENCE_S
    while not condition(seen):
        left_s = end - time.monotonic()
        assert left_s > 0, f"saw only {seen!r}"
        if select.select([terminal], [], [], left_s)[0]:
            seen += os.read(terminal, 65536)
    return seen


UNDER_NOHUP = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("ending", "code", "prefix"),
    [
        ("q", 0, []),
        (signal.SIGTERM, 143, []),
        pytest.param(signal.SIGHUP, 129, [], marks=pytest.mark.long),
        (signal.SIGHUP, 129, UNDER_NOHUP),
    ],
)
def test_it_draws_and_leaves_the_terminal_as_it_was(
    daemon: Daemon, queue: str, ending: str | int, code: int, prefix: list[str]
) -> None:
    put(daemon.address, queue, b"hello")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    modes = termios.tcgetattr(theirs)
    command = [*prefix, sys.executable, "-m", "kestrelctl", "top", "--filter", queue, "-s", daemon.address]
    variables = {**environment(), "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        seen = read_until(ours, lambda seen: f"› {queue}".encode() in seen)
        assert ALTERNATE_SCREEN in seen
        if isinstance(ending, str):
            os.write(ours, ending.encode())
        else:
            process.send_signal(ending)
        read_until(ours, lambda seen: USUAL_SCREEN in seen)
        assert process.wait(PATIENCE_S) == code
    assert termios.tcgetattr(theirs) == modes
    os.close(ours)
    os.close(theirs)


def test_a_terminal_that_can_do_nothing_is_refused(daemon: Daemon) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kestrelctl", "top", "-s", daemon.address]
    variables = {**environment(), "TERM": "dumb"}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        assert b"--plain" in read_until(ours, lambda seen: seen.endswith(b"\n"))
        assert process.wait(PATIENCE_S) == 2
    os.close(ours)
    os.close(theirs)


def test_a_wrong_password_ends_it_with_82_and_the_terminal_as_it_was(tmp_path: Path) -> None:
    users = f'users: {{alice: {{password: "{quick_hash("all of it")}", rights: {{"*": all}}}}}}'
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    with running_daemon(tmp_path, config=users) as daemon:
        command = [sys.executable, "-m", "kestrelctl", "top", "-s", daemon.address, "--user", "alice"]
        variables = {**environment(), "TERM": "xterm-256color", "KESTREL_PASSWORD": "a guess"}
        with subprocess.Popen(command, cwd=ROOT, env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            seen = read_until(ours, lambda seen: USUAL_SCREEN in seen and seen.endswith(b"\r\n"))
            assert process.wait(PATIENCE_S) == 82
    assert b"authentication" in seen.rpartition(USUAL_SCREEN)[2]
    assert termios.tcgetattr(theirs) == modes
    os.close(ours)
    os.close(theirs)
