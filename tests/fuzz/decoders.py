"""Every decoder as a function of bytes that may raise errors of ours and nothing else.

The first part are decoders of what clients send, which refuse (`Refused`); the second part are decoders of what is
stored, which stop (`Corrupt`). What is stored has checksums that no random change passes, so those are made right here.
"""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import google_crc32c
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from deltamq.api.auth.credentials import KeyTimes
from deltamq.api.issuer import IssuerTokens, JwksInvalid, signing_keys
from deltamq.api.kafka.access.session import MECHANISMS, exchange_of
from deltamq.api.kafka.messages.apis import read_frame
from deltamq.api.kafka.records.batch import BatchHeader, batches_of
from deltamq.api.kafka.records.decode import decode_batches, expanded_batch
from deltamq.api.kafka.records.native import NativeDecoder
from deltamq.api.kafka.rows import native_decoder
from deltamq.api.schemas.texts import Texts, rules_of, stored_form
from deltamq.api.wire.arrow_body import decode_arrow
from deltamq.api.wire.fields import message_filter
from deltamq.api.wire.json_body import decode, decode_pop
from deltamq.api.wire.json_rows import decode_json, decode_ndjson
from deltamq.api.wire.request import integer, parse_query, unquoted
from deltamq.api.wire.route_batch import route_messages
from deltamq.api.wire.rows import ArrowRows
from deltamq.mq.audit import record_from_json as audit_from_json
from deltamq.mq.auth.callers import Credential, credential_of
from deltamq.mq.auth.keys import Key, Password, new_key
from deltamq.mq.errors import DeltaMQError, Unauthenticated
from deltamq.mq.filters.evaluation import Fields, evaluate
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import MIB
from deltamq.mq.meta.fold import event_from_json
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.names import check_broker, check_group, check_partition, check_topic, decode_path, encode_path
from deltamq.mq.queue.checkpoint import Pop, Span
from deltamq.mq.queue.delay import mark_from_json
from deltamq.mq.queue.handle import HandleKeys, mint, open_handles
from deltamq.mq.queue.progress import OffsetRecord
from deltamq.mq.queue.revive import LostRecord
from deltamq.mq.queue.revive_log import record_from_json
from deltamq.mq.routing import new_route
from deltamq.mq.schemas.setting import Format
from deltamq.mq.statistics import StatisticsRecord
from deltamq.mq.wire.pop import AckRequest, DeadRequest, InvisibleRequest, NackRequest
from deltamq.tables.config import load
from deltamq.tables.delta.actions import _CRC_MARK, _NO_CRC, _checksum, _with_crc, parse_commit
from deltamq.tables.delta.checkpoint import _checksum as _checkpoint_checksum
from deltamq.tables.delta.checkpoint import _crc_at, read_checkpoint
from deltamq.tables.delta.encode import encode_file, footer_start
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.stamped import Stamped
from deltamq.tables.oidc_settings import OIDC_ALGORITHMS, OidcSettings
from deltamq.tables.store.store import MemoryStore
from tests.identity_provider import jwk_of
from tests.rows import rows
from tests.typed import bodies, both, codec, record, same

__all__ = ["DECODERS", "SIGNING", "Decoder"]

Decoder = Callable[[bytes], object]

KEYS: Final = HandleKeys(current=1, secrets={1: b"s" * 32})
_SCRAM_KEY: Final = new_key("reports", b"k" * 8, b"s" * 32, 1)[0]
_ROUTE: Final = new_route("orders", 4, ["broker-a", "broker-b"])
_HEADERS: Final = {b"content-type": b"application/json"}
_VARIABLES: Final = ("DELTAMQ_SERVICE_PORT", "DELTAMQ_LOG_FLUSH", "DELTAMQ_SERVICE_BROKERS", "DELTAMQ_JOBS_UI")
_CALLS: Final[tuple[msgspec.json.Decoder[Any], ...]] = tuple(
    msgspec.json.Decoder(kind) for kind in (AckRequest, NackRequest, DeadRequest, InvisibleRequest)
)
TABLE_ID: Final = "t-1"
_FILE: Final = encode_file(
    Stamped(rows([b"one", b"two"]), [], batch_id="b" * 32, append_us=1, start=0).table(),
    [],
    batch_id="b" * 32,
    now_ms=1,
    row_group_rows=1_024,
)


