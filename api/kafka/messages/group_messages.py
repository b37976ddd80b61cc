"""Groups of consumers: their members, what these subscribe to, and their offsets."""

from __future__ import annotations

import struct
from typing import Annotated, Final

from msgspec import field

from deltamq.api.kafka.messages.codec import (
    NO_TOPIC_ID,
    At,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Reader,
    String,
    Uuid,
)
from deltamq.mq.errors import Refused


class FindCoordinatorRequest(Message):
    key: Annotated[String, At(0, 3)] = ""
    key_type: Annotated[Int8, At(1)] = 0
    keys: Annotated[list[String], At(4)] = field(default_factory=list)


class FoundCoordinator(Message, kw_only=True):
    key: String
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1
    error_code: Int16
    error_message: NullableString = None


class FindCoordinatorResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Annotated[Int16, At(0, 3)] = 0
    error_message: Annotated[NullableString, At(1, 3)] = None
    node_id: Annotated[Int32, At(0, 3)] = -1
    host: Annotated[String, At(0, 3)] = ""
    port: Annotated[Int32, At(0, 3)] = -1
    coordinators: Annotated[list[FoundCoordinator], At(4)] = field(default_factory=list)


class GroupProtocol(Message):
    name: String
    metadata: Bytes


class JoinGroupRequest(Message, kw_only=True):
    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, At(1)] = -1
    member_id: String
    group_instance_id: Annotated[NullableString, At(5)] = None
    protocol_type: String
    protocols: list[GroupProtocol]
    reason: Annotated[NullableString, At(8)] = None


class JoinedMember(Message, kw_only=True):
    member_id: String
    group_instance_id: Annotated[NullableString, At(5)] = None
    metadata: Bytes


class JoinGroupResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(2)] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[NullableString, At(7)] = None
    #: Null where there is none; versions below 7 have an empty one.
    protocol_name: NullableString = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, At(9)] = False
    member_id: String = ""
    members: list[JoinedMember] = field(default_factory=list)


class PlannedAssignment(Message):
    member_id: String
    assignment: Bytes


class SyncGroupRequest(Message, kw_only=True):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[NullableString, At(3)] = None
    protocol_type: Annotated[NullableString, At(5)] = None
    protocol_name: Annotated[NullableString, At(5)] = None
    assignments: list[PlannedAssignment]


class SyncGroupResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Int16
    protocol_type: Annotated[NullableString, At(5)] = None
    protocol_name: Annotated[NullableString, At(5)] = None
    assignment: Bytes = b""


class HeartbeatRequest(Message):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[NullableString, At(3)] = None


class HeartbeatResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Int16


class LeavingMember(Message):
    member_id: String
    group_instance_id: NullableString
    reason: Annotated[NullableString, At(5)] = None


class LeaveGroupRequest(Message):
    group_id: String
    member_id: Annotated[String, At(0, 2)] = ""
    members: Annotated[list[LeavingMember], At(3)] = field(default_factory=list)


class LeftMember(Message):
    member_id: String
    group_instance_id: NullableString
    error_code: Int16


class LeaveGroupResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Int16
    members: Annotated[list[LeftMember], At(3)] = field(default_factory=list)


class CommitPartition(Message, kw_only=True):
    index: Int32
    offset: Int64
    leader_epoch: Annotated[Int32, At(6)] = -1
    metadata: NullableString = None


class CommitTopic(Message):
    name: Annotated[String, At(0, 9)] = ""
    topic_id: Annotated[Uuid, At(10)] = NO_TOPIC_ID
    partitions: list[CommitPartition] = field(default_factory=list)


class OffsetCommitRequest(Message, kw_only=True):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[NullableString, At(7)] = None
    retention_time_ms: Annotated[Int64, At(2, 4)] = -1
    topics: list[CommitTopic]


class CommittedOffset(Message):
    index: Int32
    error_code: Int16


class CommittedTopic(Message):
    name: Annotated[String, At(0, 9)] = ""
    topic_id: Annotated[Uuid, At(10)] = NO_TOPIC_ID
    partitions: list[CommittedOffset] = field(default_factory=list)


class OffsetCommitResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(3)] = 0
    topics: list[CommittedTopic]


class OffsetDeleteTopic(Message):
    name: String
    partitions: list[Int32]


class OffsetDeleteRequest(Message):
    group_id: String
    topics: list[OffsetDeleteTopic]


class OffsetDeleteResponse(Message, kw_only=True):
    error_code: Int16
    throttle_ms: Int32 = 0
    topics: list[CommittedTopic] = field(default_factory=list)


class OffsetFetchTopic(Message):
    name: Annotated[String, At(0, 9)] = ""
    topic_id: Annotated[Uuid, At(10)] = NO_TOPIC_ID
    partitions: list[Int32] = field(default_factory=list)


class OffsetFetchGroup(Message, kw_only=True):
    group_id: String
    member_id: Annotated[NullableString, At(9)] = None
    member_epoch: Annotated[Int32, At(9)] = -1
    topics: list[OffsetFetchTopic] | None


class OffsetFetchRequest(Message):
    group_id: Annotated[String, At(0, 7)] = ""
    topics: Annotated[list[OffsetFetchTopic] | None, At(0, 7)] = None
    groups: Annotated[list[OffsetFetchGroup], At(8)] = field(default_factory=list)
    require_stable: Annotated[Bool, At(7)] = False


class FetchedOffset(Message):
    index: Int32
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, At(5)] = -1
    metadata: NullableString = ""
    error_code: Int16 = 0


class FetchedOffsets(Message):
    name: Annotated[String, At(0, 9)] = ""
    topic_id: Annotated[Uuid, At(10)] = NO_TOPIC_ID
    partitions: list[FetchedOffset] = field(default_factory=list)


class FetchedGroup(Message, kw_only=True):
    group_id: String
    topics: list[FetchedOffsets] = field(default_factory=list)
    error_code: Int16 = 0


class OffsetFetchResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(3)] = 0
    topics: Annotated[list[FetchedOffsets], At(0, 7)] = field(default_factory=list)
    error_code: Annotated[Int16, At(2, 7)] = 0
    groups: Annotated[list[FetchedGroup], At(8)] = field(default_factory=list)


class ListGroupsRequest(Message):
    states: Annotated[list[String], At(4)] = field(default_factory=list)
    types: Annotated[list[String], At(5)] = field(default_factory=list)


class ListedGroup(Message):
    group_id: String
    protocol_type: String
    state: Annotated[String, At(4)] = ""
    type: Annotated[String, At(5)] = ""


class ListGroupsResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Int16
    groups: list[ListedGroup]


class DescribeGroupsRequest(Message):
    groups: list[String]
    include_operations: Annotated[Bool, At(3)] = False


class DescribedMember(Message, kw_only=True):
    member_id: String
    group_instance_id: Annotated[NullableString, At(4)] = None
    client_id: String
    client_host: String
    metadata: Bytes
    assignment: Bytes


class DescribedGroup(Message, kw_only=True):
    error_code: Int16
    error_message: Annotated[NullableString, At(6)] = None
    group_id: String
    state: String = ""
    protocol_type: String = ""
    protocol: String = ""
    members: list[DescribedMember] = field(default_factory=list)
    operations: Annotated[Int32, At(3)] = -(2**31)


class DescribeGroupsResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    groups: list[DescribedGroup]


class DeleteGroupsRequest(Message):
    names: list[String]


class DeletedGroup(Message):
    group_id: String
    error_code: Int16


class DeleteGroupsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    results: list[DeletedGroup]


_SHORT: Final = struct.Struct(">h")


def subscription_of(data: bytes | memoryview) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription; None if it is none.

    To the coordinator it is only bytes of the members:

        version (2)   topics: count (4), names   what else the version has
    """
    reader = Reader(memoryview(data))
    try:
        reader.number(_SHORT)
        count = reader.count(flexible=False)
        return frozenset(str(reader.take(reader.number(_SHORT)), "utf-8") for _ in range(count))
    except (Refused, UnicodeDecodeError):
        return None
