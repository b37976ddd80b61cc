"""Partitions as the service writes them: group commit, the queue's own logs, counters."""

from __future__ import annotations

from api.log.group_commit import Part, Pending
from api.log.known_fences import not_known
from api.log.metrics import Gauge, Metrics, PartitionGauges, of_partitions, rendered
from api.log.partition import Partition, Partitions
from api.log.record_log import RecordLog
from api.log.workers import Workers

__all__ = [
    "Gauge",
    "Metrics",
    "Part",
    "Partition",
    "PartitionGauges",
    "Partitions",
    "Pending",
    "RecordLog",
    "Workers",
    "not_known",
    "of_partitions",
    "rendered",
]
