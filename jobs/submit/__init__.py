"""The entry points for `spark-submit` and Databricks."""

from __future__ import annotations
