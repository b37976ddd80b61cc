"""The parts of one batch send, each queued at one executor; together they make the caller's result."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from deltamq.mq.client.messages.sent import Failure, SentBatch, SentRange, summed_up
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.produce.executor import Executor
from deltamq.mq.client.produce.send_future import SendFuture
from deltamq.mq.errors import DeltaMQError, Unknown

#: Seconds beyond the deadline in which the last attempt of a batch may still be answered.
_GRACE_S = 0.25

Indexes = NDArray[np.int64]
PartFuture: TypeAlias = SendFuture[tuple[SentRange, ...]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Part:
    executor: Executor
    entry: Entry
    future: PartFuture
    indexes: Indexes


class Parts:
    """The queued parts of a batch of `count` messages, and its failures."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[_Part] = []
        self._failures: list[Failure] = []

    def add(
        self, executor: Executor, entry: Entry, future: SendFuture[tuple[SentRange, ...]], indexes: Indexes
    ) -> None:
        """Note a queued part."""
        self._parts.append(_Part(executor, entry, future, indexes))

    def failed(self, indexes: Indexes, error: DeltaMQError) -> None:
        """Note messages that are not stored, or not known to be."""
        self._failures.append(Failure(indexes=indexes, error=error))

    def result(self, deadline: float) -> SentBatch:
        """Wait for all parts; raises if one of them is not stored (`PartlySent` if others are)."""
        ranges: list[SentRange] = []
        for part in self._parts:
            try:
                placed = wait_for(part.executor, part.entry, part.future, deadline)
            except DeltaMQError as error:
                self.failed(part.indexes, error)
            else:
                ranges += [self._in_batch(r, part.indexes) for r in placed]
        return summed_up(ranges, self._failures)

    def wait(self, deadline: float) -> None:
        """Wait until every part is resolved, with whatever outcome; at the deadline, queued parts are withdrawn."""
        with suppress(DeltaMQError):
            self.result(deadline)

    def _in_batch(self, placed: SentRange, indexes: Indexes) -> SentRange:
        """Return the range with indexes counted from the batch's first message."""
        mine = indexes if placed.indexes is None else indexes[placed.indexes]
        whole = len(mine) == self._count
        return replace(placed, indexes=None if whole else mine)


def wait_for(executor: Executor, entry: Entry, future: Future[Result], deadline: float) -> Result:
    """Return the future's result; at the deadline, a queued entry is withdrawn, and one in flight is unknown."""
    try:
        return future.result(timeout=max(0.0, deadline - time.monotonic()) + _GRACE_S)
    except FutureTimeout:
        if future.done() or executor.withdraw(entry):
            return future.result()
        raise Unknown("no answer within the send's timeout; the outcome is not known") from None
