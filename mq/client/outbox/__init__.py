"""The transactional outbox: messages written in the caller's database transaction, and the relay that sends them."""

from __future__ import annotations

from mq.client.outbox.databases import connector_of
from mq.client.outbox.dialect import OutboxDialect
from mq.client.outbox.ledger import SetAside
from mq.client.outbox.outbox import Outbox, OutboxStatus
from mq.client.outbox.relay import OutboxRelay, RelayStats
from mq.client.outbox.session import opened

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
