"""A Spark session in which Delta and the `mq` data source are ready, wherever Spark runs.

    where                        which session                                        settings
    one machine, a cluster       made here, from the jars in `.jars`                  `jobs.spark.session_settings`
    spark-submit                 made here                                            the command's win
    Spark Connect                the server's, by SPARK_REMOTE or a master sc://...   the server's
    Databricks, a notebook       the existing one                                     its own

An existing session is used unchanged, except that the data source is registered with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from pyspark.sql import SparkSession

from deltamq.jobs.setup.java import java_path
from deltamq.jobs.spark.class_archive import archive_options
from deltamq.jobs.spark.datasource import register
from deltamq.jobs.spark.jvm_options import jvm_options
from deltamq.jobs.spark.masters import check_master, check_remote, is_local, is_remote
from deltamq.jobs.spark.session_settings import is_submitted, session_jars, session_settings, submitted_settings
from deltamq.jobs.spark.shipped import ship
from deltamq.jobs.tasks.connect import cloned_session, closed_at_exit, is_connect
from deltamq.jobs.tasks.warehouses import absolute
from deltamq.mq.errors import Refused
from deltamq.tables.config import Config, load


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
        The folder or URL that `format("mq")` reads unless the option `warehouse` names another. By default the
        setting `warehouse.uri`.
    conf
        The settings; by default the profile's (DELTAMQ_PROFILE, else `local`).
    **spark_conf
        Further Spark settings, which win: `spark_session(**{"spark.sql.shuffle.partitions": 8})`. What `spark.jars`
        and `spark.jars.packages` name comes beside our jars. In an existing session, settings that can change at run
        time are changed.

    Raises
    ------
    Unavailable
        The Spark master or Spark Connect server does not answer.

    Examples
    --------
    >>> spark = spark_session("report", warehouse="warehouse")                          # doctest: +SKIP
    >>> spark.read.format("mq").option("topic", "orders").load().groupBy("tag").count().show()  # doctest: +SKIP
    """
    unknown = sorted(key for key in spark_conf if not key.startswith("spark."))
    if unknown:
        raise Refused(f"a Spark setting starts with 'spark.': {', '.join(unknown)}", field=unknown[0])
    config = conf or load()
    uri = absolute(os.fspath(warehouse) if warehouse is not None else config.warehouse.uri)
    spark = _session(app_name, config, uri, spark_conf)
    register(spark, warehouse=uri, cluster=config.warehouse.cluster)
    return spark


def _session(app_name: str, config: Config, warehouse: str, wanted: dict[str, object]) -> SparkSession:
    given = SparkSession.getActiveSession()
    if given is not None:
        return _adjusted(given, wanted)
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:  # a task that is not a notebook has a session, but no active one
        platform_session = SparkSession.builder.getOrCreate()
        return _adjusted(
            platform_session, {key: value for key, value in wanted.items() if platform_session.conf.isModifiable(key)}
        )
    remote = _remote(config, wanted)
    if remote:
        check_remote(remote)
        spark = _built(app_name, {**wanted, "spark.remote": remote})
        ship(spark)
        return closed_at_exit(spark)
    return _made(app_name, config, warehouse, wanted)


def _remote(config: Config, wanted: Mapping[str, object]) -> str:
    master = config.jobs.master
    return str(wanted.get("spark.remote") or os.environ.get("SPARK_REMOTE") or (master if is_remote(master) else ""))


def _made(app_name: str, config: Config, warehouse: str, wanted: dict[str, object]) -> SparkSession:
    submitted = submitted_settings() if is_submitted() else {}
    known = {**submitted, **wanted}
    ours = {key: value for key, value in session_settings(config, warehouse, known).items() if key not in submitted}
    settings = {**ours, **wanted}
    # spark-submit's JVM runs already: it has the jars that it will have.
    if not is_submitted() and (jars := session_jars(warehouse, known)):
        settings["spark.jars"] = jars
    master = str(known.get("spark.master", settings.get("spark.master", "")))
    check_master(master)
    with jvm_options(*(archive_options(java_path()) if is_local(master) else ())):
        spark = _built(app_name, settings)
    if not is_local(master):
        ship(spark)
    return spark


def another_session(spark: SparkSession, warehouse: str) -> SparkSession:
    """Return a session of the same application with its own settings and temporary views."""
    if is_connect(spark):
        return cloned_session(spark)
    made: Any = spark.newSession()
    register(made, warehouse=absolute(warehouse))
    return cast(SparkSession, made)


def _built(app_name: str, conf: Mapping[str, object]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for key, value in conf.items():
        builder = builder.config(key, _as_spark(value))
    return builder.getOrCreate()


def _adjusted(spark: SparkSession, conf: Mapping[str, object]) -> SparkSession:
    for key, value in conf.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, _as_spark(value))
        elif spark.conf.get(key, None) != _as_spark(value):
            raise Refused(f"{key} cannot change in a running session: stop it first", field=key)
    return spark


def _as_spark(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
