"""System calls of a running process that fail as told, by strace's injection."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def injected(pid: int, *faults: str, path: Path | None = None) -> Iterator[None]:
    """While the block lasts, `faults` happen to the process, as in "fdatasync:error=EIO:when=3".

    Only in calls that name `path`, or a descriptor of it, if one is given. Skips the test where that cannot be done.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    command = [strace, "-f", "-o", "/dev/null", "-p", str(pid)]
    for fault in faults:
        command += ["-e", f"inject={fault}"]
    if path is not None:
        command += ["-P", str(path)]
    calls = ",".join(fault.partition(":")[0] for fault in faults)
    tracer = subprocess.Popen([*command, "-e", f"trace={calls}"], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = ""
    while "attached" not in said:
        line = tracer.stderr.readline()
        if not line:
            tracer.wait()
            pytest.skip(f"strace cannot attach: {said.strip()}")
        said += line
    try:
        yield
    finally:
        tracer.terminate()  # it lets go of the process, which goes on
        tracer.communicate()
