"""The declarative pipeline of docs/spark.md, run by Spark's own command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")
pytest.importorskip("grpc", reason="grpcio is not installed: make test-spark installs it")

import pyarrow.dataset

from tests.support.daemon import ROOT, running_daemon
from tests.support.process import environment
from tests.support.queue_client import QueueClient

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def test_a_pipeline_has_a_queue_as_its_source(tmp_path: Path) -> None:
    chapter = (
        (ROOT / "docs" / "spark.md").read_text().partition("\n### Declarative pipelines\n")[2].partition("\n## ")[0]
    )
    (spec,) = re.findall(r"```yaml\n(.*?)```", chapter, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(spec.replace("/srv/pipelines/orders", str(tmp_path / "storage")))
    with running_daemon(tmp_path / "daemon", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("orders", b"one", b"two", b"three")
        (tmp_path / "transformations" / "orders.py").write_text(code.replace("a:22133", daemon.address))
        ran = subprocess.run(
            [Path(sys.executable).with_name("spark-pipelines"), "run"],
            cwd=tmp_path,
            env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert ran.returncode == 0, ran.stderr
    warehouse = tmp_path / "spark-warehouse"
    orders = pyarrow.dataset.dataset(warehouse / "orders", format="parquet").to_table()
    assert sorted(orders["value"].to_pylist()) == [b"one", b"three", b"two"]
    by_hour = pyarrow.dataset.dataset(warehouse / "orders_by_hour", format="parquet").to_table()
    assert sum(by_hour["count"].to_pylist()) == 3
