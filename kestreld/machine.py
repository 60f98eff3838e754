"""Memory available to this process, its use of memory and processor time, and release of free memory."""

import ctypes
import resource
from dataclasses import dataclass
from typing import Final

from kestreld.files import FileLayer

TICKS_PER_S: Final = 100  # in /proc, whatever the kernel itself counts in
_GROUPS: Final = "sys/fs/cgroup"
_libc: Final = ctypes.CDLL(None)


def memory_bytes(files: FileLayer, root: str = "/") -> int | None:
    """Memory of the machine, or the lower limit of a control group; None if unknown. `root` contains /proc and /sys."""
    limits = [_installed_bytes(files, root), *_group_limits(files, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _installed_bytes(files: FileLayer, root: str) -> int | None:
    for line in _lines(files, f"{root}proc/meminfo"):
        words = line.split()
        if words[:1] == ["MemTotal:"]:
            return int(words[1]) * 1024
    return None


def _group_limits(files: FileLayer, root: str) -> list[int | None]:
    """Memory limits of the process's control groups and of all groups above them, version 1 or 2."""
    limits = []
    for line in _lines(files, f"{root}proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = f"{root}{_GROUPS}", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = f"{root}{_GROUPS}/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            limit = "".join(_lines(files, "/".join([folder, *parts[:depth], name])))
            limits.append(int(limit) if limit.isdecimal() else None)  # "max" is none
    return limits


def _lines(files: FileLayer, path: str) -> list[str]:
    """Lines of a file of the kernel; none if it cannot be read."""
    try:
        return files.read_operators_file(path).decode().splitlines()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Resources that a process uses."""

    cpu_s: float  # user and system time of all its threads
    virtual_bytes: int
    resident_bytes: int
    started_at_s: float  # since 1970


class OwnProcess:
    """This process, as the kernel reports it."""

    def __init__(self, files: FileLayer, root: str = "/") -> None:
        self._files = files
        self._path = f"{root}proc/self/stat"
        words = [line.split() for line in _lines(files, f"{root}proc/stat")]
        self._booted_at_s = next((int(found[1]) for found in words if found[0] == "btime"), 0)

    def use(self) -> ProcessUse | None:
        """Return the resources in use now; None if unknown."""
        text = "".join(_lines(self._files, self._path))
        fields = text.rpartition(")")[2].split()  # behind the program's name, which may have anything in it
        if not fields:
            return None
        user_ticks, system_ticks, start_ticks, virtual_bytes, pages = (int(fields[at]) for at in (11, 12, 19, 20, 21))
        return ProcessUse(
            cpu_s=(user_ticks + system_ticks) / TICKS_PER_S,
            virtual_bytes=virtual_bytes,
            resident_bytes=pages * resource.getpagesize(),
            started_at_s=self._booted_at_s + start_ticks / TICKS_PER_S,
        )


def cpu_s() -> tuple[float, float]:
    """Return the processor time that this process has used, in s: its own, and the system's for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def give_back_memory() -> None:
    """Have the C library return free memory to the system, even if a small block behind it is in use."""
    if hasattr(_libc, "malloc_trim"):  # musl has none, and needs none
        _libc.malloc_trim(0)
