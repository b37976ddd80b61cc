"""The intervals at which `revive` and `delay` look for due messages, by engine."""

from __future__ import annotations

from deltamq.jobs.run.registry import with_spark_engine
from deltamq.tables.config import Config


def revive_every_s(conf: Config) -> float:
    """Return the interval of `revive`, in seconds."""
    return (conf.jobs.spark_look_every_ms if with_spark_engine(conf) else conf.jobs.revive_every_ms) / 1000


def delay_every_s(conf: Config) -> float:
    """Return the interval of `delay`, in seconds."""
    return (conf.jobs.spark_look_every_ms if with_spark_engine(conf) else conf.jobs.delay_every_ms) / 1000
