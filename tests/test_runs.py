"""A run of the tests ends with all that it has started, and starts in any shell."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.process import environment, with_variable
from tests.support.waiting import until

ROOT: Final = Path(__file__).parents[1]
MARK: Final = "STARTED_BY"
HANGING: Final = """
import signal
import subprocess
import threading

from tests.support.daemon import running_daemon


def test_that_hangs(tmp_path):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    subprocess.Popen(["sh", "-c", "sleep 1000 & kill -STOP $$"], start_new_session=True)
    with running_daemon(tmp_path):
        open("is-running", "w").close()
        threading.Event().wait()
"""


@pytest.fixture
def mark() -> Iterator[str]:
    """A variable's value that every process of a run has."""
    value = uuid.uuid4().hex
    yield value
    for pid in with_variable(MARK, value):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_a_run_ended_by_sigterm_leaves_no_process_behind(tmp_path: Path, mark: str) -> None:
    """With interrupts ignored, as in the background of a shell."""
    (tmp_path / "test_hanging.py").write_text(HANGING)
    options = ["-c", f"{ROOT}/pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "1"]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with subprocess.Popen(
        [*ignoring, sys.executable, "-m", "pytest", *options, "test_hanging.py"],
        cwd=tmp_path,
        env=environment() | {MARK: mark, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        until(lambda: (tmp_path / "is-running").exists() or run.poll() is not None, "the test to begin")
        assert len(with_variable(MARK, mark)) > 3
        run.terminate()
        told, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, told
    until(lambda: not with_variable(MARK, mark), "the end of all its processes")
