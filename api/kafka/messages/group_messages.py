"""Groups of consumers: their members, and their offsets."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from api.kafka.messages.codec import At, Bool, Bytes, Int8, Int16, Int32, Int64, Message, NullableString, String

__all__ = [
    "CommitPartition",
    "CommitTopic",
    "CommittedOffset",
    "CommittedTopic",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeletedGroup",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribedGroup",
    "DescribedMember",
    "FetchedOffset",
    "FetchedOffsets",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "JoinedMember",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "LeftMember",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
]


class FindCoordinatorRequest(Message):
    key: String
    key_type: Annotated[Int8, At(1)] = 0


class FindCoordinatorResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Int16
    error_message: Annotated[NullableString, At(1)] = None
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1


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


class JoinedMember(Message, kw_only=True):
    member_id: String
    group_instance_id: Annotated[NullableString, At(5)] = None
    metadata: Bytes


class JoinGroupResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(2)] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_name: String = ""
    leader: String = ""
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
    assignments: list[PlannedAssignment]


class SyncGroupResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(1)] = 0
    error_code: Int16
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
    name: String
    partitions: list[CommitPartition]


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
    name: String
    partitions: list[CommittedOffset]


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
    name: String
    partitions: list[Int32]


class OffsetFetchRequest(Message):
    group_id: String
    topics: list[OffsetFetchTopic] | None


class FetchedOffset(Message):
    index: Int32
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, At(5)] = -1
    metadata: NullableString = ""
    error_code: Int16 = 0


class FetchedOffsets(Message):
    name: String
    partitions: list[FetchedOffset]


class OffsetFetchResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(3)] = 0
    topics: list[FetchedOffsets]
    error_code: Annotated[Int16, At(2)] = 0


class ListGroupsRequest(Message):
    pass


class ListedGroup(Message):
    group_id: String
    protocol_type: String


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
