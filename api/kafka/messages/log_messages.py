"""Produce, Fetch, ListOffsets, DeleteRecords, InitProducerId, and what administrators ask about replicas.

The calls about replicas are about who leads, and which nodes and folders have them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from deltamq.api.kafka.messages.codec import (
    NO_TOPIC_ID,
    At,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableBytes,
    NullableString,
    String,
    Uuid,
)


class ProducePartition(Message):
    index: Int32
    records: NullableBytes


class ProduceTopic(Message, kw_only=True):
    name: Annotated[String, At(0, 12)] = ""
    topic_id: Annotated[Uuid, At(13)] = NO_TOPIC_ID
    partitions: list[ProducePartition]


class ProduceRequest(Message):
    transactional_id: NullableString
    acks: Int16
    timeout_ms: Int32
    topics: list[ProduceTopic]


class RecordError(Message):
    batch_index: Int32
    message: NullableString


class ProducedPartition(Message):
    index: Int32
    error_code: Int16
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, At(5)] = -1
    record_errors: Annotated[list[RecordError], At(8)] = field(default_factory=list)
    error_message: Annotated[NullableString, At(8)] = None


class ProducedTopic(Message, kw_only=True):
    name: Annotated[String, At(0, 12)] = ""
    topic_id: Annotated[Uuid, At(13)] = NO_TOPIC_ID
    partitions: list[ProducedPartition]


class ProduceResponse(Message):
    topics: list[ProducedTopic]
    throttle_ms: Int32 = 0


class FetchPartition(Message, kw_only=True):
    partition: Int32
    current_leader_epoch: Annotated[Int32, At(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, At(12)] = -1
    log_start_offset: Annotated[Int64, At(5)] = -1
    partition_max_bytes: Int32


class FetchTopic(Message, kw_only=True):
    name: Annotated[String, At(0, 12)] = ""
    topic_id: Annotated[Uuid, At(13)] = NO_TOPIC_ID
    partitions: list[FetchPartition]


class ForgottenTopic(Message, kw_only=True):
    name: Annotated[String, At(0, 12)] = ""
    topic_id: Annotated[Uuid, At(13)] = NO_TOPIC_ID
    partitions: list[Int32]


class FetchRequest(Message, kw_only=True):
    replica_id: Annotated[Int32, At(0, 14)] = -1
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, At(7)] = 0
    session_epoch: Annotated[Int32, At(7)] = -1
    topics: list[FetchTopic]
    forgotten: Annotated[list[ForgottenTopic], At(7)] = field(default_factory=list)
    rack_id: Annotated[String, At(11)] = ""


class AbortedTransaction(Message):
    producer_id: Int64
    first_offset: Int64


class FetchedPartition(Message):
    index: Int32
    error_code: Int16
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, At(5)] = -1
    aborted: list[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[Int32, At(11)] = -1
    #: Never null: librdkafka takes null for a broken answer, and asks again at once.
    records: NullableBytes = b""


class FetchedTopic(Message, kw_only=True):
    name: Annotated[String, At(0, 12)] = ""
    topic_id: Annotated[Uuid, At(13)] = NO_TOPIC_ID
    partitions: list[FetchedPartition]


class FetchResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Annotated[Int16, At(7)] = 0
    session_id: Annotated[Int32, At(7)] = 0
    topics: list[FetchedTopic]


class ListOffsetsPartition(Message, kw_only=True):
    index: Int32
    leader_epoch: Annotated[Int32, At(4)] = -1
    timestamp: Int64


class ListOffsetsTopic(Message):
    name: String
    partitions: list[ListOffsetsPartition]


class ListOffsetsRequest(Message, kw_only=True):
    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, At(2)] = 0
    topics: list[ListOffsetsTopic]
    timeout_ms: Annotated[Int32, At(10)] = 0


class ListedOffset(Message):
    index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, At(4)] = -1


class ListedTopic(Message):
    name: String
    partitions: list[ListedOffset]


class ListOffsetsResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(2)] = 0
    topics: list[ListedTopic]


class WantedEpoch(Message, kw_only=True):
    index: Int32
    current_leader_epoch: Annotated[Int32, At(2)] = -1
    leader_epoch: Int32


class WantedEpochs(Message):
    name: String
    partitions: list[WantedEpoch]


class OffsetForLeaderEpochRequest(Message, kw_only=True):
    replica_id: Annotated[Int32, At(3)] = -2
    topics: list[WantedEpochs]


class OffsetOfEpoch(Message):
    error_code: Int16
    index: Int32
    leader_epoch: Annotated[Int32, At(1)] = -1
    end_offset: Int64 = -1


class OffsetsOfEpochs(Message):
    name: String
    partitions: list[OffsetOfEpoch]


class OffsetForLeaderEpochResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(2)] = 0
    topics: list[OffsetsOfEpochs]


class InitProducerIdRequest(Message):
    transactional_id: NullableString
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, At(3)] = -1
    producer_epoch: Annotated[Int16, At(3)] = -1
    enable_two_phases: Annotated[Bool, At(6)] = False
    keep_prepared: Annotated[Bool, At(6)] = False


class InitProducerIdResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    ongoing_producer_id: Annotated[Int64, At(6)] = -1
    ongoing_producer_epoch: Annotated[Int16, At(6)] = -1


class DeleteRecordsPartition(Message):
    index: Int32
    offset: Int64


class DeleteRecordsTopic(Message):
    name: String
    partitions: list[DeleteRecordsPartition]


class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic]
    timeout_ms: Int32


class DeleteRecordsResult(Message):
    index: Int32
    low_watermark: Int64
    error_code: Int16


class DeletedRecords(Message):
    name: String
    partitions: list[DeleteRecordsResult]


class DeleteRecordsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    topics: list[DeletedRecords]


class NamedPartitions(Message):
    """A topic and the numbers of partitions."""

    name: String
    partitions: list[Int32]


class ElectLeadersRequest(Message, kw_only=True):
    election_type: Annotated[Int8, At(1)] = 0
    topics: list[NamedPartitions] | None
    timeout_ms: Int32


class ElectedPartition(Message):
    index: Int32
    error_code: Int16
    error_message: NullableString = None


class ElectedTopic(Message):
    name: String
    partitions: list[ElectedPartition]


class ElectLeadersResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Annotated[Int16, At(1)] = 0
    topics: list[ElectedTopic]


class ReassigningPartition(Message):
    index: Int32
    replicas: list[Int32] | None


class ReassigningTopic(Message):
    name: String
    partitions: list[ReassigningPartition]


class AlterPartitionReassignmentsRequest(Message, kw_only=True):
    timeout_ms: Int32
    allow_replication_factor_change: Annotated[Bool, At(1)] = True
    topics: list[ReassigningTopic]


class ReassignedPartition(Message):
    index: Int32
    error_code: Int16
    error_message: NullableString = None


class ReassignedTopic(Message):
    name: String
    partitions: list[ReassignedPartition]


class AlterPartitionReassignmentsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, At(1)] = True
    error_code: Int16 = 0
    error_message: NullableString = None
    topics: list[ReassignedTopic]


class ListPartitionReassignmentsRequest(Message):
    timeout_ms: Int32
    topics: list[NamedPartitions] | None


class MovingPartition(Message):
    index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class MovingTopic(Message):
    name: String
    partitions: list[MovingPartition]


class ListPartitionReassignmentsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    topics: list[MovingTopic]


class MovingLogDir(Message):
    path: String
    topics: list[NamedPartitions]


class AlterReplicaLogDirsRequest(Message):
    dirs: list[MovingLogDir]


class MovedLog(Message):
    index: Int32
    error_code: Int16


class MovedLogs(Message):
    name: String
    partitions: list[MovedLog]


class AlterReplicaLogDirsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    topics: list[MovedLogs]
