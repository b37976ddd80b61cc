"""Values of topics with a schema, as producers give them: JSON from the moment of the send (SPEC TYPE-30)."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from deltamq.mq.errors import Unprocessable


def json_of(value: object) -> bytes:
    """Return a value as JSON; text and bytes are JSON already. Raises `Unprocessable` if JSON cannot say it."""
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        text = msgspec.json.encode(value)
        # The encoder's form of a number that is not finite.
        return msgspec.json.encode(named(msgspec.to_builtins(value))) if b"null" in text else text
    except (TypeError, ValueError) as error:
        raise Unprocessable(f"value: {error}", field="value") from error


def named(value: Any) -> Any:
    """Return a value with names for numbers that JSON has no digits for: "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: named(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [named(item) for item in value]
    return value
