"""Topics, groups and the cluster as typed values."""

from __future__ import annotations

from mq.client.admin.admin import Admin, BrokerInfo, ClusterInfo, HostInfo, PartitionInfo, TopicInfo, topic_info
from mq.client.admin.group_admin import DeadLetter, GroupClient, GroupInfo, GroupPartition, GroupPlace, GroupTopic
from mq.client.admin.topic_view import TopicView, fetch_view, lp_of

__all__ = [
    "Admin",
    "BrokerInfo",
    "ClusterInfo",
    "DeadLetter",
    "GroupClient",
    "GroupInfo",
    "GroupPartition",
    "GroupPlace",
    "GroupTopic",
    "HostInfo",
    "PartitionInfo",
    "TopicInfo",
    "TopicView",
    "fetch_view",
    "lp_of",
    "topic_info",
]
