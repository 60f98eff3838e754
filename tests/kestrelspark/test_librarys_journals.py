"""Journals that a program has written with the library, as tables."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from tests.support.library import journaled

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_items_of_a_journaled_queue_are_put_once_and_got_by_each_reader_under_its_name(
    spark: Any, tmp_path: Path
) -> None:
    with journaled(tmp_path, "orders") as queue:
        queue.put_all([b"1", b"2"])
        billing = queue.reader("billing")
        audit = queue.reader("audit")
        queue.put_all([b"3", b"4", b"5"])
        for reader, items in ((billing, 4), (audit, 2)):
            for _ in range(items):
                item = reader.get()
                assert item is not None
                reader.commit(item)
    frame = spark.read.format("kestrel").option("includeValue", "true").load(str(tmp_path))
    rows = frame.where("event in ('put', 'got', 'confirmed')").select("reader", "event", "id", "value").collect()
    assert Counter((row.reader, row.event) for row in rows) == Counter(
        {(None, "put"): 5, ("billing", "confirmed"): 4, ("audit", "confirmed"): 2}
    )
    assert [bytes(row.value) for row in sorted(rows, key=lambda row: row.id) if row.event == "put"] == [
        b"1", b"2", b"3", b"4", b"5",
    ]  # fmt: skip
    assert sorted(row.id for row in rows if row.reader == "audit") == [3, 4]
