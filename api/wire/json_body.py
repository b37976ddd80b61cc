"""The small JSON bodies of calls that change settings or state: decoded strictly, every refusal names what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from fastapi import Request
from pydantic import BaseModel

from api.wire.request import check_encoding, headers_of, media_type
from mq.errors import Refused, UnsupportedMedia

__all__ = ["json_object", "known_fields"]

_JSON: Final = "application/json"


async def json_object(request: Request) -> dict[str, object]:
    """The body as a JSON object; an empty body is an empty one."""
    headers = headers_of(request.scope)
    check_encoding(headers)
    body = await request.body()
    if not body:
        return {}
    kind = media_type(headers)
    if kind != _JSON:
        raise UnsupportedMedia(f"content-type {kind or 'is missing; it'} must be {_JSON}", field="content-type")
    try:
        value = _whole(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"body: not JSON: {error}", code="invalid_json", field="body") from None
    if not isinstance(value, dict):
        raise Refused("body: must be a JSON object", code="invalid_type", field="body")
    return value


def known_fields(body: Mapping[str, object], model: type[BaseModel], prefix: str = "") -> None:
    """Refuse a field that `model` does not have; `prefix` says where in the request `body` stands."""
    for name in body:
        if name not in model.model_fields:
            field = f"{prefix}{name}"
            raise Refused(f"{field} is not a field of this request", code="unknown_field", field=field)


def _whole(value: object) -> object:
    """JSON has one kind of number: 4.0 is 4."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value
