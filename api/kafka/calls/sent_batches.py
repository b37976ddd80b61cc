"""Batches as their producers sent them: what came compressed goes out as it came, while its rows are in memory.

    produce --stored--> kept with its offset --fetch of any of its offsets--> the whole batch, as from Kafka
                             '-- the log's rows left memory, or were erased --> rows, which are compressed again

Compressing again what was just expanded is most of what a fetch of compressed records costs, and each group pays it
anew. Consumers pass over the records of a batch before the offset that they asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.kafka.records.batch import Compression
from deltamq.mq.limits import FETCH_MESSAGES_MAX, MIB
from deltamq.tables.log.log import PartitionLog

_BYTES_MAX: Final = 64 * MIB
#: Memory of a batch besides its bytes, rounded up.
_BATCH_BYTES: Final = 256


class SentBatch(NamedTuple):
    """A batch with the offsets `[start, end)`."""

    start: int
    end: int
    compression: Compression
    data: bytes


class SentBatches:
    """The newest compressed batches of all logs, and how each topic's newest batch came; used on the event loop."""

    def __init__(self, *, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        #: In the order of their offsets; there may be gaps between them.
        self._of: WeakKeyDictionary[PartitionLog, deque[SentBatch]] = WeakKeyDictionary()
        #: In the order in which the batches came: the oldest of all gives way first.
        self._order: deque[deque[SentBatch]] = deque()
        #: About the memory that is held.
        self.bytes = 0
        #: How the newest batch of each topic was compressed, of those that have come since the start.
        self.compression_of: WeakKeyDictionary[HostedTopic, Compression] = WeakKeyDictionary()

    def keep(self, log: PartitionLog, batch: SentBatch) -> None:
        """Keep a batch that was stored, and not before, in `log`."""
        assert batch.compression is not Compression.NONE and batch.start < batch.end, "rows are as good without"
        batches = self._of.setdefault(log, deque())
        if batches and batches[-1].end > batch.start:
            return  # an outcome that came late: rows are there
        batches.append(batch)
        self._order.append(batches)
        self.bytes += len(batch.data) + _BATCH_BYTES
        while self.bytes > self._bytes_max:
            self.bytes -= len(self._order.popleft().popleft().data) + _BATCH_BYTES
        assert self.bytes >= 0, "what gives way was counted"

    def find(self, log: PartitionLog, offset: int, bytes_max: int, compression: Compression | None) -> list[SentBatch]:
        """Return adjacent batches from the one with `offset` on that take at most `bytes_max`; often none.

        With `compression`, they are compressed in this way.
        """
        batches = self._of.get(log)
        if not batches or batches[-1].end <= offset:
            return []
        at = max(bisect_right(batches, offset, key=lambda batch: batch.start) - 1, 0)
        if offset < batches[at].start or not log.in_tail(batches[at].start):
            return []
        found: list[SentBatch] = []
        start, end_max = batches[at].start, offset + FETCH_MESSAGES_MAX
        for batch in islice(batches, at, None):
            bytes_max -= len(batch.data)
            if batch.start != start or bytes_max < 0 or batch.end > end_max:
                break
            if compression is not None and batch.compression is not compression:
                break
            found.append(batch)
            start = batch.end
        return found if found and offset < found[0].end else []
