"""Partitions as the service writes and searches them: group commit, the queue's own logs, tags, counters."""

from __future__ import annotations

from api.log.group_commit import Part, Pending
from api.log.known_fences import not_known
from api.log.metrics import Gauge, Metrics, of_partitions, rendered
from api.log.partition import Partition, Partitions
from api.log.record_log import RecordLog
from api.log.tag_scan import scan_tags
from api.log.workers import Threads

__all__ = [
    "Gauge",
    "Metrics",
    "Part",
    "Partition",
    "Partitions",
    "Pending",
    "RecordLog",
    "Threads",
    "not_known",
    "of_partitions",
    "rendered",
    "scan_tags",
]
