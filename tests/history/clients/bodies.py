"""What is in a message: bytes that follow from its id, so that damage shows."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any, Final

__all__ = ["SCHEMA", "SIZES", "body_of", "check_value", "crc_of_answer", "draw_size"]

#: The schema of a typed topic; bodies that are no objects are delivered all the same.
SCHEMA: Final = {
    "format": "json",
    "schema": '{"type": "object", "properties": {"id": {"type": "string"}, "fill": {"type": "string"}}}',
    "on_invalid": "rescue",
}
_OBJECT_BYTES_MIN: Final = 50

#: How long bodies are, and how often.
SIZES: Final = ((0, 2), (1, 2), (100, 10), (1_024, 5), (65_536, 0.1))


def draw_size(drawn: random.Random) -> int:
    """How long the next body is."""
    return drawn.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])[0]


def body_of(id_: str, size: int) -> bytes:
    """The bytes of a message: every other one that is not very short is an object of JSON with the id."""
    drawn = random.Random(id_)
    if size < _OBJECT_BYTES_MIN or drawn.random() < 0.5:
        return drawn.randbytes(size)
    return json.dumps({"id": id_, "fill": drawn.randbytes(size // 2).hex()}).encode()


def check_value(row: dict[str, Any]) -> None:
    """Raise an AssertionError unless a row of a typed topic has the columns of its body."""
    value, is_object = row["value"], bytes(row["body"]).startswith(b'{"id": ')
    assert (value["id"] if value else None) == (row["message_id"] if is_object else None), (
        f"{row['message_id']}: {value}"
    )


def crc_of_answer(message: dict[str, Any]) -> int:
    """The CRC of a body as an answer has it."""
    encoded = message.get("body_base64")
    return zlib.crc32(base64.b64decode(encoded) if encoded is not None else message.get("body", "").encode())