#: The key of the provider: the same in each process, so that what was found once is found again.
SIGNING: Final = ec.derive_private_key(7, ec.SECP256R1())
_TOKENS: Final = IssuerTokens(
    OidcSettings(issuer="https://idp.example.org", audience="deltamq", algorithms=("ES256",), groups_claim="groups"),
    now_ms=lambda: 0,
    times=KeyTimes(),
)
_TOKENS.keys._set(signing_keys(msgspec.json.encode({"keys": [jwk_of(SIGNING, "one")]}), ["ES256"]).keys)


# What clients send ---------------------------------------------------------------------------------------------------


def _json(data: bytes) -> None:
    decoded = decode_json(data, 0)
    route_messages("orders", decoded.rows, decoded.partitions, _ROUTE, 0)


def _ndjson(data: bytes) -> None:
    decoded = decode_ndjson(data, 0)
    route_messages("orders", decoded.rows, decoded.partitions, _ROUTE, 0)


def _arrow(data: bytes) -> None:
    decoded = decode_arrow(data, 0)
    assert isinstance(decoded.rows, ArrowRows)
    decoded.rows.batch.to_pydict()
    route_messages("orders", decoded.rows, decoded.partitions, _ROUTE, 0)


def _handles(data: bytes) -> None:
    texts = data.decode("utf-8", "replace").split("\n")
    opened, invalid = open_handles(KEYS, "billing", texts)
    assert sum(one.bits.bit_count() for one in opened) <= len(texts) >= len(invalid)


def _signed_handle(data: bytes) -> None:
    """Open what the holder of the secret could have signed: names that a pop may have."""
    topic, _, partition = data.decode("utf-8", "replace").partition("\n")
    pop = Pop(
        topic=check_topic(topic),
        topic_id="t-1",
        group="billing",
        partition=check_partition(partition),
        retry=False,
        epoch=1,
        pop_time_ms=1,
        invisible_ms=60_000,
        revive_queue=0,
    )
    [text] = mint(KEYS, pop, [Span(2, 1)])
    opened, _ = open_handles(KEYS, "billing", [text])
    assert (opened[0].lease.topic, opened[0].lease.partition) == (topic, partition)


def _pop(data: bytes) -> None:
    decode_pop(_HEADERS, data)


def _settle(data: bytes) -> None:
    for decoder in _CALLS:
        try:
            decode(decoder, _HEADERS, data)
        except DeltaMQError:
            continue


def _filter(data: bytes) -> None:
    condition = parse_filter(data.decode("utf-8", "replace"))
    evaluate(condition, Fields("k", "t", {"region": "eu", "amount": "7"}))


def _tags(data: bytes) -> None:
    message_filter(data.decode("utf-8", "replace"), None)


def _names(data: bytes) -> None:
    """Names that are taken have a folder of their own, and come back from it."""
    text = data.decode("utf-8", "replace")
    for check in (check_topic, check_group, check_broker, check_partition):
        try:
            name = check(text)
        except DeltaMQError:
            continue
        folder = encode_path(name)
        assert "/" not in folder and folder not in (".", "..") and not folder.startswith((".", "_"))
        assert decode_path(folder) in (name, None)


def _folder(data: bytes) -> None:
    decode_path(data.decode("utf-8", "replace"))


def _query(data: bytes) -> None:
    found = parse_query(data, ("offset", "wait_ms", "tags", "filter"))
    integer(found, "offset", 0, 0, 2**63 - 1)
    integer(found, "wait_ms", 0, 0, 20_000)
    message_filter(found.get("tags"), found.get("filter"))
    unquoted(data, "topic")


# What is stored ------------------------------------------------------------------------------------------------------


def _token(data: bytes) -> None:
    _TOKENS.credential(data.decode("latin-1"), 1_700_000_000_000)


