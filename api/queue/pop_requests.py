"""The requests of a pop, for a topic and for one lane of it, its messages there, and its answer: JSON or Arrow columns.

The answer has the rows of each lane with their handles. In a static topic, a message is shown in its logical queue with
its logical offset, while its handle names the partition that has it; in a global topic it also names the cluster.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from deltamq.api.wire.answer import Answer
from deltamq.api.wire.arrow_body import ArrowPieces
from deltamq.api.wire.message_json import json_columns, shown_offsets, shown_origins
from deltamq.api.wire.request import Ticket
from deltamq.mq.errors import Conflict
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import Attempts, LaneKey, Pop
from deltamq.mq.queue.handle import handle_of_cluster
from deltamq.mq.static.global_queues import GlobalQueues, shown_queue
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.wire.pop import FAILED_KEY, FailedHandle, PopAnswer, PoppedMessage
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.schema import MESSAGE_SCHEMA
from deltamq.tables.typed_row import TYPED, conformed_rows, value_type


class TopicPopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request for messages of a topic; the group's settings fill in what it leaves out."""

    topic: Topic
    group: Group
    max_messages: int
    invisible_ms: int
    wait_ms: int
    #: None for every message (SPEC CONS-3, CONS-9).
    filter: MessageFilter | None
    #: The partition to pop, or the logical queue of a static topic; None for all.
    partition: str | None
    order: Ordering
    #: Whether to take only messages that are delivered again.
    retries_only: bool = False
    #: The id of a pop in order that may be repeated (SPEC POP-20).
    attempt_id: str | None = None
    #: How the client named itself; empty if it did not.
    client_id: str = ""
    #: The columns to read; None for those of every message.
    columns: tuple[str, ...] | None = None
    #: Where the bytes of the answer are reserved, before messages are taken: a refused pop must hide none.
    answer: Ticket

    @property
    def attempt(self) -> tuple[str, str, str] | None:
        """The key that repetitions of this pop share; None if it cannot be repeated."""
        return None if self.attempt_id is None else (self.group.name, self.topic.id, self.attempt_id)

    @property
    def keeps_order(self) -> bool:
        """Whether messages of a logical queue's segment must wait for the segments before it."""
        return self.order is not False or self.topic.settings.order_strategy == "strict"


class LanePopRequest(NamedTuple):
    """The part of a pop that one lane answers; its bounds are what the lanes visited before have left.

    A lane reserves the bytes of messages before it moves past them, or raises `Overloaded` (see `reserve`).
    """

    whole: TopicPopRequest
    lane: LaneKey
    log: PartitionLog
    max_messages: int
    max_bytes: int

    @property
    def topic(self) -> Topic:
        return self.whole.topic

    @property
    def group(self) -> Group:
        return self.whole.group

    @property
    def order(self) -> Ordering:
        """The order of this lane: a retry lane has none, since retried messages have lost their place."""
        return False if self.lane.retry else self.whole.order

    def reserve(self, count: int) -> None:
        """Reserve bytes of the answer; raise `Overloaded` if there is no room, and then take no messages."""
        self.whole.answer.grow(count)

    def pop(self, epoch: int, pop_time_ms: int, revive_queue: int) -> Pop:
        """Return the `Pop` that this pop's checkpoints share."""
        lane = self.lane
        return Pop(
            topic=self.topic.name,
            topic_id=lane.topic_id,
            group=lane.group,
            epoch=epoch,
            partition=lane.partition,
            retry=lane.retry,
            pop_time_ms=pop_time_ms,
            invisible_ms=self.whole.invisible_ms,
            revive_queue=revive_queue,
            client_id=self.whole.client_id,
        )


class Taken(NamedTuple):
    """Messages of one lane for a client: rows, and for each row its handle and the number of its delivery."""

    pop: Pop
    rows: pa.Table
    handles: list[str]
    attempts: Attempts
    #: Approximate bytes of the rows.
    nbytes: int
    #: The logical queue in which a client sees the messages; None if it sees the partition itself.
    shown_in: str | None = None

    @property
    def partition(self) -> str:
        """The partition as a client sees it."""
        return self.shown_in or self.pop.partition


