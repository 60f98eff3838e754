"""Every exit code that the other files do not show, and that none comes with a traceback."""

import re
import signal
from pathlib import Path

import pytest

from kestrelctl.command_tree import command_tree
from kestrelctl.shell.exit_codes import COMMON, ExitCode
from kestrelctl.verbs import TOPICS, names_by_topic
from tests.support.daemon import Daemon
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.process import stop
from tests.support.shell import Kestrelctl


def test_every_verb_explains_itself(kestrelctl: Kestrelctl) -> None:
    commands = kestrelctl("-h").out.decode().partition("Items:\n")[2].partition("Exit codes:\n")[0]
    verbs = re.findall(r"^  ([a-z-]+) ", commands, re.MULTILINE)
    assert sorted(verbs) == sorted(verb for topic in names_by_topic().values() for verb in topic)
    assert sorted(verbs) == sorted(command_tree().commands)
    assert re.findall(r"^([A-Z]\w+):$", commands, re.MULTILINE) == list(TOPICS)[1:]
    for verb in ("get", "journal-verify"):
        assert verb in verbs
        assert kestrelctl(verb, "-h").out.startswith(f"Usage: kestrelctl {verb} ".encode())


@pytest.mark.usefixtures("installed_programs")
def test_no_arguments_at_all_show_the_help_with_exit_2(kestrelctl: Kestrelctl) -> None:
    shown = kestrelctl()
    assert shown.code == 2
    assert shown.out.startswith(b"Usage: kestrelctl ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["gte", "q"],
        ["get"],
        ["get", "q", "--bogus"],
        ["get", "q", "--wait", "soon"],
        ["put", "q", "x", "--expire", "-1"],
        ["--timeout", "0", "get", "q"],
        ["-s", "host:port", "get", "q"],
        ["stats", "-o", "xml"],
    ],
)
def test_a_wrong_command_line_is_exit_2_and_one_line(kestrelctl: Kestrelctl, arguments: list[str]) -> None:
    run = kestrelctl(*arguments)
    assert (run.code, run.out) == (2, b"")
    assert run.err.startswith("kestrelctl: ")
    assert run.err.count("\n") == 1


def test_a_server_that_does_not_answer_is_exit_75(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    stop(own_daemon.pid)
    run = own_kestrelctl("put", "q", "x", "--timeout", "200ms")
    assert run.code == 75
    assert run.err == f"kestrelctl: no answer from {own_daemon.address} within 0.2s; try again or raise --timeout\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"-ERR unknown command 'get'\r\n", 76),
        (b"HTTP/1.1 400 Bad Request\r\n", 76),
        (b"VALUE other 0 1\r\nx\r\nEND\r\n", 76),
        (b"VALUE q 0 many\r\nx\r\nEND\r\n", 76),
        (b"CLIENT_ERROR unauthenticated\r\n", 82),
        (b"CLIENT_ERROR authentication failure\r\n", 82),
        (b"CLIENT_ERROR not allowed\r\n", 83),
        (b"CLIENT_ERROR something else\r\n", 77),
        (b"SERVER_ERROR corrupt q: byte 5: bad checksum\r\n", 84),
        (b"SERVER_ERROR journal no space left\r\n", 74),
        (b"SERVER_ERROR shutting down\r\n", 77),
    ],
)
def test_what_the_server_says_decides_the_exit_code(kestrelctl: Kestrelctl, answer: bytes, code: int) -> None:
    with scripted_peer([WHO_IS_THERE, Exchange(b"get q/open\r\n", answer)]) as peer:
        run = kestrelctl("get", "q", "-s", peer.address)
    assert (run.code, run.out) == (code, b"")
    assert run.err.startswith("kestrelctl: ")
    assert run.err.count("\n") == 1


@pytest.mark.usefixtures("installed_programs")
def test_a_server_that_leaves_in_the_middle_is_exit_69(kestrelctl: Kestrelctl) -> None:
    with scripted_peer([WHO_IS_THERE, Exchange(b"get q/open\r\n", b"VALUE q 0 5\r\nhal", closes=True)]) as peer:
        run = kestrelctl("get", "q", "-s", peer.address)
    assert (run.code, run.out) == (69, b"")


def test_of_an_item_that_was_sent_and_not_answered_it_is_unknown_whether_it_is_stored(kestrelctl: Kestrelctl) -> None:
    with scripted_peer([WHO_IS_THERE, Exchange(b"set q 0 0 1\r\nx\r\n", b"", closes=True)]) as peer:
        run = kestrelctl("put", "q", "x", "-s", peer.address)
    assert run.code == 69
    assert run.err.endswith("; it may or may not be stored\n")


def test_a_server_that_leaves_after_some_lines_is_exit_81_and_says_what_is_unknown(kestrelctl: Kestrelctl) -> None:
    sets = b"set q 0 0 1\r\na\r\nset q 0 0 1\r\nb\r\nset q 0 0 1\r\nc\r\n"
    with scripted_peer([WHO_IS_THERE, Exchange(sets, b"STORED\r\nSTO", closes=True)]) as peer:
        run = kestrelctl("put", "q", "--lines", "-s", peer.address, stdin=b"a\nb\nc\n")
    assert run.code == 81
    assert run.err == (
        f"kestrelctl: {peer.address} closed the connection before it answered; "
        "stored 1 of the 3 items sent; 2 of them may or may not be stored\n"
    )


@pytest.mark.usefixtures("installed_programs")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_wait_without_a_word(kestrelctl: Kestrelctl, queue: str, number: int, code: int) -> None:
    kestrelctl("put", queue, "x")
    run = kestrelctl.start("get", queue, "--all", "--wait", "60s")
    assert run.stdout is not None
    assert run.stdout.readline() == b"x\n"
    run.send_signal(number)
    out, err = run.communicate()
    assert (run.returncode, out, err) == (code, b"", b"")


def test_the_server_may_listen_on_a_unix_socket(own_daemon: Daemon, kestrelctl: Kestrelctl, short_path: Path) -> None:
    own_daemon.stop()
    own_daemon.listen = f"unix:{short_path}/s"
    own_daemon.start()
    assert kestrelctl("put", "q", "x", "-s", own_daemon.address).code == 0
    assert kestrelctl("get", "q", "-s", own_daemon.address).out == b"x"
    missing = kestrelctl("get", "q", "-s", "unix:/nowhere/s")
    assert missing.code == 69
    assert missing.err.startswith("kestrelctl: cannot reach unix:/nowhere/s: no such file or directory; ")


def test_help_explains_a_verb_as_its_h_does_and_refuses_what_is_none(kestrelctl: Kestrelctl) -> None:
    assert kestrelctl("help", "lease", "give-back").out == kestrelctl("lease", "give-back", "-h").out
    assert kestrelctl("help").out == kestrelctl("-h").out
    assert kestrelctl("help", "nosuch").code == ExitCode.USAGE


def test_help_lists_every_exit_code_and_the_programs_help_the_common_ones(kestrelctl: Kestrelctl) -> None:
    codes = kestrelctl("help", "exit-codes").out.decode().splitlines()
    assert [line.strip() for line in codes] == [f"{code.value}  {code.meaning}" for code in ExitCode]
    common = kestrelctl("-h").out.decode().partition("Exit codes:\n")[2]
    assert re.findall(r"^ +(\d+)  ", common, re.MULTILINE) == [str(code.value) for code in COMMON]
