"""libmemcached's own test of servers, on both."""

import shutil
import subprocess
from typing import Final

import pytest

TESTS: Final = 27


def capabilities(port: int) -> dict[str, str]:
    """The outcome of each test of the text protocol by its name."""
    program = shutil.which("memccapable")
    if program is None:
        pytest.skip("memccapable is not installed: apt install libmemcached-tools")
    command = [program, "-h", "127.0.0.1", "-p", str(port), "-a"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    return {name.strip(): outcome for name, _, outcome in (line.partition("[") for line in lines) if outcome}


@pytest.mark.long  # it waits for items to expire
def test_memccapable_finds_what_it_finds_in_memcached(memcached_port: int, cache_port: int) -> None:
    expected, found = capabilities(memcached_port), capabilities(cache_port)
    assert found == expected
    assert list(found.values()) == ["pass]"] * TESTS
