"""The benchmark of the recipes, with few messages."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_what_a_message_costs_is_printed_for_every_way() -> None:
    for program in ("memcached", "redis-server"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    command = [sys.executable, "-m", "benchmarks.recipes", "--messages", "200"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    for server, ways in (("memcached", 7), ("kestreld's cache", 7), ("kestreld ", 2), ("redis", 2)):
        assert sum(line.startswith(f" {server}") for line in done.stdout.splitlines()) >= ways
