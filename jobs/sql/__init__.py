"""Topics in Spark: the session, `format("mq")`, DataFrames, views."""

from __future__ import annotations

from jobs.sql.reader import read_topic
from jobs.sql.register_tables import register_tables
from jobs.sql.session import spark_session
from jobs.sql.views import register_views

__all__ = ["read_topic", "register_tables", "register_views", "spark_session"]
