"""The typer command tree of kestrelctl: all verbs, imported when used, and the options of the whole program."""

from collections.abc import Callable, Iterator, Mapping, Set
from copy import copy as copy_of
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, cast

import typer

from kestrelctl.commands.declared import MAY_BE_EMPTY
from kestrelctl.commands.groups import ungrouped
from kestrelctl.commands.options import TIMEOUT_DEFAULT, line_options
from kestrelctl.description.examples import epilog
from kestrelctl.remote.contexts import SERVER_DEFAULT, WAY_IN
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld import __version__

EXIT_CODES: Final = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
# Module of kestrelctl.commands and function of each verb. Modules are imported when their verb is used.
VERBS: Final = {
    "put": "put.put",
    "get": "get.get",
    "peek": "peek.peek",
    "items": "items.items",
    "tail": "tail.tail",
    "cancel": "cancel.cancel",
    "run-now": "run_now.run_now",
    "lease confirm": "lease.lease_confirm",
    "lease extend": "lease.lease_extend",
    "lease give-back": "lease.lease_give_back",
    "consumers": "consumers.consumers",
    "move": "move.move",
    "copy": "copy.copy",
    "dead": "dead.dead",
    "redrive": "redrive.redrive",
    "export": "export_items.export_items",
    "import": "import_items.import_items",
    "ls": "ls.ls",
    "stats": "stats.stats",
    "top": "top.top",
    "web": "web.web",
    "watch": "watch.watch",
    "wait": "wait.wait",
    "check": "check.check",
    "history": "history.history",
    "doctor": "doctor.doctor",
    "flush": "flush.flush",
    "flush-all": "flush_all.flush_all",
    "flush-expired": "flush_expired.flush_expired",
    "flush-all-expired": "flush_all_expired.flush_all_expired",
    "delete": "delete.delete",
    "undo": "undo.undo",
    "dump-config": "dump_config.dump_config",
    "dump-stats": "dump_stats.dump_stats",
    "reload": "reload.reload",
    "version": "version.version",
    "shutdown": "shutdown.shutdown",
    "journal-verify": "journal_verify.journal_verify",
    "repair": "repair.repair",
    "readers ls": "readers.readers_ls",
    "readers create": "readers.readers_create",
    "readers move": "readers.readers_move",
    "readers drop": "readers.readers_drop",
    "cache get": "cache.cache_get",
    "cache set": "cache.cache_set",
    "cache add": "cache.cache_add",
    "cache incr": "cache.cache_incr",
    "cache delete": "cache.cache_delete",
    "cache flush": "cache.cache_flush",
    "cache stats": "cache.cache_stats",
    "jobs add": "jobs.jobs_add",
    "jobs get": "jobs.jobs_get",
    "jobs ack": "jobs.jobs_ack",
    "jobs fastack": "jobs.jobs_fastack",
    "jobs nack": "jobs.jobs_nack",
    "jobs enqueue": "jobs.jobs_enqueue",
    "jobs dequeue": "jobs.jobs_dequeue",
    "jobs delete": "jobs.jobs_delete",
    "jobs working": "jobs.jobs_working",
    "jobs show": "jobs.jobs_show",
    "jobs wait": "jobs.jobs_wait",
    "jobs ls": "job_queues.jobs_ls",
    "jobs scan": "job_queues.jobs_scan",
    "jobs peek": "job_queues.jobs_peek",
    "jobs stat": "job_queues.jobs_stat",
    "jobs count": "job_queues.jobs_count",
    "jobs pause": "job_queues.jobs_pause",
    "jobs dead": "job_queues.jobs_dead",
    "jobs redrive": "job_queues.jobs_redrive",
    "jobs qdel": "job_queues.jobs_qdel",
    "jobs restart": "job_queues.jobs_restart",
    "jobs import": "jobs_import.jobs_import",
    "cluster status": "cluster.cluster_status",
    "cluster nodes": "cluster.cluster_nodes",
    "cluster meet": "cluster_changes.cluster_meet",
    "cluster forget": "cluster_changes.cluster_forget",
    "cluster leaving": "cluster_changes.cluster_leaving",
    "cluster start": "cluster_start.cluster_start",
    "context add": "context.context_add",
    "context select": "context.context_select",
    "context show": "context.context_show",
    "context ls": "context.context_ls",
    "context rm": "context.context_rm",
    "journal import": "journal.journal_import",
    "journal export": "journal.journal_export",
    "journal dump": "journal_dump.journal_dump",
    "journal diff": "journal_diff.journal_diff",
    "journal explain-space": "journal_explain_space.journal_explain_space",
    "journal peek": "journal_peek.journal_peek",
    "journal replay": "journal_replay.journal_replay",
    "journal ship": "journal_ship.journal_ship",
    "retention simulate": "retention.retention_simulate",
    "bench flood": "bench.flood",
    "bench many-clients": "bench.many_clients",
    "bench put-many": "bench.put_many",
    "bench packing": "bench.packing",
    "bench timeout": "bench.timeout_test",
    "bench fanout": "bench.fanout",
    "spark verify": "spark.verify",
    "spark report": "spark.report",
    "spark convert": "spark.convert",
    "spark compare": "spark.compare",
    "spark ingest": "spark.ingest",
    "spark replay": "spark.replay",
}
TAKES_ALL_BEHIND_IT: Final = "watch"  # options of another verb, too
GROUPS: Final = {
    "lease": "Confirm, extend or give back what `get --lease --json` has leased.",
    "readers": "Persistent read positions in a queue's journal (docs/admin.md).",
    "cache": "Look into a cache: that of kestreld (listen.cache), or a memcached.",
    "jobs": "Use jobs and their queues: those of kestreld (listen.disque), or a Disque's.",
    "cluster": "Nodes of jobs that know each other: see whether they are well, let them meet, take one out.",
    "context": "Named servers or clusters, with the credentials to use.",
    "journal": "Look into journals on disk, and move queues between Kestrel's and kestreld's.",
    "retention": "Simulate limits on recorded traffic.",
    "bench": "Load tests. They check that every item arrives exactly once and intact; if not, exit 86.",
    "spark": "Process journals with Spark: requires pip install 'kestreld[spark]' and Java 17.",
}
# The help shows the verbs in these groups.
TOPICS: Final = {
    "Items": (
        *("put", "get", "peek", "items", "tail", "lease", "cancel", "run-now"),
        *("move", "copy", "dead", "redrive", "export", "import"),
    ),
    "Queues": (
        *("ls", "stats", "consumers", "readers", "history", "wait"),
        *("flush", "flush-all", "flush-expired", "flush-all-expired", "delete", "undo"),
    ),
    "Monitoring": ("top", "web", "watch", "check", "doctor"),
    "Server": ("dump-config", "dump-stats", "reload", "version", "shutdown"),
    "Journals": ("journal", "journal-verify", "repair", "retention"),
    "More": ("cache", "jobs", "cluster", "context", "bench", "spark"),
}
HELP: Final = """Use and operate kestreld, or an old Kestrel, from a shell.

Data goes to stdout and words to stderr. `kestrelctl VERB -h` explains a verb.

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
    module, _, function = VERBS[path].partition(".")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"allow_interspersed_args": False} if path == TAKES_ALL_BEHIND_IT else None
    verb = getattr(import_module(f"kestrelctl.commands.{module}"), function)
    alone.command(name, context_settings=settings)(ungrouped(verb))
    command: Any = typer.main.get_command(alone)
    taken = {word for parameter in command.params for word in parameter.opts}
    command.params += [_said_behind_the_verb(option, taken) for option in shared if taken.isdisjoint(_long(option))]
    command.epilog = epilog(path)
    _take_no_nothing(command)
    return command


def _format_topics(program: Any, context: typer.Context, formatter: Any) -> None:
    for topic, verbs in TOPICS.items():
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
