"""A message as a producer hands it over, the checks before it leaves the process, and the results of sends (SEND-6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from deltamq.mq.errors import DeltaMQError, Outcome, Refused, TooLarge, Unknown, Unprocessable
from deltamq.mq.limits import (
    DELAY_MS_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    TAG_BYTES_MAX,
)
from deltamq.mq.names import check_tag

# Memory that a message takes besides its body, in bytes: the object, its entry and its future.
OVERHEAD_BYTES = 600


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message to send; only `body` is required, or `value` in a topic with a schema.

    Parameters
    ----------
    body
        The payload, as bytes.
    key
        Order key: messages of one key go to one partition, in order.
    tag
        Filter tag.
    headers
        Names and values, both text.
    partition
        `NAME@BROKER`, if the producer chooses the partition itself (ROUTE-7).
    message_id
        The producer's own id; the service makes one if it is left out.
    born_time
        When the message came into being; by default the time of the send.
    delay_ms, deliver_time
        Deliver the message after this delay, or at this time; at most 40 days ahead (SPEC RETRY-4). Until then it
        waits, and can be cancelled by its `message_id`.
    value
        In place of the body: a dict, dataclass or msgspec Struct with the fields of the topic's schema, or JSON.
    """

    body: bytes = b""
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = None
    partition: str | None = None
    message_id: str | None = None
    born_time: datetime | None = None
    delay_ms: int | None = None
    deliver_time: datetime | None = None
    value: object = None

    def size_bytes(self) -> int:
        """Return roughly the bytes that this message takes in the producer's buffer."""
        size = OVERHEAD_BYTES + len(self.body)
        if isinstance(self.value, bytes):
            size += len(self.value)
        if self.key is not None:
            size += len(self.key)
        if self.headers:
            size += sum(len(name) + len(value) for name, value in self.headers.items())
        return size


def made(body: object, options: Mapping[str, Any]) -> Message:
    """Return the message that is given, or one of a body or a value; a value is JSON from then on."""
    if type(body) is bytes and "value" not in options:  # nearly always
        return Message(body, **options)
    message = body if isinstance(body, Message) else None
    if (options.get("value") if message is None else message.value) is None:
        return message or Message(as_bytes(body), **options)
    from deltamq.mq.client.messages.values import json_of

    message = message or Message(b"" if body is None else as_bytes(body), **options)
    if message.body:
        raise Refused("value: give a body or a value, not both", field="value")
    return msgspec.structs.replace(message, value=json_of(message.value))


