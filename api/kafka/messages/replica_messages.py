"""What administrators ask about replicas: who leads, which nodes and folders have them."""

from __future__ import annotations

from typing import Annotated

from deltamq.api.kafka.messages.codec import At, Bool, Int8, Int16, Int32, Message, NullableString, String


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
