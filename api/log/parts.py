"""What waits for a commit: the messages of one request for one partition, and the callback for their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from deltamq.api.wire.rows import ArrowRows, Indexes, Rows
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Appended
from deltamq.tables.settings import Flush

Record = TypeVar("Record")
#: Approximate bytes of a record, for the bounds of a commit.
_RECORD_BYTES: Final = 512


class RecordRows(Generic[Record]):
    """What becomes rows in the commit: records of the queue's own logs, or messages as another protocol frames them.

    The commit encodes all that wait in one call, which costs less than a call for each request. What cannot be encoded
    is refused alone.
    """

    __slots__ = ("count", "encode", "nbytes", "records")

    def __init__(
        self,
        records: Sequence[Record],
        encode: Callable[[Sequence[Record]], pa.RecordBatch],
        *,
        count: int | None = None,
        nbytes: int | None = None,
    ) -> None:
        """`count` is the number of rows, one for each record unless given, and `nbytes` about their size."""
        self.records = records
        self.encode = encode
        self.count = len(records) if count is None else count
        self.nbytes = self.count * _RECORD_BYTES if nbytes is None else nbytes


class PartWaiter(Protocol):
    """The request that waits for the outcome of a part."""

    def part_done(self) -> None:
        """Take note that the part has its outcome; called on the event loop, in the order of the parts."""


class PendingRequest:
    """One request that waits for the commits of its parts; used on the event loop only."""

    __slots__ = ("_done", "_left")

    def __init__(self, parts: int, loop: asyncio.AbstractEventLoop) -> None:
        self._left = parts
        self._done: asyncio.Future[None] = loop.create_future()

    def part_done(self) -> None:
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Return when every part has its outcome; cancelling the waiter takes no part back."""
        await self._done


class RequestPart:
    """The messages of one request for one partition, and, once committed, their outcome: `appended` or `error`."""

    __slots__ = (
        "appended",
        "error",
        "expected_offset",
        "fence_epochs",
        "flush",
        "indexes",
        "messages",
        "pending",
        "stamp",
    )

    def __init__(
        self,
        messages: Rows | ArrowRows | RecordRows[Any],
        pending: PartWaiter,
        flush: Flush,
        *,
        indexes: Indexes | None = None,
        stamp: ProducerStamp | None = None,
        expected_offset: int | None = None,
        fence_epochs: Mapping[str, int] | None = None,
    ) -> None:
        """`fence_epochs` are the epochs of the log's fences that this append knows of (see `tables.log.fences`)."""
        self.messages = messages
        self.pending = pending
        self.flush = flush
        self.indexes = indexes
        self.stamp = stamp
        self.expected_offset = expected_offset
        self.fence_epochs = fence_epochs
        self.appended: Appended | None = None
        self.error: DeltaMQError | None = None
