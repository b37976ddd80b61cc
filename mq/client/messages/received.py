"""Messages as a consumer gets them, from the rows of a fetch or from a pop, and the results that handlers return.

A popped message has what the producer sent, and the handle that acknowledges this delivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa

from deltamq.mq.errors import Unprocessable
from deltamq.mq.limits import INVISIBLE_MS_CEILING
from deltamq.mq.queue.retry import check_reason
from deltamq.mq.wire.pop import FailedHandle
from deltamq.mq.wire.stored import MessageOrigin


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """One stored message: its partition and offset, and what its producer sent.

    `born_us` and `append_us` are microseconds since 1970; `born_time` and `append_time` are the same as datetimes.
    """

    partition: str
    offset: int
    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = None
    message_id: str | None = None
    born_us: int | None = None
    append_us: int | None = None
    #: The fields of the topic's schema, if the consumer asks for them (`typed`): as Python's own types.
    value: dict[str, Any] | None = None
    #: JSON: what did not fit the schema of a topic that rescues, with the reasons; None: all of the message fits.
    rescued: str | None = None

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    @property
    def born_time(self) -> datetime | None:
        """The producer's time."""
        return None if self.born_us is None else datetime.fromtimestamp(self.born_us / 1e6, UTC)

    @property
    def append_time(self) -> datetime | None:
        """The time of the commit that stored it."""
        return None if self.append_us is None else datetime.fromtimestamp(self.append_us / 1e6, UTC)


class OrderedMessage(ReceivedMessage, frozen=True, gc=False):
    """A message as a listener of an `OrderlyConsumer` gets it; `attempt` counts from 1 in each client."""

    topic: str = ""
    attempt: int = 1


def messages_of(partition: str, rows: pa.Table) -> list[ReceivedMessage]:
    """Return the rows as messages, made column by column; a column of nulls costs nothing."""
    return list(map(ReceivedMessage, repeat(partition, len(rows)), *_columns(rows)))


def ordered_messages_of(topic: str, partition: str, rows: pa.Table) -> list[OrderedMessage]:
    """Return the rows as messages of an ordered consumer, each in its first attempt."""
    return list(map(OrderedMessage, repeat(partition, len(rows)), *_columns(rows), repeat(topic)))


def popped_messages_of(topic: str, rows: pa.Table) -> list[PoppedMessage]:
    """Return the rows of a pop as messages."""
    origins = (one and MessageOrigin(**one) for one in _values(rows, "origin"))
    return list(
        map(
            PoppedMessage,
            rows.column("partition").to_pylist(),
            *_columns(rows),
            repeat(topic),
            rows.column("handle").to_pylist(),
            rows.column("delivery_attempt").to_pylist(),
            _times(rows, "deliver_time"),
            origins,
        )
    )


def with_partition(partition: str, rows: pa.Table) -> pa.Table:
    """Add the partition as a dictionary column, which takes a few bytes a row instead of the name."""
    indices = pa.array(np.zeros(len(rows), dtype=np.int32))
    names = pa.DictionaryArray.from_arrays(indices, pa.array([partition], pa.string()))
    return rows.add_column(0, "partition", names)


def _columns(rows: pa.Table) -> Iterable[Iterable[Any]]:
    """Return the fields of `ReceivedMessage` after `partition`, in order."""
    return (
        rows.column("offset").to_pylist(),
        rows.column("body").to_pylist(),
        _values(rows, "key"),
        _values(rows, "tag"),
        _headers(rows),
        _values(rows, "message_id"),
        _times(rows, "born_time"),
        _times(rows, "append_time"),
        _typed_values(rows),
        _values(rows, "rescued"),
    )


def _filled(rows: pa.Table, name: str) -> pa.ChunkedArray | None:
    at = rows.schema.get_field_index(name)
    if at < 0 or rows.column(at).null_count == len(rows):
        return None
    return rows.column(at)


def _values(rows: pa.Table, name: str) -> Iterable[Any]:
    column = _filled(rows, name)
    return repeat(None) if column is None else column.to_pylist()


def _times(rows: pa.Table, name: str) -> Iterable[int | None]:
    column = _filled(rows, name)
    # As integers: making a datetime for each cell would cost more than the rest of the message.
    return repeat(None) if column is None else column.cast(pa.int64()).to_pylist()


def _typed_values(rows: pa.Table) -> Iterable[Any]:
    column = _filled(rows, "value")
    return repeat(None) if column is None else column.to_pylist(maps_as_pydicts="strict")


def _headers(rows: pa.Table) -> Iterable[dict[str, str] | None]:
    column = _filled(rows, "headers")
    if column is None:
        return repeat(None)
    return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]


class PoppedMessage(ReceivedMessage, frozen=True, gc=False):
    """One message that a consumer holds until it acknowledges or returns it, or the invisible time ends.

    `handle` acknowledges it. `delivery_attempt` counts the deliveries, from 1. `origin` is where a message that is
    delivered again was first stored.
    """

    topic: str = ""
    handle: str = ""
    delivery_attempt: int = 1
    deliver_us: int | None = None
    origin: MessageOrigin | None = None

    @property
    def deliver_time(self) -> datetime | None:
        """The time at which a delayed message was due."""
        return None if self.deliver_us is None else datetime.fromtimestamp(self.deliver_us / 1e6, UTC)


class PopBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one pop."""

    messages: Sequence[PoppedMessage]
    #: Milliseconds from the pop for which the messages are invisible to the group's other clients.
    invisible_ms: int
    #: Whether more messages were there.
    rest: bool = False
    #: The acknowledgements of this pop that were refused.
    failed_acks: Sequence[FailedHandle] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PopTable:
    """The messages of one pop as Arrow: a message's columns, `partition`, `handle` and `delivery_attempt`."""

    rows: pa.Table = field(repr=False)
    invisible_ms: int
    rest: bool = False
    failed_acks: Sequence[FailedHandle] = ()


_REASON: Final = "rejected by its consumer"


class Result(msgspec.Struct, frozen=True):
    """The outcome of handling a message.

    A handler returns `Result.OK` (or None), `Result.RETRY`, `Result.RETRY(delay_ms=5_000)`, `Result.DEAD` or
    `Result.DEAD("why")`. An exception is `Result.RETRY`.
    """

    OK: ClassVar[Result]
    RETRY: ClassVar[Retry]
    DEAD: ClassVar[Dead]


class Retry(Result, frozen=True):
    """Deliver the message again, after `delay_ms` or by the group's retry policy."""

    delay_ms: int | None = None

    def __post_init__(self) -> None:
        if self.delay_ms is not None and not 0 <= self.delay_ms <= INVISIBLE_MS_CEILING:
            raise Unprocessable(f"delay_ms must be 0 to {INVISIBLE_MS_CEILING}", field="delay_ms")

    def __call__(self, delay_ms: int) -> Retry:
        """Return a `Retry` after `delay_ms`."""
        return Retry(delay_ms)


class Dead(Result, frozen=True):
    """Send the message to the group's dead letters, with the reason."""

    reason: str = _REASON

    def __post_init__(self) -> None:
        check_reason(self.reason)

    def __call__(self, reason: str) -> Dead:
        """Return a `Dead` with this reason."""
        return Dead(reason)


Result.OK = Result()
Result.RETRY = Retry()
Result.DEAD = Dead()
