"""A program of a user: it runs, and its types are right, by what is installed and not by the checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "users_program.py"


def test_it_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", PROGRAM, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "['order 0', 'order 1', 'order 2', 'first']",
        "[b'one', b'two', b'three', b'QueueClosed']",
        "([b'1', b'2'], 2, 'hello')",
        "max_items True",
        "jobs",
    ]


@pytest.mark.long
def test_its_types_are_right(tmp_path: Path) -> None:
    """With mypy's own settings, and none of ours, in a folder where nothing but the program is found."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text())
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={tmp_path}/cache",
        program.name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=110)
    assert (done.stdout, done.returncode) == ("Success: no issues found in 1 source file\n", 0)
