"""Storing what producers send: placing messages, committing them, and telling where they are."""

from __future__ import annotations

from api.sending.global_sender import GlobalSender, local_name
from api.sending.letters import (
    KEPT_STATES,
    DeadLetterLogs,
    LetterCount,
    LetterFailures,
    Letters,
    LettersWanted,
    some_letters,
)
from api.sending.line import InLine
from api.sending.partition_appender import PartitionAppender
from api.sending.queue_appender import InQueue, QueueAppender
from api.sending.replay import Replayer
from api.sending.request_appender import INLINE_BYTES, RequestAppender
from api.sending.store_request import StoreRequest, check_new

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
