"""What the cluster's test submits: several jobs, one after the other, by one driver.

Arguments: an archive, a folder for what is made, servers, and how many items to put.
"""

import json
import sys
from pathlib import Path

from kestrelspark.__main__ import main
from kestrelspark.session import session

archive, folder, servers, items = sys.argv[1:]
spark = session("cluster")
assert main(["report", archive, "--to", f"{folder}/report"]) == 0
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
Path(folder, "counts.json").write_text(json.dumps({f"{row.server} {row.event}": row["count"] for row in rows}))
spark.stop()
