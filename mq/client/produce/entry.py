"""What an executor queues: the messages of one call for one partition, and the future that waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from mq.client.messages import Message, Sent, SentRange
from mq.client.produce.send_future import SendFuture

__all__ = ["Entry", "Outcome"]

Outcome: TypeAlias = SendFuture[Sent] | SendFuture[tuple[SentRange, ...]] | None


# Unseen by the garbage collector: an entry refers to its future, never the other way round.
class Entry(msgspec.Struct, gc=False):
    """One or more messages that are stored together or not at all.

    Either `messages` or `rows` (Arrow, already of the wire's types) is given. `single` marks the one message of a
    `send`, whose future gets a `Sent`; all others get the ranges. A future of None is a one-way send. What is `alone`
    shares its request with nothing else. `deadline` is of `time.monotonic`.
    """

    messages: Sequence[Message]
    count: int
    size: int
    deadline: float
    future: Outcome
    born_us: int = 0
    rows: pa.RecordBatch | None = None
    single: bool = False
    #: The caller chose the partition: no other will do.
    named: bool = False
    expected_offset: int | None = None
    alone: bool = False
    #: Failed attempts at other partitions.
    failures: int = 0

    @property
    def keyless(self) -> bool:
        """Whether any partition would do: no partition was named and no message has a key."""
        if self.named or self.rows is not None:
            return False
        return all(message.key is None for message in self.messages)

    @property
    def routed_by_key(self) -> bool:
        """Whether a key decides where some of it goes."""
        if self.named:
            return False
        if self.rows is not None:
            return "key" in self.rows.schema.names
        return any(message.key is not None for message in self.messages)

    def goes_with(self, following: Entry) -> bool:
        """Whether `following` may share a request with this one."""
        if self.alone or following.alone or self.named is not following.named:
            return False
        if self.rows is None or following.rows is None:
            return self.rows is following.rows
        return bool(self.rows.schema.equals(following.rows.schema))

    def stored_at(self, partition: str, base_offset: int, duplicate: bool, durable: bool) -> None:
        """Tell the waiting caller that all messages are in `partition` from `base_offset` on."""
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
        """Tell the waiting caller where the messages are; `single` ones are in exactly one range."""
        if len(ranges) == 1 and ranges[0].count == self.count:
            first = ranges[0]
            self.stored_at(first.partition, first.base_offset, first.duplicate, first.durable)
        elif self.future is not None:
            self.future.set_result(ranges)  # type: ignore[arg-type]  # `single` says of which kind it is

    def failed(self, error: BaseException) -> None:
        """Tell the waiting caller why the messages are not known to be stored."""
        if self.future is not None:
            self.future.set_exception(error)
