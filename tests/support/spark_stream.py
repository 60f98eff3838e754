"""A stream of queues that is run from time to time, and items whose values are the server's folder and a number."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon
from tests.support.queue_client import QueueClient


def put(daemon: Daemon, queue: str, first: int, count: int) -> None:
    with QueueClient(daemon.port) as client:
        client.put(queue, *(f"{daemon.folder.name}{number}".encode() for number in range(first, first + count)))


class Stream:
    """A query that is run from time to time, over what is new, into a folder of Parquet files."""

    def __init__(self, spark: Any, folder: Path, servers: str, **options: object) -> None:
        self.spark = spark
        self.target, self.checkpoint = folder / "out", folder / "checkpoint"
        self.options = {"servers": servers, "reader": "spark", "retries": 2, **options}
        self.progress: list[Any] = []  # of each batch of the latest run

    @property
    def batches(self) -> int:
        return len(self.progress)

    def run(self, also: Mapping[str, object] | None = None) -> None:
        """Until all that is there has been read. Raises what the query fails with."""
        reading = self.spark.readStream.format("kestrel")
        for name, value in {**self.options, **(also or {})}.items():
            reading = reading.option(name, str(value))
        query = (
            reading.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.target))
        )
        query.awaitTermination()
        self.progress = [one for one in query.recentProgress if one.numInputRows]

    def values(self) -> Counter[str]:
        rows = self.spark.read.parquet(str(self.target)).selectExpr("cast(value AS string) AS value").collect()
        return Counter(row.value for row in rows)


def numbered(name: str, first: int, count: int) -> Counter[str]:
    return Counter(f"{name}{number}" for number in range(first, first + count))
