"""Reads for clients: of partitions, of the logical queues of static topics, and as event streams."""

from __future__ import annotations

from api.reading.global_pops import GlobalPops
from api.reading.global_reader import GlobalReader
from api.reading.partition_reader import FetchQuery, PartitionReader
from api.reading.queue_reader import QueueReader
from api.reading.sse import EVENTS_TYPE, EventPlace, stream_events

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
