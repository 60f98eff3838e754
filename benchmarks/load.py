"""The load generator: load.c, compiled on first use, one process for each measurement."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.errors import Unusable

SOURCE: Final = Path(__file__).with_name("load.c")
SCRATCH: Final = SOURCE.parents[1] / ".benchmarks"
PROGRAM: Final = SCRATCH / "load"
RUN_S_MAX: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients of one measurement do. load.c says what each of these means."""

    work: str = "put+take"  # put | take | put+take | reliable | opened | leased | drain
    clients: int = 1
    depth: int = 1  # operations on the way on one connection
    size: str = "64"  # bytes of an item, or MIN-MAX
    queues: int = 1
    fill: int = 0  # items put before the measurement
    keys: int = 0  # random ones of so many are put and taken; of memcached and kestreld's cache only
    expires_at_s: int = 0  # when what is put expires, since the epoch; 0 = never
    idle: int = 0  # further connections
    at_least: int = 0  # operations that are measured, even when that takes longer
    join_acks: bool = False
    leave: bool = False  # do not take and check what is left at the end
    numbers: str = ""  # FIRST-LAST of the items an earlier load left; of drain only

    def arguments(self) -> list[str]:
        words = [f"--work={self.work}", f"--clients={self.clients}", f"--depth={self.depth}", f"--size={self.size}"]
        words += [f"--queues={self.queues}", f"--fill={self.fill}", f"--idle={self.idle}"]
        words += [f"--at-least={self.at_least}", f"--keys={self.keys}", f"--expires-at={self.expires_at_s}"]
        words += ["--join-acks"] * self.join_acks + ["--leave"] * self.leave
        return words + ([f"--numbers={self.numbers}"] if self.numbers else [])


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What load.c prints. An operation is a put that was answered, an item that came, or the end of a job."""

    operations: int
    puts: int
    takes: int
    seconds: float
    ops_s: float
    server_cpu_us_op: float  # user and system time of all the server's processes
    client_cpu_percent: float  # of one processor; near 100 the client is what is measured
    item_bytes: float  # on average
    p50_us: float
    p90_us: float
    p99_us: float
    p99_9_us: float
    max_us: float
    faults: int  # items lost, damaged, doubled or strange, and answers that were errors
    first_fault: str
    acks: int = 0  # of jobs: they are operations of their own


def build() -> Path:
    """The program. Compiles it when it is older than its source."""
    if PROGRAM.exists() and PROGRAM.stat().st_mtime >= SOURCE.stat().st_mtime:
        return PROGRAM
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unusable("the load generator needs a C compiler: there is no cc")
    PROGRAM.parent.mkdir(exist_ok=True)
    compiling = [compiler, "-O2", "-std=gnu11", "-o", str(PROGRAM), str(SOURCE), "-lm"]
    done = subprocess.run(compiling, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unusable(f"{SOURCE.name} does not compile:\n{done.stderr}")
    return PROGRAM


def run(load: Load, *, protocol: str, port: int, pid: int, queue: str, seconds: float) -> LoadResult:
    """Measure for so many seconds, after a tenth of that unmeasured. 0 s = only what comes before and after."""
    command = [str(build()), f"--protocol={protocol}", f"--port={port}", f"--pid={pid}", f"--queue={queue}"]
    command += [f"--seconds={seconds}", *load.arguments()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    if done.returncode not in (0, 1):
        raise Unusable(f"{' '.join(command[1:])}: {done.stderr.strip()}")
    return LoadResult(**json.loads(done.stdout))
