"""How much memory there is: what the kernel says of the machine and of control groups of either version."""

from pathlib import Path

import pytest

from kestreld.daemon import INFLIGHT_BYTES, inflight_bytes
from kestreld.files import FileLayer
from kestreld.machine import memory_bytes

GIB = 1 << 30
MACHINE = {"proc/meminfo": f"MemTotal:       {8 * GIB // 1024} kB\nMemFree: 1 kB\n"}
V2 = {"proc/self/cgroup": "0::/system.slice/kestreld.service\n"}
V1 = {"proc/self/cgroup": "5:devices:/x\n4:cpu,memory:/docker/1f\n0::/\n"}
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MACHINE, 8 * GIB),
        ({**MACHINE, **V2}, 8 * GIB),
        ({**MACHINE, **V2, "sys/fs/cgroup/system.slice/kestreld.service/memory.max": f"{GIB}\n"}, GIB),
        ({**MACHINE, **V2, "sys/fs/cgroup/system.slice/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ({**MACHINE, **V2, "sys/fs/cgroup/system.slice/kestreld.service/memory.max": "max\n"}, 8 * GIB),
        ({**MACHINE, **V1, "sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        # In a container that sees its own group only.
        ({**MACHINE, **V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ({**MACHINE, **V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1}, 8 * GIB),
    ],
)
def test_the_least_of_what_limits_memory_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_bytes(FileLayer(), f"{tmp_path}/") == expected


@pytest.mark.parametrize(("memory", "expected"), [(None, INFLIGHT_BYTES), (64 * GIB, INFLIGHT_BYTES), (GIB, GIB // 4)])
def test_unfinished_items_may_hold_a_quarter_of_it_and_no_more_than_a_gigabyte(
    memory: int | None, expected: int
) -> None:
    assert inflight_bytes(memory) == expected
