"""Topics, groups and the cluster as typed values."""

from __future__ import annotations

from deltamq.mq.client.admin.access_admin import AccessInfo
from deltamq.mq.client.admin.admin import (
    Admin,
    BrokerInfo,
    ClusterInfo,
    FeatureInfo,
    HostInfo,
    MissingJob,
    StoppedPartition,
    UpgradeInfo,
)
from deltamq.mq.client.admin.audit_admin import ActInfo, RefusalInfo
from deltamq.mq.client.admin.auth_admin import AclInfo, KeyInfo, NewKey, PrincipalInfo, QuotaInfo
from deltamq.mq.client.admin.dead_letter_admin import DeadLetter, FailedReplay
from deltamq.mq.client.admin.group_admin import (
    GroupClient,
    GroupInfo,
    GroupMember,
    GroupPartition,
    GroupPlace,
    GroupStatistics,
    GroupTopic,
    TopicStatistics,
)
from deltamq.mq.client.admin.static_admin import (
    FaultInfo,
    MappingInfo,
    MovedQueue,
    RemapMode,
    Remapping,
    TopicCheck,
    TopicRepair,
)
from deltamq.mq.client.admin.topic_info import PartitionInfo, QueueInfo, SegmentInfo, TopicInfo, topic_info
from deltamq.mq.client.admin.topic_view import TopicView, broker_in, fetch_view, lp_of

__all__ = [
    "AccessInfo",
    "AclInfo",
    "ActInfo",
    "Admin",
    "BrokerInfo",
    "ClusterInfo",
    "DeadLetter",
    "FailedReplay",
    "FaultInfo",
    "FeatureInfo",
    "GroupClient",
    "GroupInfo",
    "GroupMember",
    "GroupPartition",
    "GroupPlace",
    "GroupStatistics",
    "GroupTopic",
    "HostInfo",
    "KeyInfo",
    "MappingInfo",
    "MissingJob",
    "MovedQueue",
    "NewKey",
    "PartitionInfo",
    "PrincipalInfo",
    "QueueInfo",
    "QuotaInfo",
    "RefusalInfo",
    "RemapMode",
    "Remapping",
    "SegmentInfo",
    "StoppedPartition",
    "TopicCheck",
    "TopicInfo",
    "TopicRepair",
    "TopicStatistics",
    "TopicView",
    "UpgradeInfo",
    "broker_in",
    "fetch_view",
    "lp_of",
    "topic_info",
]
