"""A real cluster of Spark's own kind on this machine: a master and workers, in processes of their own."""

import importlib.util
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.process import descendants, environment
from tests.support.spark_job import QUICK_JVM

PATIENCE_S: Final = 300
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
DEFAULTS: Final = f"""
spark.driver.memory              512m
spark.driver.extraJavaOptions    {QUICK_JVM}
spark.executor.memory            512m
spark.executor.extraJavaOptions  {QUICK_JVM}
spark.ui.enabled                 false
spark.log.level                  ERROR
spark.sql.shuffle.partitions     2
"""


class Cluster:
    """Master and workers; `kill` ends them and all that they have started."""

    def __init__(self, folder: Path) -> None:
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.submodule_search_locations is not None
        self.home = Path(found.submodule_search_locations[0])
        self.folder = folder
        self.url = ""
        self.workers: list[Path] = []  # their folders
        self._processes: list[subprocess.Popen[bytes]] = []
        conf = folder / "conf"
        conf.mkdir(parents=True)
        (conf / "spark-defaults.conf").write_text(DEFAULTS)

    def environment(self) -> dict[str, str]:
        """For its own processes, and for what is submitted to it."""
        return environment() | {
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }

    def start(self, workers: int) -> None:
        """Returns when all workers have found their master."""
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = self._run("master", MASTER, *place)
        self.url = self._said(log, r"Starting Spark master at (spark://\S+)")
        logs = []
        for number in range(workers):
            self.workers.append(self.folder / f"worker{number}")
            share = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.workers[-1])]
            logs.append(self._run(f"worker{number}", WORKER, *place, *share, self.url))
        for log in logs:
            self._said(log, r"(Successfully registered with master)")

    def _run(self, name: str, *words: str) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.home / "bin" / "spark-class", *words],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            dead = [process for process in self._processes if process.poll() is not None]
            assert not dead, log.read_text(errors="replace")
            assert time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.05)
        return found[1]

    def kill(self) -> None:
        for process in self._processes:
            for pid in [process.pid, *descendants(process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.kill()
