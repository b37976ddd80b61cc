"""One request of every call of Kafka, and what its answer says."""

from __future__ import annotations

from collections.abc import Callable

from deltamq.api.kafka.messages.cluster_messages import (
    METADATA_TOPIC,
    AlterConfigsRequest,
    AlteringConfigs,
    ConfigResource,
    CreatePartitionsRequest,
    CreateTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    IncrementallyAltering,
    ListConfigResourcesRequest,
    MetadataRequest,
    MetadataRequestTopic,
    NewPartitions,
    QuorumPartition,
    QuorumTopic,
    WantedTopic,
)
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    CommitPartition,
    CommitTopic,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
    OffsetFetchRequest,
    OffsetFetchTopic,
    SyncGroupRequest,
)
from deltamq.api.kafka.messages.log_messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ElectLeadersRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ListPartitionReassignmentsRequest,
    MovingLogDir,
    NamedPartitions,
    OffsetForLeaderEpochRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    ReassigningPartition,
    ReassigningTopic,
    WantedEpoch,
    WantedEpochs,
)
from deltamq.api.kafka.messages.user_messages import (
    AlterClientQuotasRequest,
    AlteringQuota,
    AlterUserScramCredentialsRequest,
    CredentialDeletion,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    QuotaEntity,
    UserName,
)

ANYTHING: dict[type[Message], Callable[[str], Message]] = {
    ProduceRequest: lambda name: ProduceRequest(
        None, 1, 1_000, [ProduceTopic(name=name, partitions=[ProducePartition(0, b"")])]
    ),
    FetchRequest: lambda name: FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        topics=[
            FetchTopic(name=name, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)])
        ],
    ),
    ListOffsetsRequest: lambda name: ListOffsetsRequest(
        topics=[ListOffsetsTopic(name, [ListOffsetsPartition(index=0, timestamp=-1)])]
    ),
    MetadataRequest: lambda name: MetadataRequest([MetadataRequestTopic(name=name)], False),
    DescribeClusterRequest: lambda name: DescribeClusterRequest(),
    DescribeLogDirsRequest: lambda name: DescribeLogDirsRequest(None),
    DescribeQuorumRequest: lambda name: DescribeQuorumRequest([QuorumTopic(METADATA_TOPIC, [QuorumPartition(0)])]),
    InitProducerIdRequest: lambda name: InitProducerIdRequest(None, 1_000),
    CreateTopicsRequest: lambda name: CreateTopicsRequest([CreateTopic(name, 1, 1, [], [])], 1_000, True),
    DeleteTopicsRequest: lambda name: DeleteTopicsRequest(names=[name], timeout_ms=1_000),
    DeleteRecordsRequest: lambda name: DeleteRecordsRequest(
        [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 0)])], 1_000
    ),
    CreatePartitionsRequest: lambda name: CreatePartitionsRequest([NewPartitions(name, 9, None)], 1_000, True),
    DescribeConfigsRequest: lambda name: DescribeConfigsRequest([ConfigResource(2, name, None)]),
    AlterConfigsRequest: lambda name: AlterConfigsRequest([AlteringConfigs(2, name, [])], True),
    IncrementalAlterConfigsRequest: lambda name: IncrementalAlterConfigsRequest(
        [IncrementallyAltering(2, name, [])], True
    ),
    OffsetForLeaderEpochRequest: lambda name: OffsetForLeaderEpochRequest(
        topics=[WantedEpochs(name, [WantedEpoch(index=0, leader_epoch=0)])]
    ),
    ListConfigResourcesRequest: lambda name: ListConfigResourcesRequest(),
    DescribeTopicPartitionsRequest: lambda name: DescribeTopicPartitionsRequest([WantedTopic(name)]),
    ElectLeadersRequest: lambda name: ElectLeadersRequest(topics=[NamedPartitions(name, [0])], timeout_ms=1_000),
    AlterPartitionReassignmentsRequest: lambda name: AlterPartitionReassignmentsRequest(
        timeout_ms=1_000, topics=[ReassigningTopic(name, [ReassigningPartition(0, None)])]
    ),
    ListPartitionReassignmentsRequest: lambda name: ListPartitionReassignmentsRequest(1_000, None),
    AlterReplicaLogDirsRequest: lambda name: AlterReplicaLogDirsRequest(
        [MovingLogDir("/elsewhere", [NamedPartitions(name, [0])])]
    ),
    DescribeClientQuotasRequest: lambda name: DescribeClientQuotasRequest([], False),
    AlterClientQuotasRequest: lambda name: AlterClientQuotasRequest(
        [AlteringQuota([QuotaEntity("user", name)], [])], True
    ),
    DescribeUserScramCredentialsRequest: lambda name: DescribeUserScramCredentialsRequest([UserName(name)]),
    AlterUserScramCredentialsRequest: lambda name: AlterUserScramCredentialsRequest([CredentialDeletion(name, 1)], []),
    FindCoordinatorRequest: lambda name: FindCoordinatorRequest(keys=[name]),
    JoinGroupRequest: lambda name: JoinGroupRequest(
        group_id=name,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id="",
        protocol_type="consumer",
        protocols=[GroupProtocol("range", b"")],
    ),
    SyncGroupRequest: lambda name: SyncGroupRequest(
        group_id=name,
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    ),
    HeartbeatRequest: lambda name: HeartbeatRequest(name, 1, "m"),
    LeaveGroupRequest: lambda name: LeaveGroupRequest(name, members=[LeavingMember("m", None)]),
    OffsetCommitRequest: lambda name: OffsetCommitRequest(
        group_id=name,
        generation_id=-1,
        member_id="",
        topics=[CommitTopic(name=name, partitions=[CommitPartition(index=0, offset=0)])],
    ),
    OffsetDeleteRequest: lambda name: OffsetDeleteRequest(name, [OffsetDeleteTopic(name, [0])]),
    OffsetFetchRequest: lambda name: OffsetFetchRequest(name, [OffsetFetchTopic(name=name, partitions=[0])]),
    ListGroupsRequest: lambda name: ListGroupsRequest(),
    DescribeGroupsRequest: lambda name: DescribeGroupsRequest([name]),
    DeleteGroupsRequest: lambda name: DeleteGroupsRequest([name]),
}
REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def errors_in(answer: object) -> set[int]:
    """Return all error codes of an answer, also of its parts."""
    if isinstance(answer, list):
        return set().union(*map(errors_in, answer)) if answer else set()
    if not isinstance(answer, Message):
        return set()
    found = {answer.error_code} if hasattr(answer, "error_code") else set()
    return found.union(*(errors_in(getattr(answer, name)) for name in answer.__struct_fields__))


def waiting_fetch(name: str) -> Message:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        max_wait_ms=30_000, min_bytes=1, max_bytes=1_000, topics=[FetchTopic(name=name, partitions=[wanted])]
    )
