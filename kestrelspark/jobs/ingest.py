"""ingest: append new items of queues to Parquet files or a Delta table, each item exactly once."""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.streaming import StreamingQueryListener

from kestrelspark.finishing import NoCheckpoint, finish
from kestrelspark.servers import servers_in

CHECKPOINT = "_checkpoint"  # Spark ignores such names when it reads the folder

PARQUET, DELTA = "parquet", "delta"

EVENT_TIMEOUT_S: Final = 60


@dataclass(slots=True, frozen=True)
class Queues:
    """What to read: options of the stream, by name. `reader` "" = walPath is one of them, and there is no reader."""

    servers: str
    reader: str
    options: Mapping[str, str] = field(default_factory=dict)


def ingest(spark: Any, queues: Queues, target: str, interval_s: int = 0, file_format: str = PARQUET) -> int:
    """Append the items put since the last run to `target`; returns how many. Raises the query's exception.

    `interval_s` 0 = once; else a batch this often, until the query is stopped. A folder is for one reader.
    """
    options = {**queues.options, "servers": queues.servers}
    if queues.reader:
        options["reader"] = queues.reader
    servers = servers_in(options)
    checkpoint = os.path.join(target, CHECKPOINT)
    trigger = {"processingTime": f"{interval_s} seconds"} if interval_s else {"availableNow": True}
    with _counted(spark) as written:
        query = (
            spark.readStream.format("kestrel")
            .options(**options)
            .load()
            .writeStream.format(file_format)
            .option("checkpointLocation", checkpoint)
            .option("compression", "zstd")
            .partitionBy("queue")
            .trigger(**trigger)
            .start(target)
        )
        query.awaitTermination()
        count = written.by(str(query.runId))
    if queues.reader:
        # There is none if there has never been an item.
        with suppress(NoCheckpoint):
            finish(spark, checkpoint, queues.reader, servers)
    return count


class _Written(StreamingQueryListener):
    """Counts the rows that queries have written. A query itself remembers its last batches only."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._terminated: set[str] = set()
        self._changed = threading.Condition()

    def by(self, run_id: str) -> int:
        """The rows of a query that has ended: wait for Spark's event, which comes a moment later."""
        with self._changed:
            self._changed.wait_for(lambda: run_id in self._terminated, EVENT_TIMEOUT_S)
            return self._rows[run_id]

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        with self._changed:
            self._rows[str(event.progress.runId)] += event.progress.numInputRows

    def onQueryTerminated(self, event: Any) -> None:
        with self._changed:
            self._terminated.add(str(event.runId))
            self._changed.notify_all()


@contextmanager
def _counted(spark: Any) -> Iterator[_Written]:
    written = _Written()
    spark.streams.addListener(written)
    try:
        yield written
    finally:
        spark.streams.removeListener(written)
