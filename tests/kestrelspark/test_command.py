import importlib.util
from pathlib import Path

import pytest

from tests.support.shell import Kestrelctl

has_spark = importlib.util.find_spec("pyspark") is not None
has_delta = importlib.util.find_spec("delta") is not None


@pytest.mark.skipif(has_spark, reason="pyspark is installed here")
def test_without_the_extra_kestrelctl_says_what_to_install(tmp_path: Path) -> None:
    run = Kestrelctl("127.0.0.1:1", tmp_path)("spark", "verify", str(tmp_path))
    assert run.code == 87
    assert "pip install 'kestreld[spark]'" in run.err


@pytest.mark.spark
@pytest.mark.skipif(not has_spark or has_delta, reason="needs pyspark, and no delta-spark")
def test_without_delta_spark_ingest_says_what_to_install(tmp_path: Path) -> None:
    ingest = ["spark", "ingest", "orders", "--servers", "127.0.0.1:1", "--reader", "lake", "--format", "delta"]
    run = Kestrelctl("127.0.0.1:1", tmp_path)(*ingest, "--to", str(tmp_path / "lake"))
    assert run.code == 87
    assert "pip install delta-spark" in run.err
    assert not (tmp_path / "lake").exists()
