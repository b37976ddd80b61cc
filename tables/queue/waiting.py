"""An index of the messages that wait in one delay partition, by id, so that no search reads the whole log.

    delay log    0 ......... 40,000 .. 50,000 .. 51,000
    index        [ one sorted run   ][ run    ][ run ]      hash of topic and id -> offset, deliver time

The first search builds the index from the log, later ones follow the log. Runs are merged as they grow, and messages
that have been due for a while are dropped then, so the size follows the number of waiting messages: 24 bytes for each.
Beyond `WAITING_MESSAGES_MAX` (96 MB) it keeps the newer half, and a search that finds nothing there reads the
older part of the log. For one thread at a time, blocking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.delay import Delayed
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.point_reads import pick

Int64s = NDArray[np.int64]

WAITING_MESSAGES_MAX: Final = 4_000_000
#: Time for which a message is still found after it fell due.
DUE_KEPT_MS: Final = 3_600_000


class _Run(msgspec.Struct, frozen=True):
    """A sorted run of the index: messages in the order of their hashes."""

    hashes: Int64s
    offsets: Int64s
    due_ms: Int64s

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashed: int) -> Int64s:
        low, high = np.searchsorted(self.hashes, hashed, "left"), np.searchsorted(self.hashes, hashed, "right")
        return self.offsets[low:high]

    def only(self, keep: NDArray[np.bool_]) -> _Run:
        return _Run(self.hashes[keep], self.offsets[keep], self.due_ms[keep])


class WaitingIndex:
    """The waiting messages of one delay partition, by topic and id."""

    def __init__(self, *, messages_max: int = WAITING_MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self._runs: list[_Run] = []
        #: The offset up to which the log is in the runs ...
        self._next = 0
        #: ... and the offset below which messages were dropped for lack of room.
        self._first = 0

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def find(self, log: PartitionLog, topic: str, topic_id: str, message_id: str, now_ms: int) -> list[Delayed]:
        """Return the messages with this id that wait in `log`, this index's partition, or fell due lately.

        They are in offset order. What other processes appended is only found after `log.refresh()`.

        Raises
        ------
        Corrupt
            A file does not hold what the log says.
        """
        self._follow(log, now_ms)
        origin = _origin(topic_id, topic)
        hashed = hash((origin, message_id))
        offsets = np.unique(np.concatenate([np.empty(0, np.int64), *(run.find(hashed) for run in self._runs)]))
        picked = pick(log, offsets, bytes_max=None)
        if picked.unreadable:
            raise Corrupt(f"{log.ref.name}: {picked.unreadable}")
        messages = delayed_of(picked.rows, log.ref.name)
        known = [message for message in messages if (message.topic_id, message.message_id) == (topic_id, message_id)]
        known = known or list(self._scan(log, origin, message_id))
        return [message for message in known if message.deliver_time_ms > now_ms - DUE_KEPT_MS]

    def _follow(self, log: PartitionLog, now_ms: int) -> None:
        start = max(self._next, log.min_offset)
        for page in pages(log, start):
            self._runs.append(_run_of(page.rows))
            self._next = page.next_offset
            while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
                self._merge_last(now_ms)
            if len(self) > self._messages_max:
                self._make_room(now_ms)

    def _merge_last(self, now_ms: int) -> None:
        older, newer = self._runs[-2:]
        columns = [
            np.concatenate([older.hashes, newer.hashes]),
            np.concatenate([older.offsets, newer.offsets]),
            np.concatenate([older.due_ms, newer.due_ms]),
        ]
        order = np.argsort(columns[0], kind="stable")
        merged = _Run(*(column[order] for column in columns))
        self._runs[-2:] = [merged.only(merged.due_ms > now_ms - DUE_KEPT_MS)]

    def _make_room(self, now_ms: int) -> None:
        while len(self._runs) > 1:
            self._merge_last(now_ms)
        (run,) = self._runs
        if len(run) > self._messages_max:
            leave = len(run) - self._messages_max // 2
            self._first = int(np.partition(run.offsets, leave - 1)[leave - 1]) + 1
            self._runs = [run.only(run.offsets >= self._first)]

    def _scan(self, log: PartitionLog, origin: str, message_id: str) -> Iterator[Delayed]:
        """Search the part of the log for which the index has no room."""
        if self._first <= log.min_offset:
            return
        for page in pages(log, log.min_offset):
            rows = page.rows
            same = pc.and_(pc.equal(rows.column("message_id"), message_id), pc.equal(_origins(rows), origin))
            yield from (
                message for message in delayed_of(rows.filter(same), log.ref.name) if message.offset < self._first
            )
            if page.next_offset >= self._first:
                return


def _origin(topic_id: str, topic: str) -> str:
    """Return the `origin.topic` of messages that wait for this topic."""
    return f"{topic_id}/{topic}"


def _origins(rows: pa.Table) -> pa.ChunkedArray:
    return pc.struct_field(rows.column("origin"), "topic")


def _run_of(rows: pa.Table) -> _Run:
    pairs = zip(_origins(rows).to_pylist(), rows.column("message_id").to_pylist(), strict=True)
    hashes = np.fromiter(map(hash, pairs), dtype=np.int64, count=rows.num_rows)
    order = np.argsort(hashes, kind="stable")
    return _Run(hashes[order], rows.column("offset").to_numpy()[order], _due_ms(rows)[order])


def _due_ms(rows: pa.Table | pa.RecordBatch) -> Int64s:
    """Return deliver times in milliseconds, rounded up, so never before the stored ones."""
    due: Int64s = -(-rows.column("deliver_time").cast(pa.int64()).to_numpy() // 1000)
    return due


def delayed_of(rows: pa.Table | pa.RecordBatch, delay_partition: str) -> list[Delayed]:
    """Return rows of a delay partition as objects; meant for few rows."""
    messages = []
    columns = [rows.column(name).to_pylist() for name in ("offset", "message_id", "origin")]
    for offset, message_id, origin, due_ms in zip(*columns, _due_ms(rows).tolist(), strict=True):
        topic_id, _, topic = origin["topic"].partition("/")
        messages.append(
            Delayed(
                delay_partition=delay_partition,
                offset=offset,
                message_id=message_id,
                deliver_time_ms=due_ms,
                topic=topic,
                topic_id=topic_id,
                partition=origin["partition"],
            )
        )
    return messages
