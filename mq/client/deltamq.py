"""What users import: installed as `deltamq/__init__.py`; in a checkout, `.path/deltamq/__init__.py` is a link to here.

    from deltamq import Admin, OrderlyConsumer, PopConsumer, Producer, PullConsumer

Every name is loaded on first use: the command line and the jobs, which load this file too, do not wait for Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from deltamq.mq.client.admin.admin import Admin as Admin
    from deltamq.mq.client.admin.admin import AsyncAdmin as AsyncAdmin
    from deltamq.mq.client.admin.dead_letter_admin import DeadLetter as DeadLetter
    from deltamq.mq.client.admin.schema_admin import TopicSchema as TopicSchema
    from deltamq.mq.client.cli.processes import ServiceProcess as ServiceProcess
    from deltamq.mq.client.http.oidc import OidcClientCredentials as OidcClientCredentials
    from deltamq.mq.client.http.retries import Patience as Patience
    from deltamq.mq.client.messages.message import Failure as Failure
    from deltamq.mq.client.messages.message import Message as Message
    from deltamq.mq.client.messages.message import PartlySent as PartlySent
    from deltamq.mq.client.messages.message import Sent as Sent
    from deltamq.mq.client.messages.message import SentBatch as SentBatch
    from deltamq.mq.client.messages.message import SentRange as SentRange
    from deltamq.mq.client.messages.received import OrderedMessage as OrderedMessage
    from deltamq.mq.client.messages.received import PopBatch as PopBatch
    from deltamq.mq.client.messages.received import PoppedMessage as PoppedMessage
    from deltamq.mq.client.messages.received import PopTable as PopTable
    from deltamq.mq.client.messages.received import ReceivedMessage as ReceivedMessage
    from deltamq.mq.client.messages.received import Result as Result
    from deltamq.mq.client.orderly.consumer import AsyncOrderlyConsumer as AsyncOrderlyConsumer
    from deltamq.mq.client.orderly.consumer import OrderlyClosed as OrderlyClosed
    from deltamq.mq.client.orderly.consumer import OrderlyConsumer as OrderlyConsumer
    from deltamq.mq.client.orderly.listener import Suspend as Suspend
    from deltamq.mq.client.outbox.ledger import SetAside as SetAside
    from deltamq.mq.client.outbox.outbox import Outbox as Outbox
    from deltamq.mq.client.outbox.outbox import OutboxStatus as OutboxStatus
    from deltamq.mq.client.outbox.relay import AsyncOutboxRelay as AsyncOutboxRelay
    from deltamq.mq.client.outbox.relay import OutboxRelay as OutboxRelay
    from deltamq.mq.client.outbox.relay import RelayStats as RelayStats
    from deltamq.mq.client.outbox.statements import OutboxDialect as OutboxDialect
    from deltamq.mq.client.pop.client import AsyncPopClient as AsyncPopClient
    from deltamq.mq.client.pop.client import PopClient as PopClient
    from deltamq.mq.client.pop.consumer import AsyncPopConsumer as AsyncPopConsumer
    from deltamq.mq.client.pop.consumer import ConsumerClosed as ConsumerClosed
    from deltamq.mq.client.pop.consumer import PopConsumer as PopConsumer
    from deltamq.mq.client.pop.telemetry import ConsumerStats as ConsumerStats
    from deltamq.mq.client.pop.telemetry import Ending as Ending
    from deltamq.mq.client.pop.telemetry import HandlerEnd as HandlerEnd
    from deltamq.mq.client.produce.producer import AsyncProducer as AsyncProducer
    from deltamq.mq.client.produce.producer import Producer as Producer
    from deltamq.mq.client.produce.repeatable_sends import TableProgress as TableProgress
    from deltamq.mq.client.produce.repeatable_sends import TableSendInterrupted as TableSendInterrupted
    from deltamq.mq.client.produce.repeatable_sends import TableSendState as TableSendState
    from deltamq.mq.client.produce.routers import Closed as Closed
    from deltamq.mq.client.produce.shared import ProducerStats as ProducerStats
    from deltamq.mq.client.pull.consumer import AsyncPullConsumer as AsyncPullConsumer
    from deltamq.mq.client.pull.consumer import PullConsumer as PullConsumer
    from deltamq.mq.client.pull.offsets import BroadcastOffsets as BroadcastOffsets
    from deltamq.mq.client.pull.offsets import FileOffsets as FileOffsets
    from deltamq.mq.client.pull.offsets import GroupOffsets as GroupOffsets
    from deltamq.mq.client.pull.partition_reader import OffsetOutOfRange as OffsetOutOfRange
    from deltamq.mq.client.shells.forks import ForkedClient as ForkedClient
    from deltamq.mq.client.taskiq_broker import DeltaMQBroker as DeltaMQBroker
    from deltamq.mq.client.worker.handlers import dead_letter_on as dead_letter_on
    from deltamq.mq.client.worker.handlers import handler as handler
    from deltamq.mq.client.worker.handlers import logged as logged
    from deltamq.mq.client.worker.handlers import retry_on as retry_on
    from deltamq.mq.errors import Conflict as Conflict
    from deltamq.mq.errors import Corrupt as Corrupt
    from deltamq.mq.errors import DeltaMQError as DeltaMQError
    from deltamq.mq.errors import Fenced as Fenced
    from deltamq.mq.errors import Forbidden as Forbidden
    from deltamq.mq.errors import NotFound as NotFound
    from deltamq.mq.errors import OffsetMismatch as OffsetMismatch
    from deltamq.mq.errors import Overloaded as Overloaded
    from deltamq.mq.errors import Refused as Refused
    from deltamq.mq.errors import StorageFull as StorageFull
    from deltamq.mq.errors import TooLarge as TooLarge
    from deltamq.mq.errors import Unauthenticated as Unauthenticated
    from deltamq.mq.errors import Unavailable as Unavailable
    from deltamq.mq.errors import Unknown as Unknown
    from deltamq.mq.errors import Unprocessable as Unprocessable
    from deltamq.mq.order.orderly import Verdict as Verdict
    from deltamq.mq.testing.queue import MemoryQueue as MemoryQueue
    from deltamq.mq.wire.auth import AclInfo as AclInfo
    from deltamq.mq.wire.auth import ActInfo as ActInfo
    from deltamq.mq.wire.auth import KeyInfo as KeyInfo
    from deltamq.mq.wire.auth import NewKey as NewKey
    from deltamq.mq.wire.auth import PrincipalInfo as PrincipalInfo
    from deltamq.mq.wire.auth import QuotaInfo as QuotaInfo
    from deltamq.mq.wire.auth import RefusalInfo as RefusalInfo
    from deltamq.mq.wire.cluster import BrokerInfo as BrokerInfo
    from deltamq.mq.wire.cluster import ClusterInfo as ClusterInfo
    from deltamq.mq.wire.cluster import FeatureInfo as FeatureInfo
    from deltamq.mq.wire.cluster import HostInfo as HostInfo
    from deltamq.mq.wire.cluster import MissingJob as MissingJob
    from deltamq.mq.wire.cluster import StoppedPartition as StoppedPartition
    from deltamq.mq.wire.cluster import UpgradeInfo as UpgradeInfo
    from deltamq.mq.wire.groups import GroupInfo as GroupInfo
    from deltamq.mq.wire.groups import GroupMember as GroupMember
    from deltamq.mq.wire.groups import GroupPartition as GroupPartition
    from deltamq.mq.wire.groups import GroupStatistics as GroupStatistics
    from deltamq.mq.wire.groups import GroupTopic as GroupTopic
    from deltamq.mq.wire.groups import TopicStatistics as TopicStatistics
    from deltamq.mq.wire.pop import FailedHandle as FailedHandle
    from deltamq.mq.wire.quarantine import QuarantinedMessage as QuarantinedMessage
    from deltamq.mq.wire.quarantine import QuarantineDone as QuarantineDone
    from deltamq.mq.wire.schemas import SchemaReference as SchemaReference
    from deltamq.mq.wire.schemas import SchemaVersion as SchemaVersion
    from deltamq.mq.wire.static_topics import FaultInfo as FaultInfo
    from deltamq.mq.wire.static_topics import MappingInfo as MappingInfo
    from deltamq.mq.wire.static_topics import MovedQueue as MovedQueue
    from deltamq.mq.wire.static_topics import Remapping as Remapping
    from deltamq.mq.wire.static_topics import TopicCheck as TopicCheck
    from deltamq.mq.wire.static_topics import TopicRepair as TopicRepair
    from deltamq.mq.wire.stored import MessageOrigin as MessageOrigin
    from deltamq.mq.wire.topics import PartitionInfo as PartitionInfo
    from deltamq.mq.wire.topics import QueueInfo as QueueInfo
    from deltamq.mq.wire.topics import SegmentInfo as SegmentInfo
    from deltamq.mq.wire.topics import TopicInfo as TopicInfo

if __name__ != "deltamq":
    raise ImportError("import deltamq: this file is its __init__")

#: The names of each module, inside the package.
_NAMES: Final = {
    "mq.client.admin.admin": "Admin AsyncAdmin",
    "mq.client.admin.dead_letter_admin": "DeadLetter",
    "mq.client.admin.schema_admin": "TopicSchema",
    "mq.client.cli.processes": "ServiceProcess",
    "mq.client.http.oidc": "OidcClientCredentials",
    "mq.client.http.retries": "Patience",
    "mq.client.shells.forks": "ForkedClient",
    "mq.client.messages.message": "Failure Message PartlySent Sent SentBatch SentRange",
    "mq.client.messages.received": "OrderedMessage PopBatch PopTable PoppedMessage ReceivedMessage Result",
    "mq.client.orderly.consumer": "AsyncOrderlyConsumer OrderlyClosed OrderlyConsumer",
    "mq.client.orderly.listener": "Suspend",
    "mq.client.outbox.ledger": "SetAside",
    "mq.client.outbox.outbox": "Outbox OutboxStatus",
    "mq.client.outbox.relay": "AsyncOutboxRelay OutboxRelay RelayStats",
    "mq.client.outbox.statements": "OutboxDialect",
    "mq.client.pop.client": "AsyncPopClient PopClient",
    "mq.client.pop.consumer": "AsyncPopConsumer ConsumerClosed PopConsumer",
    "mq.client.pop.telemetry": "ConsumerStats Ending HandlerEnd",
    "mq.client.produce.producer": "AsyncProducer Producer",
    "mq.client.produce.repeatable_sends": "TableProgress TableSendInterrupted TableSendState",
    "mq.client.produce.routers": "Closed",
    "mq.client.produce.shared": "ProducerStats",
    "mq.client.pull.consumer": "AsyncPullConsumer PullConsumer",
    "mq.client.pull.offsets": "BroadcastOffsets FileOffsets GroupOffsets",
    "mq.client.pull.partition_reader": "OffsetOutOfRange",
    "mq.client.taskiq_broker": "DeltaMQBroker",
    "mq.client.worker.handlers": "dead_letter_on handler logged retry_on",
    "mq.errors": (
        "Conflict Corrupt DeltaMQError Fenced Forbidden NotFound OffsetMismatch Overloaded Refused StorageFull"
        " TooLarge Unauthenticated Unavailable Unknown Unprocessable"
    ),
    "mq.order.orderly": "Verdict",
    "mq.testing.queue": "MemoryQueue",
    "mq.wire.auth": "AclInfo ActInfo KeyInfo NewKey PrincipalInfo QuotaInfo RefusalInfo",
    "mq.wire.cluster": "BrokerInfo ClusterInfo FeatureInfo HostInfo MissingJob StoppedPartition UpgradeInfo",
    "mq.wire.groups": "GroupInfo GroupMember GroupPartition GroupStatistics GroupTopic TopicStatistics",
    "mq.wire.pop": "FailedHandle",
    "mq.wire.quarantine": "QuarantineDone QuarantinedMessage",
    "mq.wire.schemas": "SchemaReference SchemaVersion",
    "mq.wire.stored": "MessageOrigin",
    "mq.wire.static_topics": "FaultInfo MappingInfo MovedQueue Remapping TopicCheck TopicRepair",
    "mq.wire.topics": "PartitionInfo QueueInfo SegmentInfo TopicInfo",
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
