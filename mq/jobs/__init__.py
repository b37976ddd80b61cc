"""Decisions of scheduled jobs and streams: shares of shards, repeated tries, admission, stream offsets."""

from __future__ import annotations

from mq.jobs.admission import TriggerLimits, admitted
from mq.jobs.shares import shard_share
from mq.jobs.stream_offset import StreamOffset, TopicOffset, messages_behind
from mq.jobs.tries import is_tried, tries_until

__all__ = [
    "StreamOffset",
    "TopicOffset",
    "TriggerLimits",
    "admitted",
    "is_tried",
    "messages_behind",
    "shard_share",
    "tries_until",
]
