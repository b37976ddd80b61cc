"""The ordered consumer of exclusive groups."""

from __future__ import annotations

from deltamq.mq.client.orderly.consumer import OrderlyClosed, OrderlyConsumer
from deltamq.mq.client.orderly.listener import Suspend
from deltamq.mq.order import Verdict

__all__ = [
    "OrderlyClosed",
    "OrderlyConsumer",
    "Suspend",
    "Verdict",
]
