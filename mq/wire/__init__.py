"""The messages of the REST contract, as the service and the clients read and write them."""

from __future__ import annotations

from mq.wire.handles import (
    AckAnswer,
    AckRequest,
    DeadAnswer,
    DeadRequest,
    FailedHandle,
    InvisibleAnswer,
    InvisibleRequest,
    NackAnswer,
    NackRequest,
)
from mq.wire.pop import FAILED_KEY, POP_MESSAGES_DEFAULT, PopAnswer, PoppedMessage, PopRequest
from mq.wire.produce import PRODUCER_ID_PATTERN, Message, ProduceAnswer, Producer, ProduceRequest, Range
from mq.wire.stored import DeadLetter, DeadLetters, FetchAnswer, MessageOrigin, StoredMessage

__all__ = [
    "FAILED_KEY",
    "POP_MESSAGES_DEFAULT",
    "PRODUCER_ID_PATTERN",
    "AckAnswer",
    "AckRequest",
    "DeadAnswer",
    "DeadLetter",
    "DeadLetters",
    "DeadRequest",
    "FailedHandle",
    "FetchAnswer",
    "InvisibleAnswer",
    "InvisibleRequest",
    "Message",
    "MessageOrigin",
    "NackAnswer",
    "NackRequest",
    "PopAnswer",
    "PopRequest",
    "PoppedMessage",
    "ProduceAnswer",
    "ProduceRequest",
    "Producer",
    "Range",
    "StoredMessage",
]
