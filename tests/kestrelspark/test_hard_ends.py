"""ingest over two servers under load, while driver, workers and servers are killed with -9: every item once."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.jobs.ingest import Queues, ingest
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.spark_job import PATIENCE_S, SparkJob, begun, committed, ingest_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
AT_ONCE: Final = 20
PAUSE_S: Final = 0.05  # so that the load is the same on any machine


class Load:
    """Puts items on a server that may be killed, until told to stop. What was not answered may be there twice."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.acknowledged: set[str] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for first in count(0, AT_ONCE):
            items = [f"{self._daemon.folder.name}{number}" for number in range(first, first + AT_ONCE)]
            while not self.acknowledged.issuperset(items):
                if self._ends.wait(PAUSE_S):
                    return
                with suppress(OSError, AssertionError), QueueClient(self._daemon.port) as client:
                    client.put("orders", *(item.encode() for item in items))
                    self.acknowledged.update(items)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two servers with the reader API."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_daemon(tmp_path / name, admin="127.0.0.1:0")) for name in ("a", "b")]


def end_hard_at_five_points(job: SparkJob, target: Path, fleet: list[Daemon]) -> None:
    a, b = fleet

    def goes_on() -> None:
        before = committed(target)
        job.until(lambda: committed(target) > before, dies=True)

    def in_a_batch() -> None:
        job.until(lambda: begun(target) > committed(target))

    job.start()
    goes_on()
    # A server, while a batch reads from it.
    in_a_batch()
    a.kill()
    a.start()
    goes_on()
    # Spark's workers: the query fails, since the one that plans is among them.
    in_a_batch()
    for pid in job.workers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    goes_on()
    # The driver, between planning a batch and committing it; and a server, until the next driver is there.
    in_a_batch()
    job.kill()
    b.kill()
    job.start()
    job.until(job.workers, dies=True)
    b.start()
    goes_on()
    # The driver, as soon as a batch is committed: the servers have not heard of it.
    job.kill()


def test_every_item_is_there_once_whatever_is_killed(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    servers = ",".join(daemon.address for daemon in fleet)
    target = tmp_path / "lake"
    options = (
        "--reader=lake",
        "--every=1",
        "--option=maxOffsetsPerTrigger=500",
        "--option=minPartitions=2",
        "--master=local[2,4]",
    )
    job = SparkJob(tmp_path, ingest_command(servers, target, *options))
    loads = [Load(daemon) for daemon in fleet]
    try:
        end_hard_at_five_points(job, target, fleet)
    finally:
        job.kill()
        for load in loads:
            load.stop()
    ingest(spark, Queues(servers, "lake", {"subscribe": "orders"}), str(target))
    rows = spark.read.parquet(str(target)).select("server", "id", "value").collect()
    assert max(Counter((row.server, row.id) for row in rows).values()) == 1
    assert {bytes(row.value).decode() for row in rows} >= loads[0].acknowledged | loads[1].acknowledged
    for daemon in fleet:
        family = ask(daemon, "/queues/orders").json
        assert sorted(row.id for row in rows if row.server == daemon.address) == list(range(1, family["next_id"]))
        assert [one["head"] for one in family["readers"] if one["reader"] == "lake"] == [family["next_id"]]
