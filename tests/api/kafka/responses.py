"""The answer to each call of the Kafka door."""

from __future__ import annotations

from typing import Final

from deltamq.api.kafka.messages.cluster_messages import (
    AlterConfigsResponse,
    ApiVersionsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    DescribeTopicPartitionsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
    MetadataResponse,
)
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.group_messages import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from deltamq.api.kafka.messages.log_messages import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    DeleteRecordsResponse,
    ElectLeadersResponse,
    FetchResponse,
    InitProducerIdResponse,
    ListOffsetsResponse,
    ListPartitionReassignmentsResponse,
    OffsetForLeaderEpochResponse,
    ProduceResponse,
)
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasResponse,
    AlterUserScramCredentialsResponse,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

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
    55: DescribeQuorumResponse,
    60: DescribeClusterResponse,
    34: AlterReplicaLogDirsResponse,
    43: ElectLeadersResponse,
    45: AlterPartitionReassignmentsResponse,
    46: ListPartitionReassignmentsResponse,
    48: DescribeClientQuotasResponse,
    49: AlterClientQuotasResponse,
    50: DescribeUserScramCredentialsResponse,
    51: AlterUserScramCredentialsResponse,
    74: ListConfigResourcesResponse,
    75: DescribeTopicPartitionsResponse,
}
