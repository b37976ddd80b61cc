"""The schema of message rows, which every reader may rely on (SPEC MODEL-2, SPARK-1).

| column            | type                     | meaning                                                       |
|-------------------|--------------------------|---------------------------------------------------------------|
| `offset`          | long, not null           | position in the partition: unique, contiguous                 |
| `message_id`      | string                   | the producer's id, or one that the append generates           |
| `key`, `tag`      | string                   | order key; filter tag                                         |
| `headers`         | map<string,string>       |                                                               |
| `body`            | binary                   |                                                               |
| `born_time`       | timestamp (UTC)          | the producer's time                                           |
| `append_time`     | timestamp (UTC)          | the commit's time; never decreases with the offset            |
| `deliver_time`    | timestamp or null        | when a delayed message is due                                 |
| `reconsume_times` | int                      | failed deliveries so far                                      |
| `origin`          | struct(topic, partition, offset) | where a retried, delayed or dead message came from    |
| `producer_id`, `producer_seq` | string, long | the idempotent request that stored it                         |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())
ORIGIN: Final = pa.struct([("topic", pa.string()), ("partition", pa.string()), ("offset", pa.int64())])

MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("headers", HEADERS),
        pa.field("body", pa.binary()),
        pa.field("born_time", TIME),
        pa.field("append_time", TIME),
        pa.field("deliver_time", TIME),
        pa.field("reconsume_times", pa.int32()),
        pa.field("origin", ORIGIN),
        pa.field("producer_id", pa.string()),
        pa.field("producer_seq", pa.int64()),
    ]
)

MESSAGE_COLUMNS: Final[tuple[str, ...]] = tuple(MESSAGE_SCHEMA.names)
#: The columns that a producer may send.
INGEST_SCHEMA: Final = pa.schema(
    [MESSAGE_SCHEMA.field(n) for n in ("message_id", "key", "tag", "headers", "body", "born_time", "deliver_time")]
)
#: The columns that DeltaMQ's own jobs may append: retries, dead letters and forwarded messages keep their history.
INTERNAL_SCHEMA: Final = pa.schema(
    [*INGEST_SCHEMA, MESSAGE_SCHEMA.field("reconsume_times"), MESSAGE_SCHEMA.field("origin")]
)


SIMPLE_TYPES: Final[dict[pa.DataType, str]] = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    TIME: "timestamp",
}


def _delta_type(kind: pa.DataType) -> object:
    if kind in SIMPLE_TYPES:
        return SIMPLE_TYPES[kind]
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _delta_type(kind.key_type),
            "valueType": _delta_type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _delta_type(kind.value_type), "containsNull": True}
    return _delta_struct(kind)


def _delta_struct(fields: Iterable[pa.Field]) -> dict[str, object]:
    return {"type": "struct", "fields": [_delta_field(field) for field in fields]}


def _delta_field(field: pa.Field) -> dict[str, object]:
    return {"name": field.name, "type": _delta_type(field.type), "nullable": field.nullable, "metadata": {}}


def delta_schema(schema: pa.Schema) -> str:
    """Return a schema as Delta's schema JSON; only types that DeltaMQ's tables use are supported."""
    return json.dumps(_delta_struct(schema), separators=(",", ":"))


#: The schema of message rows as Delta's schema JSON.
DELTA_SCHEMA: Final = delta_schema(MESSAGE_SCHEMA)
