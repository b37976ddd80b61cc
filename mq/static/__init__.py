"""Static topics: logical queues of segments, the mappings that brokers store, and how queues move (SPEC STATIC)."""

from __future__ import annotations

from mq.static.completeness import FaultKind, MappingFault, faults_of, served_queues, surviving_queues
from mq.static.jump import BLOCK, jump_above
from mq.static.logical_queue import LOGICAL_BROKER, LogicalQueue, is_queue_name, queue_index, queue_name
from mq.static.placement import plan_remap, spread_queues
from mq.static.queue_mapping import QueueMapping, mappings_of
from mq.static.reading import Place, next_after, place_of
from mq.static.segment import UNDECIDED, Segment
from mq.static.topic_mappings import NO_MAPPINGS, Sealed, TopicMappings
from mq.static.topic_queues import SegmentOf, TopicQueues

__all__ = [
    "BLOCK",
    "LOGICAL_BROKER",
    "NO_MAPPINGS",
    "UNDECIDED",
    "FaultKind",
    "LogicalQueue",
    "MappingFault",
    "Place",
    "QueueMapping",
    "Sealed",
    "Segment",
    "SegmentOf",
    "TopicMappings",
    "TopicQueues",
    "faults_of",
    "is_queue_name",
    "jump_above",
    "mappings_of",
    "next_after",
    "place_of",
    "plan_remap",
    "queue_index",
    "queue_name",
    "served_queues",
    "spread_queues",
    "surviving_queues",
]
