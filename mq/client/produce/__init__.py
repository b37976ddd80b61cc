"""The producer: routing, executors, batches, long tables."""

from __future__ import annotations

from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.produce.progress_bar import row_bar
from deltamq.mq.client.produce.routers import Closed
from deltamq.mq.client.produce.send_future import SendFuture
from deltamq.mq.client.produce.shared import ProducerStats
from deltamq.mq.client.produce.table_send import TableProgress, TableSendInterrupted, TableSendState
from deltamq.mq.client.produce.wire import ARROW

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
