"""The wire format of produce requests and their answers.

A request of one small message is JSON (the cheapest to make and to parse), all others are Arrow streams. The bytes of a
request are made once: a retry sends the same bytes with the same producer sequence (SPEC SEND-5).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UnsetType

from deltamq.mq.client.messages.message import Message, SentRange, offset_after
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.shells.shell import Body
from deltamq.mq.errors import Unknown
from deltamq.mq.wire import produce as wire
from deltamq.mq.wire.produce import ProduceAnswer, Producer

ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"

#: Maximum body of a message sent as JSON, in bytes: JSON escapes text, and base64 adds a third.
_JSON_BODY_BYTES_MAX: Final = 16 * 1024

TIME: Final = pa.timestamp("us", tz="UTC")
#: The columns that a producer may send, with the types that the service takes without conversion.
ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("born_time", TIME),
        pa.field("delay_ms", pa.int64()),
        pa.field("deliver_time", TIME),
    ]
)


class EncodedRequest(msgspec.Struct, frozen=True):
    """One produce request, encoded."""

    body: Body
    headers: dict[str, str]
    query: dict[str, str | int]
    count: int


_encoder = msgspec.json.Encoder()
_JSON_HEADERS: Final = {"Content-Type": JSON}


def encode_request(
    entries: Sequence[Entry], *, partition: str | None, producer_id: str, producer_seq: int
) -> EncodedRequest:
    """Encode the request that stores all messages of `entries` in `partition` (None: the service routes them)."""
    first = entries[0]
    messages = [message for entry in entries for message in entry.messages]
    is_small = len(messages) == 1 and len(messages[0].body) <= _JSON_BODY_BYTES_MAX
    if is_small or [message.value for message in messages].count(None) < len(messages):
        return _json_request(entries, messages, partition, Producer(producer_id, producer_seq))
    headers = {"Content-Type": ARROW, "Producer-Id": producer_id, "Producer-Seq": str(producer_seq)}
    query: dict[str, str | int] = {} if partition is None else {"partition": partition}
    if first.expected_offset is not None:
        query["expected_offset"] = first.expected_offset
    batches = [_rows_of(entries, messages)] if first.rows is None else [e.rows for e in entries if e.rows is not None]
    return EncodedRequest(_stream(batches), headers, query, sum(e.count for e in entries))


# JSON ----------------------------------------------------------------------------------------------------------


def _json_request(
    entries: Sequence[Entry], messages: list[Message], partition: str | None, producer: Producer
) -> EncodedRequest:
    lines = [_line(message, born, partition) for message, born in zip(messages, _born_us(entries), strict=True)]
    body = _encoder.encode(wire.ProduceRequest(lines, producer, entries[0].expected_offset))
    return EncodedRequest(body, _JSON_HEADERS, {}, len(lines))


def _born_us(entries: Sequence[Entry]) -> list[int]:
    """Return when each message of the entries was born, in microseconds of the epoch."""
    return [born for e in entries for born in (e.born_us if e.single else e.born_us * e.count)]


def _line(message: Message, born_us: int, partition: str | None) -> wire.Message:
    line = wire.Message(
        key=message.key,
        tag=message.tag,
        headers=message.headers,
        partition=partition,
        born_time=message.born_time or datetime.fromtimestamp(born_us / 1e6, UTC),
        deliver_time=message.deliver_time,
        delay_ms=message.delay_ms,
        message_id=message.message_id,
    )
    if isinstance(message.value, bytes):
        line.value = msgspec.Raw(message.value)
        return line
    try:
        line.body = message.body.decode()
    except UnicodeDecodeError:
        line.body_base64 = b64encode(message.body).decode()
    return line


# Arrow ---------------------------------------------------------------------------------------------------------


def _rows_of(entries: Sequence[Entry], messages: list[Message]) -> pa.RecordBatch:
    """Return all messages of the entries as one batch, without columns that no message fills."""
    columns: dict[str, list[Any]] = {
        "message_id": [m.message_id for m in messages],
        "key": [m.key for m in messages],
        "tag": [m.tag for m in messages],
        "headers": [m.headers for m in messages],
        "body": [m.body for m in messages],
        "delay_ms": [m.delay_ms for m in messages],
        "deliver_time": [m.deliver_time for m in messages],
    }
    arrays = []
    fields = []
    for name, values in columns.items():
        if name == "body" or values.count(None) < len(values):
            fields.append(ROW_SCHEMA.field(name))
            arrays.append(_array(name, values))
    fields.append(ROW_SCHEMA.field("born_time"))
    arrays.append(_born_times(_born_us(entries), [m.born_time for m in messages]))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _array(name: str, values: list[Any]) -> pa.Array:
    if name == "headers":
        values = [list(v.items()) if isinstance(v, dict) else None for v in values]
    return pa.array(values, ROW_SCHEMA.field(name).type)


def _born_times(born_us: list[int], given: list[datetime | None]) -> pa.Array:
    if given.count(None) < len(given):
        pairs = zip(born_us, given, strict=True)
        born_us = [born if time is None else round(time.timestamp() * 1e6) for born, time in pairs]
    return pa.array(born_us, pa.int64()).view(TIME)


def _stream(batches: Sequence[pa.RecordBatch]) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


# The answer ----------------------------------------------------------------------------------------------------


_decoder = msgspec.json.Decoder(ProduceAnswer)


def read_ranges(body: bytes, count: int) -> list[SentRange]:
    """Parse the ranges of a produce answer for `count` messages.

    Raises
    ------
    Unknown
        `answer_unreadable`: the answer is malformed, and the messages may be stored.
    """
    try:
        answer = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Unknown("the answer to a send is unreadable", code="answer_unreadable") from error
    if sum(r.count for r in answer.ranges) != count:
        raise Unknown(f"the answer to a send of {count} messages covers another number", code="answer_unreadable")
    # With several ranges, the flag of each says which were stored before.
    all_before = answer.duplicate and not any(r.duplicate is True for r in answer.ranges)
    return [
        SentRange(
            partition=r.partition,
            base_offset=r.base_offset,
            count=r.count,
            duplicate=all_before or r.duplicate is True,
            durable=answer.durable,
            delayed=r.delayed is True,
            indexes=None if isinstance(r.indexes, UnsetType) else np.array(r.indexes, dtype=np.int64),
        )
        for r in answer.ranges
    ]


def tell_stored(batch: Sequence[Entry], ranges: Sequence[SentRange]) -> None:
    """Resolve each entry of a request with the ranges of its messages."""
    if len(ranges) == 1:
        whole = ranges[0]
        offset = whole.base_offset
        for entry in batch:
            entry.stored_at(whole.partition, offset, whole.duplicate, whole.durable)
            offset = offset_after(offset, entry.count)
    else:
        calls = [call for entry in batch for call in entry.parts()]
        for call, part in zip(calls, shares(ranges, [call.count for call in calls]), strict=True):
            call.stored(part)


def shares(ranges: Sequence[SentRange], counts: Sequence[int]) -> list[tuple[SentRange, ...]]:
    """Divide the ranges of one request among its consecutive parts, which have `counts` messages.

    Indexes in the result count from the first message of the part.
    """
    parts: list[tuple[SentRange, ...]] = []
    low = 0
    for count in counts:
        parts.append(tuple(_cut(r, low, low + count) for r in ranges if _touches(r, low, low + count)))
        low += count
    return parts


def _touches(whole: SentRange, low: int, high: int) -> bool:
    assert whole.indexes is not None, "several ranges are told apart by their indexes"
    first, end = np.searchsorted(whole.indexes, (low, high))
    return bool(first < end)


def _cut(whole: SentRange, low: int, high: int) -> SentRange:
    assert whole.indexes is not None
    first, end = np.searchsorted(whole.indexes, (low, high))
    indexes = whole.indexes[first:end] - low
    return SentRange(
        partition=whole.partition,
        base_offset=whole.offset_of(int(first)),
        count=len(indexes),
        duplicate=whole.duplicate,
        durable=whole.durable,
        delayed=whole.delayed,
        indexes=None if len(indexes) == high - low else indexes,
    )
