"""The job convert: journals to Parquet, a row for each event."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.journal.discovery import JournalFile, discover
from kestrelspark.batch import KestrelSource, partition_bytes
from kestrelspark.packing import input_bytes, packed
from kestrelspark.rows import COLUMNS, VALUE, Mode, RowSelection
from kestrelspark.runs import Runs, exclusive_run
from kestrelspark.storage import ENVIRONMENT
from kestrelspark.tables import events


@dataclass(slots=True, frozen=True)
class Choice:
    """Selection of the rows to read, as values of the source's options: "" = not given."""

    queues: Sequence[str] = ()
    since: str = ""
    until: str = ""
    mode: str = ""


def read(spark: Any, paths: Sequence[str], choice: Choice, *, with_values: bool = False) -> Any:
    """The DataFrame of the source."""
    options = {
        "queue": ",".join(choice.queues),
        "since": choice.since,
        "until": choice.until,
        "mode": choice.mode,
        "includeValue": str(with_values).lower(),
    }
    reader = spark.read.format(KestrelSource.name())
    return reader.options(**{name: value for name, value in options.items() if value}).load(list(paths))


def convert(
    spark: Any, paths: Sequence[str], target: str, choice: Choice, *, with_values: bool, overwrite: bool
) -> int:
    """Write the rows as Parquet (zstd) to `target`; return their number. Raises FileExistsError."""
    if not overwrite and os.path.exists(target):
        raise FileExistsError(f"{target} already exists")
    frame = read(spark, paths, choice, with_values=with_values)
    writer = frame.write.mode("overwrite" if overwrite else "error").option("compression", "zstd")
    writer.parquet(target)
    return int(spark.read.parquet(target).count())


@dataclass(slots=True, frozen=True)
class Added:
    """Result of an incremental run. `left_out`: number of Kestrel's own files, which are rewritten and not tracked."""

    rows: int
    left_out: int


def convert_new(
    spark: Any, paths: Sequence[str], target: str, state: str, choice: Choice, *, with_values: bool
) -> Added:
    """Add the rows that are new since the last run to `target`, as run=N.

    Raises FileNotFoundError for a missing path, Failure.
    """
    what = {"queue": sorted(choice.queues), "values": with_values}
    with exclusive_run(target):
        runs = Runs(target, state, what)
        found = discover(paths, choice.queues, files=ENVIRONMENT.files)
        files = found.files
        fresh = [*runs.seen.fresh(spark, files), *found.missing]
        columns = tuple(name for name in COLUMNS if name != VALUE or with_values)
        count = write_pending(spark, runs, fresh, RowSelection(columns, Mode((choice.mode or "PERMISSIVE").upper())))
        runs.commit([], has_rows=count > 0)
    return Added(count, sum(file.is_kestrel for file in files))


def write_pending(spark: Any, runs: Runs, fresh: Sequence[JournalFile], selection: RowSelection) -> int:
    """Write the rows of files to `runs.pending`; return their number. Raises Failure if a file was removed."""
    if not fresh:
        return 0
    packs = packed(fresh, partition_bytes(input_bytes(fresh)))
    events(spark, packs, selection).write.mode("overwrite").option("compression", "zstd").parquet(runs.pending)
    for file in fresh:
        if not ENVIRONMENT.is_there(file):
            # A file that replaced it would count as read.
            raise Failure(ExitCode.TRY_AGAIN, f"{file.path}: removed by its server in the meantime; try again")
    return int(spark.read.parquet(runs.pending).count())
