"""The source with journals as earlier kestrelds wrote them: the rows are those that were recorded then."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
KEPT: Final = Path(__file__).parents[1] / "golden" / "journal_version_2"
READ: Final = ("queue", "reader", "event", "id", "unix_millis(due_time)", "attempts", "origin", "reason", "size")


@pytest.mark.parametrize("kind", ["held_back", "begun_as_version_1", "compacted"])
def test_the_rows_of_journals_of_version_2(spark: Any, kind: str) -> None:
    frame = spark.read.format("kestrel").load(str(KEPT / kind))
    found = sorted((list(row) for row in frame.selectExpr(*READ).collect()), key=str)
    assert found == json.loads((KEPT / kind / "expected.json").read_text())["rows"]
