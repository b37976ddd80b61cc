"""The transactional outbox: messages written in the caller's database transaction, and the relay that sends them."""

from __future__ import annotations

from deltamq.mq.client.outbox.databases import connector_of
from deltamq.mq.client.outbox.dialect import OutboxDialect
from deltamq.mq.client.outbox.ledger import SetAside
from deltamq.mq.client.outbox.outbox import Outbox, OutboxStatus
from deltamq.mq.client.outbox.relay import OutboxRelay, RelayStats
from deltamq.mq.client.outbox.session import opened

__all__ = [
    "Outbox",
    "OutboxDialect",
    "OutboxRelay",
    "OutboxStatus",
    "RelayStats",
    "SetAside",
    "connector_of",
    "opened",
]
