"""Options that several verbs share, and the connection they describe."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kestrelctl.output import OutputFormat
from kestreld.units import parse_duration_ms, parse_size_bytes

if TYPE_CHECKING:
    from kestrelctl.client import KestrelClient

SERVER_DEFAULT: Final = "127.0.0.1:22133"
TIMEOUT_DEFAULT: Final = "5s"
SPAN_MS_MAX: Final = 10 * 366 * 86_400_000


def duration_ms(value: str) -> int:
    """An option's span of time, in milliseconds; a plain number is seconds."""
    try:
        span_ms = parse_duration_ms(value, 1000)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is {error}: write 5s, 250ms, 1h30m, or seconds") from error
    if span_ms > SPAN_MS_MAX:
        raise typer.BadParameter(f"{value!r} is longer than ten years")
    return span_ms


def size_bytes(value: str) -> int:
    """An option's number of bytes."""
    try:
        return parse_size_bytes(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is {error}: write 64KiB, 16MiB, 2GiB, or bytes") from error


def instant_ms(value: str) -> int:
    """An option's moment, in milliseconds since 1970."""
    from kestrelctl.journals.times import now_ms, parse_instant_ms

    try:
        return parse_instant_ms(value, now_ms())
    except ValueError as error:
        hint = "write 2025-01-31T12:00 (UTC), 10:32, 24h for a day ago, or milliseconds since 1970"
        raise typer.BadParameter(f"{value!r} is no time: {hint}") from error


def _given_before_the_verb(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """`kestrelctl -s X get Q` is `kestrelctl get Q -s X`."""
    assert parameter.name is not None
    before: str = context.find_root().params[parameter.name]
    return value or before


QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", show_default=False)]
ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        metavar="HOST:PORT|unix:PATH",
        help=f"The server (default $KESTRELCTL_SERVER, then {SERVER_DEFAULT}).",
        callback=_given_before_the_verb,
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        metavar="SPAN",
        help=f"How long the server may take to answer (default {TIMEOUT_DEFAULT}).",
        callback=_given_before_the_verb,
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal kestrelctl never asks.")]
EmptyOkOption = Annotated[bool, typer.Option("--empty-ok", help="Exit 0 instead of 1 or 124 when there is no item.")]
WaitOption = Annotated[
    int | None,
    typer.Option(metavar="SPAN", parser=duration_ms, help="Wait this long for an item: 5s, 500ms, 1h30m."),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Frame: the bytes as they are (default for one item).")]
LinesOption = Annotated[bool, typer.Option("--lines", help="Frame: a newline after each item (default for several).")]
NullOption = Annotated[bool, typer.Option("--null", help="Frame: a zero byte after each item (xargs -0).")]
LengthOption = Annotated[
    bool, typer.Option("--length-prefixed", help="Frame: four bytes of length, big-endian, before each item.")
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help='Frame: {"data": "…"} on a line for each item; {"data_base64": "…"} if not UTF-8.'),
]
FormatOption = Annotated[
    OutputFormat | None,
    typer.Option("--output", "-o", help="Default: table on a terminal, tsv elsewhere.", show_default=False),
]
BlocksFormatOption = Annotated[
    OutputFormat | None,
    typer.Option("--output", "-o", help="Default: the blocks as the server sends them.", show_default=False),
]
SpoolOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The queue_path (default: that of kestreld's configuration).", show_default=False),
]
ArchiveOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The archive_path, for what has left the spool.", show_default=False),
]
SinceOption = Annotated[
    int | None,
    typer.Option(
        metavar="TIME", parser=instant_ms, help="From then on: 2025-01-31T12:00 (UTC), 10:32, 24h.", show_default=False
    ),
]
UntilOption = Annotated[
    int | None, typer.Option(metavar="TIME", parser=instant_ms, help="Before then (default: now).", show_default=False)
]
NoHeadersOption = Annotated[bool, typer.Option("--no-headers", help="Leave out the line of column names.")]


def connect(server: str, timeout: str) -> "KestrelClient":
    """A client for the server that the options name. It connects at its first command."""
    # pymemcache costs 40 ms: --help and journal-verify go without.
    from kestrelctl.client import KestrelClient

    timeout_ms = duration_ms(timeout)
    if timeout_ms == 0:
        raise typer.BadParameter("--timeout 0 leaves the server no time to answer")
    return KestrelClient(server, timeout_ms)
