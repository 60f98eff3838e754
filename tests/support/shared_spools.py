"""Spools whose kestreld is started by whoever uses them, and so by nobody who would stop it."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import short_paths


def server_pid(spool: Path) -> int:
    """Of the server that runs there, or ran last."""
    found = re.match(r"pid (\d+)", (spool / ".lock").read_text())
    assert found is not None
    return int(found[1])


def end_server(spool: Path, number: int = signal.SIGKILL) -> None:
    """Returns once it is gone."""
    with suppress(ProcessLookupError):
        os.kill(server_pid(spool), number)
    await_end(server_pid(spool))


def await_end(pid: int) -> None:
    """Returns once the process is gone; it may be a child of this one, or not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.005)
    with suppress(ChildProcessError, ProcessLookupError):
        os.waitpid(pid, 0)


@contextmanager
def new_spool() -> Iterator[Path]:
    """A path that is short enough for a Unix socket. A server that was started there is killed."""
    spool = short_paths.new_folder() / "spool"
    try:
        yield spool
    finally:
        if (spool / ".socket").exists():
            end_server(spool)
