"""The entries that an executor queues: the messages of one call for one partition, and the future of their outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.messages.sent import Sent, SentRange
from deltamq.mq.client.produce.send_future import SendFuture

Outcome: TypeAlias = SendFuture[Sent] | SendFuture[tuple[SentRange, ...]] | None


# Not tracked by the garbage collector: there is no cycle, since a future never refers to its entry.
class Entry(msgspec.Struct, gc=False):
    """One or more messages that are stored together or not at all.

    Either `messages` or `rows` (Arrow, already of the wire's types) is given. `single` marks the one message of a
    `send`, whose future gets a `Sent`; other futures get the ranges. An entry without a future is a one-way send. An
    entry that is `alone` shares its request with no other. `deadline` is of `time.monotonic`.
    """

    messages: Sequence[Message]
    count: int
    size: int
    deadline: float
    future: Outcome
    born_us: int = 0
    rows: pa.RecordBatch | None = None
    single: bool = False
    #: Whether the caller chose the partition, so that no other is allowed.
    named: bool = False
    expected_offset: int | None = None
    alone: bool = False
    #: Number of failed attempts at other partitions.
    failures: int = 0

    @property
    def keyless(self) -> bool:
        """True if any partition is allowed: no partition is named and no message has a key."""
        if self.named or self.rows is not None:
            return False
        return all(message.key is None for message in self.messages)

    @property
    def routed_by_key(self) -> bool:
        """True if a key decides the partition of some message."""
        if self.named:
            return False
        if self.rows is not None:
            return "key" in self.rows.schema.names
        return any(message.key is not None for message in self.messages)

    def goes_with(self, following: Entry) -> bool:
        """Return whether `following` may share a request with this entry."""
        if self.alone or following.alone or self.named is not following.named:
            return False
        if self.rows is None or following.rows is None:
            return self.rows is following.rows
        return bool(self.rows.schema.equals(following.rows.schema))

    def stored_at(self, partition: str, base_offset: int, duplicate: bool, durable: bool) -> None:
        """Resolve the future: all messages are in `partition` from `base_offset` on."""
        future = self.future
        if future is None:
            return
        if self.single:
            future.set_result(Sent(partition, base_offset, duplicate, durable))  # type: ignore[arg-type]  # `single` says of which kind it is
            return
        placed = SentRange(
            partition=partition,
            base_offset=base_offset,
            count=self.count,
            duplicate=duplicate,
            durable=durable,
        )
        future.set_result((placed,))  # type: ignore[arg-type]  # `single` says of which kind it is

    def stored(self, ranges: tuple[SentRange, ...]) -> None:
        """Resolve the future with the ranges of the messages; a `single` one has exactly one range."""
        if len(ranges) == 1 and ranges[0].count == self.count:
            first = ranges[0]
            self.stored_at(first.partition, first.base_offset, first.duplicate, first.durable)
        elif self.future is not None:
            self.future.set_result(ranges)  # type: ignore[arg-type]  # `single` says of which kind it is

    def failed(self, error: BaseException) -> None:
        """Resolve the future with the error because of which the messages are not known to be stored."""
        if self.future is not None:
            self.future.set_exception(error)
