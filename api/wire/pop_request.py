"""The JSON bodies of pop, ack, invisible, nack and dead: strict types, with every bound that a type can express."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from api.wire.json_rows import refusal
from api.wire.request import Headers, media_type
from mq.errors import UnsupportedMedia
from mq.limits import NAME_LENGTH_MAX, TAG_BYTES_MAX, TAG_FILTER_TAGS_MAX, WAIT_MS_MAX
from mq.queue_limits import HANDLE_CHARS_MAX, HANDLES_MAX, INVISIBLE_MS_CEILING, POP_MESSAGES_MAX, REASON_LENGTH_MAX

__all__ = [
    "BODY_BYTES_MAX",
    "POP_MESSAGES_DEFAULT",
    "AckRequest",
    "DeadRequest",
    "InvisibleRequest",
    "NackRequest",
    "PopRequest",
    "decode",
    "decode_pop",
]

T = TypeVar("T")

#: Bytes of the largest call: the maximum number of handles, each of the maximum length.
BODY_BYTES_MAX: Final = HANDLES_MAX * HANDLE_CHARS_MAX
_JSON: Final = "application/json"
POP_MESSAGES_DEFAULT: Final = 32
_TAGS_CHARS_MAX: Final = TAG_FILTER_TAGS_MAX * (TAG_BYTES_MAX + 2)

HandleText = Annotated[str, Meta(max_length=HANDLE_CHARS_MAX)]
Handles = Annotated[list[HandleText], Meta(max_length=HANDLES_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=INVISIBLE_MS_CEILING)]


class PopRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Pop messages; first, the handles in `ack` are acknowledged. A field that is null counts as left out.

    `invisible_ms` and `order` default to the group's settings; `order` says whether a partition's messages come in
    order, or those of each `key`. Without `partition` all partitions are popped. `retry` "only" takes only messages
    that are delivered again, without order; an exclusive group can pop only these.
    """

    max_messages: Annotated[int, Meta(ge=1, le=POP_MESSAGES_MAX)] | None = POP_MESSAGES_DEFAULT
    invisible_ms: Milliseconds | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] | None = 0
    tags: Annotated[str, Meta(max_length=_TAGS_CHARS_MAX)] | None = None
    partition: Annotated[str, Meta(min_length=3)] | None = None
    order: bool | Literal["key"] | None = None
    client_id: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)] | None = None
    ack: Handles | None = []
    retry: Literal["only"] | None = None


_pop: Final = msgspec.json.Decoder(PopRequest)


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Handles of messages to be acknowledged."""

    handles: Handles


class InvisibleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message's new invisible time in milliseconds, from now on; 0 returns the message at once."""

    handle: HandleText
    invisible_ms: Milliseconds


class NackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that failed: delivered again after `delay_ms`, by default as the group's retry policy says."""

    handles: Handles
    delay_ms: Milliseconds | None = None


class DeadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to be sent to the dead letters."""

    handles: Handles
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_LENGTH_MAX)] = "rejected"


def decode(decoder: msgspec.json.Decoder[T], headers: Headers, body: bytes | bytearray) -> T:
    """Return the decoded body of a request; raise a refusal that names the field."""
    kind = media_type(headers)
    if kind != _JSON:
        raise UnsupportedMedia(f"content-type {kind or 'is missing; it'} must be {_JSON}", field="content-type")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusal(error) from None


def decode_pop(headers: Headers, body: bytes | bytearray) -> PopRequest:
    """Return the decoded body of a pop; a request without body and content type takes all defaults."""
    return decode(_pop, headers, body) if body or media_type(headers) else PopRequest()
