"""The command tree as plain values: commands, their options and arguments, and the values that these take.

The tree of kestrelctl is made from its typer commands, kestreld's from its --help and its list of settings.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kestrelctl.command_tree import command_tree
from kestrelctl.verbs import VERBS
from tui.queue_rows import COLUMNS
from tui.themes import NAMES


class Kind(StrEnum):
    """Kind of a value. It decides what a shell offers as completions."""

    NOTHING = "nothing"
    WORDS = "words"
    QUEUE = "queue"  # of the server that the command line names
    JOB_QUEUE = "job-queue"  # of the node of jobs that the command line names
    CONTEXT = "context"
    READER = "reader"  # of the queue before it
    JOURNAL = "journal"  # a queue of the spool that the command line names
    FILE = "file"
    FOLDER = "folder"
    COMMAND = "command"
    DATA = "data"  # a file behind an @
    SETTING = "setting"


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an option or an argument."""

    metavar: str
    kind: Kind
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    value: Value | None  # None = a flag
    help: str
    is_shared: bool = False  # of the whole program: stands before or after the verb
    ends: bool = False  # the program prints this and exits: --help, --version
    is_repeated: bool = False
    variable: str = ""  # environment variable with the same meaning


@dataclass(frozen=True, slots=True)
class Argument:
    value: Value
    help: str
    is_required: bool
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A verb, a group of verbs, or the program itself."""

    path: tuple[str, ...]  # without the program: () is the program
    program: str
    summary: str
    help: str  # paragraphs, a blank line between them
    options: tuple[Option, ...]
    arguments: tuple[Argument, ...]
    commands: tuple["Command", ...]
    examples: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The command as typed after the program: "journal import"."""
        return " ".join(self.path)

    def walk(self) -> Iterator["Command"]:
        yield self
        for command in self.commands:
            yield from command.walk()


_FILES: Final = {"FILE", "SPOOL", "SPOOL|FILE", "OLD.json"}
_QUEUES: Final = {"QUEUE", "[QUEUE]...", "SRC", "DST"}
_JOB_QUEUES: Final = {"NAME", "NAME..."}  # of the verbs of jobs
_WORDS: Final = {"--theme": tuple(NAMES), "--sort": (*COLUMNS, *(f"-{column}" for column in COLUMNS))}


def kestrelctl_tree() -> Command:
    return _command(command_tree(), (), "kestrelctl")


def _command(command: Any, path: tuple[str, ...], program: str) -> Command:
    asks_server = any("--server" in parameter.opts for parameter in command.params)
    options: list[Option] = []
    arguments: list[Argument] = []
    for parameter in command.params:
        is_shared = bool(parameter.hidden) and not parameter.expose_value
        if parameter.param_type_name == "argument":
            arguments.append(
                Argument(
                    _value(parameter, path, asks_server), parameter.help or "", parameter.required, parameter.nargs < 0
                )
            )
        elif not parameter.hidden or (is_shared and asks_server):
            value = None if parameter.is_flag else _value(parameter, path, asks_server)
            help = _with_default(parameter)
            options.append(
                Option(
                    tuple(parameter.opts),
                    value,
                    help,
                    is_shared,
                    ends="--version" in parameter.opts,
                    is_repeated=parameter.multiple,
                    variable=parameter.envvar or "",
                )
            )
    options.append(Option(("-h", "--help"), None, "Show the help and exit.", ends=True))
    subcommands = getattr(command, "commands", {})
    return Command(
        path,
        program,
        command.get_short_help_str(200),
        command.help or "",
        tuple(options),
        tuple(arguments),
        tuple(_command(each, (*path, name), program) for name, each in subcommands.items()),
        VERBS[name].examples if (name := " ".join(path)) in VERBS else (),
    )


def _value(parameter: Any, path: tuple[str, ...], asks_server: bool) -> Value:
    choices = tuple(getattr(parameter.type, "choices", ()))
    metavar = parameter.metavar or ("|".join(choices) if choices else parameter.name.upper())
    names = set(parameter.opts)
    if choices:
        return Value(metavar, Kind.WORDS, choices)
    for name, words in _WORDS.items():
        if name in names and metavar != "[-]FIELD":
            return Value(metavar, Kind.WORDS, words)
    if re.fullmatch(r"[a-z]+(\|[a-z]+)+", metavar):
        return Value(metavar, Kind.WORDS, tuple(metavar.split("|")))
    if metavar in _QUEUES or "--queue" in names:
        return Value(metavar, Kind.QUEUE if asks_server else Kind.JOURNAL)
    if path[:1] == ("jobs",) and metavar in _JOB_QUEUES and "--user" not in names:
        return Value(metavar, Kind.JOB_QUEUE)
    kinds = {
        "CONTEXT": Kind.CONTEXT,
        "READER": Kind.READER,
        "DIR": Kind.FOLDER,
        "CMD": Kind.COMMAND,
        "DATA|-|@FILE": Kind.DATA,
    }
    return Value(metavar, Kind.FILE if metavar in _FILES else kinds.get(metavar, Kind.NOTHING))


def _with_default(parameter: Any) -> str:
    help: str = parameter.help or ""
    shows = getattr(parameter, "show_default", False) and not parameter.is_flag and "default" not in help
    if shows and parameter.default not in (None, "", ()) and not callable(parameter.default):
        default = getattr(parameter.default, "value", parameter.default)
        help = f"{help.removesuffix('.')} (default {default})."
    return help


# kestreld


def _value_of_kestreld(metavar: str) -> Value:
    if "|" in metavar:
        return Value(metavar, Kind.WORDS, tuple(metavar.split("|")))
    return Value(metavar, Kind.FILE if metavar == "FILE" else Kind.SETTING)


def kestreld_tree() -> Command:
    """The tree of kestreld, parsed from `kestreld --help`: its argparse parser exists only while main() runs."""
    shown = subprocess.run(
        [sys.executable, "-m", "kestreld", "--help"],
        env=os.environ | {"COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    description = shown.partition("\n\n")[2].partition("\n\noptions:")[0]
    lines = shown.partition("\noptions:\n")[2].partition("\n\n")[0].splitlines()
    matched = [re.fullmatch(r"  (-\S+(?:, -\S+)*)(?: ([A-Z=]+|[a-z|]+))?  +(\S.*)", line) for line in lines]
    options = [
        Option(
            tuple(found[1].split(", ")),
            None if found[2] is None else _value_of_kestreld(found[2]),
            f"{found[3][0].upper()}{found[3][1:]}.",
            ends=found[1].endswith(("--help", "--version")),
            is_repeated="repeatable" in found[3],
        )
        for found in matched
        if found is not None
    ]
    verbs = re.findall(r"`kestreld ([a-z-]+)` (.*)", description)
    commands = [Command((verb,), "kestreld", f"{words[0].upper()}{words[1:]}", "", (), (), ()) for verb, words in verbs]
    return Command((), "kestreld", description.partition("\n")[0], description, tuple(options), (), tuple(commands))
