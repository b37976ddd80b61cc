"""The values that users pass and get: messages, results of sends and of handlers."""

from __future__ import annotations

from deltamq.mq.client.messages.message import Message, as_bytes, as_messages, check_message
from deltamq.mq.client.messages.popped import FailedHandle, MessageOrigin, PopBatch, PoppedMessage, PopTable
from deltamq.mq.client.messages.received import (
    OrderedMessage,
    ReceivedMessage,
    messages_of,
    ordered_messages_of,
    with_partition,
)
from deltamq.mq.client.messages.result import Dead, Result, Retry
from deltamq.mq.client.messages.sent import Failure, PartlySent, Sent, SentBatch, SentRange, offset_after, summed_up

__all__ = [
    "Dead",
    "FailedHandle",
    "Failure",
    "Message",
    "MessageOrigin",
    "OrderedMessage",
    "PartlySent",
    "PopBatch",
    "PopTable",
    "PoppedMessage",
    "ReceivedMessage",
    "Result",
    "Retry",
    "Sent",
    "SentBatch",
    "SentRange",
    "as_bytes",
    "as_messages",
    "check_message",
    "messages_of",
    "offset_after",
    "ordered_messages_of",
    "summed_up",
    "with_partition",
]
