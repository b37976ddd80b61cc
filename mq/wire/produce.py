"""Produce: the JSON of a request and of its answer (`POST /v1/topics/{topic}/messages`)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from deltamq.mq.limits import (
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    OFFSET_MAX,
    PRODUCER_ID_LENGTH_MAX,
    PRODUCER_SEQ_MAX,
    TAG_BYTES_MAX,
)

#: Visible ASCII, so that the same id fits into a header.
PRODUCER_ID_PATTERN: Final = rf"^[!-~]{{1,{PRODUCER_ID_LENGTH_MAX}}}$"


#: What is said of the number of a producer's request.
SEQ: Final = "The number of the request, from 0. It may be above 2^53, where JavaScript's numbers are rounded."


class Producer(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An idempotent producer and the number of this request, from 0 (SPEC SEND-5)."""

    id: Annotated[str, Meta(pattern=PRODUCER_ID_PATTERN)]
    seq: Annotated[int, Meta(ge=0, le=PRODUCER_SEQ_MAX, description=SEQ)]


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One message of a request, with one of `body`, `body_base64`, and in a topic with a schema `value`."""

    body: str | None = None
    key: Annotated[str, Meta(max_length=KEY_BYTES_MAX)] | None = None
    tag: Annotated[str, Meta(max_length=TAG_BYTES_MAX)] | None = None
    headers: Annotated[dict[str, str], Meta(max_length=HEADERS_MAX)] | None = None
    body_base64: str | None = None
    partition: str | None = None
    born_time: Annotated[datetime, Meta(tz=True)] | None = None
    deliver_time: Annotated[datetime, Meta(tz=True)] | None = None
    delay_ms: Annotated[int, Meta(ge=0)] | None = None
    message_id: Annotated[str, Meta(min_length=1, max_length=MESSAGE_ID_BYTES_MAX)] | None = None
    value: Annotated[msgspec.Raw, Meta(description="The fields of the topic's schema.")] | UnsetType = UNSET


class ProduceRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON body of a produce request."""

    messages: list[Message]
    producer: Producer | None = None
    expected_offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None = None


class Range(msgspec.Struct, omit_defaults=True):
    """Offsets `[base_offset, base_offset + count)`, in request order, of some messages of the request.

    `base_offset` is -1 while a logical queue moves to another broker: its next offsets are not decided yet.
    `delayed`: the messages wait there until they are due.
    """

    partition: str
    base_offset: Annotated[int, Meta(ge=-1)]
    count: Annotated[int, Meta(ge=1)]
    indexes: list[int] | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    delayed: bool | UnsetType = UNSET


class ProduceAnswer(msgspec.Struct):
    """The answer after the commits that hold the messages; `duplicate`: an earlier copy stored some or all of them."""

    ranges: list[Range]
    duplicate: bool
    durable: bool
    message_ids: list[str] | UnsetType = UNSET
