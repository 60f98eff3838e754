import importlib.util
from pathlib import Path

import pytest

from tests.support.shell import Kestrelctl

has_spark = importlib.util.find_spec("pyspark") is not None


@pytest.mark.skipif(has_spark, reason="pyspark is installed here")
def test_without_the_extra_kestrelctl_says_what_to_install(tmp_path: Path) -> None:
    run = Kestrelctl("127.0.0.1:1", tmp_path)("spark", "verify", str(tmp_path))
    assert run.code == 87
    assert "pip install 'kestreld[spark]'" in run.err
