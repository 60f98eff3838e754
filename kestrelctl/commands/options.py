"""Options that several verbs share, their parsers, and the clients that they describe."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.items.framing import Framing, choose
from kestrelctl.remote.access import parse_address
from kestrelctl.remote.contexts import CACHE_DEFAULT, JOBS_DEFAULT, SERVER_DEFAULT, WAY_IN, Way, settle, settle_beside
from kestrelctl.shell.endings import at_end
from kestrelctl.shell.exit_codes import Ended, ExitCode, Failure
from kestrelctl.shell.output import (
    OBJECTS,
    Layout,
    OutputFormat,
    default_format,
    write_blocks,
    write_data,
    write_record,
    write_rows,
)
from kestreld import __version__
from kestreld.client.blocks import Cell
from kestreld.config.units import parse_duration_ms, parse_size_bytes

if TYPE_CHECKING:
    from kestrelctl.remote.cache import CacheClient
    from kestrelctl.remote.client import KestrelClient
    from kestrelctl.remote.fleet import Fleet
    from kestrelctl.remote.job_cluster import JobCluster
    from kestrelctl.remote.jobs import JobsClient
    from kestrelctl.remote.reader_api import ReaderApi

line_options: Final[dict[str, str | bool]] = {}  # options of the whole program, as given
TIMEOUT_DEFAULT: Final = "5s"
SHARED: Final = (*WAY_IN, "context")  # options of the whole program that are understood behind every verb, too
SPAN_MS_MAX: Final = 10 * 366 * 86_400_000


def duration_ms(value: str) -> int:
    """Parse a duration in ms; a plain number is seconds with up to three decimals."""
    try:
        decimal = re.fullmatch(r"(\d{1,12})\.(\d{1,3})s?", value, re.ASCII)
        span_ms = int(decimal[1] + decimal[2].ljust(3, "0")) if decimal else parse_duration_ms(value, 1000)
    except ValueError as error:
        raise BadValue(f"{value!r} is {error}: write 5s, 250ms, 1h30m, or seconds") from error
    if span_ms > SPAN_MS_MAX:
        raise BadValue(f"{value!r} is longer than ten years")
    return span_ms


def span_ms(value: str) -> int:
    """Parse a duration greater than 0, in ms."""
    ms = duration_ms(value)
    if ms == 0:
        raise BadValue("must be greater than 0")
    return ms


def whole_seconds(value: str) -> int:
    """Parse a duration that must be a whole number of seconds."""
    ms = duration_ms(value)
    if ms % 1000:
        raise BadValue(f"{value!r} is not a whole number of seconds")
    return ms // 1000


def some_seconds(value: str) -> int:
    """Parse a duration in whole seconds, greater than 0."""
    seconds = whole_seconds(value)
    if seconds == 0:
        raise BadValue("must be greater than 0")
    return seconds


def size_bytes(value: str) -> int:
    """Parse a number of bytes."""
    try:
        return parse_size_bytes(value)
    except ValueError as error:
        raise BadValue(f"{value!r} is {error}: write 64KiB, 16MiB, 2GiB, or bytes") from error


def instant_ms(value: str) -> int:
    """Parse an instant, ms since 1970."""
    from kestrelctl.journals.times import now_ms, parse_instant_ms

    try:
        return parse_instant_ms(value, now_ms())
    except ValueError as error:
        hint = "write 2025-01-31T12:00 (UTC), 10:32, 24h for a day ago, or milliseconds since 1970"
        raise BadValue(f"{value!r} is not a time: {hint}") from error


def _timeout_on_the_line(value: str) -> str:
    """The verb's --timeout, else the one before the verb, else the default."""
    chosen = value or str(line_options.get("timeout", TIMEOUT_DEFAULT))
    answer_ms(chosen)
    return chosen


def per_second(value: str) -> float:
    """Parse a rate: `100/s` or `100`."""
    try:
        rate = float(value.removesuffix("/s"))
    except ValueError as error:
        raise BadValue(f"{value!r} is not a rate: write 100/s") from error
    if not 0 < rate < float("inf"):
        raise BadValue(f"{value!r} is not a rate: it must be greater than 0")
    return rate


def other_server(value: str) -> str:
    """Return the value if it is "" or a valid address. Raises Failure."""
    if value:
        parse_address(value)
    return value


