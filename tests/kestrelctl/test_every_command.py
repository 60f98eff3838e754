"""What holds for every command there is: help, examples, and good manners in every surrounding."""

import json
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kestrelctl.command_tree import command_tree, explain
from kestrelctl.description.tree import Command, Kind, kestrelctl_tree
from kestrelctl.shell.exit_codes import ExitCode, Failure
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl

ROOT: Final = Path(__file__).parents[2]
COMMANDS: Final = [command for command in kestrelctl_tree().walk() if not command.commands]
# What a command needs beside a queue to get as far as its server.
NEEDS: Final = {
    "declare": ["max_items=5"],
    "put": ["x"],
    "wait": ["--empty"],
    "top": ["--once"],
    "move": ["elsewhere"],
    "copy": ["elsewhere"],
    "cancel": ["1"],
    "run-now": ["1"],
    "lease confirm": ["1"],
    "lease extend": ["1"],
    "lease give-back": ["1"],
    "readers create": ["made"],
    "readers move": ["kept", "latest"],
    "readers drop": ["kept"],
    "bind": ["bound"],
    "unbind": ["bound"],
    "cache set": ["x"],
    "cache add": ["x"],
    "jobs add": ["x"],
    "jobs pause": ["state"],
}
WITH_OTHER_NODES: Final = {"cluster meet", "cluster forget"}  # tests of these have several
UNKNOWN_JOB: Final = "D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1"
BY_ADMIN_PORT: Final = {
    *("items", "tail", "copy", "export", "readers", "consumers", "cancel", "run-now", "dead", "redrive"),
}
# nagios decides here.
DOWN_CODES: Final = {"check": 2, "cluster status": 2}
NOTHING_TO_UNDO: Final = b"kestrelctl: nothing to undo for %b: trash_seconds is 0, or has expired\n"
# There is nothing to undo, delayed, dead or bound, and the machine may not be well.
CODES: Final[dict[str, set[int]]] = {"undo": {1}, "doctor": {0, 1, 88}, "bindings": {0, 1}}
CODES |= {verb: {1} for verb in ("cancel", "run-now", "dead", "redrive")}
JOB_VERBS = ("ack", "fastack", "nack", "enqueue", "dequeue", "delete", "working", "show", "wait", "dead", "redrive")
CODES |= {f"lease {verb}": {1} for verb in ("confirm", "extend", "give-back")}
CODES |= {f"jobs {verb}": {1} for verb in JOB_VERBS}
# JSON keys of some items and consumers only; tests of these commands see them.
NOT_OF_EACH: Final = {
    *("data_base64", "server", "expire_ms", "user", "left_ms", "token", "state", "due_at_ms", "attempts", "client"),
    *("since_at_ms", "until_at_ms", "origin", "reason", "origin_attempts", "put_at_ms", "holder", "extended", "seen"),
    "failure_reason",
    *("jobs", "memory_bytes", "memory_limit_bytes", "memory_level", "nodes", "nodes_down"),
}
REACHABLE: Final = [
    command
    for command in COMMANDS
    if any("--server" in option.names for option in command.options) and command.words != "web"  # it goes on serving
]
READING: Final = [
    command
    for command in REACHABLE
    if command.path[0] not in ("bench", "journal", "shutdown")
    and command.words not in {"jobs restart", *WITH_OTHER_NODES}
]
HAS_QUEUE: Final = [
    command
    for command in READING
    if any(argument.value.kind == Kind.QUEUE for argument in command.arguments)
    and command.words not in ("bind", "unbind")  # their first word is an exchange, which may be anything
]


def line_of(command: Command, queue: str, folder: Path) -> list[str]:
    """A command line that is as short as may be."""
    if command.words == "journal import":
        (folder / "work").write_bytes(struct.pack("<BIQQ", 2, 17, 1_700_000_000_000, 0) + b"x")
        return ["journal", "import", str(folder / "work"), "--queue", queue]
    if command.words == "jobs import":
        (folder / "disque.aof").write_bytes(b"")
        return ["jobs", "import", str(folder / "disque.aof")]
    if command.words == "import":  # without a file it reads standard input
        (folder / "items").write_text('{"data":"x"}\n')
        return ["import", queue, str(folder / "items")]
    required = [argument.value.metavar for argument in command.arguments if argument.is_required]
    subject = UNKNOWN_JOB if command.path[0] == "jobs" and required[:1] in (["ID"], ["ID...|-"]) else queue
    needs = [subject] if required else []
    return [*command.path, *needs, *NEEDS.get(command.words, [])]


