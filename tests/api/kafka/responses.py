"""The answer to each call of the Kafka door."""

from __future__ import annotations

from typing import Final

from api.kafka.messages import (
    AlterConfigsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteGroupsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeGroupsResponse,
    DescribeLogDirsResponse,
    FetchResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    IncrementalAlterConfigsResponse,
    InitProducerIdResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    ListOffsetsResponse,
    Message,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    OffsetForLeaderEpochResponse,
    ProduceResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    SyncGroupResponse,
)
from api.kafka.messages.cluster_messages import ApiVersionsResponse

__all__ = ["RESPONSES"]

RESPONSES: Final[dict[int, type[Message]]] = {
    0: ProduceResponse,
    1: FetchResponse,
    2: ListOffsetsResponse,
    3: MetadataResponse,
    8: OffsetCommitResponse,
    9: OffsetFetchResponse,
    10: FindCoordinatorResponse,
    11: JoinGroupResponse,
    12: HeartbeatResponse,
    13: LeaveGroupResponse,
    14: SyncGroupResponse,
    15: DescribeGroupsResponse,
    16: ListGroupsResponse,
    42: DeleteGroupsResponse,
    17: SaslHandshakeResponse,
    18: ApiVersionsResponse,
    35: DescribeLogDirsResponse,
    36: SaslAuthenticateResponse,
    19: CreateTopicsResponse,
    20: DeleteTopicsResponse,
    21: DeleteRecordsResponse,
    22: InitProducerIdResponse,
    32: DescribeConfigsResponse,
    37: CreatePartitionsResponse,
    23: OffsetForLeaderEpochResponse,
    33: AlterConfigsResponse,
    44: IncrementalAlterConfigsResponse,
    47: OffsetDeleteResponse,
    60: DescribeClusterResponse,
}