def _claims(data: bytes) -> None:
    """Decode claims that the provider has signed."""
    claims: object = None
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        claims = msgspec.json.decode(data)
    if isinstance(claims, dict):
        credential_of(claims, principal_claim="sub", groups_claim="groups").is_live(0)


def _jwks(data: bytes) -> None:
    with contextlib.suppress(JwksInvalid):
        signing_keys(data, OIDC_ALGORITHMS)


def _tagged(read: Callable[[str, bytes], object]) -> Decoder:
    """Return a decoder of a tag, a line end, and a body."""

    def decode_tagged(data: bytes) -> None:
        tag, _, body = data.partition(b"\n")
        read(tag.decode("utf-8", "replace"), body)

    return decode_tagged


def _commit(data: bytes) -> None:
    parse_commit(data, table_id=TABLE_ID, version=7, source="commit")


def _commit_with_checksum(data: bytes) -> None:
    if _CRC_MARK in data:
        data = _with_crc(data, _checksum(_with_crc(data, _NO_CRC), TABLE_ID))
    _commit(data)


def _checkpoint(data: bytes) -> None:
    store = MemoryStore()
    at = _crc_at(data)
    if at >= 0:
        data = data[:at] + _checkpoint_checksum(data, at) + data[at + 8 :]
    store.put("orders/_delta_log/00000000000000000007.checkpoint.parquet", data, durable=False)
    read_checkpoint(store, "orders", 7)


def _data_file(data: bytes) -> None:
    """Read a data file whose row group and footer have the right checksums, whatever they say."""
    store = MemoryStore()
    file = replace(_FILE.file, size=len(data))
    at = footer_start(memoryview(data)) if len(data) >= 12 else 0
    if 0 < at < len(data):
        file = replace(file, crc=f"{zlib.crc32(data[:at]):08x},{zlib.crc32(data[at:]):08x}")
    store.put(f"orders/{file.path}", data, durable=False)
    reader = FileReader(store, "orders", RowCache(1 << 20))
    reader.parts(file)
    reader.rows(file, file.start, file.end)


