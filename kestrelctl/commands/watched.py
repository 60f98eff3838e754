"""Options that `top` and `web` share: servers, queues, and their order."""

from dataclasses import replace
from typing import Annotated, NamedTuple

from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.options import TimeoutOption, duration_ms, way_to
from kestrelctl.remote.contexts import Way


class Watched(NamedTuple):
    """Queues to show, and how to show them."""

    server: Annotated[
        list[str] | None,
        option(
            "--server",
            "-s",
            metavar="HOST:PORT|unix:PATH",
            help="A server; may be repeated, figures are summed up, as for a context.",
            show_default=False,
        ),
    ] = None
    interval: Annotated[str, option("--interval", "-i", metavar="SPAN", help="Refresh interval.")] = "1s"
    filter: Annotated[str, option("--filter", metavar="WORDS", help="Filter the queues, as with /.")] = ""
    sort: Annotated[str, option(metavar="COLUMN", help="The column; -COLUMN starts with the largest.")] = "queue"
    theme: Annotated[str | None, option(metavar="NAME", help="dark, light or colour-blind.")] = None
    timeout: TimeoutOption = ""

    def way(self) -> Way:
        """The servers of the command line, or of the context, each once. All use the same login."""
        way = way_to((self.server or [""])[0])
        return replace(way, servers=tuple(dict.fromkeys(self.server or way.servers)))

    def order(self) -> tuple[str, bool]:
        """The column, and True if the largest values come first."""
        from tui.queue_rows import COLUMNS

        column = self.sort.removeprefix("-")
        if column not in COLUMNS:
            raise BadValue(f"no column {column!r}; columns are {', '.join(COLUMNS)}")
        return column, self.sort.startswith("-")

    def spans_ms(self) -> tuple[int, int]:
        """Interval and timeout, ms."""
        interval_ms, timeout_ms = duration_ms(self.interval), duration_ms(self.timeout)
        if interval_ms == 0 or timeout_ms == 0:
            raise BadValue("--interval and --timeout must be greater than 0")
        return interval_ms, timeout_ms
