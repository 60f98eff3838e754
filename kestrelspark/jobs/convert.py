"""convert: journals to Parquet, a row for each event."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kestrelspark.batch import KestrelSource


@dataclass(slots=True, frozen=True)
class Choice:
    """What to read, in the words of the source's options: "" = not said."""

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
    """Write the rows as Parquet (zstd) to `target`; returns how many. Raises FileExistsError."""
    if not overwrite and os.path.exists(target):
        raise FileExistsError(f"{target}: there is something already")
    frame = read(spark, paths, choice, with_values=with_values)
    writer = frame.write.mode("overwrite" if overwrite else "error").option("compression", "zstd")
    writer.parquet(target)
    return int(spark.read.parquet(target).count())