class Empty(enum.Enum):
    """Why a lane has no message for a pop."""

    NOTHING = "there is nothing for the group now"
    PASSED_OVER = "the lane moved on over messages that do not pass the filter"
    PAUSED = "the group is paused (SPEC CONS-12)"
    HELD_BACK = "keys must wait until the group is done with another partition (SPEC ROUTE-6)"


def mixed_orders() -> Conflict:
    """Return the error for a pop in another order than the messages in flight have."""
    return Conflict(
        "messages of this partition are in flight that were popped in another order",
        code="order_conflict",
        field="order",
    )


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
    """Return messages as a client sees them: in `queues` of a static topic, or in `world` of a global one."""
    return taken if queues is None else [_shown(part, queues, world) for part in taken]


def _shown(part: Taken, queues: TopicQueues, world: GlobalQueues | None) -> Taken:
    place = shown_queue(queues, world, part.pop.partition)
    if world is not None:
        part = part._replace(handles=[handle_of_cluster(world.here, handle) for handle in part.handles])
    if place is None:  # a retry partition
        return part._replace(rows=shown_origins(part.rows, lambda _, partition: shown_queue(queues, world, partition)))
    return part._replace(rows=shown_offsets(part.rows, place), shown_in=place.name)


def json_answer(
    taken: Sequence[Taken], *, pop_time_ms: int, invisible_ms: int, rest: int, failed: list[FailedHandle]
) -> Answer:
    """Return the answer as JSON."""
    messages: list[PoppedMessage] = []
    for part in taken:
        attempts = repeat(part.attempts) if isinstance(part.attempts, int) else part.attempts
        columns = json_columns(part.rows)
        messages += map(PoppedMessage, repeat(part.partition), part.handles, attempts, *columns)
    answer = PopAnswer(messages, _time(pop_time_ms), invisible_ms, rest, failed)
    body = msgspec.json.encode(answer)
    return Answer.of_json(body)


def arrow_answer(
    taken: Sequence[Taken], *, pop_time_ms: int, invisible_ms: int, rest: int, failed: list[FailedHandle]
) -> Answer:
    """Return the answer as record batches. Other fields are in `Mq-*` headers; handles that were not acknowledged are
    in the schema's metadata, since there may be too many for a header.
    """
    typed = [part.rows.schema for part in taken if value_type(part.rows.schema) is not None]
    schema = _typed_schema(typed) if typed else _SCHEMA
    schema = schema.with_metadata({FAILED_KEY: msgspec.json.encode(failed)}) if failed else schema
    batches = [batch for part in taken for batch in _batches(part, schema)]
    weight = sum(part.nbytes for part in taken)
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


def _typed_schema(parts: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema of an answer with values; the rows of all parts have the same type."""
    fields = {field.name: field for part in parts for field in part if field.name in TYPED}
    *rows, handle, attempt = _SCHEMA
    return pa.schema([*rows, *(fields[name] for name in TYPED if name in fields), handle, attempt])


def _stream(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    head = _SCHEMA_BYTES if schema is _SCHEMA else memoryview(schema.serialize())
    return b"".join([head, *(memoryview(batch.serialize()) for batch in batches), _END])


def _batches(part: Taken, schema: pa.Schema) -> list[pa.RecordBatch]:
    batches = []
    at = 0
    rows = part.rows
    if len(schema) > len(_SCHEMA):
        rows = conformed_rows(rows, pa.schema(list(schema)[1:-2]))
    rows = rows if rows.column(0).num_chunks == 1 else rows.combine_chunks()
    for batch in rows.to_batches():
        count = batch.num_rows
        attempts: Any = part.attempts
        if isinstance(attempts, int):
            attempts = pa.repeat(pa.scalar(attempts, pa.int32()), count)
        else:
            attempts = pa.array(attempts[at : at + count], pa.int32())
        columns = [
            pa.repeat(pa.scalar(part.partition, pa.string()), count),
            *batch.columns,
            pa.array(part.handles[at : at + count], pa.string()),
            attempts,
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        at += count
    return batches
