"""What the last run of a stream has not told its servers: Spark says only at the next batch that one is committed."""

import json
from typing import Any

from kestreld.errors import KestrelError
from kestrelspark.readers import Fleet, Offsets
from kestrelspark.servers import Servers
from kestrelspark.streaming import from_json


class NoCheckpoint(KestrelError):
    """There is no committed batch to be found."""


def finish(spark: Any, checkpoint: str, reader: str, servers: Servers | None = None, source: int = 0) -> Offsets:
    """Acknowledge the last committed batch of a query that does not run; returns where `reader` has been told to be.

    `servers` says how to log in; which servers these are stands in the checkpoint. `source`: which one of a query
    with several, from 0. Raises NoCheckpoint, ServerTrouble.
    """
    committed = {int(name) for name in _files(spark, f"{checkpoint}/commits") if name.isdecimal()}
    if not committed:
        raise NoCheckpoint(f"{checkpoint}: no batch has been committed")
    path = f"{checkpoint}/offsets/{max(committed)}"
    lines = _text(spark, path).splitlines()[2:]  # behind the version and what Spark says of the batch
    if source >= len(lines):
        raise NoCheckpoint(f"{path}: the query has {len(lines)} sources")
    offsets = from_json(json.loads(lines[source]))
    return Fleet(servers or Servers(""), reader).acknowledge(offsets)


def _files(spark: Any, folder: str) -> list[str]:
    """Names in a folder, on whatever file system; none where there is no such folder."""
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return [one.getPath().getName() for one in system.listStatus(path)] if system.exists(path) else []


def _text(spark: Any, path: str) -> str:
    return str(spark.read.text(path, wholetext=True).first()[0])
