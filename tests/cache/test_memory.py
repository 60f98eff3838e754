"""What the process takes of memory for a cache that is full, as sizes of values change: what docs/cache.md says."""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.wire import connected

PAGE = Path(__file__).parents[2] / "docs/cache.md"
OVERHEAD_BYTES = 230  # of a value, about
BATCH_BYTES = 1 << 18


def resident_bytes(daemon: Daemon) -> int:
    (line,) = [
        line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if line.startswith("VmRSS:")
    ]
    return int(line.split()[1]) * 1024


def most_taken(folder: Path, memory_mib: int, sizes_bytes: Sequence[int]) -> float:
    """Fill the cache with values of each size in turn; what was resident at most, as a multiple of its limit."""
    memory_bytes, numbers = memory_mib << 20, count()
    with running_daemon(folder, "listen.cache=127.0.0.1:0", f"cache_memory={memory_mib}MiB") as daemon:
        idle_bytes, most_bytes = resident_bytes(daemon), 0
        with connected(daemon.cache) as client:
            for size_bytes in sizes_bytes:
                each = size_bytes + OVERHEAD_BYTES
                data = b"x" * size_bytes
                for _ in range(memory_bytes * 5 // 4 // BATCH_BYTES):
                    sets = [
                        b"set k%d 0 0 %d noreply\r\n%b\r\n" % (next(numbers), size_bytes, data)
                        for _ in range(BATCH_BYTES // each + 1)
                    ]
                    client.ask(b"".join(sets) + b"mn\r\n", b"MN\r\n")
                most_bytes = max(most_bytes, resident_bytes(daemon))
                client.send(b"stats\r\n")
                figures = dict(line.split()[1:] for line in client.read_until(b"END\r\n").splitlines()[:-1])
                assert 0.9 * memory_bytes < int(figures[b"bytes"]) <= memory_bytes
    return (most_bytes - idle_bytes) / memory_bytes


def said() -> float:
    """What the page says that it takes at most."""
    found = re.search(r"up to (\d\.\d) times `cache_memory`", PAGE.read_text())
    assert found is not None
    return float(found[1])


def test_a_step_in_the_sizes_of_values_takes_no_more_memory_than_the_page_says(
    tmp_path: Path, installed_programs: None
) -> None:
    assert 1 < most_taken(tmp_path, 4, [16, 600]) <= said()


@pytest.mark.long
def test_steps_in_the_sizes_of_values_take_no_more_memory_than_the_page_says(
    tmp_path: Path, installed_programs: None
) -> None:
    sizes = [16, 100, 200, 400, 600, 1000, 4000, 16, 450, 600, 5000, 16, 20_000, 100]
    assert 1.5 < most_taken(tmp_path, 16, sizes) <= said()
