"""Workers of Celery in processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.daemon import ROOT
from tests.support.process import environment
from tests.support.waiting import until


def is_running(pid: int) -> bool:
    """False once a process has ended; its parent may not have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Worker:
    """A worker. Leads a process group of its own."""

    def __init__(self, folder: Path, broker: str, pool: str = "prefork", concurrency: int = 2, **conf: Any) -> None:
        options, environ = conf.pop("options", {}), conf.pop("environ", {})
        name = conf.pop("name", "w")
        self.log = folder / f"{name}-{time.monotonic_ns()}.log"
        self._ready = self.log.with_suffix(".ready")
        arguments = ["--without-heartbeat", "-P", pool, "-c", str(concurrency), "-n", f"{name}@%h", "-l", "INFO"]
        arguments += conf.pop("arguments", [])
        variables = {
            "BROKER": broker,
            "EFFECTS": str(folder),
            "READY": str(self._ready),
            "OPTIONS": json.dumps(options),
            "CONF": json.dumps(conf),
            **environ,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.integrations.celery.effects", "worker", *arguments],
                cwd=ROOT,
                env=environment() | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self._ready.exists()

    def children(self) -> list[int]:
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]

    def kill(self) -> None:
        """Kill the main process, as the system does when memory is out."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """Leave nothing behind."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running_worker(
    folder: Path, broker: str, pool: str = "prefork", concurrency: int = 2, **conf: Any
) -> Iterator[Worker]:
    """A worker that is ready."""
    worker = Worker(folder, broker, pool, concurrency, **conf)
    try:
        until(worker.is_ready, "a worker")
        yield worker
    finally:
        worker.end()
