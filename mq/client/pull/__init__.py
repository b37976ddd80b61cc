"""The pull consumer, which reads partitions by offset."""

from __future__ import annotations

from mq.client.pull.consumer import PullConsumer
from mq.client.pull.fetch import FetchAsk, FetchConnection, Fetched
from mq.client.pull.fetch_connections import FetchConnections
from mq.client.pull.offset_stores import BroadcastOffsets, FileOffsets, GroupOffsets
from mq.client.pull.start import Start

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
