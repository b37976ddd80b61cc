"""DescribeQuorum: who writes the log of the metadata, and who reads it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import field

from deltamq.api.kafka.messages.codec import (
    NO_TOPIC_ID,
    At,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    String,
    UInt16,
    Uuid,
)

#: The topic of Kafka's own metadata; the question can be about no other.
METADATA_TOPIC: Final = "__cluster_metadata"


class QuorumPartition(Message):
    index: Int32


class QuorumTopic(Message):
    name: String
    partitions: list[QuorumPartition]


class DescribeQuorumRequest(Message):
    topics: list[QuorumTopic]


class QuorumReplica(Message, kw_only=True):
    replica_id: Int32
    directory_id: Annotated[Uuid, At(2)] = NO_TOPIC_ID
    end_offset: Int64
    fetch_time_ms: Annotated[Int64, At(1)] = -1
    caught_up_time_ms: Annotated[Int64, At(1)] = -1


class DescribedQuorum(Message, kw_only=True):
    index: Int32
    error_code: Int16
    error_message: Annotated[NullableString, At(2)] = None
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    voters: list[QuorumReplica] = field(default_factory=list)
    observers: list[QuorumReplica] = field(default_factory=list)


class DescribedQuorums(Message):
    name: String
    partitions: list[DescribedQuorum]


class QuorumListener(Message):
    name: String
    host: String
    port: UInt16


class QuorumNode(Message):
    node_id: Int32
    listeners: list[QuorumListener]


class DescribeQuorumResponse(Message, kw_only=True):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, At(2)] = None
    topics: list[DescribedQuorums] = field(default_factory=list)
    nodes: Annotated[list[QuorumNode], At(2)] = field(default_factory=list)
