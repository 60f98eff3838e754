"""ingest into a Delta table, killed twice with -9: every item once. It needs a PySpark of its own: make test-delta."""

import importlib.metadata
import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient
from tests.support.spark_job import SparkJob, committed, ingest_command

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("delta") is None, reason="delta-spark is not installed: make test-delta does that"
    ),
]
ITEMS = 3000


def jars() -> list[str]:
    """Those that Maven has fetched; without any Spark fetches them itself."""
    folders = Path.home() / ".m2" / "repository" / "io" / "delta"
    return [str(path) for path in sorted(folders.glob(f"*/{importlib.metadata.version('delta-spark')}/*.jar"))]


def test_a_delta_table_has_every_item_once_though_ingest_was_killed_twice(tmp_path: Path) -> None:
    target = tmp_path / "lake"
    with running_daemon(tmp_path / "a", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("orders", *(b"%d" % number for number in range(ITEMS)))
        options = ["--reader=lake", "--format=delta", "--option=maxOffsetsPerTrigger=300", "--master=local[1]"]
        options += ["--conf=spark.databricks.delta.snapshotPartitions=1", "--conf=spark.sql.shuffle.partitions=1"]
        options += [f"--conf=spark.jars={','.join(jars())}"] if jars() else []
        job = SparkJob(tmp_path, ingest_command(daemon.address, target, *options))
        for _ in range(2):
            before = committed(target)
            job.start()
            job.until(lambda before=before: committed(target) > before)
            job.kill()
        assert committed(target) < ITEMS // 300
        job.finish()
    from kestrelspark.session import session

    settings = {"spark.jars": ",".join(jars())} if jars() else {}
    spark = session("look", "local[1]", settings, with_delta=True)
    try:
        rows = spark.read.format("delta").load(str(target)).select("id", "value").collect()
    finally:
        spark.stop()
    assert Counter(int(row.value) for row in rows) == Counter(range(ITEMS))
    assert sorted(row.id for row in rows) == list(range(1, ITEMS + 1))
