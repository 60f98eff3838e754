"""The wheel in a venv: Spark knows the format without being told."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestreld.journal.records import put_record
from tests.support.daemon import ROOT
from tests.support.process import environment
from tests.support.segments import BEGIN_MS, write_segment
from tests.support.spark_job import PATIENCE_S, QUICK_JVM

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
SCRIPT: Final = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
print("rows:", spark.read.format("kestrel").load(sys.argv[1]).count())
"""


def run(folder: Path, *command: str | Path) -> str:
    ran = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment() | {"PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(command[0])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_where_the_wheel_is_installed_spark_finds_the_format(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("kestreld-*.whl")
    home = tmp_path / "home"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    run(tmp_path, sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    installed = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    # What kestreld needs is where this test runs.
    (installed / "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    records = [put_record(item_id, BEGIN_MS, 0, 0, 0, b"x") for item_id in range(1, 11)]
    write_segment(tmp_path / "spool" / "orders.journal", 1, 1, records)
    assert run(tmp_path, python, "-c", SCRIPT, tmp_path / "spool", QUICK_JVM) == "rows: 10\n"
