"""The job `merge`, which merges the queue's own logs into state tables."""

from __future__ import annotations

from deltamq.jobs.merge.checkpoint_batch import BATCH_SCHEMA, decode, fold
from deltamq.jobs.merge.state_tables import STATE_TABLES, spark_schema

__all__ = [
    "BATCH_SCHEMA",
    "STATE_TABLES",
    "decode",
    "fold",
    "spark_schema",
]
