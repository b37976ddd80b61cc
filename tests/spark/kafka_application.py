"""Spark's own Kafka source and sink in an application: a batch out and in, and a stream that goes on where it was.

python -m tests.spark.kafka_application SERVERS WAREHOUSE CHECKPOINT FIRST LAST JARS...

It sends the numbers `[FIRST, LAST)` to the topic `numbers`, streams that topic into `copies` until all is there, and
prints the rows of both topics as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from deltamq.jobs.spark.session import spark_session


def main(servers: str, warehouse: str, checkpoint: str, first: int, last: int, jars: list[str]) -> None:
    """Send, stream, read."""
    spark = _session(warehouse, jars)
    numbers = spark.range(first, last, 1, 3)
    rows = numbers.selectExpr(
        "CAST(CAST(-id AS STRING) AS BINARY) AS key",
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "array(named_struct('key', 'number', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
    )
    rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "numbers").save()
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "numbers")
    stream = read.option("startingOffsets", "earliest").option("includeHeaders", True).load()
    write = stream.select("key", "value", "headers").writeStream.format("kafka")
    write = write.option("kafka.bootstrap.servers", servers).option("topic", "copies")
    write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({topic: _rows(spark, servers, topic) for topic in ("numbers", "copies")}), flush=True)
    spark.stop()


def _session(warehouse: str, jars: list[str]) -> SparkSession:
    settings: dict[str, Any] = {"spark.jars": ",".join(jars)}
    return spark_session("kafka", warehouse=warehouse, **settings)


def _rows(spark: SparkSession, servers: str, topic: str) -> list[list[object]]:
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    rows = read.option("includeHeaders", True).load().collect()
    return sorted(
        [
            int(row.value),
            row.partition,
            row.offset,
            row.key.decode(),
            [[h.key, h.value.decode()] for h in row.headers],
        ]
        for row in rows
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6:])
