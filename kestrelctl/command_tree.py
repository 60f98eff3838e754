"""The typer command tree of kestrelctl: its verbs, imported when used, and the options of the whole program."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import copy as copy_of
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, cast

import typer

from kestrelctl.commands.declared import MAY_BE_EMPTY
from kestrelctl.commands.groups import ungrouped
from kestrelctl.commands.options import TIMEOUT_DEFAULT, line_options
from kestrelctl.remote.contexts import SERVER_DEFAULT, WAY_IN
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import COMMON, ExitCode, Failure, table_of
from kestrelctl.verbs import GROUPS, TAKES_ALL_BEHIND_IT, VERBS, names_by_topic
from kestreld import __version__

EXIT_CODES: Final = f"\b\nExit codes:\n{table_of(COMMON)}\n\n\b\nAll of them: kestrelctl help exit-codes"
HELP: Final = """Use and operate kestreld, or an old Kestrel, from a shell.

Data goes to stdout, messages to stderr. `kestrelctl VERB -h` explains a verb.

    kestrelctl put work 'hello'

    kestrelctl get work

    kestrelctl get work --all --exec ./handle-one-item
"""
AS_NAGIOS: Final = frozenset({"kestrelctl check", "kestrelctl cluster status"})  # their exit codes
DATA_IS_LITERAL: Final = "kestrelctl.data_is_literal"  # in a context's meta
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


def _print_version(wanted: bool) -> None:
    if wanted:
        output.write_data(f"kestrelctl {__version__}\n".encode())
        raise typer.Exit


@app.callback()
def before_the_verb(
    context: typer.Context,
    server: Annotated[
        str,
        typer.Option("--server", "-s", metavar="HOST:PORT|unix:PATH", envvar="KESTRELCTL_SERVER", help="The server."),
    ] = SERVER_DEFAULT,
    named: Annotated[
        str,
        typer.Option(
            "--context",
            "-c",
            metavar="CONTEXT",
            envvar="KESTRELCTL_CONTEXT",
            help="A saved server or cluster with credentials: see `kestrelctl context`.",
        ),
    ] = "",
    timeout: Annotated[str, typer.Option(metavar="SPAN", help="Time limit for an answer.")] = TIMEOUT_DEFAULT,
    user: Annotated[str, typer.Option(metavar="NAME", envvar="KESTRELCTL_USER", help="Log in as this user.")] = "",
    password_file: Annotated[
        str,
        typer.Option(metavar="FILE", help="File whose first line is the password; else $KESTREL_PASSWORD or a prompt."),
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", envvar="KESTRELCTL_TLS", help="Connect with TLS.")] = False,
    ca: Annotated[
        str, typer.Option(metavar="FILE", envvar="KESTRELCTL_CA", help="TLS: CA certificates to trust (PEM).")
    ] = "",
    cert: Annotated[
        str, typer.Option(metavar="FILE", envvar="KESTRELCTL_CERT", help="TLS: client certificate (PEM).")
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            metavar="FILE", envvar="KESTRELCTL_KEY", help="TLS: key of the client certificate, if in another file."
        ),
    ] = "",
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show kestrelctl's version."),
    ] = False,
) -> None:
    """Options that may stand before the verb as well as after it."""
    values: dict[str, str | bool] = {
        "server": server,
        "context": named,
        "user": user,
        "password_file": password_file,
        "timeout": timeout,
    }
    values |= {"tls": tls, "ca": ca, "cert": cert, "key": key}
    line_options.clear()
    for name, value in values.items():
        source = context.get_parameter_source("named" if name == "context" else name)
        # Variables of the environment are read later, when the context is known.
        if source is not None and source.name == "COMMANDLINE":
            line_options[name] = value
    if context.meta.get(DATA_IS_LITERAL):
        line_options["is_literal"] = True


def command_tree() -> Any:
    """The commands as they are run: with examples, and with the options of the whole program after every verb."""
    program: Any = typer.main.get_command(app)
    shared = [copy_of(option) for option in program.params if option.name in (*WAY_IN, "named")]
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
    module, _, function = VERBS[path].place.partition(".")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"allow_interspersed_args": False} if path == TAKES_ALL_BEHIND_IT else None
    verb = getattr(import_module(f"kestrelctl.commands.{module}"), function)
    alone.command(name, context_settings=settings)(ungrouped(verb))
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
    own.callback = _note
    return own


def _note(context: typer.Context, parameter: typer.CallbackParam, value: str | bool) -> None:
    if value:
        line_options["context" if parameter.name == "named" else str(parameter.name)] = value


def invoke(arguments: list[str]) -> int:
    """Run one command line; return its exit code. Without arguments, show the help. Raises Failure."""
    program = command_tree()
    try:
        with program.make_context("kestrelctl", list(arguments) or ["--help"], obj=invoke) as context:
            context.meta[DATA_IS_LITERAL] = arguments[-2:-1] == ["--"]
            program.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code if arguments else ExitCode.USAGE
    except UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "kestrelctl"
        code = ExitCode.UNKNOWN if path in AS_NAGIOS else ExitCode.USAGE
        raise Failure(code, f"{error.format_message()} ({path} -h shows how)") from error
    return ExitCode.OK
