"""What the figures were measured on, as far as it matters for them."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.servers import Program, Server, running, version_of


@dataclass(frozen=True, slots=True)
class Machine:
    """Said above every table."""

    date: str
    processor: str
    processors: int
    memory_gib: float
    kernel: str
    file_system: str  # of the journals
    load_average: float  # of the minute before: what else ran
    servers: dict[str, str]  # name -> version, and for kestreld what runs it
    missing: list[str]  # Debian packages of the servers that were left out


def describe(programs: Sequence[Program], missing: Sequence[Program], folder: Path) -> Machine:
    load_average = os.getloadavg()[0]
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        processors=len(os.sched_getaffinity(0)),
        memory_gib=round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 1024**2, 1),
        kernel=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        file_system=_file_system(folder),
        load_average=round(load_average, 2),
        servers={program.name: _described(program, folder) for program in programs},
        missing=[program.package for program in missing],
    )


def _field(path: str, name: str) -> str:
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _file_system(folder: Path) -> str:
    asked = ["stat", "--file-system", "--format=%T", str(folder)]
    name = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return {"ext2/ext3": "ext4"}.get(name, name or "unknown")  # stat does not tell these apart


def _described(program: Program, folder: Path) -> str:
    version = version_of(program)
    if not program.is_ours:
        return version
    with running([program], folder / "described") as (server,):
        return f"{version}, {engine(server)}"


def engine(server: Server) -> str:
    """Which interpreter runs a kestreld, and whether its modules are compiled."""
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    compiled = any("/kestreld/" in line and line.endswith(".so") for line in mapped.splitlines())
    interpreter = os.readlink(f"/proc/{server.pid}/exe")
    asked = [interpreter, "-c", "import platform as p; print(p.python_implementation(), p.python_version())"]
    name = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return f"{'compiled' if compiled else 'pure Python'}, {name}"
