"""Popped messages: what the producer sent, and the handle that acknowledges this delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from deltamq.mq.client.messages.received import ReceivedMessage
from deltamq.mq.wire.pop import FailedHandle
from deltamq.mq.wire.stored import MessageOrigin


class PoppedMessage(ReceivedMessage, frozen=True, gc=False):
    """One message that a consumer holds until it acknowledges or returns it, or the invisible time ends.

    `handle` acknowledges it. `delivery_attempt` counts the deliveries, from 1. `origin` is where a message that is
    delivered again was first stored.
    """

    topic: str = ""
    handle: str = ""
    delivery_attempt: int = 1
    deliver_us: int | None = None
    origin: MessageOrigin | None = None

    @property
    def deliver_time(self) -> datetime | None:
        """The time at which a delayed message was due."""
        return None if self.deliver_us is None else datetime.fromtimestamp(self.deliver_us / 1e6, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopBatch:
    """The messages of one pop."""

    messages: Sequence[PoppedMessage]
    #: Milliseconds from the pop for which the messages are invisible to the group's other clients.
    invisible_ms: int
    #: Whether more messages were there.
    rest: bool = False
    #: Refused ones of the acknowledgements that the pop carried.
    failed_acks: Sequence[FailedHandle] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PopTable:
    """The messages of one pop as Arrow: a message's columns, `partition`, `handle` and `delivery_attempt`."""

    rows: pa.Table = field(repr=False)
    invisible_ms: int
    rest: bool = False
    failed_acks: Sequence[FailedHandle] = ()
