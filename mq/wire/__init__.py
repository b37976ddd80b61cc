"""The messages of the REST contract, as the service and the clients read and write them."""

from __future__ import annotations

from deltamq.mq.wire.dead_letters import (
    DeadLetter,
    DeadLetters,
    DeleteLettersRequest,
    LetterFilter,
    ReplayRequest,
    Target,
)
from deltamq.mq.wire.filters import FILTER_DESCRIPTION
from deltamq.mq.wire.handles import (
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
from deltamq.mq.wire.offsets import CommitRequest, ResetRequest, StartText
from deltamq.mq.wire.order import (
    CLIENT_PATTERN,
    AsideRequest,
    HeartbeatRequest,
    LocksGiven,
    LocksRequest,
    ReleaseRequest,
    SubscriptionRequest,
)
from deltamq.mq.wire.pop import FAILED_KEY, POP_MESSAGES_DEFAULT, PopAnswer, PoppedMessage, PopRequest
from deltamq.mq.wire.produce import Message, ProduceAnswer, Producer, ProduceRequest, Range
from deltamq.mq.wire.stored import FetchAnswer, MessageOrigin, StoredMessage

__all__ = [
    "CLIENT_PATTERN",
    "FAILED_KEY",
    "FILTER_DESCRIPTION",
    "POP_MESSAGES_DEFAULT",
    "AckAnswer",
    "AckRequest",
    "AsideRequest",
    "CommitRequest",
    "DeadAnswer",
    "DeadLetter",
    "DeadLetters",
    "DeadRequest",
    "DeleteLettersRequest",
    "FailedHandle",
    "FetchAnswer",
    "HeartbeatRequest",
    "InvisibleAnswer",
    "InvisibleRequest",
    "LetterFilter",
    "LocksGiven",
    "LocksRequest",
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
    "ReleaseRequest",
    "ReplayRequest",
    "ResetRequest",
    "StartText",
    "StoredMessage",
    "SubscriptionRequest",
    "Target",
]