def as_bytes(body: object) -> bytes:
    """Return a body as bytes; text becomes UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise Refused(f"body must be bytes or str, not {type(body).__name__}", field="body")


def check_message(message: Message, *, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
    """Raise `TooLarge` or another `Refused` when the service would refuse `message` (SPEC SEND-6)."""
    if len(message.body) > message_bytes_max:
        _too_large("body", len(message.body), message_bytes_max)
    if isinstance(message.value, bytes) and len(message.value) > message_bytes_max:
        _too_large("value", len(message.value), message_bytes_max)
    # A character takes at most 4 bytes in UTF-8, so short text fits and need not be encoded.
    if message.key is not None and len(message.key) * 4 > KEY_BYTES_MAX:
        _check_text("key", message.key, KEY_BYTES_MAX)
    if message.tag is not None:
        check_tag(message.tag)
        if len(message.tag) * 4 > TAG_BYTES_MAX:
            _check_text("tag", message.tag, TAG_BYTES_MAX)
    if message.message_id is not None:
        _check_text("message_id", message.message_id, MESSAGE_ID_BYTES_MAX)
    if message.headers:
        _check_headers(message.headers)
    if message.born_time is not None and message.born_time.tzinfo is None:
        raise Unprocessable("born_time needs a time zone", field="born_time")
    if message.delay_ms is not None or message.deliver_time is not None:
        _check_delay(message.delay_ms, message.deliver_time)


def _check_delay(delay_ms: int | None, deliver_time: datetime | None) -> None:
    """Check the delay; whether a time is too far away is for the service to decide, by its clock."""
    if delay_ms is not None and deliver_time is not None:
        raise Unprocessable("give deliver_time or delay_ms, not both", field="delay_ms")
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
        raise Unprocessable(
            f"delay_ms: a message waits 0 to {DELAY_MS_MAX} ms",
            field="delay_ms",
            extra={"min": 0, "max": DELAY_MS_MAX},
        )
    if deliver_time is not None and deliver_time.tzinfo is None:
        raise Unprocessable("deliver_time needs a time zone", field="deliver_time")


def _too_large(field: str, size: int, limit: int) -> None:
    raise TooLarge(
        f"{field} has {size:,} bytes, more than {limit:,}",
        code="message_too_large",
        field=field,
        extra={"limit": limit},
    )


def _check_text(field: str, text: str, limit: int) -> None:
    size = len(text.encode())
    if size > limit:
        _too_large(field, size, limit)


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > HEADERS_MAX:
        raise TooLarge(
            f"{len(headers)} headers, more than {HEADERS_MAX}",
            code="message_too_large",
            field="headers",
            extra={"limit": HEADERS_MAX},
        )
    for name, value in headers.items():
        _check_text(f"headers.{name[:40]}", name + value, HEADER_BYTES_MAX)


def as_messages(messages: Iterable[Message | bytes | str]) -> list[Message]:
    """Return each item as a `Message`; a bare body becomes one without a key."""
    return [made(m, {}) for m in messages]


#: The offset of a message in a logical queue that is moving to another broker: stored, its offset not decided yet.
_UNDECIDED: Final = -1


def offset_after(base_offset: int, count: int) -> int:
    """Return the offset `count` messages after `base_offset`; -1 (undecided) stays -1."""
    return base_offset + count if base_offset != _UNDECIDED else _UNDECIDED


class Sent(msgspec.Struct, frozen=True, gc=False):
    """One stored message: partition `NAME@BROKER` and offset.

    The offset is -1 while it is not decided: the message's logical queue is moving to another broker (SPEC STATIC-10).
    `duplicate`: an earlier attempt had stored it. `durable`: it was fsynced before the answer.
    """

    partition: str
    offset: int
    duplicate: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRange:
    """Messages of one request in one partition: offsets `[base_offset, base_offset + count)`, or -1, see `Sent`.

    `indexes` are their positions in the batch, ascending; None means the whole batch in order. `delayed` messages wait
    there until they are due.
    """

    partition: str
    base_offset: int
    count: int
    duplicate: bool = False
    durable: bool = True
    delayed: bool = False
    indexes: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    @property
    def is_undecided(self) -> bool:
        """Whether the messages are stored and have no offsets yet."""
        return self.base_offset == _UNDECIDED

    def offset_of(self, number: int) -> int:
        """Return the offset of the message with this number in the range, from 0; -1 while it is not decided."""
        return offset_after(self.base_offset, number)


class SentBatch(msgspec.Struct, frozen=True):
    """Where the messages of a batch went, in ranges."""

    ranges: tuple[SentRange, ...]

    @property
    def count(self) -> int:
        """Number of stored messages."""
        return sum(r.count for r in self.ranges)

    def __iter__(self) -> Iterator[Sent]:
        """Iterate over `places`."""
        return iter(self.places())

    def places(self) -> list[Sent]:
        """Return the partition and offset of each message, in the order of the batch."""
        placed: list[tuple[int, Sent]] = []
        for r in self.ranges:
            indexes = range(r.count) if r.indexes is None else r.indexes.tolist()
            placed += [
                (index, Sent(r.partition, r.offset_of(n), r.duplicate, r.durable)) for n, index in enumerate(indexes)
            ]
        placed.sort(key=lambda pair: pair[0])
        return [sent for _, sent in placed]

    def per_partition(self) -> dict[str, int]:
        """Return the number of stored messages by partition."""
        counts: dict[str, int] = {}
        for r in self.ranges:
            counts[r.partition] = counts.get(r.partition, 0) + r.count
        return counts


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a batch that are not known to be stored: their positions in the batch, and the error."""

    indexes: NDArray[np.int64]
    error: DeltaMQError


class PartlySent(Unknown):
    """A part of the batch is stored; the rest is not, or may not be."""

    code = "partly_sent"

    def __init__(self, sent: SentBatch, failures: Sequence[Failure]) -> None:
        missing = sum(len(f.indexes) for f in failures)
        first = failures[0].error
        super().__init__(f"{sent.count:,} messages are stored, {missing:,} are not known to be: {first.detail}")
        self.sent = sent
        self.failures = tuple(failures)

    def outcomes(self) -> list[Outcome]:
        """Return what became of each message, in the order of the batch."""
        placed: dict[int, Outcome] = {}
        for part in self.sent.ranges:
            assert part.indexes is not None, "a part of a batch says which"
            placed.update(dict.fromkeys(part.indexes.tolist(), "stored"))
        for failure in self.failures:
            placed.update(dict.fromkeys(failure.indexes.tolist(), failure.error.outcome))
        return [placed[index] for index in sorted(placed)]


def summed_up(ranges: Sequence[SentRange], failures: Sequence[Failure]) -> SentBatch:
    """Return the result of a batch, or raise the error that says most about its failures."""
    sent = SentBatch(tuple(ranges))
    if not failures:
        return sent
    if sent.ranges:
        raise PartlySent(sent, failures) from failures[0].error
    unknown = next((f.error for f in failures if f.error.outcome == "unknown"), None)
    raise unknown or failures[0].error
