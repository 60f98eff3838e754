"""Processor time and memory of a process, its descendants included, from /proc and CPU clocks."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")
CPU_CLOCK_OF_PROCESS: Final = 2  # CPUCLOCK_SCHED in the kernel's posix-timers.h
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> Iterator[int]:
    """Process ids of the process and its descendants."""
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it, or a thread of it, has just ended
        return
    for child in children:
        yield from family(int(child))


def cpu_us(pid: int) -> int:
    """User and system time of the process and all its descendants, µs. Raises ProcessLookupError."""
    used_us = [_own_cpu_us(member) for member in family(pid)]
    if used_us[0] is None:
        raise ProcessLookupError(f"no process {pid}")
    return sum(used or 0 for used in used_us)


def _own_cpu_us(pid: int) -> int | None:
    """User and system time of the process and of its children that have ended, µs. None = no such process."""
    try:
        own_us = time.clock_gettime_ns(_cpu_clock(pid)) // 1000
        # The name, in parentheses, may contain blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # there is none, or it has just ended
        return None
    return own_us + sum(map(int, fields[13:15])) * TICK_US


def _cpu_clock(pid: int) -> int:
    """Clock id as of clock_getcpuclockid(3): user and system time, finer than the ticks in /proc."""
    return ~pid << 3 | CPU_CLOCK_OF_PROCESS


def resident_bytes(pid: int) -> int:
    """Resident memory of the process itself, without descendants."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
