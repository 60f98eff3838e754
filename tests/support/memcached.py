"""A real memcached for tests: what the cache is compared with."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

START_S: Final = 20
ITEM_BYTES_MAX: Final = 1 << 20  # as it is by default: with much smaller ones memcached 1.6.18 crashes


@contextmanager
def running_memcached(folder: Path, *options: str) -> Iterator[int]:
    """memcached on a free port, which it yields, with one thread. The test is skipped where there is none."""
    program = shutil.which("memcached")
    if program is None:
        pytest.skip("memcached is not installed, so there is nothing to compare with: apt install memcached")
    chosen = folder / "port"
    command = [program, "-l", "127.0.0.1", "-p", "-1", "-U", "0", "-t", "1", *options]
    if os.geteuid() == 0:
        command += ["-u", "root"]  # as somebody else it could not write where the test keeps its files
    process = subprocess.Popen(command, env={**os.environ, "MEMCACHED_PORT_FILENAME": str(chosen)})
    try:
        until = time.monotonic() + START_S
        while not chosen.exists():  # renamed once it is written
            assert process.poll() is None, f"memcached exited with {process.returncode}"
            assert time.monotonic() < until, f"memcached does not listen after {START_S} s"
            time.sleep(0.01)
        yield int(chosen.read_text().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
