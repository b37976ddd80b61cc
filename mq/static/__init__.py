"""Static topics: logical queues of segments, the mappings that brokers store, and how queues move (SPEC STATIC)."""

from __future__ import annotations

from mq.static.completeness import MappingFault, faults_of, served_queues, surviving_queues
from mq.static.logical_queue import LOGICAL_BROKER, LogicalQueue, is_queue_name, queue_name
from mq.static.placement import plan_remap, spread_queues
from mq.static.queue_mapping import QueueMapping, mappings_of
from mq.static.segment import UNDECIDED, Segment
from mq.static.stored_offsets import StoredOffsets, Stretch
from mq.static.topic_mappings import NO_MAPPINGS, Sealed, TopicMappings
from mq.static.topic_queues import TopicQueues

__all__ = [
    "LOGICAL_BROKER",
    "NO_MAPPINGS",
    "UNDECIDED",
    "LogicalQueue",
    "MappingFault",
    "QueueMapping",
    "Sealed",
    "Segment",
    "StoredOffsets",
    "Stretch",
    "TopicMappings",
    "TopicQueues",
    "faults_of",
    "is_queue_name",
    "mappings_of",
    "plan_remap",
    "queue_name",
    "served_queues",
    "spread_queues",
    "surviving_queues",
]
