"""Decodes JSON as a type, safely in any number of threads.

msgspec reads a type's annotations on first use. If two threads do that at once for the same type, the interpreter
crashes (0.22: a segmentation fault in the first second of a client). So decoders are made one at a time.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

from deltamq.mq.client.http.forks import in_child

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
    found: T = decoder.decode(raw)
    return found
