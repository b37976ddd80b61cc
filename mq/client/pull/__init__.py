"""The pull consumer, which reads partitions by offset."""

from __future__ import annotations

from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.fetch import FetchAsk, FetchConnection, Fetched
from deltamq.mq.client.pull.fetch_connections import FetchConnections
from deltamq.mq.client.pull.offset_stores import BroadcastOffsets, FileOffsets, GroupOffsets
from deltamq.mq.client.pull.start import Start

__all__ = [
    "BroadcastOffsets",
    "FetchAsk",
    "FetchConnection",
    "FetchConnections",
    "Fetched",
    "FileOffsets",
    "GroupOffsets",
    "PullConsumer",
    "Start",
]
