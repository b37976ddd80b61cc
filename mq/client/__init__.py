"""The Python SDK: what users import, over HTTP; of DeltaMQ it knows only `mq`.

    from mq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer

Every name is loaded when it is first used, so that the command line and the checks of other layers, which share this
package, do not wait for Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mq.client.admin import Admin, BrokerInfo, ClusterInfo, HostInfo, PartitionInfo, TopicInfo
    from mq.client.attempts import Patience
    from mq.client.consumer_stats import ConsumerStats
    from mq.client.group_admin import DeadLetter, GroupInfo, GroupPartition, GroupTopic
    from mq.client.message import Message
    from mq.client.offset_stores import FileOffsets, GroupOffsets
    from mq.client.orderly_consumer import OrderlyClosed, OrderlyConsumer
    from mq.client.orderly_listener import Suspend
    from mq.client.outbox import Closed
    from mq.client.pop_client import PopClient
    from mq.client.pop_consumer import ConsumerClosed, PopConsumer
    from mq.client.popped import FailedHandle, MessageOrigin, PopBatch, PoppedMessage, PopTable
    from mq.client.producer import Producer
    from mq.client.pull import PullConsumer
    from mq.client.received import OrderedMessage, ReceivedMessage
    from mq.client.result import Result
    from mq.client.sent import Failure, PartlySent, Sent, SentBatch, SentRange
    from mq.client.shared import ProducerStats
    from mq.client.table_send import TableProgress, TableSendInterrupted, TableSendState
    from mq.order import Verdict

__all__ = [
    "Admin",
    "BrokerInfo",
    "Closed",
    "ClusterInfo",
    "ConsumerClosed",
    "ConsumerStats",
    "DeadLetter",
    "FailedHandle",
    "Failure",
    "FileOffsets",
    "GroupInfo",
    "GroupOffsets",
    "GroupPartition",
    "GroupTopic",
    "HostInfo",
    "Message",
    "MessageOrigin",
    "OrderedMessage",
    "OrderlyClosed",
    "OrderlyConsumer",
    "PartitionInfo",
    "PartlySent",
    "Patience",
    "PopBatch",
    "PopClient",
    "PopConsumer",
    "PopTable",
    "PoppedMessage",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "ReceivedMessage",
    "Result",
    "Sent",
    "SentBatch",
    "SentRange",
    "Suspend",
    "TableProgress",
    "TableSendInterrupted",
    "TableSendState",
    "TopicInfo",
    "Verdict",
]

_MODULES = {
    "Admin": "admin",
    "BrokerInfo": "admin",
    "Closed": "outbox",
    "ClusterInfo": "admin",
    "ConsumerClosed": "pop_consumer",
    "ConsumerStats": "consumer_stats",
    "DeadLetter": "group_admin",
    "FailedHandle": "popped",
    "Failure": "sent",
    "FileOffsets": "offset_stores",
    "GroupInfo": "group_admin",
    "GroupOffsets": "offset_stores",
    "GroupPartition": "group_admin",
    "GroupTopic": "group_admin",
    "HostInfo": "admin",
    "Message": "message",
    "MessageOrigin": "popped",
    "OrderedMessage": "received",
    "OrderlyClosed": "orderly_consumer",
    "OrderlyConsumer": "orderly_consumer",
    "PartitionInfo": "admin",
    "PartlySent": "sent",
    "Patience": "attempts",
    "PopBatch": "popped",
    "PopClient": "pop_client",
    "PopConsumer": "pop_consumer",
    "PopTable": "popped",
    "PoppedMessage": "popped",
    "Producer": "producer",
    "ProducerStats": "shared",
    "PullConsumer": "pull",
    "ReceivedMessage": "received",
    "Result": "result",
    "Sent": "sent",
    "SentBatch": "sent",
    "SentRange": "sent",
    "Suspend": "orderly_listener",
    "TableProgress": "table_send",
    "TableSendInterrupted": "table_send",
    "TableSendState": "table_send",
    "TopicInfo": "admin",
    "Verdict": "orderly_listener",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
