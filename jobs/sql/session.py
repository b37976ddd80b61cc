"""A Spark session in which Delta and the `mq` data source are ready.

On one machine it is made here, from the jars in `.jars` and with settings measured for small data. Where a session is
given (Databricks, Spark Connect, one that the caller made), that one is used as it is and only gets the data source.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from jobs.setup.jars import JarsUnusable, jars_folder, pinned_jars, wrong_jars
from jobs.setup.java import find_java
from jobs.sql.datasource import register
from mq.errors import Refused
from tables.config import Config, load

__all__ = ["another_session", "local_conf", "spark_session"]

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def spark_session(
    app_name: str = "deltamq",
    warehouse: str | os.PathLike[str] | None = None,
    *,
    conf: Config | None = None,
    **spark_conf: object,
) -> SparkSession:
    """Return a session with Delta and `spark.read.format("mq")`.

    Parameters
    ----------
    app_name
        The application's name; only used when the session is made here.
    warehouse
        Where `format("mq")` reads unless the option `warehouse` says otherwise: a folder or a URL. By default the
        setting `warehouse.uri` of the profile (DELTAMQ_PROFILE, else `local`).
    **spark_conf
        Further Spark settings, which win: `spark_session(**{"spark.sql.shuffle.partitions": 8})`. In a session that
        exists already, those that can change at run time are changed.

    Examples
    --------
    >>> spark = spark_session("report", warehouse="warehouse")                          # doctest: +SKIP
    >>> spark.read.format("mq").option("topic", "orders").load().groupBy("tag").count().show()  # doctest: +SKIP
    """
    unknown = sorted(key for key in spark_conf if not key.startswith("spark."))
    if unknown:
        raise Refused(f"a Spark setting starts with 'spark.': {', '.join(unknown)}", field=unknown[0])
    config = conf or load(overrides={"warehouse.uri": os.fspath(warehouse) if warehouse is not None else None})
    uri = absolute(config.warehouse.uri)
    given = SparkSession.getActiveSession()
    if given is not None:
        spark = _adjusted(given, spark_conf)
    elif os.environ.get("SPARK_REMOTE") or "spark.remote" in spark_conf:
        spark = _built(app_name, spark_conf)
    else:
        spark = _built(app_name, {**local_conf(config, uri, spark_conf), **spark_conf})
    register(spark, warehouse=uri)
    return spark


def another_session(spark: SparkSession, warehouse: str) -> SparkSession:
    """Return a session of the same application with settings of its own; over Spark Connect, the same session."""
    if not isinstance(spark, SparkSession):  # Connect's class is another, and shares no application
        return spark
    made = spark.newSession()
    # a source is looked for in the thread's active session: the first one has it, and Spark would call it taken
    sessions = made._jvm.org.apache.spark.sql.classic.SparkSession
    sessions.setActiveSession(made._jsparkSession)
    try:
        register(made, warehouse=absolute(warehouse))
    finally:
        sessions.setActiveSession(spark._jsparkSession)
    return made


def absolute(uri: str) -> str:
    """Return the warehouse as Spark's workers can open it, whatever folder they run in."""
    return uri if len(urlsplit(uri).scheme) > 1 else str(Path(uri).resolve())


def local_conf(config: Config, warehouse: str, asked: dict[str, object] | None = None) -> dict[str, object]:
    """Return the settings of a session that is made here; `asked` are the caller's, for what depends on them."""
    jobs = config.jobs
    conf: dict[str, object] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": jobs.shuffle_partitions,
        "spark.databricks.delta.snapshotPartitions": jobs.snapshot_partitions,
        # VACUUM lists folders with this many tasks: Spark's 10,000 are for cloud storage
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": 4 * jobs.shuffle_partitions,
        # every read is checked: message files carry page checksums (RELIABILITY R4)
        "spark.hadoop.parquet.page.verify-checksum.enabled": True,
        "spark.sql.python.filterPushdown.enabled": True,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.ui.enabled": jobs.ui,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": jobs.driver_memory,
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"',
    }
    if jobs.master:
        conf["spark.master"] = jobs.master
    if jobs.master.startswith("local"):
        conf.update({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
        find_java()
        # Spark's Python workers are this Python, with the packages that this one has
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not urlsplit(warehouse).scheme:
        conf["spark.sql.warehouse.dir"] = str(Path(warehouse) / "spark")
    conf.update(_jars(asked or {}))
    return conf


def _jars(asked: dict[str, object]) -> dict[str, str]:
    """Return the setting that brings Delta, or nothing where the caller or the installation brings it."""
    if {"spark.jars", "spark.jars.packages"} & asked.keys() or _spark_has_delta():
        return {}
    folder = jars_folder()
    wrong = wrong_jars(folder)
    if wrong:
        told = "; ".join(f"{name} {what}" for name, what in wrong.items())
        raise JarsUnusable(
            f"{folder}: {told}. Run make setup, or set DELTAMQ_JARS to a folder that has them, "
            "or pass spark.jars or spark.jars.packages"
        )
    return {"spark.jars": ",".join(str(folder / name) for name in pinned_jars())}


def _spark_has_delta() -> bool:
    home = os.environ.get("SPARK_HOME")
    return home is not None and any(Path(home, "jars").glob("delta-spark_*.jar"))


def _built(app_name: str, conf: dict[str, object]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for key, value in conf.items():
        builder = builder.config(key, _as_spark(value))
    return builder.getOrCreate()


def _adjusted(spark: SparkSession, conf: dict[str, object]) -> SparkSession:
    for key, value in conf.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, _as_spark(value))
        elif spark.conf.get(key, None) != _as_spark(value):
            raise Refused(f"{key} cannot change in a running session: stop it first", field=key)
    return spark


def _as_spark(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
