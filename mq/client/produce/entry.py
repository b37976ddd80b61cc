"""Entries: the messages of one call for one partition, the future of their outcome, their queue, and its errors.

An executor queues entries in order and cuts them into the batches of its requests; its lock guards the queue. Each
error that the producer itself makes for a send says whether anything may be stored.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.client.messages.message import Message, Sent, SentRange, offset_after
from deltamq.mq.client.shells.shell import Outcome
from deltamq.mq.errors import Conflict, DeltaMQError, Unavailable, Unknown

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import SendSpan


# Not tracked by the garbage collector: there is no cycle, since a future never refers to its entry.
class Entry(msgspec.Struct, gc=False, eq=False):
    """One or more messages that are stored together or not at all.

    Either `messages` or `rows` (Arrow, already of the wire's types) is given. Those of one call have one future, which
    gets their ranges, and one time of birth. `single` messages have a future and a time each: the one of a `send`, or
    those that were gathered (`EntryQueue.gather`); a future gets a `Sent`, and without one the send is one-way. An
    entry that is `alone` shares its request with no other. `deadline` is of `time.monotonic`.
    """

    messages: list[Message]
    count: int
    size: int
    deadline: float
    futures: list[Outcome[Any] | None]
    born_us: list[int] = msgspec.field(default_factory=lambda: [0])
    rows: pa.RecordBatch | None = None
    single: bool = False
    #: Whether the caller chose the partition, so that no other is allowed.
    named: bool = False
    expected_offset: int | None = None
    alone: bool = False
    #: Whether a caller waits for the outcome: then the batch does not linger for more.
    waited_for: bool = False
    #: Number of failed attempts at other partitions.
    failures: int = 0
    #: The span of the send; None if it is not traced.
    span: SendSpan | None = None

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
        return [message.key for message in self.messages].count(None) < len(self.messages)

    @property
    def calls(self) -> int:
        """Number of calls whose messages these are."""
        return len(self.futures)

    def parts(self) -> list[Entry]:
        """Return an entry for each call."""
        if len(self.futures) == 1:
            return [self]
        parts = [
            replace(self, messages=[message], count=1, size=message.size_bytes(), futures=[future], born_us=[born_us])
            for message, future, born_us in zip(self.messages, self.futures, self.born_us, strict=True)
        ]
        assert sum(part.size for part in parts) == self.size, "each gives back the room that it took"
        return parts

    def goes_with(self, following: Entry) -> bool:
        """Return whether `following` may share a request with this entry."""
        if self.alone or following.alone or self.named is not following.named:
            return False
        if self.rows is None or following.rows is None:
            return self.rows is following.rows
        return bool(self.rows.schema.equals(following.rows.schema))

    def stored_at(self, partition: str, base_offset: int, duplicate: bool, durable: bool) -> None:
        """Resolve the future: all messages are in `partition` from `base_offset` on."""
        if self.span is not None:
            self.span.stored(partition, base_offset)
        if self.single:
            step = offset_after(base_offset, 1) - base_offset
            for index, future in enumerate(self.futures):
                # Who waited on an event loop may have given up.
                if future is not None and not future.done():
                    future.set_result(Sent(partition, base_offset + index * step, duplicate, durable))
            return
        placed = SentRange(
            partition=partition,
            base_offset=base_offset,
            count=self.count,
            duplicate=duplicate,
            durable=durable,
        )
        self._settle((placed,))

    def stored(self, ranges: tuple[SentRange, ...]) -> None:
        """Resolve the future with the ranges of the messages; a `single` one has exactly one range."""
        if len(ranges) == 1 and ranges[0].count == self.count:
            first = ranges[0]
            self.stored_at(first.partition, first.base_offset, first.duplicate, first.durable)
            return
        if self.span is not None:
            self.span.stored(",".join(part.partition for part in ranges), -1)
        self._settle(ranges)

    def _settle(self, result: Sent | tuple[SentRange, ...]) -> None:
        (future,) = self.futures
        if future is not None and not future.done():
            future.set_result(result)

    def failed(self, error: BaseException) -> None:
        """Resolve the future with the error because of which the messages are not known to be stored."""
        if self.span is not None:
            self.span.failed(error)
        for future in self.futures:
            if future is not None and not future.done():
                future.set_exception(error)


#: How far the deadlines of gathered messages may differ, in seconds: the first one's counts for all.
_DEADLINES_WITHIN_S: Final = 0.05


class EntryQueue:
    """Entries in the order in which they were put."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        #: A dictionary, since thousands of sends may be cancelled at once, each from somewhere in the queue.
        self._entries: OrderedDict[Entry, None] = OrderedDict()
        #: The last entry, if messages may still be gathered in it.
        self._open: Entry | None = None
        #: Number of queued messages.
        self.messages = 0
        #: Number of entries at the head that are sent one by one, because their batch was refused.
        self._alone = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def _first(self) -> Entry:
        return next(iter(self._entries))

    def append(self, entry: Entry) -> None:
        """Append `entry`."""
        self._entries[entry] = None
        self._open = None
        self.messages += entry.count

    def gather(self, message: Message, size: int, deadline: float, future: Outcome[Sent] | None, born_us: int) -> None:
        """Append a message that nobody withdraws, to the last entry if that has room and about the same deadline."""
        entry = self._open
        if (
            entry is None
            or entry.count >= self._messages_max
            or entry.size + size > self._bytes_max
            or abs(deadline - entry.deadline) > _DEADLINES_WITHIN_S
        ):
            entry = Entry([], 0, 0, deadline, [], [], single=True)
            self._entries[entry] = None
            self._open = entry
        entry.messages.append(message)
        entry.futures.append(future)
        entry.born_us.append(born_us)
        entry.count += 1
        entry.size += size
        self.messages += 1

    def put_back(self, batch: list[Entry]) -> None:
        """Put a refused batch back at the head, to be sent call by call: a bad message must not fail the others."""
        parts = [part for entry in batch for part in entry.parts()]
        for entry in reversed(parts):
            self._entries[entry] = None
            self._entries.move_to_end(entry, last=False)
        self._alone = len(parts)
        self.messages += sum(part.count for part in parts)

    def _popped(self) -> Entry:
        entry = self._entries.popitem(last=False)[0]
        self._open = None
        self.messages -= entry.count
        return entry

    def remove(self, entry: Entry) -> bool:
        """Remove `entry`; returns False if it is not queued any more."""
        if self._entries.pop(entry, self) is not None:
            return False
        self.messages -= entry.count
        if entry is self._open:
            self._open = None
        return True

    def take_all(self) -> list[Entry]:
        """Remove and return all entries."""
        entries = list(self._entries)
        self._entries.clear()
        self._open, self.messages = None, 0
        return entries

    def take_expired(self, now: float) -> list[Entry]:
        """Remove and return the entries at the head whose deadline has passed."""
        expired = []
        while self._entries and self._first.deadline <= now:
            expired.append(self._popped())
        return expired

    def is_due(self) -> bool:
        """Return whether the queued entries are not to linger: they fill a batch, or somebody waits for one."""
        return (
            self.messages >= self._messages_max
            or sum(entry.size for entry in self._entries) >= self._bytes_max
            or any(entry.waited_for for entry in self._entries)
        )

    def take_batch(self) -> list[Entry]:
        """Remove and return the entries of the next request: those at the head that may share it and fit."""
        batch = [self._popped()]
        if self._alone > 0:
            self._alone -= 1
            return batch
        messages, size = batch[0].count, batch[0].size
        while self._entries and batch[0].goes_with(following := self._first):
            messages += following.count
            size += following.size
            if messages > self._messages_max or size > self._bytes_max:
                break
            batch.append(self._popped())
        return batch


NOT_SENT: Final = "not_sent"
STOPPED: Final = "executor_stopped"


def timed_out_in_queue() -> Unavailable:
    """Return the error of a send whose deadline passed while it was queued."""
    return Unavailable("the send timed out in the queue; nothing was stored", code=NOT_SENT)


def producer_closed() -> Unavailable:
    """Return the error of a send that was queued when the producer closed."""
    return Unavailable("the producer was closed before this was sent; nothing was stored", code=NOT_SENT)


def sending_stopped(partition: str | None, cause: DeltaMQError) -> Conflict:
    """Return the error of a send to a strict topic behind an unresolved message, which it may not overtake (SEND-2)."""
    error = Conflict(
        f"sending to {partition} stopped, nothing was stored: an earlier message is not resolved "
        f"({cause.code}: {cause.detail}); resume() goes on without it",
        code=STOPPED,
    )
    error.__cause__ = cause
    return error


def outcome_unknown(cause: DeltaMQError) -> Unknown:
    """Return the error of a send of which an attempt before the last one may have been applied (SEND-5)."""
    if isinstance(cause, Unknown):
        return cause
    unknown = Unknown(f"the outcome is not known; the last attempt ended with {cause.code}: {cause.detail}")
    unknown.__cause__ = cause
    return unknown
