"""`kestrelctl spark verify, report, compare, convert, ingest, replay`: process journals with Spark."""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import whole_seconds
from kestrelctl.shell.exit_codes import Ended, ExitCode, Failure

PROGRAM: Final = "kestrelctl spark"


class FileFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


PathsArgument = Annotated[
    list[str],
    argument(
        metavar="SPOOL|FILE", help="Spools, archives, folders of them, or single files; globs.", show_default=False
    ),
]
QueueOption = Annotated[
    list[str] | None,
    option(metavar="QUEUE", help="Only this queue, or those of a pattern; may be repeated.", show_default=False),
]
SinceOption = Annotated[
    str | None,
    option(metavar="TIME", help="Start time: 2025-01-31T12:00 (UTC), or milliseconds since 1970."),
]
UntilOption = Annotated[str | None, option(metavar="TIME", help="End time, exclusive.")]
ServersOption = Annotated[
    str, option(metavar="SERVERS", help="HOST:PORT,HOST:PORT, or @FILE with one a line.", show_default=False)
]
OptionOption = Annotated[
    list[str] | None,
    option(metavar="NAME=VALUE", help="An option of the servers or the stream; may be repeated."),
]
TargetOption = Annotated[str, option(metavar="DIR", help="The output folder.", show_default=False)]


class SparkSession(NamedTuple):
    """Options for the Spark that runs the jobs."""

    master: Annotated[
        str | None, option(metavar="URL", help="The Spark to run on (default local[*]).", show_default=False)
    ] = None
    conf: Annotated[list[str] | None, option(metavar="NAME=VALUE", help="A setting of Spark's; may be repeated.")] = (
        None
    )

    def run(self, job: str, paths: list[str], options: list[str]) -> None:
        try:
            import numpy  # noqa: F401
            import pyspark  # noqa: F401
        except ModuleNotFoundError as problem:
            words = f"{problem.name} is not installed: pip install 'kestreld[spark]'"
            raise Failure(ExitCode.NO_SPARK, words) from problem
        from kestrelspark.__main__ import main

        own = [*_options(master=self.master), *_each("conf", self.conf)]
        raise Ended(main([job, *options, *own, "--", *paths], PROGRAM))


def verify(
    session: SparkSession,
    paths: PathsArgument,
    queue: QueueOption = None,
    state: Annotated[
        str | None,
        option(metavar="FILE", help="State file: skip files that were intact and have not changed since."),
    ] = None,
) -> None:
    """Check every record of every journal under the paths, in parallel; prints a line for each finding.

    Exit 0 all is well, 1 a truncated tail (a start cuts it off), 65 a corrupt record, 66 no such path, 74 a file
    cannot be read, 87 Spark or Java is missing.
    """
    session.run("verify", paths, [*_options(state=state), *_each("queue", queue)])


def report(
    session: SparkSession,
    paths: PathsArgument,
    to: TargetOption,
    queue: QueueOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    bucket: Annotated[
        int, option(metavar="SPAN", parser=whole_seconds, help="Time between two points; 0 = as fits a plot.")
    ] = "0",  # type: ignore[assignment]
    state: Annotated[
        str | None, option(metavar="DIR", help="State folder: keep results there and read only new records.")
    ] = None,
) -> None:
    """Analyse load, waits and backlog of every queue: report.html and Parquet tables in DIR.

    With --state segments are read once: the report is over all that its runs have read, gone from the disk or not.

    Exit 1 nothing has happened in these journals, 66 no such path, 87 Spark or Java is missing.
    """
    options = [f"--to={to}", f"--bucket={bucket}", *_options(state=state, since=since, until=until)]
    session.run("report", paths, [*options, *_each("queue", queue)])


def convert(
    session: SparkSession,
    paths: PathsArgument,
    to: TargetOption,
    queue: QueueOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    values: Annotated[bool, option("--values", help="Include the items' data.")] = False,
    overwrite: Annotated[bool, option("--overwrite", help="Replace the contents of DIR.")] = False,
    state: Annotated[str | None, option(metavar="FILE", help="State file: add only new records to DIR.")] = None,
) -> None:
    """Write journals as Parquet files in DIR, a row for each thing that happened to an item.

    With --state each run adds a folder run=N with the rows that are new, each exactly once.

    Exit 66 no such path, 73 there is something in DIR already, 75 another run with this DIR is not done, 87
    Spark or Java is missing.
    """
    flags = [name for name, is_set in (("--values", values), ("--overwrite", overwrite)) if is_set]
    options = [f"--to={to}", *flags, *_options(state=state, since=since, until=until)]
    session.run("convert", paths, [*options, *_each("queue", queue)])


