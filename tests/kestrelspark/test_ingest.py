"""ingest, as it is run from cron, and killed."""

import os
import pty
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.jobs.ingest import CHECKPOINT, Queues, ingest
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.http import ask
from tests.support.process import environment
from tests.support.queue_client import QueueClient
from tests.support.spark_job import SparkJob, committed, ingest_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def put(daemon: Daemon, first: int, count: int) -> None:
    with QueueClient(daemon.port) as client:
        client.put("orders", *(b"%d" % number for number in range(first, first + count)))


def values(spark: Any, target: Path) -> Counter[int]:
    return Counter(int(row.value) for row in spark.read.parquet(str(target)).select("value").collect())


def head(daemon: Daemon) -> int:
    (found,) = [one["head"] for one in ask(daemon, "/queues/orders").json["readers"] if one["reader"] == "lake"]
    return int(found)


def test_each_run_adds_what_is_new_and_the_server_knows(spark: Any, tmp_path: Path) -> None:
    with running_daemon(tmp_path / "a", admin="127.0.0.1:0") as daemon:
        queues = Queues(daemon.address, "lake", {"subscribe": "orders"})
        for first in (0, 100):
            put(daemon, first, 100)
            assert ingest(spark, queues, str(tmp_path / "lake")) == 100
            assert head(daemon) == first + 101
        assert ingest(spark, queues, str(tmp_path / "lake")) == 0
    assert values(spark, tmp_path / "lake") == Counter(range(200))


def test_it_says_how_many_items_a_run_has_added_however_many_batches_there_were(spark: Any, tmp_path: Path) -> None:
    target, of_few_batches = tmp_path / "lake", "spark.sql.streaming.numRecentProgressUpdates"
    with running_daemon(tmp_path / "a", admin="127.0.0.1:0") as daemon:
        queues = Queues(daemon.address, "lake", {"subscribe": "orders", "maxOffsetsPerTrigger": "30"})
        put(daemon, 0, 100)
        spark.conf.set(of_few_batches, "1")
        try:
            assert ingest(spark, queues, str(target)) == 100
            # As if the run had been killed behind writing its last batch: those items are not added again.
            for name in ("3", ".3.crc"):
                (target / CHECKPOINT / "commits" / name).unlink()
            put(daemon, 100, 40)
            assert ingest(spark, queues, str(target)) == 40
        finally:
            spark.conf.unset(of_few_batches)
    assert values(spark, target) == Counter(range(140))


def test_a_run_that_is_killed_leaves_each_item_to_come_once(spark: Any, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    with running_daemon(tmp_path / "a", admin="127.0.0.1:0") as daemon:
        put(daemon, 0, 5000)
        options = ["--reader=lake", "--option=maxOffsetsPerTrigger=50", "--master=local[1]"]
        job = SparkJob(tmp_path, ingest_command(daemon.address, target, *options))
        job.start()
        job.until(lambda: committed(target) > 2)
        job.kill()
        assert head(daemon) < 5001
        ingest(spark, Queues(daemon.address, "lake", {"subscribe": "orders"}), str(target))
        assert head(daemon) == 5001
    assert values(spark, target) == Counter(range(5000))


def test_on_a_terminal_a_bar_shows_how_far_it_is_behind(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "a", admin="127.0.0.1:0") as daemon:
        put(daemon, 0, 100)
        options = ["--reader=lake", "--option=maxOffsetsPerTrigger=40", "--master=local[1]"]
        ours, theirs = pty.openpty()
        job = subprocess.Popen(
            ingest_command(daemon.address, tmp_path / "lake", *options),
            cwd=ROOT,
            env=environment() | {"TERM": "xterm", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        said = b""
        with suppress(OSError):  # how a terminal ends
            while chunk := os.read(ours, 1 << 16):
                said += chunk
        os.close(ours)
        assert job.wait() == 0, said
    for words in (b"ingest: 40 items, 60 behind", b"ingest: 80 items, 20 behind", b"ingest: 100 items, 0 behind"):
        assert words in said, said
    assert b"100 items added to" in said
