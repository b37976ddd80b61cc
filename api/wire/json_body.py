"""The small JSON bodies of calls that change settings or state, and of pop, ack, invisible, nack and dead.

One `Struct` defines a body: it decodes and checks the body, and describes it in `/openapi.json`. Every refusal names
the wrong field.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_origin

import msgspec
from fastapi import Request

from deltamq.api.wire.json_rows import refusal
from deltamq.api.wire.openapi_parts import NULLABLE, Json, described
from deltamq.api.wire.request import Headers, check_encoding, headers_of, media_type
from deltamq.mq.errors import Refused, Unprocessable, UnsupportedMedia
from deltamq.mq.limits import HANDLE_CHARS_MAX, HANDLES_MAX
from deltamq.mq.wire.pop import PopRequest

T = TypeVar("T", bound=msgspec.Struct)

_JSON: Final = "application/json"
#: msgspec's message for a text that is not among the words of a field, or of its items.
_NO_WORD: Final = re.compile(r"Invalid enum value .* - at `\$\.(\w+)(\[\d+\])?`", re.DOTALL)
#: The end of msgspec's message for a wrong entry of an object, which it does not name.
_AN_ENTRY: Final = re.compile(r" - at `\$\.(\w+)(\[\.\.\.\])[^`]*`$")
#: The end of msgspec's message for a wrong item of a list.
_AN_ITEM: Final = re.compile(r" - at `[^`]*(\[\d+\])`$")


class JsonBody(Generic[T]):
    """The JSON body of a call, as `kind` defines it.

    Make it at import: msgspec may not see a type for the first time in two threads at once.
    """

    def __init__(self, kind: type[T], example: Json, *, required: bool = True, items: bool = False) -> None:
        """With `items` a refusal names the wrong item of a list (`offsets[3]`), else the list."""
        msgspec.json.Decoder(kind)
        self._kind = kind
        self._items = items
        self._words = {field.name: _words(field.type) for field in msgspec.structs.fields(kind)}
        NULLABLE.append(kind)
        content = {_JSON: {"schema": described(kind), "example": example}}
        #: The `openapi_extra` of the call.
        self.described: Final[Json] = {"requestBody": {"required": required, "content": content}}

    async def read(self, request: Request) -> T:
        """Return the decoded body of a request; raise a refusal that names the field."""
        return self.decoded(await _json_object(request))

    def decoded(self, body: Mapping[str, object]) -> T:
        """Decode a JSON object, in which null counts as a field left out."""
        given = {name: value for name, value in body.items() if value is not None or name not in self._words}
        try:
            return msgspec.convert(given, self._kind)
        except msgspec.ValidationError as error:
            raise self._refusal(error, given) from None

    def _refusal(self, error: msgspec.ValidationError, given: Mapping[str, Any]) -> Refused:
        no_word = _NO_WORD.fullmatch(str(error))
        if no_word is not None:
            name, item = no_word[1], no_word[2] or ""
            words = ", ".join(self._words[name])
            return Unprocessable(f"{name}{item} must be one of {words}", field=name + item if self._items else name)
        refused = refusal(error)
        field = refused.field or "body"
        named = self._with_entry(error, field, given)
        refused.detail = refused.detail.replace(field, named, 1)
        item = None if self._items else _AN_ITEM.search(str(error))
        refused.field = named if item is None else named.removesuffix(item[1])
        return refused

    def _with_entry(self, error: msgspec.ValidationError, field: str, given: Mapping[str, Any]) -> str:
        """Return `field` with the name of the wrong entry, which msgspec does not give."""
        matched = _AN_ENTRY.search(str(error))
        if matched is None or not isinstance(given.get(matched[1]), dict):
            return field
        entries = list(given[matched[1]].items())

        def is_among(count: int) -> bool:
            """Whether the wrong entry is among the first `count` entries."""
            try:
                msgspec.convert({matched[1]: dict(entries[:count])}, self._kind)
            except msgspec.ValidationError as again:
                return refusal(again).field == field
            return False

        at = bisect_left(range(1, len(entries) + 1), True, key=is_among)
        return field if at == len(entries) else field.replace(matched[2], f".{entries[at][0]}", 1)


def _words(kind: Any) -> list[str]:
    """Return the words that a field of this type takes; none if it takes any."""
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [word for part in get_args(kind) for word in _words(part)]


async def _json_object(request: Request) -> dict[str, object]:
    """Return the body as a JSON object; an empty body is an empty object."""
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


def _whole(value: object) -> object:
    """Turn numbers such as 4.0 into integers: JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value


B = TypeVar("B")

#: Bytes of the largest call: the maximum number of handles, each of the maximum length.
BODY_BYTES_MAX: Final = HANDLES_MAX * HANDLE_CHARS_MAX
_pop: Final = msgspec.json.Decoder(PopRequest)


def decode(decoder: msgspec.json.Decoder[B], headers: Headers, body: bytes | bytearray) -> B:
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
