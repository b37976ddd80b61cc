"""`make classes`: make the archive of Spark's classes by running a short application.

The JVM writes the archive when it ends, beside its final place; it gets its name when a JVM has started with it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltamq.jobs.setup.java import JavaMissing, find_java
from deltamq.jobs.spark.class_archive import QUIET, archive_path, remove_others
from deltamq.jobs.spark.jvm_options import jvm_options
from deltamq.jobs.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: The JVM that makes the archive lives for seconds: compiling for a long run would not pay.
_BRIEF: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: Seconds in which the JVM writes the archive after its application has ended.
_WRITTEN_S: Final = 120


class ArchiveFailed(Exception):
    """The JVM wrote no archive, or does not start with its archive."""


def make_archive(java: Path) -> Path:
    """Run an application and keep the classes that it loads; return the archive's path."""
    path = archive_path(java)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="classes-", dir=path.parent) as folder:
        made = Path(folder) / "made.jsa"
        with jvm_options(*_BRIEF, *QUIET, f"-XX:ArchiveClassesAtExit={made}"):
            _run_application(Path(folder))
        _check(java, made)
        with made.open("rb") as written:
            os.fsync(written.fileno())
        made.replace(path)
    remove_others(path)
    return path


def _run_application(folder: Path) -> None:
    spark = spark_session("classes", warehouse=folder / "warehouse")
    gateway: Any = spark.sparkContext._gateway
    _query(spark, f"{folder}/table")
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_WRITTEN_S)


def _query(spark: SparkSession, table: str) -> None:
    rows = spark.range(9).selectExpr("id", "cast(id % 2 AS string) AS text", "current_timestamp() AS time")
    rows.write.format("delta").mode("overwrite").saveAsTable("classes")
    rows.repartition(2).write.format("delta").partitionBy("text").save(table)
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING (SELECT id + 5 AS id, '0' AS text FROM range(9)) u ON t.id = u.id "
        "WHEN MATCHED THEN UPDATE SET text = u.text "
        "WHEN NOT MATCHED THEN INSERT (id, text) VALUES (u.id, u.text)"
    )
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    spark.read.format("delta").load(table).createOrReplaceTempView("v")
    spark.sql("SELECT id % 3, count(*), max(v.text) FROM v JOIN classes USING (id) GROUP BY 1 ORDER BY 1").collect()
    spark.table("v").mapInArrow(_same, "id bigint, text string, time timestamp").toArrow()
    streamed = spark.readStream.format("delta").option("ignoreChanges", "true").load(table)
    writer = streamed.writeStream.format("delta").option("checkpointLocation", f"{table}-stream")
    writer.trigger(availableNow=True).start(f"{table}-copy").awaitTermination()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _check(java: Path, archive: Path) -> None:
    if not archive.is_file():
        raise ArchiveFailed("the JVM wrote no archive; is the disk full?")
    command = [str(java), f"-XX:SharedArchiveFile={archive}", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ArchiveFailed(f"no JVM starts with the new archive: {(done.stdout + done.stderr)[:400]}")


def main() -> int:
    """Make the archive if there is none; return the exit code."""
    argparse.ArgumentParser(
        prog="make classes", description="Make an archive of Spark's classes, with which Spark starts sooner."
    ).parse_args()
    started = time.monotonic()
    try:
        java = find_java().path
        if archive_path(java).is_file():
            return 0
        print(
            "classes: making an archive of Spark's classes, with which Spark starts sooner (half a minute)", flush=True
        )
        path = make_archive(java)
    except (ArchiveFailed, JavaMissing, OSError, subprocess.TimeoutExpired) as error:
        print(f"classes failed: {error}. Spark works without them.", file=sys.stderr)
        return 1
    print(f"classes: {path.stat().st_size >> 20} MiB in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
