"""A streaming query in an application of its own, which tests kill: it copies a topic into a table until told to end.

    python -m tests.faults.stream_process WAREHOUSE FOLDER         into a Delta table
    python -m tests.faults.stream_process WAREHOUSE FOLDER TOPIC   into another topic

It ends by itself when the file FOLDER/end exists and a batch has found nothing more. It must be started in a new
process group, so that Spark's JVM and Python processes die with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StreamProcess", "start_query"]

OPTIONS: Final = {"topic": "orders", "startingOffsets": "earliest", "group": "killed", "maxOffsetsPerTrigger": "200"}


def start_query(spark: SparkSession, warehouse: str, folder: Path, into: str | None = None) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one; into a topic, it writes the place of each message."""
    options = {**OPTIONS, "warehouse": warehouse, "columns": "partition, offset, body"}
    frame = spark.readStream.format("mq").options(**options).load()
    place = str(folder / "checkpoint")
    if into is None:
        return frame.writeStream.format("delta").option("checkpointLocation", place).start(str(folder / "table"))
    rows = frame.selectExpr("concat(partition, '/', offset) AS value")
    writer = rows.writeStream.format("mq").option("warehouse", warehouse).option("topic", into)
    return writer.option("checkpointLocation", place).start()


class StreamProcess:
    """The application as its test controls it."""

    def __init__(self, warehouse: str, folder: Path, failpoints: str = "", into: str | None = None) -> None:
        command = [sys.executable, "-m", "tests.faults.stream_process", warehouse, str(folder)]
        command += [] if into is None else [into]
        self._process = subprocess.Popen(
            command, start_new_session=True, env={**os.environ, "DELTAMQ_FAILPOINTS": failpoints}
        )

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code; None if the application still runs after this time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill the whole application: driver, JVM, planner, workers."""
        with contextlib.suppress(ProcessLookupError):  # a query that failed has ended its application
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def main() -> None:
    from deltamq.jobs.spark.session import spark_session

    warehouse, folder, into = sys.argv[1], Path(sys.argv[2]), next(iter(sys.argv[3:]), None)
    settings: dict[str, Any] = {"spark.master": "local[2]"}
    spark = spark_session("deltamq-killed-stream", warehouse=warehouse, **settings)
    query = start_query(spark, warehouse, folder, into)
    while not (folder / "end").exists():
        if query.awaitTermination(1):
            break
    else:
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
