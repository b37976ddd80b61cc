"""Decoding the JSON bodies of pop, ack, invisible, nack and dead."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from deltamq.api.wire.json_rows import refusal
from deltamq.api.wire.request import Headers, media_type
from deltamq.mq.errors import UnsupportedMedia
from deltamq.mq.limits import HANDLE_CHARS_MAX, HANDLES_MAX
from deltamq.mq.wire.pop import PopRequest

T = TypeVar("T")

#: Bytes of the largest call: the maximum number of handles, each of the maximum length.
BODY_BYTES_MAX: Final = HANDLES_MAX * HANDLE_CHARS_MAX
_JSON: Final = "application/json"
_pop: Final = msgspec.json.Decoder(PopRequest)


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
