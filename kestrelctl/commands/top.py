"""kestrelctl top"""

import os
from contextlib import closing
from dataclasses import replace
from typing import Annotated, NamedTuple

import typer

from kestrelctl.commands.options import TimeoutOption, duration_ms, way_to
from kestrelctl.remote.contexts import Way
from kestrelctl.shell import output
from kestrelctl.shell.exit_codes import ExitCode, Failure


class Watched(NamedTuple):
    """Which queues are shown, and how."""

    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            "-s",
            metavar="HOST:PORT|unix:PATH",
            help="A server; may be repeated, figures are summed up, as for a context.",
            show_default=False,
        ),
    ] = None
    interval: Annotated[str, typer.Option("--interval", "-i", metavar="SPAN", help="Refresh interval.")] = "1s"
    filter: Annotated[str, typer.Option("--filter", metavar="WORDS", help="Filter the queues, as with /.")] = ""
    sort: Annotated[str, typer.Option(metavar="COLUMN", help="The column; -COLUMN starts with the largest.")] = "queue"
    theme: Annotated[str | None, typer.Option(metavar="NAME", help="dark, light or colour-blind.")] = None
    timeout: TimeoutOption = ""

    def way(self) -> Way:
        """The servers, each once: those of the line, or of the context. The login is the same for all."""
        way = way_to((self.server or [""])[0])
        return replace(way, servers=tuple(dict.fromkeys(self.server or way.servers)))

    def order(self) -> tuple[str, bool]:
        """The column, and whether the largest come first."""
        from tui.figures import COLUMNS

        column = self.sort.removeprefix("-")
        if column not in COLUMNS:
            raise typer.BadParameter(f"no column {column!r}; columns are {', '.join(COLUMNS)}")
        return column, self.sort.startswith("-")

    def spans_ms(self) -> tuple[int, int]:
        """Interval and timeout, in milliseconds."""
        interval_ms, timeout_ms = duration_ms(self.interval), duration_ms(self.timeout)
        if interval_ms == 0 or timeout_ms == 0:
            raise typer.BadParameter("--interval and --timeout must be greater than 0")
        return interval_ms, timeout_ms


def top(
    watched: Watched,
    plain: Annotated[bool, typer.Option("--plain", help="Print text instead of showing a console.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on a line per refresh.")] = False,
    once: Annotated[bool, typer.Option("--once", help="With --plain or --json (else --plain): print once.")] = False,
    number: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="As --once, but N times.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="The console cannot flush, delete or reload.")] = False,
    record: Annotated[
        str | None, typer.Option(metavar="FILE", help="Record to a new file, also without a terminal.")
    ] = None,
    replay: Annotated[
        str | None, typer.Option(metavar="FILE", help="Play a recording instead of showing a server.")
    ] = None,
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
            raise typer.BadParameter("--replay requires the console")
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
    """Whether there is a terminal, or a browser that `kestrelctl web` draws in."""
    if "TEXTUAL_DRIVER" in os.environ:
        return True
    # Textual reads from stdin and draws on stderr.
    terminals = all(map(output.is_terminal, (output.STDIN, output.STDOUT, output.STDERR)))
    return terminals and os.environ.get("TERM", "dumb") != "dumb"
