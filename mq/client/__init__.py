"""The Python SDK: the names that users import. It speaks HTTP and depends on no layer of DeltaMQ but `mq`.

    from mq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer

Every name is loaded on first use, so that the command line and the checks of other layers, which share this package, do
not wait for the import of Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mq.client.admin import (
        AclInfo,
        Admin,
        BrokerInfo,
        ClusterInfo,
        DeadLetter,
        FaultInfo,
        GroupInfo,
        GroupMember,
        GroupPartition,
        GroupStatistics,
        GroupTopic,
        HostInfo,
        KeyInfo,
        MappingInfo,
        MovedQueue,
        NewKey,
        PartitionInfo,
        PrincipalInfo,
        QueueInfo,
        Remapping,
        SegmentInfo,
        TopicCheck,
        TopicInfo,
        TopicRepair,
        TopicStatistics,
    )
    from mq.client.http import Patience
    from mq.client.messages import (
        FailedHandle,
        Failure,
        Message,
        MessageOrigin,
        OrderedMessage,
        PartlySent,
        PopBatch,
        PoppedMessage,
        PopTable,
        ReceivedMessage,
        Result,
        Sent,
        SentBatch,
        SentRange,
    )
    from mq.client.orderly import OrderlyClosed, OrderlyConsumer, Suspend, Verdict
    from mq.client.outbox import Outbox, OutboxDialect, OutboxRelay, OutboxStatus, RelayStats, SetAside
    from mq.client.pop import ConsumerClosed, ConsumerStats, Ending, HandlerEnd, PopClient, PopConsumer
    from mq.client.produce import Closed, Producer, ProducerStats, TableProgress, TableSendInterrupted, TableSendState
    from mq.client.pull import BroadcastOffsets, FileOffsets, GroupOffsets, PullConsumer

__all__ = [
    "AclInfo",
    "Admin",
    "BroadcastOffsets",
    "BrokerInfo",
    "Closed",
    "ClusterInfo",
    "ConsumerClosed",
    "ConsumerStats",
    "DeadLetter",
    "Ending",
    "FailedHandle",
    "Failure",
    "FaultInfo",
    "FileOffsets",
    "GroupInfo",
    "GroupMember",
    "GroupOffsets",
    "GroupPartition",
    "GroupStatistics",
    "GroupTopic",
    "HandlerEnd",
    "HostInfo",
    "KeyInfo",
    "MappingInfo",
    "Message",
    "MessageOrigin",
    "MovedQueue",
    "NewKey",
    "OrderedMessage",
    "OrderlyClosed",
    "OrderlyConsumer",
    "Outbox",
    "OutboxDialect",
    "OutboxRelay",
    "OutboxStatus",
    "PartitionInfo",
    "PartlySent",
    "Patience",
    "PopBatch",
    "PopClient",
    "PopConsumer",
    "PopTable",
    "PoppedMessage",
    "PrincipalInfo",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "QueueInfo",
    "ReceivedMessage",
    "RelayStats",
    "Remapping",
    "Result",
    "SegmentInfo",
    "Sent",
    "SentBatch",
    "SentRange",
    "SetAside",
    "Suspend",
    "TableProgress",
    "TableSendInterrupted",
    "TableSendState",
    "TopicCheck",
    "TopicInfo",
    "TopicRepair",
    "TopicStatistics",
    "Verdict",
]

#: The room that each name is imported from.
_ROOMS = {
    "AclInfo": "admin",
    "Admin": "admin",
    "BrokerInfo": "admin",
    "Closed": "produce",
    "ClusterInfo": "admin",
    "ConsumerClosed": "pop",
    "ConsumerStats": "pop",
    "DeadLetter": "admin",
    "Ending": "pop",
    "FailedHandle": "messages",
    "Failure": "messages",
    "FaultInfo": "admin",
    "FileOffsets": "pull",
    "GroupInfo": "admin",
    "GroupMember": "admin",
    "BroadcastOffsets": "pull",
    "GroupOffsets": "pull",
    "GroupPartition": "admin",
    "GroupStatistics": "admin",
    "GroupTopic": "admin",
    "HandlerEnd": "pop",
    "HostInfo": "admin",
    "KeyInfo": "admin",
    "MappingInfo": "admin",
    "Message": "messages",
    "MessageOrigin": "messages",
    "MovedQueue": "admin",
    "NewKey": "admin",
    "OrderedMessage": "messages",
    "OrderlyClosed": "orderly",
    "OrderlyConsumer": "orderly",
    "Outbox": "outbox",
    "OutboxDialect": "outbox",
    "OutboxRelay": "outbox",
    "OutboxStatus": "outbox",
    "PartitionInfo": "admin",
    "PrincipalInfo": "admin",
    "PartlySent": "messages",
    "Patience": "http",
    "PopBatch": "messages",
    "PopClient": "pop",
    "PopConsumer": "pop",
    "PopTable": "messages",
    "PoppedMessage": "messages",
    "Producer": "produce",
    "ProducerStats": "produce",
    "PullConsumer": "pull",
    "QueueInfo": "admin",
    "ReceivedMessage": "messages",
    "RelayStats": "outbox",
    "Remapping": "admin",
    "Result": "messages",
    "SegmentInfo": "admin",
    "Sent": "messages",
    "SentBatch": "messages",
    "SentRange": "messages",
    "SetAside": "outbox",
    "Suspend": "orderly",
    "TableProgress": "produce",
    "TableSendInterrupted": "produce",
    "TableSendState": "produce",
    "TopicCheck": "admin",
    "TopicInfo": "admin",
    "TopicRepair": "admin",
    "TopicStatistics": "admin",
    "Verdict": "orderly",
}


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
