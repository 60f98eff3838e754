"""The typer command tree of kestrelctl, for the help, the words on mistakes, completions and man pages.

It runs nothing: `command_line` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import copy as copy_of
from functools import partial
from typing import Any, Final, cast

import typer

from kestrelctl.command_line import mistake, verb_of
from kestrelctl.commands.declared import MAY_BE_EMPTY
from kestrelctl.commands.groups import for_typer
from kestrelctl.commands.options import SHARED, ProgramOptions
from kestrelctl.shell.exit_codes import COMMON, ExitCode, table_of
from kestrelctl.verbs import GROUPS, TAKES_ALL_BEHIND_IT, VERBS, names_by_topic

EXIT_CODES: Final = f"\b\nExit codes:\n{table_of(COMMON)}\n\n\b\nAll of them: kestrelctl help exit-codes"
HELP: Final = """Use and operate kestreld, or an old Kestrel, from a shell.

Data goes to stdout, messages to stderr. `kestrelctl VERB -h` explains a verb.

    kestrelctl put work 'hello'

    kestrelctl get work

    kestrelctl get work --all --exec ./handle-one-item
"""
# Any mistake on the command line; typer has no public name for it.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="kestrelctl",
    help=HELP,
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
@for_typer
def _program(options: ProgramOptions) -> None:
    """Options that may stand before the verb as well as after it."""


def command_tree() -> Any:
    """The commands, with examples, and with the options of the whole program after every verb."""
    program: Any = typer.main.get_command(app)
    shared = [copy_of(option) for option in program.params if option.name in SHARED]
    program.commands = _Commands("", shared)
    program.format_commands = partial(_format_topics, program)
    _take_no_nothing(program)
    return program


class _Commands(Mapping[str, Any]):
    """The commands of the program or of a group by name, in the order of VERBS and GROUPS.

    A command is made on access: importing all of them takes longer than a short command runs.
    """

    def __init__(self, group: str, shared: list[Any]) -> None:
        """`shared` are options of the whole program."""
        paths = (*VERBS, *GROUPS)
        self._paths = {name: path for path in paths for parent, _, name in [path.rpartition(" ")] if parent == group}
        self._shared = shared
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            path = self._paths[name]
            self._made[name] = _group(path, self._shared) if path in GROUPS else _verb(path, name, self._shared)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _group(name: str, shared: list[Any]) -> Any:
    group: Any = typer.main.get_group(typer.Typer(name=name, help=GROUPS[name], rich_markup_mode=None))
    group.commands = _Commands(name, shared)
    return group


def _verb(path: str, name: str, shared: list[Any]) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"allow_interspersed_args": False} if path == TAKES_ALL_BEHIND_IT else None
    alone.command(name, context_settings=settings)(for_typer(verb_of(path)))
    command: Any = typer.main.get_command(alone)
    taken = {word for parameter in command.params for word in parameter.opts}
    command.params += [_said_behind_the_verb(option, taken) for option in shared if taken.isdisjoint(_long(option))]
    command.epilog = _epilog(VERBS[path].examples)
    _take_no_nothing(command)
    return command


def _epilog(examples: Sequence[str]) -> str | None:
    """The examples at the end of a verb's `-h`."""
    if not examples:
        return None
    return f"\b\nExample{'s' if len(examples) > 1 else ''}:\n" + "\n".join(f"  {line}" for line in examples)


def _format_topics(program: Any, context: typer.Context, formatter: Any) -> None:
    for topic, verbs in names_by_topic().items():
        limit = formatter.width - 6 - max(map(len, verbs))
        with formatter.section(topic):
            formatter.write_dl([(verb, program.commands[verb].get_short_help_str(limit)) for verb in verbs])


def _take_no_nothing(command: Any) -> None:
    """Reject empty option values: an unset variable in a script would change the meaning of a command."""
    for parameter in command.params:
        if parameter.name not in MAY_BE_EMPTY:
            parameter.process_value = partial(_processed, parameter, parameter.process_value)


def _processed(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    source = context.get_parameter_source(parameter.name)
    values = value if isinstance(value, (list, tuple)) else [value]
    if source is not None and source.name == "COMMANDLINE" and "" in values:
        raise typer.BadParameter("must not be empty", context, parameter)
    return process(context, value)


def _long(option: Any) -> list[str]:
    return [word for word in option.opts if word.startswith("--")]


def _said_behind_the_verb(option: Any, taken: Set[str]) -> Any:
    """A copy of the option to use after the verb, without the words that the verb has `taken` itself."""
    own = copy_of(option)
    own.opts = [word for word in option.opts if word not in taken]
    own.expose_value, own.hidden, own.envvar, own.default = False, True, None, None
    return own


def explain(line: Sequence[str]) -> int:
    """Show the help that a command line asks for, that of the program for an empty line; return the exit code.

    Raises Failure with the words on the line's mistake.
    """
    program = command_tree()
    try:
        with program.make_context("kestrelctl", list(line) or ["--help"]) as context:
            program.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code if line else ExitCode.USAGE
    except UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "kestrelctl"
        raise mistake(path.removeprefix("kestrelctl").lstrip(), error.format_message()) from error
    raise AssertionError(f"typer takes {line}")
