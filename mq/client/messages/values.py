"""Values of topics with a schema, as producers give them: JSON from the moment of the send (SPEC TYPE-30)."""

from __future__ import annotations

import msgspec

from deltamq.mq.errors import Unprocessable


def json_of(value: object) -> bytes:
    """Return a value as JSON; text and bytes are JSON already. Raises `Unprocessable` if JSON cannot say it."""
    if isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise Unprocessable(f"value: {error}", field="value") from error
