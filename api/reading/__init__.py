"""Reads for clients: of partitions, of the logical queues of static topics, and as event streams."""

from __future__ import annotations

from deltamq.api.reading.global_pops import GlobalPops
from deltamq.api.reading.global_reader import GlobalReader
from deltamq.api.reading.partition_reader import FetchQuery, PartitionReader
from deltamq.api.reading.queue_reader import QueueReader
from deltamq.api.reading.sse import EVENTS_TYPE, EventPlace, stream_events

__all__ = [
    "EVENTS_TYPE",
    "EventPlace",
    "FetchQuery",
    "GlobalPops",
    "GlobalReader",
    "PartitionReader",
    "QueueReader",
    "stream_events",
]
