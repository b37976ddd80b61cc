"""A pull consumer's state in one partition: its position, the messages that it holds, and its open fetch.

    stored    0 1 2 3 4 5 6 7 8 9 ...
                    ^       ^
             position       fetch_offset       [position, fetch_offset) is held and not handed out yet

A position that is not, or no longer, in the partition is an error of its own.
"""

from __future__ import annotations

import random
from collections import deque

import pyarrow as pa

from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.pull.fetch import Fetched
from deltamq.mq.errors import DeltaMQError, Refused


class PartitionReader:
    """The reading state of one partition. Times are seconds of a monotonic clock."""

    def __init__(self, partition: str, offset: int, patience: Patience, broker: str | None) -> None:
        self.partition = partition
        #: The broker to ask, which changes when a logical queue moves. None: any host.
        self.broker = broker
        #: Whether a fetch is open.
        self.is_asked = False
        #: Whether the open fetch has no wait: then a poll waits for its answer even after the poll's own time is over.
        self.immediate = False
        #: Whether the last answer brought messages, so that there may be more.
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
        """Number of messages held and not handed out yet."""
        return sum(len(rows) for rows, _ in self._chunks)

    def seek(self, offset: int) -> None:
        """Move to `offset`; held messages are dropped."""
        assert not self.is_asked, "an open fetch would bring messages of the old position"
        self._chunks.clear()
        self.position = self.fetch_offset = offset
        self.flowing = False

    def answered(self, fetched: Fetched) -> None:
        """Hold the messages of a fetch; messages that the tag filter skips count as consumed (CONS-3)."""
        self._failures = 0
        self._failing_since = None
        self.flowing = len(fetched.rows) > 0
        self.fetch_offset = fetched.next_offset
        if len(fetched.rows):
            self._chunks.append((fetched.rows, fetched.next_offset))
        elif not self._chunks:
            self.position = fetched.next_offset

    def failed(self, error: DeltaMQError, now: float) -> bool:
        """Note a failed fetch and when to retry; returns False once the timeout or the retries are used up."""
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = now
        wait_s = self._patience.wait_s(self._failures, random.random(), error)
        self.not_before = now + wait_s
        if now - self._failing_since < self._patience.timeout_s and self._failures <= self._patience.retries:
            return True
        self._failures = 0
        self._failing_since = None
        return False

    def take(self, messages_max: int) -> pa.Table | None:
        """Hand out up to `messages_max` held messages; None if none are held."""
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


class OffsetOutOfRange(Refused):
    """The offset is not, or no longer, in the partition."""

    code = "offset_out_of_range"


def out_of_range(reader: PartitionReader, fetched: Fetched) -> OffsetOutOfRange:
    """Return the error for an answer that says that the offset is out of range."""
    return OffsetOutOfRange(
        f"offset {reader.fetch_offset} of {reader.partition} is not stored: it has [{fetched.min_offset}, "
        f"{fetched.max_offset}); seek to an offset in there, or set on_data_loss='skip'",
        code=fetched.status,
        field="offset",
        extra={
            "partition": reader.partition,
            "min_offset": fetched.min_offset,
            "max_offset": fetched.max_offset,
        },
    )
