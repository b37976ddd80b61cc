"""The producer: routing, executors, batches, long tables."""

from __future__ import annotations

from mq.client.produce.producer import Producer
from mq.client.produce.progress_bar import row_bar
from mq.client.produce.routers import Closed
from mq.client.produce.send_future import SendFuture
from mq.client.produce.shared import ProducerStats
from mq.client.produce.table_send import TableProgress, TableSendInterrupted, TableSendState
from mq.client.produce.wire import ARROW

__all__ = [
    "ARROW",
    "Closed",
    "Producer",
    "ProducerStats",
    "SendFuture",
    "TableProgress",
    "TableSendInterrupted",
    "TableSendState",
    "row_bar",
]