def prepare(kestrelctl: Kestrelctl, command: Command, queue: str) -> None:
    """What a command finds that does its work."""
    kestrelctl("put", queue, "x")
    if command.words == "wait":
        kestrelctl("flush", queue)
    if "kept" in NEEDS.get(command.words, []):
        kestrelctl("readers", "create", queue, "kept")
    if command.path[0] == "jobs":
        kestrelctl("jobs", "add", queue, "x")
    if command.words in ("cache get", "cache incr", "cache delete"):
        kestrelctl("cache", "set", queue, "1")


def each(commands: list[Command]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("command", commands, ids=[command.words.replace(" ", "-") for command in commands])


def test_every_help_ends_with_examples_that_kestrelctl_understands() -> None:
    program = command_tree()
    for command in COMMANDS:
        assert command.examples, f"kestrelctl/description/examples.py has none of {command.words!r}"
        for example in command.examples:
            (words,) = [part for part in example.split(" | ") if part.startswith(f"kestrelctl {command.words}")]
            rest = shlex.split(words)[1:]
            node, context = program, program.make_context("kestrelctl", list(rest))
            for name in command.path:
                node = node.commands[rest.pop(0)]
                context = node.make_context(name, list(rest), parent=context)


@pytest.mark.exhaustive("put", "readers-move", "journal-dump", "bench")
@each(COMMANDS)
def test_help_shows_the_examples(kestrelctl: Kestrelctl, command: Command) -> None:
    run = kestrelctl(*command.path, "--help")
    assert (run.code, run.err) == (0, "")
    shown = run.out.decode().partition("\n  Example")[2]
    assert [line.strip() for line in shown.splitlines()[1:] if line.strip()] == list(command.examples)


@pytest.mark.exhaustive("put", "check", "readers", "reload", "top")
@each(REACHABLE)
def test_without_a_server_it_is_exit_69_and_one_line(kestrelctl: Kestrelctl, command: Command, tmp_path: Path) -> None:
    run = kestrelctl(*line_of(command, "q", tmp_path), "-s", "127.0.0.1:1")
    assert run.code == DOWN_CODES.get(command.words, 69)
    assert run.err.count("\n") == (0 if command.words in DOWN_CODES else 1)
    assert "cannot reach 127.0.0.1:1" in (run.out.decode() if command.words in DOWN_CODES else run.err)


@pytest.mark.exhaustive("put", "stats", "readers-create", "export")
@each(READING)
def test_with_standard_input_closed_and_no_terminal_it_does_its_work(
    daemon: Daemon, command: Command, tmp_path: Path
) -> None:
    admin = "127.0.0.1:0" if command.path[0] in BY_ADMIN_PORT else "null"
    settings = ("listen.cache=127.0.0.1:0", "listen.disque=127.0.0.1:0")
    with running_daemon(tmp_path / "daemon", *settings, admin=admin) as own:
        kestrelctl = Kestrelctl(own.address, tmp_path, own.cache, own.disque)
        prepare(kestrelctl, command, "q")
        line = line_of(command, "q", tmp_path)
        run = subprocess.run(
            ["setsid", "-w", "sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "kestrelctl", *line],
            env=kestrelctl.environment,
            capture_output=True,
            timeout=60,
        )
        assert run.returncode in CODES.get(command.words, {0})
        assert run.stderr == (NOTHING_TO_UNDO % b"q" if command.words == "undo" else b"")


@pytest.mark.exhaustive("get", "dump-stats", "items", "export", "top")
@each(READING)
def test_a_reader_that_has_gone_is_no_traceback(
    kestrelctl: Kestrelctl, command: Command, queue: str, tmp_path: Path
) -> None:
    line = line_of(command, queue, tmp_path)
    if command.words.startswith("flush-all") or command.words == "reload":
        pytest.skip("it would change what other tests see")
    prepare(kestrelctl, command, queue)
    reading = subprocess.Popen(
        [sys.executable, "-m", "kestrelctl", *line],
        env=kestrelctl.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.close()
    said = reading.stderr.read()
    reading.stderr.close()
    assert said == (NOTHING_TO_UNDO % queue.encode() if command.words == "undo" else b"")
    assert reading.wait() in {0, 1, 141, *CODES.get(command.words, ())}


@pytest.mark.exhaustive("put", "stats", "readers-create", "undo", "tail")
@each(HAS_QUEUE)
def test_a_name_with_a_blank_is_refused_and_one_of_colons_is_a_name(
    kestrelctl: Kestrelctl, command: Command, queue: str, tmp_path: Path
) -> None:
    colons = f"::{queue}:a:b::"
    prepare(kestrelctl, command, colons)
    needs = NEEDS.get(command.words, [])
    assert kestrelctl(*command.path, colons, *needs).code in CODES.get(command.words, {0})
    if command.words in ("stats", "check"):  # they ask for all, and find none of that name
        assert kestrelctl(*command.path, "a b").code == {"stats": 1, "check": 2}[command.words]
    else:
        for bad in ("a b", "", "a/open", "a\nflush_all"):
            run = kestrelctl(*command.path, bad, *needs)
            assert (run.code, run.out) == (2, b""), bad
            assert run.err.count("\n") == 1


def test_json_has_the_keys_that_the_documentation_promises(
    kestrelctl: Kestrelctl, queue: str, daemon: Daemon, tmp_path: Path
) -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", (ROOT / "docs" / "kestrelctl.md").read_text(), re.MULTILINE)
    promised = {
        command: set(re.findall(r"`([a-z_0-9]+)`", text)) - {"null"}
        for commands, text in rows
        for command in re.findall(r"`([^`]+)`", commands)
    }
    kestrelctl("put", queue, "x")
    kestrelctl("get", f"{queue}+child")
    spool = str(daemon.spool)
    lines = {
        "ls": ["ls", queue, "-o", "json"],
        "check": ["check", queue, "-o", "json"],
        "repair": ["repair", queue, "-o", "json"],
        "journal-verify": ["journal-verify", spool, queue, "-o", "json"],
        "bench": ["bench", "flood", "-n", "10", "-q", f"{queue}-bench", "-o", "json"],
        "top --json": ["top", "--once", "--json"],
        "get --json": ["peek", queue, "--json"],
        "items": ["items", queue, "-o", "json"],
        "consumers": ["consumers", queue, "-o", "json"],
        "readers ls": ["readers", "ls", queue, "-o", "json"],
        "tail --json": ["tail", queue, "--json"],
    }
    for command, line in lines.items():
        run = kestrelctl(*line)
        assert run.code == 0, run.err
        document = json.loads(run.out)
        found = document[0] if isinstance(document, list) else document
        keys = set(found)
        if command == "check":
            keys |= set(found["queues"][0])
        assert keys <= promised[command], command
        assert promised[command] - keys <= NOT_OF_EACH, command
    with_json = {command.words for command in COMMANDS if any("json" in w for w in _formats(command))}
    bare = {re.sub(r" -.*", "", command) for command in promised}
    assert {words if not words.startswith("bench") else "bench" for words in with_json} <= bare


def _formats(command: Command) -> list[str]:
    return [
        word
        for option in command.options
        for word in (*option.names, *(option.value.words if option.value is not None else ()))
    ]


@pytest.mark.exhaustive("put", "check", "journal verify", "readers")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_an_empty_value_is_a_usage_error_and_nothing_is_done(command: Command) -> None:
    """A script's variable that is not set: `delete -s "$SERVER" work` is not for the server on this machine."""
    wrong = ExitCode.UNKNOWN if command.words in DOWN_CODES else ExitCode.USAGE
    for option in command.options:
        for name in option.names if option.value is not None else ():
            with pytest.raises(Failure, match="must not be empty") as refused:
                explain([*command.path, name, ""])
            assert refused.value.code == wrong, name


@pytest.mark.parametrize("words", ["ls", "stats", "flush", "export work", "journal dump", "move work", "context show"])
def test_an_empty_word_is_a_usage_error(words: str) -> None:
    with pytest.raises(Failure, match="must not be empty") as refused:
        explain([*words.split(), ""])
    assert refused.value.code == ExitCode.USAGE


def test_an_empty_item_is_an_item(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        there = Kestrelctl(daemon.address, tmp_path)
        assert there("put", "work", "").code == 0
        assert there("get", "work").code == 0
