"""`kestrelctl top`: monitor queues in a console or as text."""

import os
from contextlib import closing
from typing import Annotated

from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.watched import Watched
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure


def top(
    watched: Watched,
    plain: Annotated[bool, option("--plain", help="Print text instead of showing a console.")] = False,
    json: Annotated[bool, option("--json", help="Print one JSON object on a line per refresh.")] = False,
    once: Annotated[bool, option("--once", help="With --plain or --json (else --plain): print once.")] = False,
    number: Annotated[int | None, option("-n", min=1, metavar="N", help="As --once, but N times.")] = None,
    read_only: Annotated[bool, option("--read-only", help="The console cannot flush, delete or reload.")] = False,
    record: Annotated[str | None, option(metavar="FILE", help="Record to a new file, also without a terminal.")] = None,
    replay: Annotated[str | None, option(metavar="FILE", help="Play a recording instead of showing a server.")] = None,
) -> None:
    """Monitor the queues of one or more servers: a console in a terminal, or text with --plain.

    docs/console.md lists the keys; ? shows them in the console. Figures a server does not report are blank. The first
    sample is not printed: rates need two.
    """
    # These import the client, and `console` Textual, which other verbs need not load.
    from tui.plain import ViewOptions, run_plain

    column, descending = watched.order()
    interval_ms, timeout_ms = watched.spans_ms()
    way = watched.way()
    samples = 1 if once else number
    is_printed = plain or json or (samples is not None and record is None)
    if is_printed or (record is not None and replay is None and (samples is not None or not _can_draw())):
        if replay is not None:
            raise BadValue("--replay requires the console")
        from tui.polling import pollers

        options = ViewOptions(watched.filter, column, descending, json, samples, is_silent=not is_printed)
        servers = pollers(way.servers, timeout_ms, interval_ms, way.login)
        if record is None:
            run_plain(servers, options, interval_ms)
            return
        from tui.recording import open_recorder

        try:
            with closing(open_recorder(record, interval_ms)) as recorder:
                run_plain(servers, options, interval_ms, recorder)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Failure(ExitCode.IO, f"cannot record to {record}: {reason}") from error
        return
    if not _can_draw():
        raise Failure(ExitCode.USAGE, "the console requires a terminal; use --plain or --json")
    from tui.console import run_console

    run_console(
        way.servers,
        way.login,
        ViewOptions(watched.filter, column, descending),
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        is_read_only=read_only,
        theme=watched.theme,
        record=record,
        replay=replay,
    )


def _can_draw() -> bool:
    """True in a terminal, or if `kestrelctl web` draws in a browser."""
    if "TEXTUAL_DRIVER" in os.environ:
        return True
    # Textual reads from stdin and draws on stderr.
    terminals = all(map(output.is_terminal, (output.STDIN, output.STDOUT, output.STDERR)))
    return terminals and os.environ.get("TERM", "dumb") != "dumb"
