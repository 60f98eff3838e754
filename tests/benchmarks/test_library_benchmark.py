"""The benchmark of the library with few items: that it runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_the_library_measures_every_queue(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.library", "--items", "100", "--rounds", "1", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"COLUMNS": "120", "PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    measured = re.findall(r"^│ (\S.*?) +│ +[\d.]+ +│", done.stdout, re.MULTILINE)
    assert measured[:2] == ["PersistentQueue", "PersistentQueue, 100 at a time"]
    assert "queue.Queue (memory)" in measured
    assert list(tmp_path.iterdir()) == []
