"""watch: a verb again and again."""

import json
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from kestreld import __version__
from tests.support.daemon import Daemon
from tests.support.shell import Kestrelctl


def test_watch_runs_a_verb_so_often_and_ends_as_it_did_last(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    run = kestrelctl("watch", "-i", "10ms", "-n", "3", "ls", queue, "-o", "ndjson")
    assert [json.loads(line)["items"] for line in run.out.splitlines()] == [1, 1, 1]
    assert (run.code, run.err) == (0, "")
    assert kestrelctl("watch", "-n", "1", "ls", "missing").code == 1
    assert kestrelctl("watch", "-n", "1", "lss").code == 2
    assert kestrelctl("watch", "-i", "0", "ls").code == 2


def test_options_before_watch_are_meant_for_the_verb(kestrelctl: Kestrelctl, own_daemon: Daemon, queue: str) -> None:
    kestrelctl("put", queue, "x")
    assert kestrelctl("-s", own_daemon.address, "watch", "-n", "1", "ls", queue).code == 1
    assert kestrelctl("watch", "-n", "1", "ls", queue, "-s", own_daemon.address).code == 1
    assert kestrelctl("--timeout", "0", "watch", "-n", "1", "ls", queue).code == 2
    assert kestrelctl("watch", "-n", "1", "ls", queue).code == 0


def test_watch_goes_on_while_the_server_is_away_and_ends_with_a_signal(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    own_daemon.stop()
    watching = own_kestrelctl.start("watch", "-i", "10ms", "version")
    assert watching.stdout is not None
    assert watching.stderr is not None
    assert b"cannot reach" in watching.stderr.readline()
    own_daemon.start()
    assert watching.stdout.readline().startswith(__version__.encode())
    watching.send_signal(signal.SIGINT)
    watching.communicate()
    assert watching.returncode == 130


@pytest.mark.parametrize("verb", ["version", "ls", "get work --all", "put work x", "move work other"])
def test_no_connection_is_left_to_a_finalizer_where_a_signal_would_be_lost(
    own_kestrelctl: Kestrelctl, verb: str
) -> None:
    own_kestrelctl("put", "work", "x")
    own_kestrelctl.environment["PYTHONWARNINGS"] = "always::ResourceWarning"
    assert "ResourceWarning" not in own_kestrelctl("watch", "-n", "2", "-i", "1ms", *verb.split()).err


def test_on_a_terminal_each_look_replaces_the_one_before(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    main, terminal = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "kestrelctl", "watch", "-i", "10ms", "-n", "2", "ls", queue],
        env=kestrelctl.environment,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
    )
    os.close(terminal)
    shown = b""
    while select.select([main], [], [], 60)[0]:
        try:
            shown += os.read(main, 4096)
        except OSError:  # nobody has it open any more
            break
    os.close(main)
    assert run.wait(60) == 0
    assert shown.count(b"\x1b[H\x1b[2J") == 2
    assert shown.count(queue.encode() + b"\r\n\x1b") == 1
