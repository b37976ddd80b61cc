"""Decisions of scheduled jobs and streams: jobs that run nowhere, shares of shards, tries, admission, offsets."""

from __future__ import annotations

from mq.jobs.admission import TriggerLimits, admitted
from mq.jobs.claims import CLAIMS_KEPT, Claim, claim_that_counts
from mq.jobs.missing import NEEDED_JOBS, is_missing
from mq.jobs.shares import shard_share
from mq.jobs.stream_offset import StreamOffset, TopicOffset, messages_behind
from mq.jobs.tries import is_tried, tries_until

__all__ = [
    "CLAIMS_KEPT",
    "NEEDED_JOBS",
    "Claim",
    "StreamOffset",
    "TopicOffset",
    "TriggerLimits",
    "admitted",
    "claim_that_counts",
    "is_missing",
    "is_tried",
    "messages_behind",
    "shard_share",
    "tries_until",
]
