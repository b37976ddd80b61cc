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
        "AsyncAdmin",
        "AsyncOrderlyConsumer",
        "AsyncOutboxRelay",
        "AsyncPopClient",
        "AsyncPopConsumer",
        "AsyncProducer",
        "AsyncPullConsumer",
        "BroadcastOffsets",
        "BrokerInfo",
        "Closed",
        "ClusterInfo",
        "Conflict",
        "ConsumerClosed",
        "ConsumerStats",
        "Corrupt",
        "DeadLetter",
        "DeltaMQBroker",
        "DeltaMQError",
        "Ending",
        "FailedHandle",
        "Failure",
        "FaultInfo",
        "FeatureInfo",
        "Fenced",
        "FileOffsets",
        "Forbidden",
        "ForkedClient",
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
        "NotFound",
        "OffsetMismatch",
        "OffsetOutOfRange",
        "OidcClientCredentials",
        "OrderedMessage",
        "OrderlyClosed",
        "OrderlyConsumer",
        "Outbox",
        "OutboxDialect",
        "OutboxRelay",
        "OutboxStatus",
        "Overloaded",
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
        "QuarantineDone",
        "QuarantinedMessage",
        "QueueInfo",
        "QuotaInfo",
        "ReceivedMessage",
        "RefusalInfo",
        "Refused",
        "RelayStats",
        "Remapping",
        "Result",
        "SchemaReference",
        "SchemaVersion",
        "SegmentInfo",
        "Sent",
        "SentBatch",
        "SentRange",
        "ServiceProcess",
        "SetAside",
        "StoppedPartition",
        "StorageFull",
        "Suspend",
        "TableProgress",
        "TableSendInterrupted",
        "TableSendState",
        "TooLarge",
        "TopicCheck",
        "TopicInfo",
        "TopicRepair",
        "TopicSchema",
        "TopicStatistics",
        "Unauthenticated",
        "Unavailable",
        "Unknown",
        "Unprocessable",
        "UpgradeInfo",
        "Verdict",
        "dead_letter_on",
        "handler",
        "logged",
        "retry_on",
    ]


def test_every_public_name_can_be_imported() -> None:
    for name in dir(deltamq):
        assert getattr(deltamq, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Consumer"):
        _ = deltamq.Consumer


def test_a_producer_loads_at_most_8000_lines_of_ours() -> None:
    code = (
        "import sys, deltamq; deltamq.Producer;"
        "files = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'deltamq' and m.__file__};"
        "print(sum(len(open(file, 'rb').read().splitlines()) for file in files))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1_000 < int(done.stdout) <= 8_000


@pytest.mark.parametrize(
    "statement",
    [
        "import deltamq, deltamq.mq.routing, deltamq.mq.errors",
        "import deltamq.mq.client.cli.root",
    ],
)
def test_the_core_and_the_command_line_load_neither_arrow_nor_http(statement: str) -> None:
    code = f"import sys; {statement}; print(sorted({{'pyarrow', 'urllib3', 'rich', 'fastapi'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
