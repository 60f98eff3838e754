"""How fast Spark reads journals: python -m benchmarks.spark_scan [MEGABYTES], in an environment with the spark extra.

Items of 64 bytes and a DONE for every 16 of them, checksums verified, no values, on local[2]. Prints MB/s and the
seconds of CPU for a million records, of two sizes, so that what grows faster than the files shows.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

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
ROUNDS: Final = 3


def main() -> int:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    folder = Path(tempfile.mkdtemp(prefix="spark-scan-"))
    try:
        _measure(folder, megabytes)
    finally:
        shutil.rmtree(folder)
    return 0


def _measure(folder: Path, megabytes: int) -> None:
    from kestrelspark.jobs.verify import verify
    from kestrelspark.session import session

    spark = session("spark_scan", "local[2]")
    small = _write(folder / "small", megabytes // 2)
    large = _write(folder / "large", megabytes)
    for name, (size_bytes, records) in (("small", small), ("large", large)):
        path = str(folder / name)

        def read_all(path: str = path) -> None:
            frame = spark.read.format("kestrel").option("mode", "FAILFAST").load(path)
            frame.write.format("noop").mode("overwrite").save()

        def count_events(path: str = path) -> None:
            spark.read.format("kestrel").schema("event string, size int").load(path).groupBy("event").sum().collect()

        def verify_all(path: str = path) -> None:
            assert verify(spark, [path]).code == 0

        for what, job in (("all columns", read_all), ("two columns", count_events), ("verify", verify_all)):
            best_s, cpu_s = min(_timed(job) for _ in range(ROUNDS))
            print(
                f"{name:5}  {what:11}  {size_bytes / 1e6:6.0f} MB  {best_s:6.2f} s"
                f"  {size_bytes / 1e6 / best_s:6.0f} MB/s  {cpu_s / records * 1e6:5.2f} CPU s for a million records",
                flush=True,
            )
    spark.stop()


def _timed(job: object) -> tuple[float, float]:
    """Seconds of the wall clock, and of this process's, Spark's and its workers' CPU."""
    assert callable(job)
    start_s, start_cpu_s = time.monotonic(), _cpu_seconds()
    job()
    return time.monotonic() - start_s, _cpu_seconds() - start_cpu_s


def _cpu_seconds() -> float:
    """Of this process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
            ticks[int(entry)] = sum(map(int, fields[11:15]))
    total, queue = 0, [os.getpid()]
    while queue:
        process = queue.pop()
        total += ticks.get(process, 0)
        queue += parents.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


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
