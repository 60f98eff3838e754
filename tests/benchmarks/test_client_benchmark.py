"""The benchmark of the client with few items and leases: that it runs, and that heartbeats are cheap."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.process import environment

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_the_client_measures_both_faces(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.client", "--items", "20", "--rounds", "1", "--leases", "10"]
    command += ["--seconds", "0.1", "--lease", "0.3", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**environment(), "COLUMNS": "120"})
    assert done.returncode == 0, done.stderr
    measured = re.findall(r"^│ (\S.*?) +│ +[\d.]+ +│", done.stdout, re.MULTILINE)
    assert measured[:4] == ["threads", "asyncio", "threads, heartbeat", "asyncio, heartbeat"]
    assert measured[-2:] == ["threads", "asyncio"]
    assert list(tmp_path.iterdir()) == []
