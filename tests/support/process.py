"""What the kernel says about a process."""

import os
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """The memory a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def cpu_ms(pid: int) -> int:
    """The processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 // TICKS_PER_S
