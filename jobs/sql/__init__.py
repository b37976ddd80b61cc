"""The queue and its topics in SQL: DataFrames, views, and tables of a catalog."""

from __future__ import annotations

from deltamq.jobs.spark import spark_session
from deltamq.jobs.sql.catalog import register_tables
from deltamq.jobs.sql.notebook import notebook_conf
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.sql.views import register_views

__all__ = [
    "notebook_conf",
    "read_topic",
    "register_tables",
    "register_views",
    "spark_session",
]
