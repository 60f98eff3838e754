"""Workers of Celery in processes, and what their tasks have done."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.daemon import ROOT
from tests.support.process import environment
from tests.support.waiting import until


class Attempt(NamedTuple):
    """One execution of a task; `ended_at` 0 = it did not end."""

    pid: int
    began_at: float
    ended_at: float


class Worker:
    """A worker. Leads a process group of its own."""

    def __init__(self, folder: Path, broker: str, pool: str = "prefork", concurrency: int = 2, **conf: Any) -> None:
        options = conf.pop("options", {})
        name = conf.pop("name", "w")
        self.log = folder / f"{name}-{time.monotonic_ns()}.log"
        arguments = ["--without-heartbeat", "-P", pool, "-c", str(concurrency), "-n", f"{name}@%h", "-l", "INFO"]
        arguments += conf.pop("arguments", [])
        variables = {
            "BROKER": broker,
            "EFFECTS": str(folder),
            "OPTIONS": json.dumps(options),
            "CONF": json.dumps(conf),
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
        return " ready." in self.log.read_text()

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


def attempts(folder: Path) -> dict[int, list[Attempt]]:
    """What was executed, by the number of the task, in order of time."""
    found: defaultdict[int, list[Attempt]] = defaultdict(list)
    for path in folder.glob("*.effects"):
        begun: dict[int, Attempt] = {}
        for line in path.read_text().splitlines():
            what, number, pid, at = line.split()
            if what == "begin":
                if int(number) in begun:
                    found[int(number)].append(begun[int(number)])
                begun[int(number)] = Attempt(int(pid), float(at), 0)
            else:
                found[int(number)].append(begun.pop(int(number))._replace(ended_at=float(at)))
        for number_left, one in begun.items():
            found[number_left].append(one)
    return {number: sorted(those, key=lambda one: one.began_at) for number, those in found.items()}


def ended(folder: Path) -> set[int]:
    return {number for number, those in attempts(folder).items() if any(one.ended_at for one in those)}


def repeated_while_alive(folder: Path, deaths: dict[int, float]) -> list[str]:
    """The tasks that began again while the process that had begun them was alive, or had ended them."""
    wrong = []
    for number, those in attempts(folder).items():
        for earlier, later in pairwise(those):
            if deaths.get(earlier.pid, float("inf")) > later.began_at:
                wrong.append(f"task {number}: {earlier} then {later}, death {deaths.get(earlier.pid)}")
    return wrong
