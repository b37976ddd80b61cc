"""Decisions of scheduled jobs and streams: jobs that run nowhere, shares of shards, tries, admission, offsets."""

from __future__ import annotations

from deltamq.mq.jobs.admission import TriggerLimits, admitted
from deltamq.mq.jobs.claims import CLAIMS_KEPT, Claim, claim_that_counts
from deltamq.mq.jobs.missing import NEEDED_JOBS, is_missing
from deltamq.mq.jobs.shares import shard_share
from deltamq.mq.jobs.stream_offset import StreamOffset, TopicOffset, messages_behind
from deltamq.mq.jobs.tries import is_tried, tries_until

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
