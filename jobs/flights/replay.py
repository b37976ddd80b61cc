"""The producer: sends events in order at a steady rate, and records the offset of each; the topic is read back by REST.

Each chunk is sent when the previous chunk is acknowledged, so an aircraft's events are stored in the order in which
they happened. The rate is chosen for the replay and is not a limit: a year in about half a minute leaves Spark time to
read along. Without it, the whole year takes a second or two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.jobs.flights.account import ROWS_SCHEMA, Account, account_of
from deltamq.jobs.flights.child import JobFailed
from deltamq.mq.client.messages.message import SentBatch
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.limits import MIB, WAIT_MS_MAX
from deltamq.mq.wire.topics import TopicInfo

#: Seconds of the replay in one chunk.
CHUNK_S: Final = 0.5
#: The largest chunk, and the only size without a rate.
CHUNK_EVENTS_MAX: Final = 20_000
_NOWHERE: Final = -1


class Ledger:
    """The offset of each event, only from the service's acknowledgements."""

    def __init__(self, events: pa.Table, partitions: tuple[str, ...]) -> None:
        #: The events in the order in which they are sent.
        self.events = events
        self._names = partitions
        self._partition: NDArray[np.int64] = np.full(len(events), _NOWHERE)
        self._offset: NDArray[np.int64] = np.full(len(events), _NOWHERE)
        #: Number of events acknowledged so far; written by one thread, read by others.
        self.acknowledged = 0

    def note(self, first: int, sent: SentBatch) -> None:
        """Record the acknowledgement of the chunk that begins with event `first`."""
        for part in sent.ranges:
            rows = np.arange(part.count) if part.indexes is None else part.indexes
            self._partition[first + rows] = self._names.index(part.partition)
            self._offset[first + rows] = part.base_offset + np.arange(part.count)
        self.acknowledged += sent.count

    def account(self) -> Account:
        """Return the producer's account: the source's events in order, at the acknowledged offsets."""
        missing = int((self._partition == _NOWHERE).sum())
        if missing:
            raise JobFailed(f"{missing:,} of {len(self.events):,} events were not acknowledged")
        names = pa.array(self._names, pa.string())
        columns = [names.take(pa.array(self._partition)), pa.array(self._offset)]
        columns += [self.events[name] for name in ROWS_SCHEMA.names[2:]]
        return account_of(pa.table(columns, schema=ROWS_SCHEMA), ends=self._ends(), in_row_order=True)

    def rows_at(self, offsets_by_partition: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
        """Return the indexes of the events at these offsets, by partition; offsets of other messages are skipped."""
        rows = [np.flatnonzero(self._is_at(partition, offsets)) for partition, offsets in offsets_by_partition.items()]
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows])

    def _is_at(self, partition: str, offsets: Sequence[int]) -> NDArray[np.bool_]:
        if partition not in self._names:
            return np.zeros(len(self.events), dtype=np.bool_)
        here: NDArray[np.bool_] = self._partition == self._names.index(partition)
        return here & np.isin(self._offset, offsets)

    def _ends(self) -> dict[str, int]:
        ends = np.zeros(len(self._names), dtype=np.int64)
        np.maximum.at(ends, self._partition, self._offset + 1)
        return dict(zip(self._names, ends.tolist(), strict=True))


class Replay:
    """One pass over the events.

    Parameters
    ----------
    rate_events_s
        Events per second; 0 sends as fast as possible.
    tell
        Gets the number of acknowledged events after each chunk.
    """

    def __init__(self, producer: Producer, topic: str, events: pa.Table, rate_events_s: float) -> None:
        self._producer = producer
        self._topic = topic
        self._events = events
        self._rate = rate_events_s
        self.ledger = Ledger(events, producer.partitions(topic))

    def run(self, tell: Callable[[int], None]) -> float:
        """Send all events; return the seconds."""
        rows = self._events.select(["key", "tag", "body"])
        size = self._chunk_events()
        began = time.monotonic()
        for first in range(0, len(rows), size):
            self._wait_until(began, first)
            sent = self._producer.send_arrow(self._topic, rows.slice(first, size))
            self.ledger.note(first, sent)
            tell(self.ledger.acknowledged)
        return time.monotonic() - began

    def _chunk_events(self) -> int:
        if not self._rate:
            return CHUNK_EVENTS_MAX
        return max(1, min(CHUNK_EVENTS_MAX, round(self._rate * CHUNK_S)))

    def _wait_until(self, began: float, event: int) -> None:
        if self._rate:
            time.sleep(max(0.0, began + event / self._rate - time.monotonic()))


FETCH_MESSAGES: Final = 100_000
FETCH_BYTES: Final = 32 * MIB


def served_account(url: str, topic: TopicInfo) -> Account:
    """Read every message of `topic` by REST; return their account, with the end offsets of the topic's description."""
    ends = topic.max_offsets()
    parts = [ROWS_SCHEMA.empty_table()]
    with PullConsumer(url, topic.topic, fetch_messages=FETCH_MESSAGES, fetch_bytes=FETCH_BYTES) as consumer:
        while any(offset < ends[partition] for partition, offset in consumer.positions().items()):
            rows = consumer.poll_arrow(wait_ms=WAIT_MS_MAX)
            if rows is None:
                raise JobFailed(f"the service returns nothing at {consumer.positions()}; the ends are {ends}")
            parts.append(rows.select(ROWS_SCHEMA.names).cast(ROWS_SCHEMA))
    return account_of(pa.concat_tables(parts), ends=ends, in_row_order=False)
