"""Messages as the service shows them: fetched, or dead letters."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["DeadLetter", "DeadLetters", "FetchAnswer", "MessageOrigin", "StoredMessage"]


class MessageOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a retried, delayed or dead message came from."""

    topic: str | None
    partition: str | None
    offset: int | None


class StoredMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """One message, with either `body` or `body_base64`."""

    offset: Annotated[int, Meta(ge=0)]
    message_id: str | None
    append_time: str
    body: str | None = None
    body_base64: str | None = None
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str | None] | None = None
    born_time: str | None = None
    deliver_time: str | None = None
    reconsume_times: int = 0
    origin: MessageOrigin | None = None
    producer_id: str | None = None
    producer_seq: int | None = None


class FetchAnswer(msgspec.Struct):
    """A fetch's answer; `next_offset` is the offset to ask for next, `max_offset` the next one to be written."""

    status: str
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class DeadLetter(StoredMessage, kw_only=True):
    """A dead letter of the group, at `offset` of its dead letters' `partition`.

    `origin` is where the message was first, `reason` is why it is dead, `attempts` is how often it was delivered.
    """

    partition: str
    topic: str | None
    reason: str | None
    attempts: int


class DeadLetters(msgspec.Struct):
    """Some of a group's `total` dead letters; `next_offset` is the offset to ask for next, null after the last."""

    group: str
    total: int
    messages: list[DeadLetter]
    next_offset: int | None
