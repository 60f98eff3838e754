"""The job ingest: appends new items of queues to Parquet files or a Delta table, each item exactly once."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from kestrelctl.shell.exit_codes import ExitCode
from kestrelspark.failures import failure_in
from kestrelspark.finishing import NoCheckpoint, finish
from kestrelspark.lag import LagListener, Lags
from kestrelspark.readers import complain
from kestrelspark.servers import servers_in

CHECKPOINT = "_checkpoint"  # Spark ignores such names when it reads the folder

PARQUET, DELTA = "parquet", "delta"

EVENT_TIMEOUT_S: Final = 60
DELAY_S: Final = 1
DELAY_S_MAX: Final = 60
RESTARTS_MAX: Final = 10  # consecutive runs without progress
OF_SERVERS: Final = frozenset({ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN})
FINAL: Final = frozenset({ExitCode.USAGE, ExitCode.IO, ExitCode.CORRUPT})

Tell = Callable[[int, Lags], object]  # number of items that a batch has added, and the lag of each queue


@dataclass(slots=True, frozen=True)
class Queues:
    """The queues to read, as options of the stream. `reader` "" = walPath is among them, and there is no reader."""

    servers: str
    reader: str
    options: Mapping[str, str] = field(default_factory=dict)


def ingest(
    spark: Any, queues: Queues, target: str, interval_s: int = 0, file_format: str = PARQUET, tell: Tell | None = None
) -> int:
    """Append the items put since the last run to `target`; return their number. Raises the query's exception.

    `interval_s` 0 = once; else a batch this often, until the query is stopped. A query that then fails, for example
    because Spark's workers are killed, is started again. A folder is for one reader. `tell` is called for each batch.
    """
    options = {**queues.options, "servers": queues.servers}
    if queues.reader:
        options["reader"] = queues.reader
    servers = servers_in(options)
    checkpoint = os.path.join(target, CHECKPOINT)
    trigger = {"processingTime": f"{interval_s} seconds"} if interval_s else {"availableNow": True}

    def begin() -> Any:
        return (
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

    with _counted(spark, tell) as written:
        if interval_s:
            count = _run_again_and_again(begin, written)
        else:
            query = begin()
            query.awaitTermination()
            count = written.by(str(query.runId))
    if queues.reader:
        # There is none if there has never been an item.
        with suppress(NoCheckpoint):
            finish(spark, checkpoint, queues.reader, servers)
    return count


def _run_again_and_again(begin: Callable[[], Any], written: "_Written") -> int:
    """Run until the query is stopped or cannot succeed. Raises its exception."""
    count, in_vain, delay_s = 0, 0, DELAY_S
    has_started = has_progressed = False
    while True:
        run_id = ""
        try:
            query = begin()
            run_id, has_started = str(query.runId), True
            query.awaitTermination()
            return count + written.by(run_id)
        except (PySparkException, Py4JJavaError) as problem:
            if run_id:
                count += written.by(run_id)
            if written.has_progressed(run_id):
                in_vain, has_progressed, delay_s = 0, True, DELAY_S
            failure = failure_in(str(problem))
            # A server that never answered may be a wrong address.
            may_pass = has_progressed if failure.code in OF_SERVERS else has_started
            in_vain += 1
            if failure.code in FINAL or not may_pass or in_vain > RESTARTS_MAX:
                raise
            complain(f"the query has failed and is started again in {delay_s} s: {failure.words}")
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, DELAY_S_MAX)


class _Written(LagListener):
    """Counts the rows that queries have written. A query itself keeps only its last batches."""

    def __init__(self, tell: Tell | None) -> None:
        super().__init__(self._add)
        self._tell_of = tell
        self._rows: Counter[str] = Counter()
        self._terminated: set[str] = set()
        self._changed = threading.Condition()

    def by(self, run_id: str) -> int:
        """Rows of a query that has ended. Waits for Spark's event, which comes a moment later."""
        with self._changed:
            self._changed.wait_for(lambda: run_id in self._terminated, EVENT_TIMEOUT_S)
            return self._rows[run_id]

    def has_progressed(self, run_id: str) -> bool:
        """True if this run has finished a batch, or has reported progress while waiting for one."""
        with self._changed:
            return run_id in self._rows

    def _add(self, progress: Any, lags: Lags) -> None:
        with self._changed:
            self._rows[str(progress.runId)] += progress.numInputRows
        if self._tell_of is not None:
            self._tell_of(progress.numInputRows, lags)

    def onQueryTerminated(self, event: Any) -> None:
        with self._changed:
            self._terminated.add(str(event.runId))
            self._changed.notify_all()


@contextmanager
def _counted(spark: Any, tell: Tell | None) -> Iterator[_Written]:
    written = _Written(tell)
    spark.streams.addListener(written)
    try:
        yield written
    finally:
        spark.streams.removeListener(written)
