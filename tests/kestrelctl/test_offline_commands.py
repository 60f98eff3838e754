"""What holds for every command that reads journals without their server: good manners, names, formats."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kestrelctl.test_every_command import COMMANDS, REACHABLE
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import ROOT, Kestrelctl

NAME: Final = "::a:b::"
# What to type behind each, for the queue Q of the spool S; T is a server.
LINES: Final = {
    "history": "Q --spool S",
    "journal dump": "Q --spool S",
    "journal diff": "S S --queue Q",
    "journal explain-space": "Q --spool S",
    "journal peek": "Q --spool S --at now",
    "journal replay": "Q --spool S --to T --queue copies --speed max",
    "retention simulate": "Q --spool S --max-age 1h",
    "journal-verify": "S Q",
}
# They need a server to be stopped, Spark, object storage, or a terminal, and have their own tests.
OTHERS: Final = {
    "journal export",
    "journal ship",
    "spark verify",
    "spark report",
    "spark convert",
    "spark ingest",
    "spark replay",
    "spark compare",
    "cluster start",
    "help",
    "web",
    "watch",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server with many items in a queue with a name of colons."""
    with running_daemon(tmp_path_factory.mktemp("running")) as daemon:
        with QueueClient(daemon.port) as client:
            client.put(NAME, *[b"%d " % number + b"x" * 100 for number in range(3000)])
            client.put("work", b"x")
        yield daemon


def line_of(command: str, daemon: Daemon, queue: str = NAME) -> list[str]:
    words = {"Q": queue, "S": str(daemon.spool), "T": daemon.address}
    return [*command.split(), *(words.get(word, word) for word in LINES[command].split())]


each = pytest.mark.parametrize("command", LINES, ids=[command.replace(" ", "-") for command in LINES])


def test_all_of_them_are_here() -> None:
    offline = {command.words for command in COMMANDS if command not in REACHABLE}
    assert {words for words in offline - OTHERS if not words.startswith("context ")} == set(LINES)


@pytest.mark.exhaustive("journal-dump", "journal-verify")
@each
def test_with_standard_input_closed_and_no_terminal_it_does_its_work(
    kestrelctl: Kestrelctl, running: Daemon, command: str
) -> None:
    detached = ["setsid", "-w", "sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "kestrelctl"]
    run = subprocess.run(
        [*detached, *line_of(command, running)],
        env=kestrelctl.environment,
        capture_output=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, b"")


@each
def test_a_reader_that_leaves_early_is_no_traceback(kestrelctl: Kestrelctl, running: Daemon, command: str) -> None:
    reading = kestrelctl.start(*line_of(command, running))
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.close()
    said = reading.stderr.read()
    reading.communicate()
    assert said == b""
    assert reading.returncode in (0, 141)


@pytest.mark.exhaustive("journal-dump", "journal-verify")
@each
def test_a_queue_that_is_not_there_is_exit_66_and_what_is_no_name_exit_2(
    kestrelctl: Kestrelctl, running: Daemon, command: str
) -> None:
    run = kestrelctl(*line_of(command, running, "nope"))
    assert (run.code, run.out) == (66, b"")
    assert run.err.endswith(": no journal of nope\n")
    for bad in ("a b", "", "a/open", "a\nflush_all"):
        run = kestrelctl(*line_of(command, running, bad))
        assert (run.code, run.out, run.err.count("\n")) == (2, b"", 1), bad


@each
def test_a_spool_that_is_not_there_is_exit_66(kestrelctl: Kestrelctl, running: Daemon, command: str) -> None:
    words = [word.replace(str(running.spool), f"{running.spool}/nope") for word in line_of(command, running)]
    run = kestrelctl(*words)
    assert (run.code, run.out, run.err.count("\n")) == (66, b"", 1)


def test_without_spool_and_archive_those_of_the_configuration_are_read(
    kestrelctl: Kestrelctl, running: Daemon, tmp_path: Path
) -> None:
    config = tmp_path / "kestreld.yaml"
    config.write_text(f"queue_path: {running.spool}\nlisten: {{admin: null}}\n")
    peek = "kestrelctl journal peek work --at now"
    assert kestrelctl.script("sh", peek, KESTRELD_CONFIG=str(config)).out == b"x\n"
    nowhere = kestrelctl.script("sh", peek, KESTRELD_CONFIG=f"{config}.not")
    assert (nowhere.code, nowhere.out) == (66, b"")
    assert "use --spool DIR" in nowhere.err


@each
def test_json_has_the_keys_that_the_documentation_promises(
    kestrelctl: Kestrelctl, running: Daemon, command: str
) -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", (ROOT / "docs" / "kestrelctl.md").read_text(), re.MULTILINE)
    promised = {
        name.removesuffix(" --json"): set(re.findall(r"`([a-z_0-9]+)`", text))
        for names, text in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    line = line_of(command, running)
    if command == "journal peek":
        documents = list(map(json.loads, kestrelctl(*line, "--json", "-n", "2").out.splitlines()))
    else:
        document = json.loads(kestrelctl(*line, "-o", "json").out)
        documents = document if isinstance(document, list) else [document]
    found = {key for document in documents for key in document}
    assert found <= promised[command]
    if command not in ("journal dump", "journal peek", "journal diff"):
        assert found == promised[command]
