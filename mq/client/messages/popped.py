"""A message as a group's consumer gets it: what was sent, and the handle that answers for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from mq.client.messages.received import ReceivedMessage

__all__ = ["FailedHandle", "MessageOrigin", "PopBatch", "PopTable", "PoppedMessage"]


class MessageOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a retried, delayed or dead message first was."""

    topic: str | None
    partition: str | None
    offset: int | None


class PoppedMessage(ReceivedMessage, frozen=True, gc=False):
    """One message that a group's consumer holds until it answers for it, or its invisible time ends.

    `handle` acknowledges it. `delivery_attempt` says which delivery this is, from 1 on. `origin` is where a message
    that is delivered again first was.
    """

    topic: str = ""
    handle: str = ""
    delivery_attempt: int = 1
    deliver_us: int | None = None
    origin: MessageOrigin | None = None

    @property
    def deliver_time(self) -> datetime | None:
        """When a delayed message was to be delivered."""
        return None if self.deliver_us is None else datetime.fromtimestamp(self.deliver_us / 1e6, UTC)


class FailedHandle(msgspec.Struct, frozen=True, gc=False):
    """A handle that was refused: `handle_invalid` (none of ours) or `handle_expired` (delivered again, or about to).

    `outcome_unknown`: acknowledged in time, but stored so late that it may be delivered again all the same.
    """

    handle: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PopBatch:
    """What one pop brought."""

    messages: Sequence[PoppedMessage]
    #: So long they are invisible to others of the group, counted from the pop.
    invisible_ms: int
    #: Whether more was there.
    rest: bool = False
    #: Of the acknowledgements that the pop carried, those that were refused.
    failed_acks: Sequence[FailedHandle] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PopTable:
    """What one pop brought, as Arrow: the columns of a message, `partition`, `handle` and `delivery_attempt`."""

    rows: pa.Table = field(repr=False)
    invisible_ms: int
    rest: bool = False
    failed_acks: Sequence[FailedHandle] = ()
