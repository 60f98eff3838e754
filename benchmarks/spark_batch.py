"""How fast Spark reads journals: python -m benchmarks.spark_batch [MEGABYTES], in an environment with the spark extra.

Items of 64 bytes and a DONE for every 16 of them, checksums verified, no values, on local[2]. Prints for two sizes, so
that what grows faster than the files shows, the best of five runs: MB and million records a second, and the seconds of
CPU that the JVM and Python take for a million records. Compiled where numba is, unless NUMBA_DISABLE_JIT=1.
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
    from kestrelspark.scanning import SCANS
    from kestrelspark.session import session

    spark = session("spark_batch", "local[2]")
    print(f"scan: {SCANS[0].name}; best of {ROUNDS}; CPU seconds are for a million records")
    print(f"{'':16}{'MB':>6}{'s':>8}{'MB/s':>8}{'M records/s':>13}{'JVM CPU s':>11}{'Python CPU s':>14}")
    for size in (megabytes // 2, megabytes):
        path = folder / str(size)
        size_bytes, records = _write(path, size)
        for name, job in _jobs(spark, str(path)).items():
            run = min(_timed(job) for _ in range(ROUNDS))
            megabytes_read, million = size_bytes / 1e6, records / 1e6
            print(
                f"{name:16}{megabytes_read:6.0f}{run.seconds:8.2f}{megabytes_read / run.seconds:8.0f}"
                f"{million / run.seconds:13.2f}{run.jvm_cpu_s / million:11.2f}{run.python_cpu_s / million:14.2f}",
                flush=True,
            )
    spark.stop()


def _jobs(spark: Any, path: str) -> dict[str, Callable[[], None]]:
    from kestrelspark.jobs.verify import verify

    def read(schema: str | None = None) -> Any:
        source = spark.read.format("kestrel").option("mode", "FAILFAST")
        return (source.schema(schema) if schema else source).load(path)

    def verify_all() -> None:
        assert verify(spark, [path]).code == 0

    return {
        "all columns": lambda: read().write.format("noop").mode("overwrite").save(),
        "event, size": lambda: read("event string, size int").write.format("noop").mode("overwrite").save(),
        "count by event": lambda: read("event string").groupBy("event").count().collect(),
        "verify": verify_all,
    }


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


def _write(folder: Path, megabytes: int) -> tuple[int, int]:
    """So many megabytes of segments; returns their size in bytes and their records."""
    folder = folder / "work.journal"
    folder.mkdir(parents=True)
    size_bytes = records = previous_bytes = 0
    number, first_id = 1, 1
    while size_bytes < megabytes * 1_000_000:
        checkpoint = Checkpoint(number, previous_bytes, first_id, 2, readers=[ReaderState(1, Kind.QUEUE, "")])
        header = encode_header(Header(BEGIN_MS, number, first_id, BEGIN_MS, "work"))
        parts = [header, checkpoint_record(checkpoint)]
        held_bytes = 0
        while held_bytes < SEGMENT_BYTES:
            batch = [put_record(item, BEGIN_MS + item, 0, 0, 0, ITEM) for item in range(first_id, first_id + 16)]
            batch.append(ended_record(1, Reason.GOT, BEGIN_MS + first_id + 20, 16, 1024, [(first_id, first_id + 15)]))
            parts += batch
            held_bytes += sum(map(len, batch))
            first_id += 16
            records += 17
        content = b"".join(parts)
        (folder / segment_name(number, first_id)).write_bytes(content)
        previous_bytes = len(content)
        size_bytes += previous_bytes
        number += 1
    return size_bytes, records


if __name__ == "__main__":
    sys.exit(main())
