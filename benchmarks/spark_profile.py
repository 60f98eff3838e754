"""What the JVM does while Spark takes rows from a source in Python: python -m benchmarks.spark_profile [MEGABYTES].

The floor of spark_batch, finished Arrow batches of all columns read from memory, and the journals themselves, on
local[1] and once Java has compiled what is used often. Prints how many seconds of CPU each kind of thread takes for a
million rows, and what the thread of the task is at, from the samples of Java's flight recorder: needs a JDK.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.spark_batch import JOURNAL, TICKS_PER_S, drain, from_memory, write_journal

WARM_UPS: Final = 15
ROUNDS: Final = 5
EVENT: Final = "jdk.ExecutionSample"
TASK: Final = "Executor task"
# By the beginning of a thread's name as the kernel shows it.
THREADS: Final = {
    TASK: "task: batches become rows",
    "C1 Compiler": "compiler",
    "C2 Compiler": "compiler",
    "VM Thread": "garbage collection",
}
OTHER: Final = "everything else"
# By the innermost method of a stack that is one of these; the first that fits.
DOINGS: Final = {
    "SpecificUnsafeProjection": "a row's fields are copied, by generated code",
    "UnsafeRowWriter": "a row's fields are copied, by generated code",
    "UnsafeWriter": "a row's fields are copied, by generated code",
    "vectorized.ArrowColumnVector": "a field is looked up in its column",
    "vectorized.ColumnarBatchRow": "a field is looked up in its column",
    "arrow.vector.ipc": "a batch is read from the socket",
    "arrow.vector": "a field is looked up in its column",
    "scala.collection.Iterator": "from row to row",
    "vectorized.ColumnarBatch": "from row to row",
    "NoopWriter": "from row to row",
    "WritingSparkTask": "from row to row",
}


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="spark-profile-"))
    try:
        _profile(folder, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    finally:
        shutil.rmtree(folder)
    return 0


def _profile(folder: Path, megabytes: int) -> None:
    from kestrelspark.session import session

    spark = session("spark_profile", "local[1]")
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    _, rows = write_journal(folder, megabytes, 16)
    _jcmd(java, "JFR.start", "settings=profile")  # the first recording of all has Java compile much anew
    journals = spark.read.format("kestrel").option("mode", "FAILFAST").load(str(folder / JOURNAL))
    for name, frame in ("floor", from_memory(spark, folder, journals.schema)), ("journals", journals):
        for _ in range(WARM_UPS):
            drain(frame)
        recording = folder / f"{name}.jfr"
        _jcmd(java, "JFR.start", f"name={name}", "settings=profile", f"filename={recording}")
        spent = _of_threads(java, partial(_repeat, frame))
        _jcmd(java, "JFR.stop", f"name={name}")
        print(f"{name}: CPU seconds for a million rows, of {len(journals.columns)} columns")
        for thread, cpu_s in spent.items():
            print(f"{cpu_s / ROUNDS / rows * 1e6:10.3f}  {thread}")
        doings = _doings(recording)
        for doing, samples in doings.most_common():
            print(f"{samples / doings.total():10.0%}  of the task: {doing}")
    spark.stop()


def _repeat(frame: Any) -> None:
    for _ in range(ROUNDS):
        drain(frame)


def _jcmd(java: int, *words: str) -> None:
    subprocess.run(["jcmd", str(java), *words], check=True, capture_output=True)


def _of_threads(java: int, job: Callable[[], None]) -> dict[str, float]:
    """The seconds of CPU that each kind of thread takes for a job."""
    before = _ticks(java)
    job()
    spent = dict.fromkeys([*THREADS.values(), OTHER], 0.0)
    for thread, (name, ticks) in _ticks(java).items():
        kind = next((kind for begin, kind in THREADS.items() if name.startswith(begin)), OTHER)
        spent[kind] += (ticks - before.get(thread, (name, 0))[1]) / TICKS_PER_S
    return spent


def _ticks(java: int) -> dict[str, tuple[str, int]]:
    found = {}
    for thread in Path(f"/proc/{java}/task").iterdir():
        begin, _, end = (thread / "stat").read_text().rpartition(")")
        found[thread.name] = begin.partition("(")[2], sum(map(int, end.split()[11:13]))
    return found


def _doings(recording: Path) -> Counter[str]:
    """How many samples of the task's thread found it at what."""
    printed = subprocess.run(
        ["jfr", "print", "--json", "--stack-depth", "40", "--events", EVENT, str(recording)],
        check=True,
        capture_output=True,
    ).stdout
    doings = Counter[str]()
    for event in json.loads(printed)["recording"]["events"]:
        sampled = event["values"]
        if (sampled["sampledThread"]["javaName"] or "").startswith(TASK):
            doings[_doing(sampled["stackTrace"]["frames"])] += 1
    return doings


def _doing(frames: list[dict[str, Any]]) -> str:
    for frame in frames:
        method = frame["method"]
        where = f"{method['type']['name']}.{method['name']}".replace("/", ".")
        for part, doing in DOINGS.items():
            if part in where:
                return doing
    return "something else"


if __name__ == "__main__":
    sys.exit(main())
