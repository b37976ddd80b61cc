"""Inputs that the decoders take, made by the encoders of today; the corpus on disk holds what was found with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import jwt
import msgspec
import numpy as np
import pyarrow as pa

from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.mq.producer import Part
from deltamq.mq.queue.checkpoint import Pop, Span
from deltamq.mq.queue.handle import mint
from deltamq.mq.statistics import Consumed, MinuteKey, StatisticsRecord
from deltamq.tables.delta.actions import encode_append, encode_create, encode_fence
from deltamq.tables.delta.checkpoint import LogCheckpoint, checkpoint_name, write_checkpoint
from deltamq.tables.delta.protocol import MESSAGE_PROTOCOL
from deltamq.tables.paths import LOG_FOLDER
from deltamq.tables.store.store import MemoryStore
from tests.fuzz.decoders import _FILE, KEYS, SIGNING, TABLE_ID
from tests.identity_provider import jwk_of
from tests.typed import record

__all__ = ["SEEDS"]

_POP: Final = Pop(
    topic="orders",
    topic_id="t-1",
    group="billing",
    epoch=1,
    partition="orders@broker-a",
    pop_time_ms=1_000,
    invisible_ms=60_000,
    revive_queue=3,
)
_PART: Final = Part(producer_id="p", seq=4, base_offset=0, count=2, total=9, time_ms=17, indexes=(0, 5))


class _Stored(msgspec.Struct):
    tag: str
    body: msgspec.Raw


def _stream(**columns: object) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _arrows() -> list[bytes]:
    time = pa.timestamp("us", "UTC")
    headers = pa.array([[("region", "eu")], None], pa.map_(pa.string(), pa.string()))
    return [
        _stream(body=pa.array([b"one", b"two"], pa.binary())),
        _stream(body=pa.array(["one", "two"]), key=pa.array(["a", None]), tag=pa.array(["t", "u"]), headers=headers),
        _stream(body=pa.array([b"one"], pa.large_binary()), born_time=pa.array([1], time)),
        _stream(
            body=pa.array([b"one"], pa.binary(3)), delay_ms=pa.array([10]), partition=pa.array(["orders@broker-a"])
        ),
    ]


def _commits() -> list[bytes]:
    common = {"table_id": TABLE_ID, "version": 7, "batch_id": "b" * 32, "now_ms": 1}
    schema = '{"type":"struct","fields":[]}'
    return [
        encode_append(**common, file=_FILE.file, parts=(_PART,), flushed=False).data,  # type: ignore[arg-type] # of one dict
        encode_fence(**common, name="broker-a", epoch=3).data,  # type: ignore[arg-type] # of one dict
        encode_create(
            table_id=TABLE_ID,
            name="orders",
            schema=schema,
            configuration={"a": "b"},
            protocol=MESSAGE_PROTOCOL,
            now_ms=1,
            transactions={},
        ),
    ]


def _checkpoint() -> bytes:
    store = MemoryStore()
    metadata: dict[str, object] = {
        "id": TABLE_ID,
        "name": "orders",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": "{}",
        "partitionColumns": [],
        "configuration": {"a": "b"},
        "createdTime": 1,
    }
    checkpoint = LogCheckpoint(
        version=7, batch_id="b" * 32, end_offset=2, files=[_FILE.file], metadata=metadata, fences={"broker-a": 3}
    )
    write_checkpoint(store, "orders", checkpoint, now_ms=1)
    return bytes(store.read(f"orders/{LOG_FOLDER}/{checkpoint_name(7)}"))


def _stored() -> list[bytes]:
    """Return a tag and a body of each form that has been stored so far; each decoder takes its own of them."""
    path = Path(__file__).parents[1] / "unit" / "mq" / "stored_forms.jsonl"
    lines = [msgspec.json.decode(line, type=_Stored) for line in path.read_bytes().splitlines()]
    return [line.tag.encode() + b"\n" + bytes(line.body) for line in lines]


_JSON: Final = (
    b'{"messages":[{"body":"x","key":"a","tag":"t","headers":{"region":"eu"},"delay_ms":10}]}',
    b'{"messages":[{"body_base64":"eA==","born_time":"2026-01-01T00:00:00Z","message_id":"m"}],'
    b'"producer":{"id":"p","seq":4},"expected_offset":3}',
    b'{"messages":[{"body":"x","partition":"orders@broker-a"},{"body":"\\u00e9\\n"}]}',
)

_STORED: Final = _stored()

_CLAIMS: Final = (
    b'{"iss":"https://idp.example.org","aud":"deltamq","sub":"reports","exp":4000000000,"nbf":0,"groups":["a","b"]}'
)
_TOKEN: Final = jwt.PyJWS().encode(_CLAIMS, SIGNING, "ES256", {"kid": "one"}).encode()


def _frames() -> list[bytes]:
    """Return requests of Kafka's clients without the frames' lengths: call, version, number, no client id, and body."""
    return [
        b"\0\x12\0\0\0\0\0\7\xff\xff",
        b"\0\x11\0\1\0\0\0\7\xff\xff\0\5PLAIN",
        b"\0\x24\0\2\0\0\0\7\xff\xff\0\4\0a\0\0",
        b"\0\x03\0\1\0\0\0\7\xff\xff\0\0\0\1\0\6orders",
        b"\0\x0c\0\0\0\0\0\7\xff\xff\0\1g\0\0\0\1\0\1m",
    ]


def _batches() -> list[bytes]:
    """Return batches of Kafka's records: more than are read one by one, with nulls; and a few with headers."""
    keys = [None if at % 3 else b"k" * at for at in range(12)]
    plain = Records(
        key=pa.array(keys, pa.binary()),
        value=pa.array([None if at == 5 else b"v" * 7 * at for at in range(12)], pa.binary()),
        headers=None,
        time_ms=np.arange(1_700_000_000_000, 1_700_000_000_012),
    )
    named = Records(
        key=pa.array([b"a", None], pa.binary()),
        value=pa.array([b"x", b""], pa.binary()),
        headers=pa.array([[(b"h", b"1"), (b"h", None)], []], pa.map_(pa.binary(), pa.binary())),
        time_ms=np.array([1, 2]),
    )
    return [encode_records(plain, base_offset=0, producer=(7, 0, 0)), encode_records(named, base_offset=3)]