def compare(
    session: SparkSession,
    before: Annotated[
        str, option(metavar="PERIOD|DIR", help="SINCE..UNTIL, or the folder of a report.", show_default=False)
    ],
    after: Annotated[
        str, option(metavar="PERIOD|DIR", help="The period or report to compare it with.", show_default=False)
    ],
    paths: Annotated[
        list[str] | None,
        argument(metavar="SPOOL|FILE", help="The journals, if a period is given.", show_default=False),
    ] = None,
    to: Annotated[str | None, option(metavar="DIR", help="For compare.html and a Parquet table.")] = None,
    queue: QueueOption = None,
) -> None:
    """Put two periods side by side: puts, gets, waits, retries and backlog of every queue, and the changes.

    Exit 1 nothing has happened in either, 66 no such path or report, 87 Spark or Java is missing.
    """
    options = [f"--before={before}", f"--after={after}", *_options(to=to)]
    session.run("compare", paths or [], [*options, *_each("queue", queue)])


def ingest(
    session: SparkSession,
    queues: Annotated[list[str], argument(metavar="QUEUE", help="Names of queues.", show_default=False)],
    servers: ServersOption,
    to: TargetOption,
    reader: Annotated[
        str | None,
        option(metavar="NAME", help="The reader whose position to use.", show_default=False),
    ] = None,
    file_format: Annotated[
        FileFormat, option("--format", help="Format of DIR; delta needs pip install delta-spark.")
    ] = FileFormat.PARQUET,
    every: Annotated[
        int, option(metavar="SPAN", parser=whole_seconds, help="Keep running, with a batch this often; 0 = once.")
    ] = "0",  # type: ignore[assignment]
    option: OptionOption = None,
) -> None:
    """Add new items of queues to Parquet files, or a Delta table, in DIR, each item exactly once.

    It takes nothing from the queues. But old Kestrels have no readers: there --option walPath=DIR, without --reader,
    takes the items, each at least once.

    Exit 87 Spark or Java is missing.
    """
    options = [f"--servers={servers}", f"--to={to}", f"--every={every}", f"--format={file_format}"]
    session.run("ingest", queues, [*options, *_options(reader=reader), *_each("option", option)])


def replay(
    session: SparkSession,
    paths: PathsArgument,
    servers: ServersOption,
    to: Annotated[str | None, option(metavar="QUEUE", help="The destination queue (default: the same).")] = None,
    queue: QueueOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    where: Annotated[
        str | None, option(metavar="EXPRESSION", help="SQL condition on the columns: 'size > 100'.")
    ] = None,
    speed: Annotated[str, option(metavar="1x|max", help="Speed relative to the original: 1x.")] = "1x",
    rate: Annotated[str | None, option(metavar="N/s", help="Maximum total rate.")] = None,
    expired: Annotated[bool, option("--expired", help="Include expired items.")] = False,
    dedup_key: Annotated[bool, option("--dedup-key", help="Items begin with a key and a newline.")] = False,
    state: Annotated[str | None, option(metavar="DIR", help="Progress file; the next run continues from it.")] = None,
    mode: Annotated[
        str | None, option(metavar="MODE", help="FAILFAST (a queue ends at damage), PERMISSIVE, DROPMALFORMED.")
    ] = None,
    option: OptionOption = None,
) -> None:
    """Replay the items of journals and archives, in order and with their original timing.

    All that are on the disk count, delivered or not; those that have expired are left out. With --expired they come
    too, and each item gets as long as it had. Prints a row for each queue.

    Exit 1 there are no such items, 65 a journal is damaged, 66 no such path, 69 no server, 80 a queue is full, 87 Spark
    or Java is missing. With --state the next run goes on where this one ended.
    """
    options = [f"--servers={servers}", f"--speed={speed}", *_each("option", option)]
    options += _options(to=to, where=where, rate=rate, state=state, mode=mode, since=since, until=until)
    options += [name for name, is_set in (("--expired", expired), ("--dedup-key", dedup_key)) if is_set]
    session.run("replay", paths, [*options, *_each("queue", queue)])


def _options(**values: str | None) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items() if value]


def _each(name: str, values: list[str] | None) -> list[str]:
    return [f"--{name}={value}" for value in values or []]
