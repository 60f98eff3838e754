"""The command tree: every verb and the options that may stand before it."""

from collections.abc import Callable, Sequence, Set
from copy import copy as copy_of
from functools import partial
from typing import Annotated, Any, Final, cast

import typer

from kestrelctl.commands import (
    bench,
    cache,
    cancel,
    check,
    cluster,
    cluster_changes,
    cluster_start,
    consumers,
    context,
    copy,
    delete,
    doctor,
    dump_config,
    dump_stats,
    export_items,
    flush,
    flush_all,
    flush_all_expired,
    flush_expired,
    get,
    history,
    import_items,
    items,
    job_queues,
    jobs,
    jobs_import,
    journal,
    journal_diff,
    journal_dump,
    journal_explain_space,
    journal_peek,
    journal_replay,
    journal_ship,
    journal_verify,
    ls,
    move,
    peek,
    put,
    readers,
    redrive,
    reload,
    repair,
    retention,
    run_now,
    shutdown,
    spark,
    stats,
    tail,
    top,
    undo,
    version,
    wait,
    watch,
    web,
)
from kestrelctl.commands.declared import MAY_BE_EMPTY
from kestrelctl.commands.groups import ungrouped
from kestrelctl.commands.options import TIMEOUT_DEFAULT, line_options
from kestrelctl.description.examples import epilog
from kestrelctl.remote.contexts import SERVER_DEFAULT, WAY_IN
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld import __version__

