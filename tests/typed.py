"""Codecs of typed topics for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.mq.schemas.changes import decide_register
from deltamq.mq.schemas.registry import Schema, Version
from deltamq.mq.schemas.setting import Format, OnInvalid, SchemaSetting, Wire, subject_of
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.typed.codec import Codec, codec_of
from deltamq.tables.typed.columns import TypedColumns

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
    form: Format,
    *texts: str,
    wire: Wire = "none",
    on_invalid: OnInvalid = "quarantine",
    message: str = "",
    compiled: bool = True,
) -> Codec:
    """Return the codec of a topic whose schema has these versions."""
    setting = SchemaSetting(format=form, subject=SUBJECT, wire=wire, on_invalid=on_invalid, message=message)
    return codec_of(setting, versions_of(form, texts), lambda id_: None, lambda version: [version], compiled=compiled)


def bodies(*some: bytes | str | None) -> pa.BinaryArray:
    """Return bodies as a column."""
    return pa.array(
        [body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body for body in some], pa.binary()
    )


def both(form: Format, *texts: str, **options: Any) -> tuple[Codec, Codec]:
    """Return the codec with compiled decoders, and the one without."""
    return codec(form, *texts, **options), codec(form, *texts, compiled=False, **options)


def faults_of(columns: TypedColumns) -> list[tuple[str, str, str, int | None] | None]:
    """Return the code, field, reason and schema of each body that does not fit."""
    rows = [] if columns.invalid is None else columns.invalid.to_pylist()
    return [None if row is None else tuple(row.values()) for row in rows]


def same(pair: tuple[Codec, Codec], some: Sequence[bytes | str | None], *, faults: bool = True) -> TypedColumns:
    """Decode bodies in both ways, also behind others; return what both give."""
    column = pa.concat_arrays([bodies(b"before"), bodies(*some), bodies("{}", None)])[1 : 1 + len(some)]
    fast, plain = (one.decode(column) for one in pair)
    fast.value.validate(full=True)
    assert fast.value.type == pair[0].value_type
    # NaN differs from itself.
    assert fast.value.equals(plain.value) or repr(fast.value.to_pylist()) == repr(plain.value.to_pylist())
    assert (fast.rescued is None) == (plain.rescued is None)
    assert fast.rescued is None or fast.rescued.equals(plain.rescued)
    if faults:
        assert faults_of(fast) == faults_of(plain)
    else:
        assert [one is None for one in faults_of(fast)] == [one is None for one in faults_of(plain)]
    return fast


def make_typed(
    meta: MetaLog,
    topic: str,
    form: Format,
    text: str,
    *,
    on_invalid: OnInvalid = "reject",
    wire: Wire = "none",
) -> SchemaSetting:
    """Give a topic that exists a schema, or a new version of it, as the service does; no text is checked."""
    setting = SchemaSetting(format=form, subject=subject_of(topic), on_invalid=on_invalid, wire=wire)

    def decide(state: Meta) -> Sequence[AnyEvent]:
        schema = Schema(schema_type=setting.schema_type, schema=text)
        basis = state.schemas.basis(setting.subject)
        registered = decide_register(state.schemas, setting.subject, schema, basis=basis)
        request = TopicRequest(schema=setting)
        return [*registered, *decide_put_topic(state.topics, topic, request, [], "", 0)]

    meta.submit_any(decide)
    return setting
