"""Acknowledgement of a stopped stream's last batch: Spark reports a commit only when the next batch begins."""

import json
from typing import Any

from kestreld.errors import KestrelError
from kestrelspark.readers import Fleet, Offsets
from kestrelspark.servers import Servers
from kestrelspark.streaming import from_json


class NoCheckpoint(KestrelError):
    """The checkpoint has no committed batch."""


def finish(spark: Any, checkpoint: str, reader: str, servers: Servers | None = None, source: int = 0) -> Offsets:
    """Acknowledge the last committed batch of a stopped query; return the new positions of `reader`.

    `servers` gives the login; the addresses are in the checkpoint. `source` is the index of the source in a query with
    several. Raises NoCheckpoint, ServerTrouble.
    """
    committed = {int(name) for name in _files(spark, f"{checkpoint}/commits") if name.isdecimal()}
    if not committed:
        raise NoCheckpoint(f"{checkpoint}: no batch has been committed")
    path = f"{checkpoint}/offsets/{max(committed)}"
    lines = _text(spark, path).splitlines()[2:]  # after the version and the metadata of the batch
    if source >= len(lines):
        raise NoCheckpoint(f"{path}: the query has {len(lines)} sources")
    offsets = from_json(json.loads(lines[source]))
    return Fleet(servers or Servers(""), reader).acknowledge(offsets)


def _files(spark: Any, folder: str) -> list[str]:
    """Names in a folder on any file system; none if it does not exist."""
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return [one.getPath().getName() for one in system.listStatus(path)] if system.exists(path) else []


def _text(spark: Any, path: str) -> str:
    return str(spark.read.text(path, wholetext=True).first()[0])
