"""The queue and its topics in SQL: DataFrames, views, and tables of a catalog."""

from __future__ import annotations

from deltamq.jobs.spark.session import spark_session
from deltamq.jobs.sql.catalog import register_tables
from deltamq.jobs.sql.notebook import notebook_conf
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.sql.traced import traced
from deltamq.jobs.sql.views import register_views
from deltamq.jobs.stream.progress import behind

__all__ = [
    "behind",
    "notebook_conf",
    "read_topic",
    "register_tables",
    "register_views",
    "spark_session",
    "traced",
]
