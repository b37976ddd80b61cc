"""JSON as a type, from any number of threads.

msgspec reads a type's annotations when it first meets it. Two threads that do so at once for the same type crash the
interpreter (0.22: a segmentation fault in the first second of a client). So types are read one at a time.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

__all__ = ["decode_as"]

T = TypeVar("T")

_reading: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def decode_as(raw: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """The JSON document `raw` as `kind`; raises `msgspec.MsgspecError` when it is no such thing."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _reading:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    found: T = decoder.decode(raw)
    return found
