"""The ordered consumer of exclusive groups."""

from __future__ import annotations

from mq.client.orderly.consumer import OrderlyClosed, OrderlyConsumer
from mq.client.orderly.listener import Suspend
from mq.order import Verdict

__all__ = [
    "OrderlyClosed",
    "OrderlyConsumer",
    "Suspend",
    "Verdict",
]
