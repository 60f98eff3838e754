"""Tests start kestrelctl in quicker ways than its users do: it is the same program."""

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.support import forked
from tests.support.shell import Kestrelctl

IN_A_SHELL = "kestrelctl get {queue} --all --wait 60s & echo $!; wait $! || echo ended $?"


def is_forked(pid: int) -> bool:
    return b"tests.support.forked" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("path", ["", "/elsewhere"])
def test_a_python_path_of_the_run_does_not_make_starts_slow(
    kestrelctl: Kestrelctl, queue: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    run = kestrelctl.start("get", queue, "--wait", "60s")
    with run:
        assert is_forked(run.pid)
        run.kill()


@pytest.mark.usefixtures("installed_programs")
def test_where_installed_programs_are_wanted_nothing_is_forked(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    with in_a_shell(kestrelctl, queue) as (out, _):
        pid = int(out.readline())
        assert out.readline() == b"x\n"
        assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"kestrelctl"]
        os.kill(pid, signal.SIGTERM)
        assert out.read() == b"ended 143\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, 137)])
def test_a_signal_to_what_a_shell_has_started_reaches_kestrelctl(
    kestrelctl: Kestrelctl, queue: str, number: int, code: int
) -> None:
    kestrelctl("put", queue, "x")
    with in_a_shell(kestrelctl, queue) as (out, err):
        pid = int(out.readline())
        assert out.readline() == b"x\n"
        os.kill(pid, number)
        assert out.read() == b"ended %d\n" % code  # to its end: kestrelctl holds it open as well
        assert b"Traceback" not in err.read()


def test_a_shell_in_a_folder_of_its_own_with_words_of_its_own(
    kestrelctl: Kestrelctl, queue: str, tmp_path: Path
) -> None:
    script = """
        cd "$HERE"; umask 027; export KESTRELCTL_SERVER="$A"
        printf "it's\\n\\344" >item
        kestrelctl put "$Q" @item
        kestrelctl put "$Q" "" </dev/null
        { kestrelctl ls "$Q" --no-headers -o name; kestrelctl ls "$Q" --no-headers -o name; } >listed
        wc -l <listed
        kestrelctl get "$Q" --all --lines
        ls -l listed | cut -c 1-10
    """
    here = tmp_path / "a folder"
    here.mkdir()
    run = kestrelctl.script("sh", script, HERE=str(here), A=kestrelctl.address, Q=queue, KESTRELCTL_SERVER="nowhere:1")
    assert (run.code, run.out, run.err) == (0, b"2\nit's\n\xe4\n\n-rw-r-----\n", "")


@pytest.mark.parametrize(
    "line",
    [
        ["--version"],
        ["--help"],
        ["put", "--help"],
        ["stats", "--fields", "what"],
        ["ls", "no-such-*", "-o", "json"],
        ["check", "no-such-queue", "-o", "yaml"],
        ["get", "q", "-s", "127.0.0.1:1"],
        ["put", "q", "@/nowhere/file"],
        ["jobs", "count", "none", "-o", "csv"],
        ["cache", "get", "none"],
        ["context", "ls"],
        ["lss"],
    ],
    ids=" ".join,
)
def test_what_runs_in_the_process_of_the_tests_does_as_one_of_its_own_and_leaves_nothing(
    kestrelctl: Kestrelctl, line: list[str], tmp_path: Path
) -> None:
    kestrelctl.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    try:
        kestrelctl(*line)  # what is kept from the first time on
        before = around()
        here = kestrelctl(*line)
        assert around() == before
        with forked.no_forks():
            assert kestrelctl(*line) == here
    finally:
        del kestrelctl.environment["XDG_CONFIG_HOME"]


@pytest.mark.parametrize("asked", [b"", b"\x0f", b"\x0f\0\0\0"])
def test_who_is_ended_while_it_asks_leaves_the_others_alone(kestrelctl: Kestrelctl, asked: bytes) -> None:
    """As by `timeout` in a completion on a busy machine."""
    assert kestrelctl.script("sh", "kestrelctl --version").code == 0
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(forked._door()[1]))
        asking.sendall(asked)
    assert kestrelctl.script("sh", "kestrelctl --version").code == 0


def around() -> list[object]:
    streams = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    handlers = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
    opened = len(os.listdir("/proc/self/fd"))
    return [*map(id, streams), handlers, gc.get_threshold(), dict(os.environ), list(sys.argv), os.getcwd(), opened]


@contextmanager
def in_a_shell(kestrelctl: Kestrelctl, queue: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """What the shell and kestrelctl in its background print."""
    with subprocess.Popen(
        ["sh", "-c", IN_A_SHELL.format(queue=queue)],
        env=kestrelctl.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as shell:
        assert shell.stdout is not None
        assert shell.stderr is not None
        yield shell.stdout, shell.stderr
