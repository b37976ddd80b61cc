"""Source and sink in an application: it streams a topic into another twice, and writes a batch twice.

python -m tests.spark.stream_application WAREHOUSE CHECKPOINT   prints the topics' rows as JSON
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import Row, SparkSession

from deltamq.jobs.spark.session import spark_session
from deltamq.tables.config import load


def main(warehouse: str, checkpoint: str) -> None:
    """Copy `orders` to `copies` and write 30 rows to `numbers`."""
    spark = spark_session("streams", conf=load(overrides={"warehouse.uri": warehouse}))
    for _ in range(2):
        _copy(spark, checkpoint)
        _write(spark)
    found = {topic: sorted(bytes(row.body).decode() for row in _rows(spark, topic)) for topic in ("copies", "numbers")}
    print(json.dumps(found))
    spark.stop()


def _copy(spark: SparkSession, checkpoint: str) -> None:
    read = spark.readStream.format("mq").option("topic", "orders").option("startingOffsets", "earliest").load()
    write = read.selectExpr("key", "CAST(body AS STRING) AS value").writeStream.format("mq").option("topic", "copies")
    query = write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def _write(spark: SparkSession) -> None:
    rows = spark.range(0, 30, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    write = rows.write.format("mq").mode("append").option("topic", "numbers")
    write.option("producerId", "nightly").option("batchId", "1").save()


def _rows(spark: SparkSession, topic: str) -> list[Row]:
    return spark.read.format("mq").option("topic", topic).load().select("body").collect()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
