"""Partitions as the service writes and searches them: group commit, the queue's own logs, filters, counters."""

from __future__ import annotations

from deltamq.api.log.fence_epochs import fence_not_known
from deltamq.api.log.filter_scan import scan_filtered
from deltamq.api.log.metrics import Gauge, Metrics, QueueGauges, of_partitions, of_queues, rendered
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.parts import PendingRequest, RecordRows, RequestPart
from deltamq.api.log.record_log import RecordLog
from deltamq.api.log.workers import Threads

__all__ = [
    "Gauge",
    "Metrics",
    "Partition",
    "Partitions",
    "PendingRequest",
    "QueueGauges",
    "RecordLog",
    "RecordRows",
    "RequestPart",
    "Threads",
    "fence_not_known",
    "of_partitions",
    "of_queues",
    "rendered",
    "scan_filtered",
]
