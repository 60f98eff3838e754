"""A verb imports its own module, and nothing that it does not need: that is most of the time of a short command."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from kestrelctl import commands
from kestrelctl.command_tree import command_tree
from kestrelctl.verbs import GROUPS, VERBS, names_by_topic
from tests.support.process import environment

# In a process that has imported the command tree: the modules of verbs that each has imported which shows its help.
SHOW_EVERY_HELP: Final = """
import os, sys
from kestrelctl.command_tree import explain
from kestrelctl.verbs import VERBS
print("", *sys.modules, flush=True)
lines = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for path in VERBS:
    if not os.fork():
        assert explain([*path.split(), "-h"]) == 0
        os.write(lines, f"{path.replace(' ', '/')} {' '.join(sys.modules)}\\n".encode())
        os._exit(0)
    assert os.wait()[1] == 0, path
"""
RUN: Final = "import sys; from kestrelctl.app import run; print(run(sys.argv[1:]), *sys.modules)"
MODULES_OF_VERBS: Final = frozenset(f"kestrelctl.commands.{verb.place.partition('.')[0]}" for verb in VERBS.values())
NOBODY: Final = ("-s", "127.0.0.1:1")
SLOW: Final = frozenset(
    {"asyncio", "email", "http", "logging", "pydantic", "ssl", "textual", "typer", "xxhash", "yaml"}
)
COMMANDS: Final = {
    "version": (),
    "check": (),
    "flush": ("q",),
    "delete": ("q",),
    "jobs ls": (),
    "jobs add": ("q", "x"),
    "cluster status": (),
    "cluster meet": ("127.0.0.1:2",),
    "cache get": ("k",),
}


def imported_by(*line: str) -> tuple[int, set[str]]:
    """The exit code of a command line, and all that its process has imported by then."""
    run = subprocess.run(
        [sys.executable, "-c", RUN, *line], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    code, *modules = run.stdout.splitlines()[-1].split()
    return int(code), set(modules)


def modules_of(path: str) -> set[str]:
    return {f"kestrelctl.commands.{VERBS[path].place.partition('.')[0]}"}


def test_the_table_names_a_function_of_every_verb() -> None:
    for path, verb in VERBS.items():
        module, _, name = verb.place.partition(".")
        function = getattr(import_module(f"kestrelctl.commands.{module}"), name)
        assert function.__module__ == f"kestrelctl.commands.{module}", path
        assert function.__doc__, path
    assert {path.partition(" ")[0] for path in VERBS if " " in path} == set(GROUPS)
    assert {path.partition(" ")[0] for path in VERBS} == {verb for verbs in names_by_topic().values() for verb in verbs}


def test_every_module_of_a_verb_is_in_the_table() -> None:
    """A module that says that it is one: `kestrelctl VERB` are the first words of it."""
    (folder,) = commands.__path__
    for path in Path(folder).glob("*.py"):
        is_one = path.read_text().startswith('"""`kestrelctl ')
        assert is_one == (f"kestrelctl.commands.{path.stem}" in MODULES_OF_VERBS), path


def test_a_group_has_its_verbs_in_the_order_of_the_table() -> None:
    program = command_tree()
    for group in GROUPS:
        assert [f"{group} {name}" for name in program.commands[group].commands] == [
            path for path in VERBS if path.startswith(f"{group} ")
        ]
    assert "jobs" in program.commands
    assert "ack" not in program.commands


def shown_helps() -> Iterator[tuple[str, set[str]]]:
    run = subprocess.run(
        [sys.executable, "-c", SHOW_EVERY_HELP], env=environment(), capture_output=True, text=True, check=True
    )
    for line in run.stdout.splitlines():
        path, *modules = line.split(" ")
        yield path.replace("/", " "), set(modules)


def test_a_verb_imports_no_other_verbs_module() -> None:
    helps = dict(shown_helps())
    assert not helps.pop("") & MODULES_OF_VERBS
    assert list(helps) == list(VERBS)
    for path, modules in helps.items():
        assert modules & MODULES_OF_VERBS == modules_of(path), path


@pytest.mark.parametrize("path", COMMANDS)
def test_what_is_slow_to_import_is_left_to_those_that_need_it(path: str) -> None:
    code, imported = imported_by(*path.split(), *COMMANDS[path], *NOBODY)
    assert code == (2 if path in ("check", "cluster status") else 69)
    assert "kestreld.client.access" in imported
    assert imported & MODULES_OF_VERBS == modules_of(path)
    assert not {module.partition(".")[0] for module in imported} & SLOW
    assert not any(module.startswith(("kestreld.journal", "kestrelctl.journals")) for module in imported)


@pytest.mark.parametrize("line", ["--version", "-s 127.0.0.1:1 --version", "gte"])
def test_a_line_without_a_verb_imports_none(line: str) -> None:
    _, imported = imported_by(*line.split())
    assert not imported & MODULES_OF_VERBS