def _server_on_the_line(value: str) -> str:
    """The verb's --server, else the one before the verb; "" = none."""
    return value or str(line_options.get("server", ""))


def data_is_literal() -> bool:
    """True if DATA is the only word after `--`: it is text even if it looks like @FILE or -."""
    return bool(line_options.get("is_literal"))


def queue_name(value: str) -> str:
    """Return an argument's queue name if it is safe within a command."""
    if not value or re.search(r"[/\x00-\x20\x7f]", value):
        raise BadValue(f"{value!r} is not a queue name: it is empty, or has a blank, a control character or a / in it")
    return value


QueueArgument = Annotated[str, argument(metavar="QUEUE", help="The queue.", show_default=False, callback=queue_name)]
# Not QUEUE, a queue of the memcache port: Tab would offer those queues.
JobQueueArgument = Annotated[str, argument(metavar="NAME", help="The queue of jobs.", show_default=False)]
IdArgument = Annotated[int, argument(metavar="ID", min=1, help="The id of the item.", show_default=False)]
ServerOption = Annotated[
    str,
    option(
        "--server",
        "-s",
        metavar="HOST:PORT|unix:PATH",
        help=f"The server (default -c, $KESTRELCTL_SERVER, the selected context, then {SERVER_DEFAULT}).",
        callback=_server_on_the_line,
        show_default=False,
    ),
]
CacheServerOption = Annotated[
    str,
    option(
        "--server",
        "-s",
        metavar="HOST:PORT|unix:PATH",
        help=f"The cache (default: that of -c, $KESTRELCTL_CACHE, that of the selected context, then {CACHE_DEFAULT}).",
        callback=_server_on_the_line,
        show_default=False,
    ),
]
JobsServerOption = Annotated[
    str,
    option(
        "--server",
        "-s",
        metavar="HOST:PORT|unix:PATH",
        help=f"The node (default: that of -c, $KESTRELCTL_JOBS, that of the selected context, then {JOBS_DEFAULT}).",
        callback=_server_on_the_line,
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    str,
    option(
        metavar="SPAN",
        help=f"Time limit for an answer from the server (default {TIMEOUT_DEFAULT}).",
        callback=_timeout_on_the_line,
        show_default=False,
    ),
]
YesOption = Annotated[
    bool, option("--yes", "-y", help="Do not ask for confirmation. Without a terminal kestrelctl never asks.")
]
EmptyOkOption = Annotated[bool, option("--empty-ok", help="Exit 0 instead of 1 or 124 when there is no item.")]
WaitOption = Annotated[
    int | None,
    option(metavar="SPAN", parser=duration_ms, help="Wait this long for an item: 5s, 500ms, 1h30m."),
]
NullOption = Annotated[bool, option("--null", help="Framing: a zero byte after each item (xargs -0).")]
LengthOption = Annotated[
    bool, option("--length-prefixed", help="Framing: a 4-byte big-endian length before each item.")
]
SpoolOption = Annotated[
    str | None,
    option(metavar="DIR", help="The queue_path (default: that of kestreld's configuration).", show_default=False),
]
ArchiveOption = Annotated[
    str | None,
    option(metavar="DIR", help="The archive_path, for segments that have left the spool.", show_default=False),
]
SinceOption = Annotated[
    int | None,
    option(
        metavar="TIME", parser=instant_ms, help="Start time: 2025-01-31T12:00 (UTC), 10:32, 24h.", show_default=False
    ),
]
UntilOption = Annotated[
    int | None, option(metavar="TIME", parser=instant_ms, help="End time (default: now).", show_default=False)
]
NoHeadersOption = Annotated[bool, option("--no-headers", help="Do not print column names.")]
FieldsOption = Annotated[
    str, option("--fields", metavar="FIELD,…", help="Only these fields, in this order.", show_default=False)
]
SortOption = Annotated[
    str,
    option("--sort", metavar="[-]FIELD", help="Sort by this field; with a -, the largest first.", show_default=False),
]


def pattern(value: str) -> re.Pattern[bytes]:
    """Parse a regular expression for bytes."""
    try:
        return re.compile(os.fsencode(value))
    except re.error as error:
        raise BadValue(f"{value!r} is not a valid regular expression: {error}") from error


GrepOption = Annotated[
    re.Pattern[bytes] | None,
    option(metavar="RE", parser=pattern, help="Only items that match this regular expression.", show_default=False),
]
PerServerOption = Annotated[
    bool,
    option("--per-server", help="For a context with several servers: a row for each server instead of sums."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        write_data(f"kestrelctl {__version__}\n".encode())
        raise Ended(ExitCode.OK)


class ProgramOptions(NamedTuple):
    """Options of the whole program, before the verb."""

    server: Annotated[
        str,
        option("--server", "-s", metavar="HOST:PORT|unix:PATH", envvar="KESTRELCTL_SERVER", help="The server."),
    ] = SERVER_DEFAULT
    context: Annotated[
        str,
        option(
            "--context",
            "-c",
            metavar="CONTEXT",
            envvar="KESTRELCTL_CONTEXT",
            help="A saved server or cluster with credentials: see `kestrelctl context`.",
        ),
    ] = ""
    timeout: Annotated[str, option(metavar="SPAN", help="Time limit for an answer.")] = TIMEOUT_DEFAULT
    user: Annotated[str, option(metavar="NAME", envvar="KESTRELCTL_USER", help="Log in as this user.")] = ""
    password_file: Annotated[
        str,
        option(metavar="FILE", help="File whose first line is the password; else $KESTREL_PASSWORD or a prompt."),
    ] = ""
    tls: Annotated[bool, option("--tls", envvar="KESTRELCTL_TLS", help="Connect with TLS.")] = False
    ca: Annotated[str, option(metavar="FILE", envvar="KESTRELCTL_CA", help="TLS: CA certificates to trust (PEM).")] = ""
    cert: Annotated[str, option(metavar="FILE", envvar="KESTRELCTL_CERT", help="TLS: client certificate (PEM).")] = ""
    key: Annotated[
        str,
        option(metavar="FILE", envvar="KESTRELCTL_KEY", help="TLS: key of the client certificate, if in another file."),
    ] = ""
    version: Annotated[
        bool, option("--version", callback=_print_version, is_eager=True, help="Show kestrelctl's version.")
    ] = False


def way_to(server: str) -> Way:
    """The servers that the command line means; `server` is the verb's own -s, "" = none. Raises Failure."""
    return settle(line_options | {"server": server} if server else line_options)


def way_to_one(server: str) -> Way:
    """The way to the one server of a command. Raises Failure if the command line means several."""
    way = way_to(server)
    if len(way.servers) > 1:
        words = f"context {way.context} has {len(way.servers)} servers, but this command uses one: choose it with -s"
        raise Failure(ExitCode.USAGE, words)
    return way


def answer_ms(timeout: str) -> int:
    """Longest time a server may take to answer, ms."""
    timeout_ms = duration_ms(timeout)
    if timeout_ms == 0:
        raise BadValue("--timeout must be greater than 0")
    return timeout_ms


class Remote(NamedTuple):
    """Options of a verb for one or several Kestrel servers."""

    server: ServerOption = ""
    timeout: TimeoutOption = ""

    def client(self) -> "KestrelClient":
        """A client of the one server. Connects at its first command."""
        # Imported here: --help and journal-verify do not need it.
        from kestrelctl.remote.client import KestrelClient

        timeout_ms, way = answer_ms(self.timeout), way_to_one(self.server)
        client = KestrelClient(way.servers[0], timeout_ms, way.login)
        at_end.callback(client.close)
        return client

    def fleet(self) -> "Fleet":
        """Clients of all servers."""
        from kestrelctl.remote.fleet import Fleet

        timeout_ms, way = answer_ms(self.timeout), way_to(self.server)
        fleet = Fleet(way.servers, timeout_ms, way.login)
        at_end.callback(fleet.close)
        return fleet

    def reader_api(self) -> "ReaderApi":
        """The reader API of the one server."""
        from kestrelctl.remote.reader_api import open_reader_api

        timeout_ms, way = answer_ms(self.timeout), way_to_one(self.server)
        reader_api = open_reader_api(way.servers[0], timeout_ms, way.admin_port, way.login)
        at_end.callback(reader_api.close)
        return reader_api


def _way_beside(server: str, kind: Literal["cache", "jobs"], default: str) -> Way:
    """The way to the cache or the node of jobs; `server` is the verb's own -s."""
    return settle_beside(line_options | {"server": server} if server else line_options, kind, default)


class RemoteCache(NamedTuple):
    """Options of a verb for a cache."""

    server: CacheServerOption = ""
    timeout: TimeoutOption = ""

    def client(self) -> "CacheClient":
        """A client of the cache. Connects at its first command."""
        from kestrelctl.remote.cache import CacheClient

        timeout_ms = answer_ms(self.timeout)
        way = _way_beside(self.server, "cache", CACHE_DEFAULT)
        client = CacheClient(way.servers[0], timeout_ms, way.login)
        at_end.callback(client.close)
        return client


class RemoteJobs(NamedTuple):
    """Options of a verb for a node of jobs."""

    server: JobsServerOption = ""
    timeout: TimeoutOption = ""

    def client(self) -> "JobsClient":
        """A client of the node. Connects at its first command."""
        from kestrelctl.remote.jobs import JobsClient

        timeout_ms = answer_ms(self.timeout)
        way = _way_beside(self.server, "jobs", JOBS_DEFAULT)
        client = JobsClient(way.servers[0], timeout_ms, way.login)
        at_end.callback(client.close)
        return client

    def cluster(self) -> "JobCluster":
        """All nodes that the node knows."""
        from kestrelctl.remote.job_cluster import JobCluster

        timeout_ms = answer_ms(self.timeout)
        way = _way_beside(self.server, "jobs", JOBS_DEFAULT)
        return JobCluster(way.servers[0], timeout_ms, way.login)


class Output(NamedTuple):
    """Options for the format of rows."""

    form: Annotated[
        OutputFormat | None,
        option("--output", "-o", help="Default: table on a terminal, tsv elsewhere.", show_default=False),
    ] = None
    no_headers: NoHeadersOption = False
    fields: FieldsOption = ""
    sort: SortOption = ""

    @property
    def layout(self) -> Layout:
        return layout_of(self.form, self.fields, self.sort, no_headers=self.no_headers)

    @property
    def has_columns_only(self) -> bool:
        """True if the output uses only the cells of the verb's columns."""
        return (self.form or default_format()) not in OBJECTS and not self.fields and not self.sort

    def write_rows(self, rows: Iterable[Mapping[str, Cell]], columns: Sequence[str]) -> int:
        """Write the rows and return their number."""
        return write_rows(rows, columns, self.layout)

    def write_record(self, record: Mapping[str, Cell]) -> None:
        write_record(record, self.layout)


class Answer(NamedTuple):
    """Options for the format of a verb's single value."""

    form: Annotated[
        OutputFormat | None,
        option("--output", "-o", help="Default: the value alone.", show_default=False),
    ] = None

    def write(self, *rows: Mapping[str, Cell]) -> None:
        """Write rows; the first cell of each is its value."""
        write_rows(rows, list(rows[0]) if rows else [], Layout(self.form or OutputFormat.NAME))


class Blocks(NamedTuple):
    """Options for the format of the server's blocks."""

    form: Annotated[
        OutputFormat | None,
        option("--output", "-o", help="Default: the server's own blocks.", show_default=False),
    ] = None
    no_headers: NoHeadersOption = False
    fields: FieldsOption = ""
    sort: SortOption = ""

    def write(self, answer: bytes) -> None:
        write_blocks(answer, layout_of(self.form, self.fields, self.sort, no_headers=self.no_headers))


def layout_of(form: OutputFormat | None, fields: str, sort: str, *, no_headers: bool) -> Layout:
    """The layout that these options describe."""
    return Layout(form, not no_headers, tuple(dict.fromkeys(fields.split(","))) if fields else (), sort)


class Frames(NamedTuple):
    """Options for the framing of items on stdout."""

    raw: Annotated[bool, option("--raw", help="Framing: raw bytes (default for one item).")] = False
    lines: Annotated[bool, option("--lines", help="Framing: a newline after each item (default for several).")] = False
    null: NullOption = False
    length_prefixed: LengthOption = False
    json: Annotated[
        bool,
        option("--json", help='Framing: {"data": "…"} on a line for each item; {"data_base64": "…"} if not UTF-8.'),
    ] = False

    @property
    def is_given(self) -> bool:
        return any(self)

    def framing(self, otherwise: Framing) -> Framing:
        """The framing chosen, else `otherwise`. Raises Failure if several are given."""
        return choose(otherwise, **self._asdict())
