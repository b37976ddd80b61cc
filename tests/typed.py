"""Codecs of typed topics for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from deltamq.mq.schemas.registry import Version
from deltamq.mq.schemas.setting import Format, OnInvalid, SchemaSetting, Wire
from deltamq.tables.typed.codec import Codec, codec_of

SUBJECT = "orders-value"


def record(*fields: Any, name: str = "Order") -> str:
    """Return an Avro record with fields (name, type, and more of the field)."""
    made = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": made})


def versions_of(form: Format, texts: Sequence[str]) -> list[Version]:
    """Return schemas as versions 1, 2, ... with the ids 11, 12, ..."""
    kind = SchemaSetting(format=form, subject=SUBJECT).schema_type
    return [
        Version(subject=SUBJECT, version=number, id=10 + number, schema_type=kind, schema=text)
        for number, text in enumerate(texts, 1)
    ]


def codec(
    form: Format, *texts: str, wire: Wire = "none", on_invalid: OnInvalid = "quarantine", message: str = ""
) -> Codec:
    """Return the codec of a topic whose schema has these versions."""
    setting = SchemaSetting(format=form, subject=SUBJECT, wire=wire, on_invalid=on_invalid, message=message)
    return codec_of(setting, versions_of(form, texts), lambda id_: None, lambda version: [version])


def bodies(*some: bytes | str | None) -> pa.BinaryArray:
    """Return bodies as a column."""
    return pa.array([body.encode() if isinstance(body, str) else body for body in some], pa.binary())
