"""Entries: the messages of one call for one partition, the future of their outcome, their queue, and its errors.

An executor queues entries in order and cuts them into the batches of its requests; its lock guards the queue. Each
error that the producer itself makes for a send says whether anything may be stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from deltamq.mq.client.http.threads import ForkedClient, in_child
from deltamq.mq.client.messages.message import Message, Sent, SentRange
from deltamq.mq.errors import Conflict, DeltaMQError, Unavailable, Unknown

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import SendSpan

Result = TypeVar("Result")

#: Guards the step from light to full; held for a few instructions.
_growing = threading.Lock()
#: Number of forks: a future that was made before one is settled only in the parent.
_forks = 0


def _renew() -> None:
    global _growing, _forks
    _growing, _forks = threading.Lock(), _forks + 1


in_child(_renew)


class SendFuture(Future[Result], Generic[Result]):
    """A future that is done once the message is stored, refused or unknown. It cannot be cancelled.

    A plain `Future` has a condition, a lock and two containers. A producer makes a hundred thousand futures a second,
    and few of them are waited for one by one; plain ones would cost more time in the garbage collector than the sending
    does. This one becomes a plain `Future` when a method first needs it, so that `wait`, `as_completed` and
    `asyncio.wrap_future` work as usual.
    """

    _light = True
    _settled = False
    _value: Result | None = None
    _error: BaseException | None = None
    #: Number of forks before it was made; set only in children.
    _made_after = 0

    def __init__(self) -> None:
        """Do next to nothing: the base class is initialised when it is needed."""
        if _forks:
            self._made_after = _forks

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only: a method of `Future` reads the state of a plain future.
        if name.startswith("__"):
            raise AttributeError(name)
        self._grow()
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def _grow(self) -> None:
        """Become a plain future in the same state."""
        with _growing:
            if not self._light:
                return
            super().__init__()
            super().set_running_or_notify_cancel()
            if self._settled and self._error is not None:
                super().set_exception(self._error)
            elif self._settled:
                super().set_result(self._value)  # type: ignore[arg-type]  # a settled value is a Result
            self._light = False

    def set_result(self, result: Result) -> None:
        """Set the result; called once, by the producer."""
        with _growing:
            if self._light:
                self._value = result
                self._settled = True
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error; called once, by the producer."""
        with _growing:
            if self._light:
                self._error = exception
                self._settled = True
                return
        super().set_exception(exception)

    def done(self) -> bool:
        """Return whether the outcome is set."""
        return self._settled if self._light else super().done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result and return it, or raise the error."""
        if self._light and self._settled:
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]  # a settled value is a Result
        self._check_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; returns the error, or None if there is none."""
        if self._light and self._settled:
            return self._error
        self._check_here()
        return super().exception(timeout)

    def _check_here(self) -> None:
        if self._made_after != _forks and not self.done():
            raise ForkedClient("this send was queued before a fork: its outcome is in the parent").not_known()

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call `fn` with this future when it is done, or at once if it is done already."""
        self._grow()
        super().add_done_callback(fn)


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
        if self.span is not None:
            self.span.stored(partition, base_offset)
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
            return
        if self.span is not None:
            self.span.stored(",".join(part.partition for part in ranges), -1)
        if self.future is not None:
            self.future.set_result(ranges)  # type: ignore[arg-type]  # `single` says of which kind it is

    def failed(self, error: BaseException) -> None:
        """Resolve the future with the error because of which the messages are not known to be stored."""
        if self.span is not None:
            self.span.failed(error)
        if self.future is not None:
            self.future.set_exception(error)


class EntryQueue:
    """Entries in the order in which they were put."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._entries: deque[Entry] = deque()
        #: Number of entries at the head that are sent one by one, because their batch was refused.
        self._alone = 0

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """Append `entry`."""
        self._entries.append(entry)

    def put_back(self, batch: list[Entry]) -> None:
        """Put a refused batch back at the head, to be sent entry by entry: a bad message must not fail the others."""
        self._entries.extendleft(reversed(batch))
        self._alone = len(batch)

    def remove(self, entry: Entry) -> bool:
        """Remove `entry`; returns False if it is not queued any more."""
        try:
            self._entries.remove(entry)
        except ValueError:
            return False
        return True

    def take_all(self) -> list[Entry]:
        """Remove and return all entries."""
        entries = list(self._entries)
        self._entries.clear()
        return entries

    def take_expired(self, now: float) -> list[Entry]:
        """Remove and return the entries at the head whose deadline has passed."""
        expired = []
        while self._entries and self._entries[0].deadline <= now:
            expired.append(self._entries.popleft())
        return expired

    def fills_a_batch(self) -> bool:
        """Return whether the queued entries fill a batch, so that waiting for more would not make it larger."""
        return (
            sum(entry.count for entry in self._entries) >= self._messages_max
            or sum(entry.size for entry in self._entries) >= self._bytes_max
        )

    def take_batch(self) -> list[Entry]:
        """Remove and return the entries of the next request: those at the head that may share it and fit."""
        batch = [self._entries.popleft()]
        if self._alone > 0:
            self._alone -= 1
            return batch
        messages, size = batch[0].count, batch[0].size
        while self._entries and batch[0].goes_with(self._entries[0]):
            following = self._entries[0]
            messages += following.count
            size += following.size
            if messages > self._messages_max or size > self._bytes_max:
                break
            batch.append(self._entries.popleft())
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
