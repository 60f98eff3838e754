"""A job of kestrelspark in processes of its own: Spark's driver, its JVM, and the workers below it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.daemon import ROOT
from tests.support.process import descendants, environment

PATIENCE_S: Final = 600  # a JVM on a loaded machine takes long to start
NO_CONNECTION: Final = "Python worker failed to connect back"
STARTS: Final = 20
QUICK_JVM: Final = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={tempfile.gettempdir()}"  # to start


class SparkJob:
    """`command` runs until it ends or is killed, and may be started again."""

    def __init__(self, folder: Path, command: Sequence[str | Path]) -> None:
        self._command = [str(word) for word in command]
        self._log = folder / "job.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def until(self, is_so: Callable[[], object], *, dies: bool = False) -> None:
        """Returns once it is so. With `dies` the job may end meanwhile, and is started again then."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            if not self.is_running and not is_so():
                assert dies, self.log
                self.start()
            assert time.monotonic() < end, self.log
            time.sleep(0.01)

    def wait(self) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def finish(self) -> None:
        """Run to its end. Spark gives a Python process ten seconds to start; where these do not do, run again."""
        self.start()
        while self.wait() and self.log.count(NO_CONNECTION) <= STARTS:
            assert NO_CONNECTION in self.log, self.log
            self.start()
        assert self.wait() == 0, self.log

    def workers(self) -> list[int]:
        """The Python processes below the JVM: those that plan, and those that read."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if b"pyspark" in _command_line(pid) and not _is_jvm(pid)]

    def kill(self) -> None:
        """kill -9 for all of it, with no time to say anything."""
        if self.process is not None:
            for pid in [self.process.pid, *descendants(self.process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()


def job_command(*words: str | Path) -> list[str | Path]:
    """A job of kestrelspark, with a JVM that starts quickly."""
    return [sys.executable, "-m", "kestrelspark", *words, f"--conf=spark.driver.extraJavaOptions={QUICK_JVM}"]


def ingest_command(servers: str, target: Path, *options: str) -> list[str | Path]:
    """Of the queue orders."""
    return job_command("ingest", "orders", "--servers", servers, "--to", target, *options)


def committed(target: Path) -> int:
    """How many batches of an ingest into this folder are."""
    folder = target / "_checkpoint" / "commits"
    return len([name for name in os.listdir(folder) if name.isdecimal()]) if folder.is_dir() else 0


def begun(target: Path) -> int:
    """How many batches of an ingest into this folder Spark has planned."""
    folder = target / "_checkpoint" / "offsets"
    return len([name for name in os.listdir(folder) if name.isdecimal()]) if folder.is_dir() else 0


def _is_jvm(pid: int) -> bool:
    return b"org.apache.spark" in _command_line(pid)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
