"""The Spark application: sessions and their settings, `format("mq")`, and how a job is carried out in it."""

from __future__ import annotations

from jobs.spark.datasource import WAREHOUSE_SETTING
from jobs.spark.runner import SparkRunner
from jobs.spark.session import spark_session

__all__ = [
    "WAREHOUSE_SETTING",
    "SparkRunner",
    "spark_session",
]
