"""The Python SDK: what users import, over HTTP; of DeltaMQ it knows only `mq`.

    from mq import Admin, Producer, PullConsumer

Every name is loaded when it is first used, so that the command line and the checks of other layers, which share this
package, do not wait for Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mq.client.admin import Admin, BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo
    from mq.client.attempts import Patience
    from mq.client.message import Message
    from mq.client.outbox import Closed
    from mq.client.producer import Producer
    from mq.client.pull import PullConsumer
    from mq.client.received import ReceivedMessage
    from mq.client.sent import Failure, PartlySent, Sent, SentBatch, SentRange
    from mq.client.shared import ProducerStats
    from mq.client.table_send import TableProgress, TableSendInterrupted, TableSendState

__all__ = [
    "Admin",
    "BrokerInfo",
    "Closed",
    "ClusterInfo",
    "Failure",
    "Message",
    "PartitionInfo",
    "PartlySent",
    "Patience",
    "Producer",
    "ProducerStats",
    "PullConsumer",
    "ReceivedMessage",
    "Sent",
    "SentBatch",
    "SentRange",
    "TableProgress",
    "TableSendInterrupted",
    "TableSendState",
    "TopicInfo",
]

_MODULES = {
    "Admin": "admin",
    "BrokerInfo": "admin",
    "Closed": "outbox",
    "ClusterInfo": "admin",
    "Failure": "sent",
    "Message": "message",
    "PartitionInfo": "admin",
    "PartlySent": "sent",
    "Patience": "attempts",
    "Producer": "producer",
    "ProducerStats": "shared",
    "PullConsumer": "pull",
    "ReceivedMessage": "received",
    "Sent": "sent",
    "SentBatch": "sent",
    "SentRange": "sent",
    "TableProgress": "table_send",
    "TableSendInterrupted": "table_send",
    "TableSendState": "table_send",
    "TopicInfo": "admin",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
