"""What is in a message: bytes that follow from its id, so that damage shows."""

from __future__ import annotations

import base64
import random
import zlib
from typing import Any, Final

__all__ = ["SIZES", "body_of", "crc_of_answer", "draw_size"]

#: How long bodies are, and how often.
SIZES: Final = ((0, 2), (1, 2), (100, 10), (1_024, 5), (65_536, 0.1))


def draw_size(drawn: random.Random) -> int:
    """How long the next body is."""
    return drawn.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])[0]


def body_of(id_: str, size: int) -> bytes:
    """The bytes of a message."""
    return random.Random(id_).randbytes(size)


def crc_of_answer(message: dict[str, Any]) -> int:
    """The CRC of a body as an answer has it."""
    encoded = message.get("body_base64")
    return zlib.crc32(base64.b64decode(encoded) if encoded is not None else message.get("body", "").encode())
