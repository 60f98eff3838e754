"""What the kernel says about a process and the processes it has started."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it, or a thread of it, has just ended
        return
    for child in children:
        yield from family(int(child))


def cpu_us(pid: int) -> int:
    """User and system time that the process, and all it has started, have used. Raises ProcessLookupError."""
    used_us = [_own_cpu_us(member) for member in family(pid)]
    if used_us[0] is None:
        raise ProcessLookupError(f"no process {pid}")
    return sum(used or 0 for used in used_us)


def _own_cpu_us(pid: int) -> int | None:
    """With that of children that have ended. None = there is no such process."""
    try:
        # The name, in parentheses, may contain blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(map(int, fields[11:15])) * TICK_US


def resident_bytes(pid: int) -> int:
    """Memory in use by the process itself."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
