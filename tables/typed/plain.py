"""Bodies of one version, row by row: the plain twin of the compiled decoder, and the judge of bodies that it leaves.

Mode `rescue` keeps what fits. The rest is JSON text, for a field that does not fit and for a whole body:

    {"rest": {"customer.age": "abc"}, "reasons": {"customer.age": "wrong_type: is not a number"}}
    {"body": "{not JSON", "reasons": {"": "not_json: is not JSON"}}           (or "body_base64")
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from deltamq.tables.typed.avro.value import Input, avro_reader
from deltamq.tables.typed.json.value import converter, parsed, text_of
from deltamq.tables.typed.misfit import Budget, Misfit, Reason
from deltamq.tables.typed.node import Node
from deltamq.tables.typed.protobuf.value import message_reader

#: Returns the value of a body from a position on, in Arrow's form; raises `Misfit`.
Read = Callable[[bytes, int, Budget], Any]


class Rest(msgspec.Struct):
    """What does not fit of a body that is rescued."""

    #: Each fault with what was sent there, as JSON.
    fields: list[tuple[Misfit, str]]
    #: The whole body, if nothing of it fits.
    body: str = ""

    def text(self) -> str:
        """Return it as it is stored."""
        rest = {misfit.field: sent for misfit, sent in self.fields}
        start = self.body or '"rest":{' + ",".join(f"{json.dumps(name)}:{sent}" for name, sent in rest.items()) + "}"
        reasons = {misfit.field: f"{misfit.code}: {misfit.reason}" for misfit, _ in self.fields}
        return "{" + start + ',"reasons":' + _json_text(reasons) + "}"


class Row(NamedTuple):
    """What became of a body."""

    value: Any
    misfit: Misfit | None = None
    rest: Rest | None = None


def json_reader(root: Node) -> Read:
    """Return the function that reads bodies of JSON."""
    convert = converter(root)

    def read(body: bytes, start: int, budget: Budget) -> Any:
        value = parsed(body[start:] if start else body)
        if not isinstance(value, dict):
            raise Misfit(Reason.NOT_OBJECT)
        return convert(value, budget)

    return read


def avro_body_reader(root: Node) -> Read:
    """Return the function that reads bodies of Avro."""
    inner = avro_reader(root)

    def read(body: bytes, start: int, budget: Budget) -> Any:
        source = Input(body, start, budget)
        value = inner(source)
        if source.at < len(body):
            raise Misfit(Reason.TRAILING)
        return value

    return read


def protobuf_reader(root: Node) -> Read:
    """Return the function that reads bodies of Protobuf."""
    inner = message_reader(root)
    return lambda body, start, budget: inner(body[start:], budget)


READERS: Final[dict[str, Callable[[Node], Read]]] = {
    "json": json_reader,
    "columns": json_reader,
    "avro": avro_body_reader,
    "protobuf": protobuf_reader,
}


def row_of(read: Read, body: bytes, start: int, *, rescues: bool) -> Row:
    """Return what becomes of a body that is neither null nor empty."""
    budget = Budget(len(body), rescues=rescues)
    try:
        value = read(body, start, budget)
    except Misfit as misfit:
        return unfit(misfit, body, rescues=rescues)
    if not budget.rest:
        return Row(value)
    return Row(value, rest=Rest([(misfit, _json_text(item)) for misfit, item in budget.rest]))


def kept(misfit: Misfit, sent: bytes) -> Row:
    """Return what is rescued of a body of JSON of which one field does not fit; `sent` is empty if it was not there."""
    return Row(None, rest=Rest([(misfit, _json_text(parsed(sent) if sent else None))]))


def unfit(misfit: Misfit, body: bytes, *, rescues: bool) -> Row:
    """Return the row of a body that does not fit as a whole."""
    if not rescues:
        return Row(None, misfit)
    try:
        text = '"body":' + json.dumps(body.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        text = '"body_base64":' + _json_text(body)
    return Row(None, rest=Rest([(misfit, "")], text))


def _json_text(value: Any) -> str:
    """JSON of what a body had: bytes are base64, and half of a surrogate pair stays an escape."""
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_text, value)) + "]"
    if value is None or isinstance(value, bool | str):
        return json.dumps(value)
    return text_of(value)
