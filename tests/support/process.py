"""What a process runs in, and what the kernel says about it."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.waiting import PATIENCE_S

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def environment() -> dict[str, str]:
    """The caller's, without settings of ours. If Python may not keep what it compiles, it does so beside itself."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("KESTREL")}
    if variables.pop("PYTHONDONTWRITEBYTECODE", ""):  # a start compiles for longer than it runs
        variables["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, "bytecode"))
    return variables


def resident_bytes(pid: int) -> int:
    """The memory a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def peak_bytes(pid: int) -> int:
    """The most memory a process has had in use."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def cpu_clock(pid: int) -> int:
    """The clock of the processor time that a process has used, as clock_getcpuclockid(3) numbers it."""
    return ~pid << 3 | 2


def cpu_ms(pid: int) -> int:
    """The processor time a process has used."""
    return time.clock_gettime_ns(cpu_clock(pid)) // 1_000_000


def stop(pid: int) -> None:
    """SIGSTOP. Returns once each of its threads has stopped: until then one may still answer."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + PATIENCE_S
    while not all(
        task.read_text().rpartition(")")[2].split()[0] == "T" for task in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        assert time.monotonic() < end, f"{pid} does not stop"


def descendants(pid: int) -> list[int]:
    """The processes below one, its children first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # ended meanwhile
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def with_variable(name: str, value: str) -> list[int]:
    """The processes that have started with an environment variable, but for this one."""
    wanted = f"{name}={value}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if wanted in variables and int(environ.parent.name) != os.getpid():
            found.append(int(environ.parent.name))
    return found
