"""The Spark application: sessions and their settings, `format("mq")`, and running jobs in it."""

from __future__ import annotations

from deltamq.jobs.spark.datasource import register_sources, session_warehouse
from deltamq.jobs.spark.runner import SparkRunner
from deltamq.jobs.spark.session import spark_session

__all__ = ["SparkRunner", "register_sources", "session_warehouse", "spark_session"]
