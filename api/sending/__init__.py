"""Storing what producers send: placing messages, committing them, and telling where they are."""

from __future__ import annotations

from deltamq.api.sending.global_sender import GlobalSender, local_name
from deltamq.api.sending.letters import (
    KEPT_STATES,
    DeadLetterLogs,
    LetterCount,
    LetterFailures,
    Letters,
    LettersWanted,
    some_letters,
)
from deltamq.api.sending.line import InLine
from deltamq.api.sending.partition_appender import PartitionAppender
from deltamq.api.sending.queue_appender import InQueue, QueueAppender
from deltamq.api.sending.replay import Replayer
from deltamq.api.sending.request_appender import INLINE_BYTES, RequestAppender
from deltamq.api.sending.store_request import StoreRequest, check_new

__all__ = [
    "INLINE_BYTES",
    "KEPT_STATES",
    "DeadLetterLogs",
    "GlobalSender",
    "InLine",
    "InQueue",
    "LetterCount",
    "LetterFailures",
    "Letters",
    "LettersWanted",
    "PartitionAppender",
    "QueueAppender",
    "Replayer",
    "RequestAppender",
    "StoreRequest",
    "check_new",
    "local_name",
    "some_letters",
]
