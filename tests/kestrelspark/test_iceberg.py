"""docs/spark.md's way into an Iceberg table, killed twice with -9: every item once."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: make test-spark installs it")

from pyiceberg.catalog import load_catalog

from tests.support.daemon import ROOT, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.spark_job import SparkJob

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]
ITEMS: Final = 2000
BATCH: Final = 200
BEGIN: Final = """
from kestrelspark.session import session

spark = session("iceberg", "local[1]")
items = (
    spark.readStream.format("kestrel")
    .option("servers", "SERVER")
    .option("subscribe", "orders")
    .option("reader", "lake")
    .option("maxOffsetsPerTrigger", "200")
    .load()
)
"""


def test_an_iceberg_table_has_every_item_once_though_its_writer_was_killed_twice(tmp_path: Path) -> None:
    chapter = (ROOT / "docs" / "spark.md").read_text().partition("### Into an Iceberg table")[2].partition("\n##")[0]
    (code,) = re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)
    lake = tmp_path / "lake"
    lake.mkdir()
    with running_daemon(tmp_path / "a", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("orders", *(b"%d" % number for number in range(ITEMS)))
        script = tmp_path / "stream.py"
        code = (
            BEGIN.replace("SERVER", daemon.address)
            + code.replace("/srv/lake", str(lake))
            + "query.awaitTermination()\n"
        )
        script.write_text(code)
        job = SparkJob(tmp_path, [sys.executable, script])
        for _ in range(2):
            before = rows_in(lake)
            job.start()
            job.until(lambda before=before: rows_in(lake) > before)
            job.kill()
        assert rows_in(lake) < ITEMS
        job.finish()
    rows = opened(lake).scan().to_arrow()
    assert Counter(map(int, rows["value"].to_pylist())) == Counter(range(ITEMS))
    assert sorted(rows["id"].to_pylist()) == list(range(1, ITEMS + 1))


def opened(lake: Path) -> Any:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    return catalog.load_table("queues.orders")


def rows_in(lake: Path) -> int:
    if not (lake / "queues" / "orders").exists():
        return 0
    snapshots = opened(lake).snapshots()
    return sum(int(one.summary["added-records"]) for one in snapshots)
