"""ingest: what is new in queues, to Parquet files or a Delta table, each item exactly once."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kestrelspark.finishing import NoCheckpoint, finish
from kestrelspark.servers import servers_in

CHECKPOINT = "_checkpoint"  # Spark passes over such names when it reads the folder

PARQUET, DELTA = "parquet", "delta"


@dataclass(slots=True, frozen=True)
class Queues:
    """What to read: options of the stream, by name. `reader` "" = walPath is one of them: there is none to be told."""

    servers: str
    reader: str
    options: Mapping[str, str] = field(default_factory=dict)


def ingest(spark: Any, queues: Queues, target: str, interval_s: int = 0, file_format: str = PARQUET) -> int:
    """Add what has been put since the last run to `target`; returns how many items. Raises what the query fails with.

    `interval_s` 0 = once; else a batch so often, until the query is stopped. One folder is for one reader.
    """
    options = {**queues.options, "servers": queues.servers}
    if queues.reader:
        options["reader"] = queues.reader
    servers = servers_in(options)
    checkpoint = os.path.join(target, CHECKPOINT)
    trigger = {"processingTime": f"{interval_s} seconds"} if interval_s else {"availableNow": True}
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
    if queues.reader:
        # None is there if there has never been an item.
        with suppress(NoCheckpoint):
            finish(spark, checkpoint, queues.reader, servers)
    return sum(progress.numInputRows for progress in query.recentProgress)
