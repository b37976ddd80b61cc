"""Static topics: logical queues of segments, the mappings that brokers store, and how queues move (SPEC STATIC)."""

from __future__ import annotations

from deltamq.mq.static.completeness import MappingFault, faults_of, served_queues, surviving_queues
from deltamq.mq.static.global_progress import (
    committed_as,
    global_commit_parts,
    global_position,
    global_reset_parts,
    shown_in,
)
from deltamq.mq.static.global_queues import (
    GlobalQueues,
    Stay,
    global_queue_index,
    global_queue_name,
    global_queue_names,
    shown_place,
)
from deltamq.mq.static.lineage import Handover, Lineages
from deltamq.mq.static.logical_queue import (
    GLOBAL_BROKER,
    LOGICAL_BROKER,
    LogicalQueue,
    is_queue_name,
    queue_index,
    queue_name,
    queue_names,
)
from deltamq.mq.static.placement import plan_remap, spread_queues
from deltamq.mq.static.progress import (
    SegmentOffsets,
    commit_steps,
    committed_at,
    committed_offset,
    offset_at_time,
    position_of,
    reset_steps,
    unfinished,
)
from deltamq.mq.static.queue_mapping import QueueMapping, mappings_of
from deltamq.mq.static.reading import ReadPlace, next_after, place_of
from deltamq.mq.static.segment import UNDECIDED, Segment, not_decided
from deltamq.mq.static.stored_offsets import StoredOffsets, Stretch
from deltamq.mq.static.topic_mappings import NO_MAPPINGS, Sealed, TopicMappings
from deltamq.mq.static.topic_queues import SegmentOf, ShownPlace, TopicQueues

__all__ = [
    "GLOBAL_BROKER",
    "LOGICAL_BROKER",
    "NO_MAPPINGS",
    "UNDECIDED",
    "GlobalQueues",
    "Handover",
    "Lineages",
    "LogicalQueue",
    "MappingFault",
    "QueueMapping",
    "ReadPlace",
    "Sealed",
    "Segment",
    "SegmentOf",
    "SegmentOffsets",
    "ShownPlace",
    "Stay",
    "StoredOffsets",
    "Stretch",
    "TopicMappings",
    "TopicQueues",
    "commit_steps",
    "committed_as",
    "committed_at",
    "committed_offset",
    "faults_of",
    "global_commit_parts",
    "global_position",
    "global_queue_index",
    "global_queue_name",
    "global_queue_names",
    "global_reset_parts",
    "is_queue_name",
    "mappings_of",
    "next_after",
    "not_decided",
    "offset_at_time",
    "place_of",
    "plan_remap",
    "position_of",
    "queue_index",
    "queue_name",
    "queue_names",
    "reset_steps",
    "served_queues",
    "shown_in",
    "shown_place",
    "spread_queues",
    "surviving_queues",
    "unfinished",
]
