"""What users import, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import deltamq


def test_the_names_that_users_import_are_pinned() -> None:
    assert dir(deltamq) == [
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
        "MemoryQueue",
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


def test_every_public_name_can_be_imported() -> None:
    for name in dir(deltamq):
        assert getattr(deltamq, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Consumer"):
        _ = deltamq.Consumer


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