EXIT_CODES: Final = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
# The help shows the verbs in these groups.
TOPICS: Final = {
    "Items": (
        *("put", "get", "peek", "items", "tail", "cancel", "run-now"),
        *("move", "copy", "redrive", "export", "import"),
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
        # What the environment says is asked for when it is known which context there is.
        if source is not None and source.name == "COMMANDLINE":
            line_options[name] = value


app.command("put")(put.put)
app.command("get")(get.get)
app.command("peek")(peek.peek)
app.command("items")(items.items)
app.command("tail")(tail.tail)
app.command("cancel")(cancel.cancel)
app.command("run-now")(run_now.run_now)
app.command("consumers")(consumers.consumers)
app.command("move")(move.move)
app.command("copy")(copy.copy)
app.command("redrive")(redrive.redrive)
app.command("export")(export_items.export_items)
app.command("import")(import_items.import_items)
app.command("ls")(ls.ls)
app.command("stats")(stats.stats)
app.command("top")(top.top)
app.command("web")(web.web)
app.command("watch", context_settings={"allow_interspersed_args": False})(watch.watch)
app.command("wait")(wait.wait)
app.command("check")(check.check)
app.command("history")(history.history)
app.command("doctor")(doctor.doctor)
app.command("flush")(flush.flush)
app.command("flush-all")(flush_all.flush_all)
app.command("flush-expired")(flush_expired.flush_expired)
app.command("flush-all-expired")(flush_all_expired.flush_all_expired)
app.command("delete")(delete.delete)
app.command("undo")(undo.undo)
app.command("dump-config")(dump_config.dump_config)
app.command("dump-stats")(dump_stats.dump_stats)
app.command("reload")(reload.reload)
app.command("version")(version.version)
app.command("shutdown")(shutdown.shutdown)
app.command("journal-verify")(journal_verify.journal_verify)
app.command("repair")(repair.repair)
journal.journal.command("dump")(journal_dump.journal_dump)
journal.journal.command("diff")(journal_diff.journal_diff)
journal.journal.command("explain-space")(journal_explain_space.journal_explain_space)
journal.journal.command("peek")(journal_peek.journal_peek)
journal.journal.command("replay")(journal_replay.journal_replay)
journal.journal.command("ship")(journal_ship.journal_ship)
jobs.jobs.command("ls")(job_queues.jobs_ls)
jobs.jobs.command("scan")(job_queues.jobs_scan)
jobs.jobs.command("peek")(job_queues.jobs_peek)
jobs.jobs.command("stat")(job_queues.jobs_stat)
jobs.jobs.command("count")(job_queues.jobs_count)
jobs.jobs.command("pause")(job_queues.jobs_pause)
jobs.jobs.command("redrive")(job_queues.jobs_redrive)
jobs.jobs.command("qdel")(job_queues.jobs_qdel)
jobs.jobs.command("restart")(job_queues.jobs_restart)
jobs.jobs.command("import")(jobs_import.jobs_import)
cluster.cluster.command("meet")(cluster_changes.cluster_meet)
cluster.cluster.command("forget")(cluster_changes.cluster_forget)
cluster.cluster.command("leaving")(cluster_changes.cluster_leaving)
cluster.cluster.command("start")(cluster_start.cluster_start)
app.add_typer(readers.readers, name="readers")
app.add_typer(cache.cache, name="cache")
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(cluster.cluster, name="cluster")
app.add_typer(context.context, name="context")
app.add_typer(journal.journal, name="journal")
app.add_typer(retention.retention, name="retention")
app.add_typer(bench.bench, name="bench")
app.add_typer(spark.spark, name="spark")


def command_tree(verbs: Set[str] | None = None) -> Any:
    """The commands as they are run: with their examples, and the options of the whole program behind every verb.

    All of them takes half of the time that a short command may take; `verbs` are those that are wanted.
    """
    chosen = copy_of(app)
    if verbs is not None:
        chosen.registered_commands = [each for each in app.registered_commands if each.name in verbs]
        chosen.registered_groups = [each for each in app.registered_groups if each.name in verbs]
    _ungroup(chosen)
    program: Any = typer.main.get_command(chosen)
    shared = [option for option in program.params if option.name in (*WAY_IN, "named")]
    _furnish(program, shared, "")
    program.format_commands = partial(_format_topics, program)
    _take_no_nothing(program)
    return program


def _format_topics(program: Any, context: typer.Context, formatter: Any) -> None:
    for topic, verbs in TOPICS.items():
        limit = formatter.width - 6 - max(map(len, verbs))
        with formatter.section(topic):
            formatter.write_dl([(verb, program.commands[verb].get_short_help_str(limit)) for verb in verbs])


def _ungroup(tree: typer.Typer) -> None:
    for command in tree.registered_commands:
        if command.callback is not None:
            command.callback = ungrouped(command.callback)
    for group in tree.registered_groups:
        if group.typer_instance is not None:
            _ungroup(group.typer_instance)


def _furnish(group: Any, shared: list[Any], path: str) -> None:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            _furnish(command, shared, f"{path}{name} ")
        else:
            taken = {word for parameter in command.params for word in parameter.opts}
            command.params += [
                _said_behind_the_verb(option, taken) for option in shared if taken.isdisjoint(_long(option))
            ]
            command.epilog = epilog(f"{path}{name}")
            _take_no_nothing(command)


def _take_no_nothing(command: Any) -> None:
    """Refuse an empty value where one is given: a script's variable that is not set would mean something else."""
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
    """Words that the verb has `taken` for something else are left to it."""
    own = copy_of(option)
    own.opts = [word for word in option.opts if word not in taken]
    own.expose_value, own.hidden, own.envvar, own.default = False, True, None, None
    own.callback = _note
    return own


def _note(context: typer.Context, parameter: typer.CallbackParam, value: str | bool) -> None:
    if value:
        line_options["context" if parameter.name == "named" else str(parameter.name)] = value


def _verbs_among(arguments: Sequence[str]) -> Set[str] | None:
    """Words that may be the verb. None = the program itself is asked for help, or there is no such verb."""
    names = {str(each.name) for each in app.registered_commands} | {str(each.name) for each in app.registered_groups}
    first = next((place for place, word in enumerate(arguments) if word in names), None)
    if first is None or not {"-h", "--help"}.isdisjoint(arguments[:first]):
        return None
    return names.intersection(arguments)


def invoke(arguments: list[str]) -> int:
    """Run one command line; returns its exit code. No arguments show the help. Raises Failure."""
    program = command_tree(_verbs_among(arguments))
    try:
        with program.make_context("kestrelctl", list(arguments) or ["--help"], obj=invoke) as context:
            program.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code if arguments else ExitCode.USAGE
    except UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "kestrelctl"
        code = ExitCode.UNKNOWN if path in AS_NAGIOS else ExitCode.USAGE
        raise Failure(code, f"{error.format_message()} ({path} -h shows how)") from error
    return ExitCode.OK
