"""Plain command lines go without typer, and mean what they mean to typer."""

import re
import resource
import subprocess
import sys
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kestrelctl import command_tree, plain
from kestrelctl.commands.options import line_options
from kestrelctl.shell.exit_codes import Failure
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import environment
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

STARTS: Final = 8  # of a Python that does nothing; it takes 6
PLAIN: Final = (
    "put q",
    "put q hello",
    "put q -",
    "put q --lines --expire 10m",
    "put --expire=90 q @file",
    "put --length-prefixed q -s h:1 --user me --tls",
    "-s h:1 put q x",
    "--server=h:1 --timeout 1s -c here get q",
    "get q -n 3 --wait 250ms --json",
    "get --all q --exec cat --empty-ok",
    "peek q --raw --timeout=1h30m",
    "-c here stats",
    "stats a b --wide -o json",
    "stats --server-wide --per-server --no-headers",
    "ls * a? -o tsv --password-file f --ca f --cert f --key f",
)
WORDS: Final = sorted(
    {word for line in PLAIN for word in line.split()} | {"--", "-n3", "", "-x", "--tls=1", "-h", "3x"}
)
Meaning = tuple[str, dict[str, Any], dict[str, str | bool]]


def meaning_to_plain(line: list[str]) -> Meaning | None:
    command: Any = plain.plain_command(line)
    return None if command is None else (command.func.__name__, command.keywords, dict(line_options))


class Recorded(Exception):
    """What a verb was called with."""


def recording(verb: Any) -> Any:
    @wraps(verb)
    def record(**values: Any) -> None:
        raise Recorded(verb.__name__, values)

    return record


def meaning_to_typer(line: list[str]) -> Meaning | None:
    with pytest.MonkeyPatch.context() as patch:
        for name in plain.VERBS:
            module = import_module(f"kestrelctl.commands.{name}")
            patch.setattr(module, name, recording(getattr(module, name)))
        try:
            command_tree.invoke(line)
        except Recorded as recorded:
            return recorded.args[0], recorded.args[1], dict(line_options)
        except Failure:
            pass
    return None


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_what_it_means_to_typer(line: str) -> None:
    found = meaning_to_plain(line.split())
    assert found is not None
    assert found == meaning_to_typer(line.split())


@settings(max_examples=150, deadline=None)
@given(line=st.lists(st.sampled_from(WORDS), max_size=6))
@example(line=["put", "q", ""])
@example(line=["get", ""])
@example(line=["get", "q", "-n", "0"])
@example(line=["stats", "-o", "xml"])
@example(line=["--timeout", "0", "stats"])
def test_any_line_is_left_to_typer_or_means_the_same(line: list[str]) -> None:
    found = meaning_to_plain(line)
    assert found is None or found == meaning_to_typer(line)


def test_the_options_of_the_whole_program_are_all_known() -> None:
    words = {word for option in command_tree.command_tree().params for word in option.opts}
    assert set(plain.PROGRAM_OPTIONS) == words - {"--version", "-h", "--help"}


@pytest.mark.parametrize("words", [["put", "x"], ["get"], ["peek"], ["stats"], ["ls"]])
def test_the_hot_verbs_import_nothing_that_is_slow_to_start(
    kestrelctl: Kestrelctl, queue: str, words: list[str]
) -> None:
    kestrelctl("put", queue, "x")
    line = [words[0], queue, *words[1:]]
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kestrelctl", *line],
        env=kestrelctl.environment,
        capture_output=True,
        check=True,
    )
    imported = set(re.findall(r"\| +([a-z_0-9]+)(?:\.|$)", run.stderr.decode(), re.MULTILINE))
    assert "kestreld" in imported
    slow = {"typer", "rich", "yaml", "asyncio", "textual", "pydantic", "xxhash", "pymemcache", "ssl"}
    assert not imported & slow


def cpu_ms(kestrelctl: Kestrelctl, *line: str) -> float:
    before_ms = childrens_cpu_ms()
    assert kestrelctl(*line).code == 0
    return childrens_cpu_ms() - before_ms


def start_ms() -> float:
    """What a Python takes that does nothing."""
    before_ms = childrens_cpu_ms()
    subprocess.run([sys.executable, "-c", ""], check=True, env=environment())
    return childrens_cpu_ms() - before_ms


def childrens_cpu_ms() -> float:
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (use.ru_utime + use.ru_stime) * 1000


@pytest.mark.usefixtures("installed_programs")
def test_put_get_and_stats_take_little_of_the_processor(kestrelctl: Kestrelctl, queue: str) -> None:
    for line in (["put", queue, "x"], ["stats", queue], ["get", queue, "--empty-ok"]):
        # In turns, as how fast the machine is depends on what else it does.
        measured = []
        while len(measured) < 10:
            measured.append((cpu_ms(kestrelctl, *line), start_ms()))
            used_ms, least_ms = map(min, zip(*measured, strict=True))
            if len(measured) >= 3 and used_ms <= STARTS * least_ms:
                break
        assert used_ms <= STARTS * least_ms


@pytest.mark.long
@pytest.mark.usefixtures("installed_programs")
def test_with_5000_queues_stats_and_ls_take_at_most_two_and_a_half_times_as_much(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    with running_daemon(tmp_path / "few") as with_one:
        one_queue = Kestrelctl(with_one.address, tmp_path)
        one_queue("put", "q", "x")
        with QueueClient(own_daemon.port) as client:
            for number in range(5000):
                client.put(f"queue{number}", b"x")
        for verb in ("stats", "ls"):
            # In turns, as the tests beside this one leave now more and now less of the processor's caches.
            runs = [(cpu_ms(one_queue, verb), cpu_ms(own_kestrelctl, verb)) for _ in range(9)]
            few, many = (min(ms) for ms in zip(*runs, strict=True))
            # Twice as much where the machine is calm. Where it is not, rows suffer more than the start of a program.
            assert many <= 2.5 * few
