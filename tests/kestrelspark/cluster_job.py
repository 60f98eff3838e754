"""What the cluster's test submits: several jobs, one after the other, by one driver.

Arguments: an archive, a folder with what the servers add to it later, a folder for what is made, servers, how many
items to put, and a file with the page's lines that read live queues.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from kestrelspark.__main__ import main
from kestrelspark.session import session

archive, later, folder, servers, items, lines = sys.argv[1:]
os.chdir(folder)
spark = session("cluster")
for run in (1, 2):
    if run == 2:
        shutil.copytree(later, archive, dirs_exist_ok=True)
    assert main(["verify", archive, "--state", "verified.json"]) == 0
    assert main(["report", archive, "--to", f"{folder}/report-{run}", "--state", f"{folder}/kept"]) == 0
    assert main(["convert", archive, "--to", f"{folder}/rows", "--state", "rows.json"]) == 0
    # The nodes' tasks run in folders of their own.
    assert main(["replay", archive, "--servers", servers, "--speed=10x", "--state", "replayed"]) == 0
periods = [f"--before={folder}/report-1", "--after=0..now"]
assert main(["compare", archive, *periods, "--to", f"{folder}/compared"]) == 0
rows = spark.read.format("kestrel").load(archive).groupBy("server", "event").count().collect()
(
    spark.range(0, int(items), 1, 4)
    .selectExpr("concat('item ', id) AS value")
    .write.format("kestrel")
    .mode("append")
    .option("servers", servers)
    .option("queue", "orders")
    .save()
)
ingest = ["ingest", "orders", "--servers", servers, "--reader", "lake", "--to", f"{folder}/lake"]
assert main([*ingest, "--option=minPartitions=4"]) == 0
found: dict[str, Any] = {"spark": spark}
exec(Path(lines).read_text(), found)
found["waiting"].write.parquet(f"{folder}/waiting")
reading = found["since"].writeStream.option("checkpointLocation", f"{folder}/since-checkpoint")
reading.trigger(availableNow=True).start(f"{folder}/since").awaitTermination()
Path(folder, "counts.json").write_text(json.dumps({f"{row.server} {row.event}": row["count"] for row in rows}))
spark.stop()
