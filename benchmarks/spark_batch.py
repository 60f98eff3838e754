"""How fast Spark reads journals: python -m benchmarks.spark_batch [MEGABYTES], in an environment with the spark extra.

Items of 64 bytes, checksums verified, no values, on local[2]. A row is an item that was put, or what became of it: got
in commits of 16, got one by one, or waiting yet. The first in two sizes, so that what grows faster than the files
shows. Prints the best of five runs: MB and million rows a second, and the seconds of CPU that the JVM and Python take
for a million rows. Compiled where numba is, unless NUMBA_DISABLE_JIT=1.

Behind them the same rows as Spark's own Parquet and JSON, and the floor of any source in Python: the finished Arrow
batches of all columns, or of two, read from memory. Ratios are CPU seconds of all columns, of both processes.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kestreld.journal.records import (
    Checkpoint,
    Kind,
    ReaderState,
    Reason,
    checkpoint_record,
    ended_record,
    put_record,
)
from kestreld.journal.segment import Header, encode_header, segment_name

SEGMENT_BYTES: Final = 16 << 20
BEGIN_MS: Final = 1_700_000_000_000
ITEM: Final = b"x" * 64
JOURNAL: Final = "work.journal"
SHAPES: Final = {16: "got 16 at a time", 1: "got one by one", 0: "waiting"}
ROUNDS: Final = 5
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, frozen=True, order=True)
class Run:
    seconds: float
    jvm_cpu_s: float
    python_cpu_s: float


def main() -> int:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    folder = Path(tempfile.mkdtemp(prefix="spark-batch-"))
    try:
        _measure(folder, megabytes)
    finally:
        shutil.rmtree(folder)
    return 0


def _measure(folder: Path, megabytes: int) -> None:
    from kestrelspark.scanning import scans
    from kestrelspark.session import session

    spark = session("spark_batch", "local[2]")
    print(f"scan: {scans()[0].name}; best of {ROUNDS}; CPU seconds are for a million rows")
    print(f"{'':44}{'MB':>5}{'s':>7}{'MB/s':>7}{'M rows/s':>10}{'JVM CPU s':>11}{'Python CPU s':>14}")
    for shape, size in ((16, megabytes // 2), (16, megabytes), (1, megabytes // 2), (0, megabytes // 2)):
        path = folder / f"{shape}-{size}"
        size_bytes, rows = write_journal(path, size, shape)
        cpu_s: dict[str, float] = {}
        for name, run in _best(_jobs(spark, path)).items():
            megabytes_read, million = size_bytes / 1e6, rows / 1e6
            cpu_s[name] = (run.jvm_cpu_s + run.python_cpu_s) / million
            print(
                f"{SHAPES[shape]:20}{name:24}{megabytes_read:5.0f}{run.seconds:7.2f}"
                f"{megabytes_read / run.seconds:7.0f}{million / run.seconds:10.2f}{run.jvm_cpu_s / million:11.2f}"
                f"{run.python_cpu_s / million:14.2f}",
                flush=True,
            )
        for other in ("Parquet", "JSON", "floor"):
            print(f"{SHAPES[shape]:20}all columns are {cpu_s['all columns'] / cpu_s[other]:.2f} x {other}", flush=True)
        shutil.rmtree(path)
    spark.stop()


def _best(jobs: dict[str, Callable[[], None]]) -> dict[str, Run]:
    """The best run of each job. They take turns: Java compiles all of this for long, and the last would profit."""
    rounds = [{name: _timed(job) for name, job in jobs.items()} for _ in range(ROUNDS)]
    return {name: min(one[name] for one in rounds) for name in jobs}


def _jobs(spark: Any, path: Path) -> dict[str, Callable[[], None]]:
    from kestrelspark.jobs.verify import verify

    spool = str(path / JOURNAL)

    def read(schema: str | None = None) -> Any:
        source = spark.read.format("kestrel").option("mode", "FAILFAST")
        return (source.schema(schema) if schema else source).load(spool)

    def verify_all() -> None:
        assert verify(spark, [spool]).code == 0

    # Beside the journal, where the source does not look for files.
    parquet, json = str(path / "rows.parquet"), str(path / "rows.json")
    read().write.parquet(parquet)
    read().write.json(json)
    rows = {"floor": read(), "floor, event, size": read("event string, size int")}
    floors = {name: from_memory(spark, path, frame.schema) for name, frame in rows.items()}
    as_json = spark.read.schema(rows["floor"].schema)
    return {
        "all columns": lambda: drain(read()),
        "event, size": lambda: drain(read("event string, size int")),
        "count by event": lambda: read("event string").groupBy("event").count().collect(),
        "count()": lambda: read().count(),
        "count() of event": lambda: read("event string").count(),
        "verify": verify_all,
        "floor": lambda: drain(floors["floor"]),
        "floor, event, size": lambda: drain(floors["floor, event, size"]),
        "Parquet": lambda: drain(spark.read.parquet(parquet)),
        "Parquet, event, size": lambda: drain(spark.read.parquet(parquet).select("event", "size")),
        "JSON": lambda: drain(as_json.json(json)),
    }


def drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def from_memory(spark: Any, path: Path, schema: Any) -> Any:
    """The rows from finished Arrow batches, a partition for each segment, by a source that does nothing else."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema

    from kestreld.journal.discovery import discover
    from kestrelspark.rows import Mode, RowSelection, batches

    columns = tuple(schema.names)
    name = f"floor{len(columns)}"
    folder = Path(tempfile.mkdtemp(dir=path))
    for number, file in enumerate(discover([str(path / JOURNAL)]).files):
        with pa.OSFile(str(folder / str(number)), "wb") as sink:
            found = batches([file], RowSelection(columns, Mode.FAILFAST))
            made = [batch.cast(to_arrow_schema(schema, timezone="UTC")) for batch in found]
            with pa.ipc.new_file(sink, made[0].schema) as writer:
                for batch in made:
                    writer.write_batch(batch)

    class FloorReader(DataSourceReader):  # type: ignore[misc]
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(one) for one in sorted(map(str, folder.iterdir()))]

        def read(self, partition: InputPartition) -> Any:
            finished = pa.ipc.open_file(pa.memory_map(partition.value))
            for number in range(finished.num_record_batches):
                yield finished.get_batch(number)

    class Floor(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> Any:
            return schema

        def reader(self, schema: Any) -> DataSourceReader:
            return FloorReader()

    spark.dataSource.register(Floor)
    return spark.read.format(name).load()


def _timed(job: Callable[[], None]) -> Run:
    start_s, (jvm_s, python_s) = time.monotonic(), _cpu_seconds()
    job()
    took_s, (jvm_end_s, python_end_s) = time.monotonic() - start_s, _cpu_seconds()
    return Run(took_s, jvm_end_s - jvm_s, python_end_s - python_s)


def _cpu_seconds() -> tuple[float, float]:
    """Of Java and of all else, among this process and those that descend from it."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, tuple[bool, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                begin, _, end = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = end.split()
            parents.setdefault(int(fields[1]), []).append(int(entry))
            ticks[int(entry)] = (begin.endswith("(java"), sum(map(int, fields[11:15])))
    jvm_ticks = other_ticks = 0
    queue = [os.getpid()]
    while queue:
        process = queue.pop()
        is_jvm, spent = ticks.get(process, (False, 0))
        jvm_ticks += spent if is_jvm else 0
        other_ticks += 0 if is_jvm else spent
        queue += parents.get(process, [])
    return jvm_ticks / TICKS_PER_S, other_ticks / TICKS_PER_S


def write_journal(folder: Path, megabytes: int, items_per_done: int) -> tuple[int, int]:
    """So many megabytes of segments, with a DONE for every so many items, 0 = none; their size in bytes, and rows."""
    folder = folder / JOURNAL
    folder.mkdir(parents=True)
    size_bytes = rows = previous_bytes = 0
    number, first_id = 1, 1
    step = items_per_done or 16
    while size_bytes < megabytes * 1_000_000:
        checkpoint = Checkpoint(number, previous_bytes, first_id, 2, readers=[ReaderState(1, Kind.QUEUE, "")])
        header = encode_header(Header(BEGIN_MS, number, first_id, BEGIN_MS, "work"))
        parts = [header, checkpoint_record(checkpoint)]
        held_bytes = 0
        while held_bytes < SEGMENT_BYTES:
            last = first_id + step - 1
            batch = [put_record(item, BEGIN_MS + item, 0, 0, 0, ITEM) for item in range(first_id, last + 1)]
            if items_per_done:
                done_at_ms = BEGIN_MS + first_id + 20
                batch.append(ended_record(1, Reason.GOT, done_at_ms, step, step * len(ITEM), [(first_id, last)]))
                rows += step
            parts += batch
            held_bytes += sum(map(len, batch))
            first_id += step
            rows += step
        content = b"".join(parts)
        (folder / segment_name(number, first_id)).write_bytes(content)
        previous_bytes = len(content)
        size_bytes += previous_bytes
        number += 1
    return size_bytes, rows


if __name__ == "__main__":
    sys.exit(main())
