"""A consumer's place in one partition: what it holds, where it is, and the fetch that it has open.

stored    0 1 2 3 4 5 6 7 8 9 ...
                ^       ^
         position       fetch_offset       [position, fetch_offset) is held and not handed out yet
"""

from __future__ import annotations

import random
from collections import deque

import pyarrow as pa

from mq.client.http import Patience
from mq.client.pull.fetch import FetchConnection, Fetched
from mq.errors import DeltaMQError
from mq.names import broker_of

__all__ = ["PartitionReader"]


class PartitionReader:
    """The reading state of one partition. Times are of one monotonic clock, in seconds."""

    def __init__(self, partition: str, offset: int, patience: Patience) -> None:
        self.partition = partition
        self.broker = broker_of(partition)
        self.connection: FetchConnection | None = None
        #: The open fetch waits for nothing: its answer is worth waiting for even when the poll's time is over.
        self.immediate = False
        #: The last answer brought messages: there may be more.
        self.flowing = False
        self.not_before = 0.0
        self.asked_at = 0.0
        self._patience = patience
        self._failures = 0
        self._failing_since: float | None = None
        self._chunks: deque[tuple[pa.Table, int]] = deque()
        self.position = offset
        self.fetch_offset = offset

    @property
    def holds(self) -> int:
        """Messages held and not handed out yet."""
        return sum(len(rows) for rows, _ in self._chunks)

    def seek(self, offset: int) -> None:
        """Go to `offset`; what is held is dropped."""
        assert self.connection is None, "an open fetch would bring messages of the old place"
        self._chunks.clear()
        self.position = self.fetch_offset = offset
        self.flowing = False

    def answered(self, fetched: Fetched) -> None:
        """Hold what a fetch brought; messages passed over by the tag filter count as consumed (CONS-3)."""
        self._failures = 0
        self._failing_since = None
        self.flowing = len(fetched.rows) > 0
        self.fetch_offset = fetched.next_offset
        if len(fetched.rows):
            self._chunks.append((fetched.rows, fetched.next_offset))
        elif not self._chunks:
            self.position = fetched.next_offset

    def failed(self, error: DeltaMQError, now: float) -> bool:
        """Note a failed fetch and when to try again; False once it has failed for the whole timeout."""
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = now
        wait_s = self._patience.wait_s(self._failures, random.random())
        asked_s = error.extra.get("retry_after_s")
        if isinstance(asked_s, int):
            wait_s = max(wait_s, float(asked_s))
        self.not_before = now + wait_s
        if now - self._failing_since < self._patience.timeout_s and self._failures <= self._patience.retries:
            return True
        self._failures = 0
        self._failing_since = None
        return False

    def take(self, messages_max: int) -> pa.Table | None:
        """Hand out up to `messages_max` messages of what is held; None when nothing is."""
        if not self._chunks or messages_max <= 0:
            return None
        rows, next_offset = self._chunks.popleft()
        if len(rows) > messages_max:
            rest = rows.slice(messages_max)
            self._chunks.appendleft((rest, next_offset))
            rows = rows.slice(0, messages_max)
            next_offset = rest.column("offset")[0].as_py()
        self.position = next_offset
        return rows
