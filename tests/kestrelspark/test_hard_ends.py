"""ingest over two servers under load, while driver, workers and servers are killed with -9: every item once.

It begins at a time, and its batches have so many bytes.
"""

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

from kestrelctl.journals.times import now_ms
from kestrelspark.jobs.ingest import Queues, ingest
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.spark_job import PATIENCE_S, SparkJob, begun, committed, ingest_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
AT_ONCE: Final = 20
EARLY, LATE = 50, 5000
RESTARTED: Final = "the query has failed and is started again"
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


def until_more_is_committed(job: SparkJob, target: Path, *, dies: bool = False) -> None:
    before = committed(target)
    job.until(lambda: committed(target) > before, dies=dies)


def kill_workers(job: SparkJob) -> None:
    for pid in job.workers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_hard_at_five_points(job: SparkJob, target: Path, fleet: list[Daemon]) -> None:
    a, b = fleet

    def goes_on() -> None:
        until_more_is_committed(job, target, dies=True)

    def in_a_batch() -> None:
        job.until(lambda: begun(target) > committed(target))

    job.start()
    goes_on()
    # A server, while a batch reads from it.
    in_a_batch()
    a.kill()
    a.start()
    goes_on()
    # Spark's workers: the query fails, since the one that plans is among them, and is started again.
    in_a_batch()
    restarts = job.log.count(RESTARTED)
    kill_workers(job)
    job.until(lambda: job.log.count(RESTARTED) > restarts)
    until_more_is_committed(job, target)
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


def put_early(fleet: list[Daemon]) -> int:
    """Put items on each server; returns a later millisecond, which has come."""
    latest_ms = 0
    for daemon in fleet:
        with QueueClient(daemon.port) as client:
            client.put("orders", *[b"early"] * EARLY)
        lines = ask(daemon, f"/queues/orders/items?first={EARLY}&format=ndjson").lines
        latest_ms = max(latest_ms, lines[-1]["add_ms"])
    while now_ms() <= latest_ms + 1:
        pass
    return latest_ms + 1


def end_hard_while_it_reads_what_is_there(job: SparkJob, target: Path, fleet: list[Daemon]) -> None:
    """A run that ends by itself: its workers are killed, its driver and a server."""
    for end_hard in (kill_workers, SparkJob.kill):
        job.start()
        until_more_is_committed(job, target, dies=True)
        job.until(lambda: begun(target) > committed(target), dies=True)
        end_hard(job)
        fleet[1].kill()
        fleet[1].start()
        job.wait()


def test_every_item_is_there_once_whatever_is_killed(spark: Any, fleet: list[Daemon], tmp_path: Path) -> None:
    servers = ",".join(daemon.address for daemon in fleet)
    target = tmp_path / "lake"
    options = {
        "maxBytesPerTrigger": "24k",
        "minPartitions": "2",
        "startingTimestamp": str(put_early(fleet)),
    }
    words = ["--reader=lake", "--master=local[2,4]", *(f"--option={name}={value}" for name, value in options.items())]
    job = SparkJob(tmp_path, ingest_command(servers, target, *words, "--every=1"))
    loads = [Load(daemon) for daemon in fleet]
    try:
        end_hard_at_five_points(job, target, fleet)
    finally:
        job.kill()
        for load in loads:
            load.stop()
    for daemon in fleet:
        with QueueClient(daemon.port) as client:
            client.put("orders", *[b"late"] * LATE)
    job = SparkJob(tmp_path, ingest_command(servers, target, *words))
    try:
        end_hard_while_it_reads_what_is_there(job, target, fleet)
    finally:
        job.kill()
    ingest(spark, Queues(servers, "lake", {"subscribe": "orders"}), str(target))
    rows = spark.read.parquet(str(target)).select("server", "id", "value").collect()
    assert max(Counter((row.server, row.id) for row in rows).values()) == 1
    values = Counter(bytes(row.value).decode() for row in rows)
    assert values.keys() >= loads[0].acknowledged | loads[1].acknowledged
    assert (values["early"], values["late"]) == (0, 2 * LATE)
    for daemon in fleet:
        family = ask(daemon, "/queues/orders").json
        found = sorted(row.id for row in rows if row.server == daemon.address)
        assert found == list(range(EARLY + 1, family["next_id"]))
        assert [one["head"] for one in family["readers"] if one["reader"] == "lake"] == [family["next_id"]]
