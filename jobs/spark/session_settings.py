"""The settings of a Spark session that is made here: measured for small data on one machine; fewer on a cluster.

| made by                         | settings here                                                                 |
|---------------------------------|-------------------------------------------------------------------------------|
| `local[...]`                    | everything below                                                              |
| another master                  | all but this machine's own: its address, its Python, its disks                |
| `spark-submit`                  | the settings that the command and `spark-defaults.conf` do not set            |
| Databricks, Spark Connect       | nothing: the session is the platform's                                        |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext

from deltamq.jobs.setup.jars import AVRO, DELTA, S3A, JarsUnusable, fetch_jars, jars_folder, pinned_jars, wrong_jars
from deltamq.jobs.setup.java import find_java
from deltamq.jobs.spark.masters import is_local
from deltamq.jobs.spark.s3a import is_s3, s3a_settings, task_environment
from deltamq.tables.config import Config

#: A folder on the path of Spark's Python workers.
WORKERS: Final = Path(__file__).with_name("workers")
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_CLASS_SETTINGS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_DELTA: Final = "delta-spark"
#: Keeps memory that Python workers freed for ten seconds: otherwise each row group of a scan would use new memory,
#: whose page faults cost a sixth of the read.
_KEPT_MEMORY: Final = ("MIMALLOC_PURGE_DELAY", "10000")


def session_settings(config: Config, warehouse: str, asked: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the settings of a session that is made here.

    Parameters
    ----------
    config
        Its section `jobs` has the master and the sizes.
    warehouse
        The location of the tables: S3 needs settings of its own.
    asked
        The caller's settings, which others depend on; they are not part of the result.
    """
    asked = asked or {}
    master = str(asked.get("spark.master", config.jobs.master))
    made = _common(config)
    if master:
        made["spark.master"] = master
    if is_local(master):
        made.update(_of_one_machine(warehouse))
    if is_s3(warehouse):
        made.update(s3a_settings(os.environ))
        if not is_local(master):
            made.update(task_environment(os.environ))
    return made


def is_submitted() -> bool:
    """Return whether spark-submit started this process; its JVM runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def submitted_settings() -> dict[str, str]:
    """Return the settings of spark-submit, from its options and defaults.

    Raises
    ------
    JarsUnusable
        spark-submit was started without Delta, and its JVM runs already, so jars can no longer be added.
    """
    SparkContext._ensure_initialized()  # connects to the JVM that has the settings, as the context would a moment later
    submitted = dict(SparkConf().getAll())
    if not _is_there(_DELTA, submitted):
        raise JarsUnusable(
            'spark-submit was not given Delta: --jars "$(deltamq setup --jars)" names the jars that DeltaMQ pins, '
            f"--packages {DELTA.coordinates[0]} fetches them"
        )
    return submitted


def _common(config: Config) -> dict[str, object]:
    jobs = config.jobs
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": jobs.shuffle_partitions,
        "spark.databricks.delta.snapshotPartitions": jobs.snapshot_partitions,
        # VACUUM lists folders with this many tasks; Spark's default of 10,000 is for cloud storage
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": 4 * jobs.shuffle_partitions,
        # every read is checked: message files carry page checksums (SPEC RELY-4)
        "spark.hadoop.parquet.page.verify-checksum.enabled": True,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        f"spark.executorEnv.{_KEPT_MEMORY[0]}": _KEPT_MEMORY[1],
        # a long query and the jobs beside it share the cores
        "spark.scheduler.mode": "FAIR",
        # a result that is too large ends its query, not the driver with all other queries
        "spark.driver.maxResultSize": jobs.result_size_max,
        "spark.ui.enabled": jobs.ui,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": jobs.driver_memory,
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"',
    }


def _of_one_machine(warehouse: str) -> dict[str, object]:
    """Settings that would be wrong on a cluster: the driver's local address, this machine's Python and disks."""
    find_java()
    # Spark's Python workers use this Python, with its packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault(*_KEPT_MEMORY)
    made: dict[str, object] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Over TCP the end of a task's answer waits 40 ms for an acknowledgement (Nagle's algorithm). Not on a cluster:
        # the sockets lie in the JVM's temporary folder, and a container's path to it may be too long for a socket.
        "spark.python.unix.domain.socket.enabled": True,
        # a stream's Python process has ten seconds to connect, and imports for longer on a busy machine
        "spark.executorEnv.PYTHONPATH": str(WORKERS),
    }
    if urlsplit(warehouse).scheme in ("", "file"):
        made["spark.sql.warehouse.dir"] = str(Path(urlsplit(warehouse).path) / "spark")
        # Checkpoints of streams lie beside the tables. Renaming is atomic here, and this manager syncs half as often: a
        # micro-batch takes 130 to 150 ms instead of 255.
        made["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
    return made


def session_jars(warehouse: str, asked: Mapping[str, object]) -> str:
    """Return `spark.jars`: the caller's, Delta, S3A if needed, and Avro; missing ones are fetched on first use.

    What the caller's settings `asked`, or Spark's own folder, have already in any version is left out.
    """
    folder = jars_folder()
    paths: list[Path] = []
    if not _is_there(_DELTA, asked):
        if wrong_jars(folder, DELTA):
            fetch_jars(folder, AVRO)
        paths += fetch_jars(folder, DELTA)
    if is_s3(warehouse) and not _is_there("hadoop-aws", asked):
        paths += fetch_jars(folder, S3A)
    if not _is_there("spark-avro", asked) and not wrong_jars(folder, AVRO):
        paths += [folder / name for name in pinned_jars(AVRO)]
    return ",".join(filter(None, (str(asked.get("spark.jars", "")), *map(str, paths))))


def _is_there(artifact: str, asked: Mapping[str, object]) -> bool:
    """Return whether settings name this artifact, or Spark's own folder has it."""
    if any(artifact in str(asked.get(key, "")) for key in _CLASS_SETTINGS):
        return True
    home = os.environ.get("SPARK_HOME")
    return home is not None and any(Path(home, "jars").glob(f"{artifact}[-_]*.jar"))
