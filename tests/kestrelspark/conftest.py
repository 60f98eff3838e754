from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.spark_job import QUICK_JVM


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Spark on two cores. Where it is not installed the test is skipped."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")
    from kestrelspark.session import SparkMissing, session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2",
        "spark.driver.extraJavaOptions": QUICK_JVM,
    }
    try:
        made = session("tests", "local[2]", settings)
    except SparkMissing as problem:
        pytest.skip(str(problem))
    yield made
    made.stop()
