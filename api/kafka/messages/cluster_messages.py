"""ApiVersions, Metadata, DescribeCluster, DescribeQuorum, and what administrators ask: topics and their settings."""

from __future__ import annotations

from typing import Annotated, Final

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
    NullableString,
    String,
    UInt16,
    Uuid,
)

#: The answer to a question for permissions: not asked, or not known.
NO_OPERATIONS: Final = -(2**31)
#: The topic of Kafka's own metadata, the only one that has a quorum.
METADATA_TOPIC: Final = "__cluster_metadata"
#: The kinds of nodes that clients ask for.
BROKERS: Final = 1
CONTROLLERS: Final = 2
#: The kind of resources of settings that the first version of the list is about.
CLIENT_METRICS: Final = 16


class ApiVersionsRequest(Message):
    client_software_name: Annotated[String, At(3)] = ""
    client_software_version: Annotated[String, At(3)] = ""


class ApiVersion(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class ApiVersionsResponse(Message):
    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_ms: Annotated[Int32, At(1)] = 0


class MetadataRequestTopic(Message, kw_only=True):
    topic_id: Annotated[Uuid, At(10)] = NO_TOPIC_ID
    name: NullableString


class MetadataRequest(Message):
    topics: list[MetadataRequestTopic] | None
    allow_auto_topic_creation: Annotated[Bool, At(4)] = True
    include_cluster_operations: Annotated[Bool, At(8, 10)] = False
    include_topic_operations: Annotated[Bool, At(8)] = False


class BrokerNode(Message):
    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[NullableString, At(1)] = None


class MetadataPartition(Message):
    error_code: Int16
    index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, At(7)] = -1
    replicas: list[Int32] = field(default_factory=list)
    in_sync: list[Int32] = field(default_factory=list)
    offline: Annotated[list[Int32], At(5)] = field(default_factory=list)


class MetadataTopic(Message):
    error_code: Int16
    name: NullableString
    topic_id: Annotated[Uuid, At(10)] = NO_TOPIC_ID
    is_internal: Annotated[Bool, At(1)] = False
    partitions: list[MetadataPartition] = field(default_factory=list)
    operations: Annotated[Int32, At(8)] = NO_OPERATIONS


class MetadataResponse(Message, kw_only=True):
    throttle_ms: Annotated[Int32, At(3)] = 0
    brokers: list[BrokerNode]
    cluster_id: Annotated[NullableString, At(2)] = None
    controller_id: Annotated[Int32, At(1)] = -1
    topics: list[MetadataTopic]
    operations: Annotated[Int32, At(8, 10)] = NO_OPERATIONS
    error_code: Annotated[Int16, At(13)] = 0


class PartitionCursor(Message):
    topic_name: String
    partition_index: Int32


class WantedTopic(Message):
    name: String


class DescribeTopicPartitionsRequest(Message):
    topics: list[WantedTopic]
    partitions_max: Int32 = 2_000
    cursor: PartitionCursor | None = None


class DescribedPartition(Message):
    error_code: Int16
    index: Int32
    leader_id: Int32
    leader_epoch: Int32
    replicas: list[Int32]
    in_sync: list[Int32]
    eligible_leaders: list[Int32] | None = field(default_factory=list)
    last_known_eligible: list[Int32] | None = field(default_factory=list)
    offline: list[Int32] = field(default_factory=list)


class DescribedTopic(Message, kw_only=True):
    error_code: Int16
    name: NullableString
    topic_id: Uuid = NO_TOPIC_ID
    is_internal: Bool = False
    partitions: list[DescribedPartition] = field(default_factory=list)
    operations: Int32 = NO_OPERATIONS


class DescribeTopicPartitionsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    topics: list[DescribedTopic]
    cursor: PartitionCursor | None = None


class DescribeClusterRequest(Message):
    include_operations: Bool = False
    endpoint_type: Annotated[Int8, At(1)] = BROKERS
    include_fenced_brokers: Annotated[Bool, At(2)] = False


class ClusterNode(Message):
    broker_id: Int32
    host: String
    port: Int32
    rack: NullableString = None
    is_fenced: Annotated[Bool, At(2)] = False


class DescribeClusterResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    endpoint_type: Annotated[Int8, At(1)] = BROKERS
    cluster_id: String
    controller_id: Int32
    brokers: list[ClusterNode]
    operations: Int32 = NO_OPERATIONS


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


class DescribableLogs(Message):
    name: String
    partitions: list[Int32]


class DescribeLogDirsRequest(Message):
    topics: list[DescribableLogs] | None


class LogDirPartition(Message):
    index: Int32
    size: Int64
    offset_lag: Int64 = 0
    is_future: Bool = False