def _settings(data: bytes) -> None:
    """Load a profile, and settings from the environment, one on each line."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "local.toml").write_bytes(data)
        with contextlib.suppress(DeltaMQError):
            load("local", environ={}, folder=Path(folder))
    lines = data.decode("utf-8", "replace").replace("\0", "").split("\n")
    load("local", environ=dict(zip(_VARIABLES, lines, strict=False)))


def _kafka_frame(data: bytes) -> None:
    read_frame(data)


def _kafka_records(data: bytes) -> None:
    """A batch with the checksum of what it has; with and without the compiled decoder its records are the same."""
    sealed = data[:17] + google_crc32c.value(data[21:]).to_bytes(4, "big") + data[21:]
    batches = [expanded_batch(one, MIB) for one in batches_of(sealed)]
    if batches:
        assert _records(batches, native_decoder()) == _records(batches, None), "the decoders differ"
        decode_batches(batches)


def _records(batches: Sequence[BatchHeader], native: NativeDecoder | None) -> object:
    try:
        found = decode_batches(batches, native)
    except DeltaMQError as error:
        return error.code
    headers = None if found.headers is None else found.headers.to_pylist()
    return found.key.to_pylist(), found.value.to_pylist(), headers, found.time_ms.tolist()


_TYPED_DDL: Final = (
    "a BIGINT, b STRING NOT NULL, c ARRAY<STRUCT<d: DOUBLE, e: TIMESTAMP>>, f MAP<STRING, DECIMAL(9, 2)>, g BINARY"
)
_TYPED_AVRO: Final = record(
    ("a", "long"),
    ("b", ["null", "string"]),
    ("c", {"type": "array", "items": {"type": "int", "logicalType": "date"}}),
    ("f", {"type": "map", "values": ["int", {"type": "bytes", "logicalType": "decimal", "precision": 9}]}),
    ("g", {"type": "enum", "name": "G", "symbols": ["X", "Y"]}),
)
_TYPED_PROTOBUF: Final = (
    'syntax = "proto3"; message A { int64 a = 1; repeated string b = 2; map<string, A.B> c = 3; oneof d { B e = 4; '
    "fixed32 f = 5; } repeated sint32 g = 6; message B { double h = 1; bytes i = 2; } }"
)
_TYPED_SCHEMAS: Final[dict[Format, str]] = {
    "columns": _TYPED_DDL,
    "avro": _TYPED_AVRO,
    "protobuf": _TYPED_PROTOBUF,
}
#: Each format without and with `rescue`, decoded in both ways.
_TYPED: Final = {
    form: (both(form, text), both(form, text, on_invalid="rescue")) for form, text in _TYPED_SCHEMAS.items()
}


def _typed(form: Format) -> Decoder:
    """The compiled decoder and the plain one give the same."""

    def decode(data: bytes) -> None:
        for pair in _TYPED[form]:
            same(pair, [data, data[:-1]], faults=False)

    return decode


def _schema(data: bytes) -> None:
    kind, _, text = data.decode("utf-8", "replace").partition("\n")
    form = cast(Format, kind if kind in ("avro", "json", "protobuf", "columns") else "columns")
    made = codec(form, text)
    made.decode(bodies(b"{}", b"\0\0"))


def _registered(data: bytes) -> None:
    """A schema that is registered is compatible with itself."""
    kind, _, text = data.decode("utf-8", "replace").partition("\n")
    schema_type = kind.upper() if kind in ("avro", "json", "protobuf", "columns") else "JSON"
    rules = rules_of(schema_type)
    parsed = rules.parsed(Texts(stored_form(schema_type, text, normalize=True), {}))
    assert rules.differences(parsed, parsed) == []


class _Nobody:
    """Knows no token and one key."""

    async def of_token(self, token: str) -> Credential:
        raise Unauthenticated("unknown")

    def keys_of(self, user: str) -> Sequence[Key]:
        return [_SCRAM_KEY] if user == _SCRAM_KEY.principal else []

    def password(self, user: str, mechanism: str) -> Password | None:
        return None


def _kafka_sasl(data: bytes) -> None:
    """A mechanism by its number, and the messages of an exchange, each behind a line's end."""
    exchange = exchange_of(MECHANISMS[data[0] % len(MECHANISMS)] if data else "PLAIN", _Nobody(), lambda: "nonce")
    for message in data[1:].split(b"\n"):
        with contextlib.suppress(StopIteration):
            exchange.step(message).send(None)  # type: ignore[attr-defined] # a coroutine that waits for nothing


DECODERS: Final[Mapping[str, Decoder]] = {
    "json": _json,
    "ndjson": _ndjson,
    "arrow": _arrow,
    "handles": _handles,
    "signed_handle": _signed_handle,
    "pop": _pop,
    "settle": _settle,
    "filter": _filter,
    "tags": _tags,
    "names": _names,
    "folder": _folder,
    "query": _query,
    "token": _token,
    "claims": _claims,
    "jwks": _jwks,
    "kafka_frame": _kafka_frame,
    "kafka_records": _kafka_records,
    "kafka_sasl": _kafka_sasl,
    "typed_json": _typed("columns"),
    "typed_avro": _typed("avro"),
    "typed_protobuf": _typed("protobuf"),
    "typed_schema": _schema,
    "registered_schema": _registered,
    "revive_record": _tagged(record_from_json),
    "delay_mark": _tagged(mark_from_json),
    "offset_record": _tagged(lambda _, body: OffsetRecord.from_json(body)),
    "lost_record": _tagged(lambda _, body: LostRecord.from_json(body)),
    "statistics_record": StatisticsRecord.from_json,
    "audit_record": _tagged(audit_from_json),
    "meta_event": _tagged(event_from_json),
    "meta_snapshot": _tagged(lambda _, body: MetaSnapshot.from_json(body)),
    "commit": _commit,
    "commit_with_checksum": _commit_with_checksum,
    "checkpoint": _checkpoint,
    "data_file": _data_file,
    "settings": _settings,
}
