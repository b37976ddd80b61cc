"""A pop's answer: the rows of each lane with their handles, as JSON messages or as Arrow columns.

Of a static topic, a message is shown in its logical queue with its logical offset, while its handle names the partition
that has it; of a global topic also the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

import msgspec
import pyarrow as pa

from deltamq.api.queue.pop_requests import Taken
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.arrow_body import ArrowPieces
from deltamq.api.wire.message_json import json_columns, shown_offsets, shown_origins
from deltamq.mq.queue.handle import handle_of_cluster
from deltamq.mq.static.global_queues import GlobalQueues, shown_place
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.wire.pop import FAILED_KEY, FailedHandle, PopAnswer, PoppedMessage
from deltamq.tables.schema import MESSAGE_SCHEMA

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        *MESSAGE_SCHEMA,
        pa.field("handle", pa.string(), nullable=False),
        pa.field("delivery_attempt", pa.int32(), nullable=False),
    ]
)
_SCHEMA_BYTES: Final = _SCHEMA.serialize().to_pybytes()
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
#: Bytes up to which an answer is sent whole; larger ones are sent in pieces.
_WHOLE_BYTES_MAX: Final = 1024 * 1024


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(taken: Sequence[Taken], queues: TopicQueues | None, world: GlobalQueues | None = None) -> Sequence[Taken]:
    """Return what was taken as a client sees it: in `queues` of a static topic, or in `world` of a global one."""
    return taken if queues is None else [_shown(one, queues, world) for one in taken]


def _shown(one: Taken, queues: TopicQueues, world: GlobalQueues | None) -> Taken:
    place = shown_place(queues, world, one.pop.partition)
    if world is not None:
        one = one._replace(handles=[handle_of_cluster(world.here, handle) for handle in one.handles])
    if place is None:  # a retry partition
        return one._replace(rows=shown_origins(one.rows, lambda _, partition: shown_place(queues, world, partition)))
    return one._replace(rows=shown_offsets(one.rows, place), shown_in=place.name)


def json_answer(
    taken: Sequence[Taken], *, pop_time_ms: int, invisible_ms: int, rest: int, failed: list[FailedHandle]
) -> Answer:
    """Return the answer as JSON."""
    messages: list[PoppedMessage] = []
    for one in taken:
        attempts = repeat(one.attempts) if isinstance(one.attempts, int) else one.attempts
        columns = json_columns(one.rows)
        messages += map(PoppedMessage, repeat(one.partition), one.handles, attempts, *columns)
    answer = PopAnswer(messages, _time(pop_time_ms), invisible_ms, rest, failed)
    body = msgspec.json.encode(answer)
    return Answer.of_json(body)


def arrow_answer(
    taken: Sequence[Taken], *, pop_time_ms: int, invisible_ms: int, rest: int, failed: list[FailedHandle]
) -> Answer:
    """Return the answer as record batches. What is not in their columns is in `Mq-*` headers; the handles that were not
    acknowledged are in the schema's metadata, since there may be too many for a header.
    """
    schema = _SCHEMA.with_metadata({FAILED_KEY: msgspec.json.encode(failed)}) if failed else _SCHEMA
    batches = [batch for one in taken for batch in _batches(one, schema)]
    weight = sum(one.nbytes for one in taken)
    body = _stream(schema, batches) if weight <= _WHOLE_BYTES_MAX else ArrowPieces(pa.Table.from_batches(batches))
    size = len(body) if isinstance(body, bytes) else body.size
    headers = [
        (b"content-type", ARROW_TYPE.encode()),
        (b"content-length", b"%d" % size),
        (b"mq-pop-time", _time(pop_time_ms).encode()),
        (b"mq-invisible-ms", b"%d" % invisible_ms),
        (b"mq-rest", b"%d" % rest),
        (b"mq-failed", b"%d" % len(failed)),
    ]
    return Answer(200, headers, body)


def _stream(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return the whole Arrow stream."""
    head = _SCHEMA_BYTES if schema is _SCHEMA else memoryview(schema.serialize())
    return b"".join([head, *(memoryview(batch.serialize()) for batch in batches), _END])


def _batches(one: Taken, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return one lane's rows with the columns that popped rows have besides."""
    batches = []
    at = 0
    rows = one.rows if one.rows.column(0).num_chunks == 1 else one.rows.combine_chunks()
    for batch in rows.to_batches():
        count = batch.num_rows
        attempts: Any = one.attempts
        if isinstance(attempts, int):
            attempts = pa.repeat(pa.scalar(attempts, pa.int32()), count)
        else:
            attempts = pa.array(attempts[at : at + count], pa.int32())
        columns = [
            pa.repeat(pa.scalar(one.partition, pa.string()), count),
            *batch.columns,
            pa.array(one.handles[at : at + count], pa.string()),
            attempts,
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        at += count
    return batches
