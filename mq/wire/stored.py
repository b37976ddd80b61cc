"""Messages as the service shows them: fetched ones, and what dead letters are, too."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


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