class LogDirTopic(Message):
    name: String
    partitions: list[LogDirPartition]


class LogDir(Message, kw_only=True):
    error_code: Int16 = 0
    log_dir: String
    topics: list[LogDirTopic]
    total_bytes: Annotated[Int64, At(4)] = -1
    usable_bytes: Annotated[Int64, At(4)] = -1
    is_cordoned: Annotated[Bool, At(5)] = False


class DescribeLogDirsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Annotated[Int16, At(3)] = 0
    results: list[LogDir]


class Assignment(Message):
    partition: Int32
    broker_ids: list[Int32]


class NamedValue(Message):
    name: String
    value: NullableString


class CreateTopic(Message):
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[Assignment]
    configs: list[NamedValue]


class CreateTopicsRequest(Message):
    topics: list[CreateTopic]
    timeout_ms: Int32
    validate_only: Bool = False


class CreatedConfig(Message):
    name: String
    value: NullableString
    read_only: Bool
    source: Int8
    sensitive: Bool


class CreatedTopic(Message, kw_only=True):
    name: String
    topic_id: Annotated[Uuid, At(7)] = NO_TOPIC_ID
    error_code: Int16
    error_message: NullableString = None
    num_partitions: Annotated[Int32, At(5)] = -1
    replication_factor: Annotated[Int16, At(5)] = -1
    configs: Annotated[list[CreatedConfig] | None, At(5)] = None


class CreateTopicsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    topics: list[CreatedTopic]


class DeletingTopic(Message, kw_only=True):
    name: NullableString = None
    topic_id: Uuid = NO_TOPIC_ID


class DeleteTopicsRequest(Message, kw_only=True):
    topics: Annotated[list[DeletingTopic], At(6)] = field(default_factory=list)
    names: Annotated[list[String], At(0, 5)] = field(default_factory=list)
    timeout_ms: Int32


class DeletedTopic(Message, kw_only=True):
    name: NullableString
    topic_id: Annotated[Uuid, At(6)] = NO_TOPIC_ID
    error_code: Int16
    error_message: Annotated[NullableString, At(5)] = None


class DeleteTopicsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    topics: list[DeletedTopic]


class NewAssignment(Message):
    broker_ids: list[Int32]


class NewPartitions(Message):
    name: String
    count: Int32
    assignments: list[NewAssignment] | None


class CreatePartitionsRequest(Message):
    topics: list[NewPartitions]
    timeout_ms: Int32
    validate_only: Bool


class CreatePartitionsResult(Message):
    name: String
    error_code: Int16
    error_message: NullableString = None


class CreatePartitionsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    results: list[CreatePartitionsResult]


class ConfigResource(Message):
    resource_type: Int8
    resource_name: String
    keys: list[String] | None


class DescribeConfigsRequest(Message):
    resources: list[ConfigResource]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, At(3)] = False


class ConfigSynonym(Message):
    name: String
    value: NullableString
    source: Int8


class ConfigEntry(Message):
    name: String
    value: NullableString
    read_only: Bool
    source: Int8
    sensitive: Bool = False
    synonyms: list[ConfigSynonym] = field(default_factory=list)
    config_type: Annotated[Int8, At(3)] = 0
    documentation: Annotated[NullableString, At(3)] = None


class ConfigResult(Message):
    error_code: Int16
    error_message: NullableString
    resource_type: Int8
    resource_name: String
    configs: list[ConfigEntry] = field(default_factory=list)


class DescribeConfigsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    results: list[ConfigResult]


class ListConfigResourcesRequest(Message):
    resource_types: Annotated[list[Int8], At(1)] = field(default_factory=list)


class ListedResource(Message):
    name: String
    resource_type: Annotated[Int8, At(1)] = CLIENT_METRICS


class ListConfigResourcesResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    error_code: Int16 = 0
    resources: list[ListedResource]


class AlteringConfigs(Message):
    resource_type: Int8
    resource_name: String
    configs: list[NamedValue]


class AlterConfigsRequest(Message):
    resources: list[AlteringConfigs]
    validate_only: Bool


class AlteredConfigs(Message):
    error_code: Int16
    error_message: NullableString
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    responses: list[AlteredConfigs]


class AlteringConfig(Message):
    name: String
    operation: Int8
    value: NullableString


class IncrementallyAltering(Message):
    resource_type: Int8
    resource_name: String
    configs: list[AlteringConfig]


class IncrementalAlterConfigsRequest(Message):
    resources: list[IncrementallyAltering]
    validate_only: Bool


class IncrementalAlterConfigsResponse(Message, kw_only=True):
    throttle_ms: Int32 = 0
    responses: list[AlteredConfigs]
