"""`get --exec`: the item is taken if the command succeeds, and only then."""

import os
import signal

import pytest

from tests.support.daemon import Daemon
from tests.support.shell import Kestrelctl


def test_the_command_gets_the_item_and_its_success_takes_it(kestrelctl: Kestrelctl, queue: str) -> None:
    item = os.urandom(200_000)  # more than a pipe holds
    kestrelctl("put", queue, stdin=item)
    got = kestrelctl("get", queue, "--exec", "cat")
    assert (got.code, got.out) == (0, item)
    assert kestrelctl("get", queue).code == 1


def test_its_failure_puts_the_item_back_at_the_head_and_ends_the_run(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"good\nbad\ngood\n")
    got = kestrelctl("get", queue, "--all", "--exec", 'read item || :; echo "$item"; test "$item" = good')
    assert (got.code, got.out) == (85, b"good\nbad\n")
    assert got.err == "kestrelctl: the command exited with 1; its item is back at the head of the queue\n"
    assert kestrelctl("get", queue, "--all").out == b"bad\ngood\n"


def test_a_command_killed_by_a_signal_failed_and_one_that_does_not_read_need_not(
    kestrelctl: Kestrelctl, queue: str
) -> None:
    kestrelctl("put", queue, stdin=bytes(1_000_000))
    killed = kestrelctl("get", queue, "--exec", "kill -9 $$")
    assert (killed.code, killed.err.partition(";")[0]) == (85, "kestrelctl: the command was killed by signal 9")
    assert kestrelctl("get", queue, "--exec", ":").code == 0


def test_on_an_empty_queue_no_command_runs(kestrelctl: Kestrelctl, queue: str) -> None:
    got = kestrelctl("get", queue, "--exec", "echo ran", "--wait", "10ms")
    assert (got.code, got.out) == (124, b"")


@pytest.mark.usefixtures("installed_programs")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_stops_all_the_command_started_and_gives_the_item_back(
    kestrelctl: Kestrelctl, queue: str, number: int, code: int
) -> None:
    kestrelctl("put", queue, "job")
    run = kestrelctl.start("get", queue, "--exec", "(trap '' INT TERM; echo started; exec sleep 60) & sleep 60")
    assert run.stdout is not None
    assert run.stdout.readline() == b"started\n"
    run.send_signal(number)
    _, err = run.communicate(timeout=60)  # to the end of stdout, which every process of the command holds open
    assert (run.returncode, err) == (code, b"")
    assert kestrelctl("get", queue).out == b"job"


def test_a_server_lost_while_the_command_runs_is_exit_69_and_the_item_comes_again(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    own_kestrelctl("put", "q", "job")
    got = own_kestrelctl("get", "q", "--exec", f"kill -9 {own_daemon.pid}")
    assert got.code == 69
    assert own_daemon.wait() == -signal.SIGKILL
    own_daemon.start()
    assert own_kestrelctl("get", "q").out == b"job"
