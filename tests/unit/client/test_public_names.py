"""What users import, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import deltamq
import deltamq.mq.client


def test_the_public_names_of_mq_are_pinned() -> None:
    assert deltamq.__all__ == [
        "Admin",
        "Message",
        "OrderlyConsumer",
        "Outbox",
        "OutboxRelay",
        "PopConsumer",
        "Producer",
        "PullConsumer",
        "Result",
        "Suspend",
        "Verdict",
    ]


def test_the_public_names_of_the_client_are_pinned() -> None:
    assert deltamq.mq.client.__all__ == [
        "AclInfo",
        "ActInfo",
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
        "FeatureInfo",
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
        "MissingJob",
        "MovedQueue",
        "NewKey",
        "OidcClientCredentials",
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
        "QuotaInfo",
        "ReceivedMessage",
        "RefusalInfo",
        "RelayStats",
        "Remapping",
        "Result",
        "SegmentInfo",
        "Sent",
        "SentBatch",
        "SentRange",
        "SetAside",
        "StoppedPartition",
        "Suspend",
        "TableProgress",
        "TableSendInterrupted",
        "TableSendState",
        "TopicCheck",
        "TopicInfo",
        "TopicRepair",
        "TopicStatistics",
        "UpgradeInfo",
        "Verdict",
    ]


@pytest.mark.parametrize("package", [deltamq, deltamq.mq.client])
def test_every_public_name_can_be_imported(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert dir(package) == sorted(package.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Consumer"):
        _ = deltamq.Consumer
    with pytest.raises(AttributeError, match="Consumer"):
        _ = deltamq.mq.client.Consumer


@pytest.mark.parametrize(
    "statement",
    [
        "import deltamq, deltamq.mq.routing, deltamq.mq.errors",
        "import deltamq.mq.client.cli, deltamq.mq.client.cli.doctor",
    ],
)
def test_the_core_and_the_command_line_load_neither_arrow_nor_http(statement: str) -> None:
    code = f"import sys; {statement}; print(sorted({{'pyarrow', 'urllib3', 'rich', 'fastapi'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
