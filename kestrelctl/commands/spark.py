"""kestrelctl spark verify, kestrelctl spark report, kestrelctl spark convert, kestrelctl spark ingest"""

from enum import StrEnum
from typing import Annotated, Final

import typer

from kestrelctl.exit_codes import ExitCode, Failure

PROGRAM: Final = "kestrelctl spark"
spark = typer.Typer(
    help="Look through journals with Spark: needs pip install 'kestreld[spark]' and Java 17.", rich_markup_mode=None
)


class FileFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


PathsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SPOOL|FILE", help="Spools, archives, folders of them, or single files; globs.", show_default=False
    ),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(metavar="QUEUE", help="Only this queue, or those of a pattern; may be repeated.", show_default=False),
]
MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="The Spark to run on (default local[*]).", show_default=False)
]
ConfOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark's; may be repeated.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="From this time on: 2025-01-31T12:00 (UTC), or milliseconds since 1970."),
]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="Up to this time, not included.")]
TargetOption = Annotated[str, typer.Option(metavar="DIR", help="The folder for what is made.", show_default=False)]


@spark.command("verify")
def verify(
    paths: PathsArgument, queue: QueueOption = None, master: MasterOption = None, conf: ConfOption = None
) -> None:
    """Check every record of every journal under the paths, in parallel; prints a line for each finding.

    Exit 0 all is well, 1 a truncated tail (a start cuts it off), 65 a corrupt record, 66 no such path, 74 a file
    cannot be read, 87 Spark or Java is missing.
    """
    _run("verify", paths, [*_common(queue, master, conf)])


@spark.command("report")
def report(
    paths: PathsArgument,
    to: TargetOption,
    queue: QueueOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    bucket: Annotated[
        int, typer.Option(metavar="SECONDS", min=0, help="Time between two points; 0 = as fits a plot.")
    ] = 0,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Analyse load, waits and backlog of every queue: report.html and Parquet tables in DIR.

    Exit 1 nothing has happened in these journals, 66 no such path, 87 Spark or Java is missing.
    """
    _run("report", paths, [f"--to={to}", f"--bucket={bucket}", *_times(since, until), *_common(queue, master, conf)])


@spark.command("convert")
def convert(
    paths: PathsArgument,
    to: TargetOption,
    queue: QueueOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    values: Annotated[bool, typer.Option("--values", help="With the items' data.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in DIR.")] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Write journals as Parquet files in DIR, a row for each thing that happened to an item.

    Exit 66 no such path, 73 there is something in DIR already, 87 Spark or Java is missing.
    """
    flags = [name for name, is_set in (("--values", values), ("--overwrite", overwrite)) if is_set]
    _run("convert", paths, [f"--to={to}", *flags, *_times(since, until), *_common(queue, master, conf)])


@spark.command("ingest")
def ingest(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="Names of queues.", show_default=False)],
    servers: Annotated[
        str, typer.Option(metavar="SERVERS", help="HOST:PORT,HOST:PORT, or @FILE with one a line.", show_default=False)
    ],
    to: TargetOption,
    reader: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose place on the queues to use.", show_default=False),
    ] = None,
    file_format: Annotated[
        FileFormat, typer.Option("--format", help="Of what is in DIR; delta needs pip install delta-spark.")
    ] = FileFormat.PARQUET,
    every: Annotated[int, typer.Option(metavar="SECONDS", min=0, help="Go on, with a batch so often; 0 = once.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the stream; may be repeated.")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Add what is new in queues to Parquet files, or a Delta table, in DIR, each item exactly once.

    It takes nothing from the queues. But old Kestrels have no readers: there --option walPath=DIR, without --reader,
    takes the items, each at least once.

    Exit 87 Spark or Java is missing.
    """
    given = [f"--servers={servers}", f"--to={to}", f"--every={every}", f"--format={file_format}"]
    given += [f"--reader={reader}"] if reader else []
    given += [f"--option={setting}" for setting in option or []]
    _run("ingest", queues, [*given, *_common(None, master, conf)])


def _common(queues: list[str] | None, master: str | None, conf: list[str] | None) -> list[str]:
    given = [f"--master={master}"] if master else []
    return given + [f"--queue={queue}" for queue in queues or []] + [f"--conf={setting}" for setting in conf or []]


def _times(since: str | None, until: str | None) -> list[str]:
    return [f"--{name}={value}" for name, value in (("since", since), ("until", until)) if value]


def _run(job: str, paths: list[str], options: list[str]) -> None:
    try:
        import numpy  # noqa: F401
        import pyspark  # noqa: F401
    except ModuleNotFoundError as problem:
        words = f"{problem.name} is not installed: pip install 'kestreld[spark]'"
        raise Failure(ExitCode.NO_SPARK, words) from problem
    from kestrelspark.__main__ import main

    raise typer.Exit(main([job, *options, "--", *paths], PROGRAM))
