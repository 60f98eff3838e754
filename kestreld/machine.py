"""How much memory there is for this process, and giving back what it does not use."""

import ctypes
from typing import Final

from kestreld.files import FileLayer

_GROUPS: Final = "sys/fs/cgroup"
_libc: Final = ctypes.CDLL(None)


def memory_bytes(files: FileLayer, root: str = "/") -> int | None:
    """The machine's, or less where its control group says so; None where nothing tells. `root` has /proc and /sys."""
    limits = [_installed_bytes(files, root), *_group_limits(files, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _installed_bytes(files: FileLayer, root: str) -> int | None:
    for line in _lines(files, f"{root}proc/meminfo"):
        words = line.split()
        if words[:1] == ["MemTotal:"]:
            return int(words[1]) * 1024
    return None


def _group_limits(files: FileLayer, root: str) -> list[int | None]:
    """Those of its control groups and of all above them, of either version."""
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
    """Those of a file of the kernel's; none where there is no such file."""
    try:
        return files.read_operators_file(path).decode().splitlines()
    except OSError:
        return []


def give_back_memory() -> None:
    """Have the C library return what is free, which one small block in use behind it would keep it from."""
    if hasattr(_libc, "malloc_trim"):  # musl has none, and needs none
        _libc.malloc_trim(0)