SEEDS: Final[Mapping[str, Sequence[bytes]]] = {
    "json": _JSON,
    "ndjson": (b'{"body":"x","key":"a"}\n{"body":"y"}\n', b'{"body_base64":"eA=="}'),
    "arrow": _arrows(),
    "handles": ["\n".join(mint(KEYS, _POP, [span])).encode() for span in (Span(2, 1), Span(2, 3, (0, 4, 9)))],
    "signed_handle": (b"orders\norders@broker-a", b"%RETRY%billing\norders#x@broker-b"),
    "pop": (b'{"max_messages":4,"wait_ms":10,"invisible_ms":10000,"tags":"a||b","ack":["h"]}', b""),
    "settle": (b'{"handles":["a","b"]}', b'{"handle":"a","invisible_ms":0}', b'{"handles":["a"],"reason":"no"}'),
    "filter": (
        b"region = 'eu' AND amount > 5",
        b"NOT (tag IN ('a', 'b') OR mq_key LIKE '%x!%_' ESCAPE '!') AND amount BETWEEN -1 AND 2 * (3 + 4)",
        b"`odd name` IS NOT NULL OR 1 = 1",
    ),
    "tags": (b"*", b"TagA||TagB"),
    "names": (b"orders", b"%RETRY%billing", b"orders#x@broker-a", b"3@__logical_queue_broker__", b".hidden"),
    "folder": (b"orders~25x", b"a~2E", b"x~-0123456789abcdef0123456789abcdef"),
    "query": (b"offset=5&wait_ms=10&tags=a%7C%7Cb", b"filter=region+%3D+%27eu%27"),
    "token": (_TOKEN,),
    "claims": (_CLAIMS, b'{"sub":"a","exp":1.5e9,"groups":"x"}'),
    "jwks": (msgspec.json.encode({"keys": [jwk_of(SIGNING, "one"), {**jwk_of(SIGNING, "two"), "alg": "ES256"}]}),),
    "kafka_frame": _frames(),
    "kafka_records": _batches(),
    "kafka_sasl": (
        b"\0n,,n=reports,r=abc\nc=biws,r=abcnonce,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"\1n,a=reports,n=reports,r=abc",
    ),
    "typed_json": (
        b'{"a":1,"b":"x","c":[{"d":1.5,"e":"2026-11-29T12:00:00Z"},null],"f":{"k":"1.25"},"g":"AAE="}',
        b'{"b":"\\ud83d\\ude00\\n","a":-9223372036854775808,"c":[{"d":0.1e-7}],"f":{}}',
    ),
    "typed_avro": (
        b"\x02\x02\x02x\x04\x02\x04\0\x02\x02k\x02\x02\x07\0\x02",
        b"\x7f\0\x01\x04\x7f\0\x02\x02k\0\x04\0\0",
    ),
    "typed_protobuf": (
        b"\x08\x05\x12\x01x\x12\x00\x1a\x0e\x0a\x01k\x12\x09\x09" + bytes(8) + b"\x32\x02\x01\x02",
        b"\x2d\x01\x02\x03\x04\x30\x07\x22\x03\x12\x01y\x7a\x01z",
    ),
    "typed_schema": (
        b'protobuf\nsyntax = "proto3"; message A { enum E { X = 0; } map<int32, E> m = 1; optional double d = 2; }',
        b"columns\na BIGINT NOT NULL COMMENT 'x', `b c` ARRAY<STRUCT<d: DECIMAL(9, 2)>>, f MAP<STRING, INT>",
        b"avro\n" + record(("a", ["null", "long"]), ("b", {"type": "map", "values": "string"})).encode(),
        b'json\n{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":["null","integer"]}}}',
        b'json\n{"properties":{"a":{"oneOf":[{"type":"null"},{"type":"array","items":{"format":"date","type":"string"}}]}}}',
    ),
    "registered_schema": (
        b'protobuf\nsyntax = "proto3"; enum E { X = 0; } message A { oneof c { A b = 2; } map<int32, E> m = 3; }',
        b"protobuf\nmessage M { required group G = 1 { optional bytes b = 2 [default = 'x']; } extensions 9 to max; }",
        b"columns\na BIGINT NOT NULL, b ARRAY<STRUCT<c: DECIMAL(9, 2)>>",
        b'avro\n{"type":"record","name":"R","aliases":["Q"],"fields":[{"name":"a","type":["null","R"],"default":null}]}',
        b'json\n{"anyOf":[{"type":"object","required":["a"],"patternProperties":{"^x":{"enum":[1]}}},{"not":{"$ref":"#"}}]}',
        b'json\n{"items":[{"minimum":1}],"additionalItems":false,"dependencies":{"a":["b"]},"allOf":[{"const":1.5}]}',
    ),
    "revive_record": _STORED,
    "delay_mark": _STORED,
    "offset_record": _STORED,
    "lost_record": _STORED,
    "audit_record": _STORED,
    "statistics_record": (StatisticsRecord(MinuteKey(60_000, "g", "t", "t-1", "A"), "p", Consumed(3)).to_json(),),
    "meta_event": _STORED,
    "meta_snapshot": _STORED,
    "commit": _commits(),
    "commit_with_checksum": _commits(),
    "checkpoint": (_checkpoint(),),
    "data_file": (bytes(_FILE.data),),
    "settings": (b"[service]\nport = 1\nbrokers = ['a']\n", b"1_000\nsync\na,b\non", b"[log]\nflush = 'async'\n"),
}
