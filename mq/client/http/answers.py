"""Answers of the service: JSON decoded as a type, errors as the exceptions that the service raised.

The service maps each class of `mq.errors` to one status and `code` (RFC 9457 documents); `error_of` is the reverse
mapping. An answer that is not a problem document (a proxy's HTML page) becomes the class of its status, so that callers
see one tree of errors.

msgspec reads a type's annotations on first use. If two threads do that at once for the same type, the interpreter
crashes (0.22: a segmentation fault in the first second of a client). So decoders are made one at a time (`decode_as`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.errors import (
    Conflict,
    Corrupt,
    DeltaMQError,
    Extra,
    Fenced,
    Forbidden,
    NotFound,
    OffsetMismatch,
    Overloaded,
    Refused,
    StorageFull,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unknown,
    Unprocessable,
    UnsupportedMedia,
)

T = TypeVar("T")

_reading = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def _renew() -> None:
    global _reading
    _reading = threading.Lock()


in_child(_renew)


def decode_as(raw: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """Decode the JSON document `raw` as `kind`; raises `msgspec.MsgspecError` if it is not one."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _reading:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    decoded: T = decoder.decode(raw)
    return decoded


_BY_CODE: Final[dict[str, type[DeltaMQError]]] = {kind.code: kind for kind in (Fenced, Unknown, Corrupt, StorageFull)}
_BY_STATUS: Final[dict[int, type[DeltaMQError]]] = {
    kind.status: kind
    for kind in (
        Refused,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        OffsetMismatch,
        TooLarge,
        UnsupportedMedia,
        Unprocessable,
        Overloaded,
        Unavailable,
        StorageFull,
    )
}
#: Members of the document that become attributes of the exception; the others go into `extra`.
_MEMBERS: Final = frozenset({"type", "title", "status", "detail", "code", "field", "instance"})
#: Cap on `Retry-After`: a larger number is a mistake, and the deadline of the call limits the wait anyway.
_RETRY_AFTER_S_MAX: Final = 3600
_DETAIL_CHARACTERS_MAX: Final = 300


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> DeltaMQError:
    """Return the exception for an answer with `status` >= 300."""
    document = _document(body)
    code = document.get("code")
    kind = _BY_CODE.get(code) if isinstance(code, str) else None
    error = (kind or _kind_of(status))(_detail(status, document, body))
    if isinstance(code, str):
        error.code = code
    field = document.get("field")
    error.field = field if isinstance(field, str) else None
    error.extra = _facts(document)
    if error.status != status:
        error.status = status
    wait_s = retry_after_s(headers)
    if wait_s is not None:
        # Only what the service asked for: a class's default must not slow down the first retry.
        error.extra["retry_after_s"] = wait_s
    return error


def retry_after_s(headers: Mapping[str, str]) -> int | None:
    """Return the seconds of `Retry-After`, or None without any (DeltaMQ does not use its date form)."""
    raw = headers.get("retry-after", "")
    return min(int(raw), _RETRY_AFTER_S_MAX) if raw.isascii() and raw.isdigit() else None


def _kind_of(status: int) -> type[DeltaMQError]:
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        # A gateway's 502 or 504 says nothing about what the service did with the request.
        return Unknown if status in (502, 504) else DeltaMQError
    return Refused


def _document(body: bytes) -> dict[str, object]:
    try:
        return decode_as(body, dict[str, object])
    except msgspec.MsgspecError:
        return {}


def _facts(document: Mapping[str, object]) -> dict[str, Extra]:
    facts: dict[str, Extra] = {}
    for name, value in document.items():
        if name not in _MEMBERS and (value is None or isinstance(value, (str, int, float, list))):
            facts[name] = value
    return facts


def _detail(status: int, document: Mapping[str, object], body: bytes) -> str:
    for name in ("detail", "message", "title"):  # the registry's errors are Confluent's, with a message
        text = document.get(name)
        if isinstance(text, str) and text:
            return text
    shown = body[:_DETAIL_CHARACTERS_MAX].decode("utf-8", "replace").strip()
    return f"HTTP {status}: {shown}" if shown else f"HTTP {status}"
