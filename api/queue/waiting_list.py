"""The delayed messages of a topic that wait, in the order of their deliver times (SPEC LOOK-5).

    delay logs of the topic's brokers --deliver times, marks--> what has not ended, by time --pages--> rows of the topic

A broker's delay log has the messages of all its topics. So a page reads those that are due next until it has enough of
this topic, or has looked for `_LOOK_S` seconds, and says where the next page goes on. Marks and deliver times are kept:
each page reads only what is new in the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.api.log.partition import Partitions
from deltamq.api.queue.delays import Delays, brokers_of
from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import MIB
from deltamq.mq.meta.topics import Topic
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.point_reads import pick
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.delay_marks import DelayMarks
from deltamq.tables.queue.delay_times import DeliverTimes
from deltamq.tables.queue.refs import DELAY_MARKS, system_ref
from deltamq.tables.schema import MESSAGE_SCHEMA

_LOOK_S: Final = 2.0
#: Messages that are read at once.
_PIECE: Final = 1_000
#: Bytes of deliver times that are kept.
_CACHE_BYTES: Final = 16 * MIB
#: Later than any deliver time, in milliseconds since 1970.
_EVER_MS: Final = 2**53

Int64s = NDArray[np.int64]
T = TypeVar("T")


class WaitingPlace(NamedTuple):
    """Where a message waits; places ascend in the order of the list."""

    due_ms: int
    broker: str
    offset: int


class WaitingPage(NamedTuple):
    """Messages that wait for a topic, as they are stored, and the last place that was looked at; None at the end."""

    rows: pa.Table
    last: WaitingPlace | None


class _Marks:
    """What has ended or was cancelled in one broker's delay log, folded as far as the marks were read."""

    def __init__(self, warehouse: Warehouse, cluster: str, broker: str) -> None:
        self.ref = system_ref(DELAY_MARKS, cluster, broker)
        self.folded = DelayMarks(warehouse, cluster, broker)
        self.lock = asyncio.Lock()
        self._next = 0
        self._times = DeliverTimes(RowCache(_CACHE_BYTES))

    def left(self, log: PartitionLog, marks: PartitionLog | None, until_ms: int = _EVER_MS) -> tuple[Int64s, Int64s]:
        """Return deliver times and offsets of what waits in a delay log, is not cancelled, and is due then. Blocks."""
        if marks is not None:
            self._next = max(self._next, marks.min_offset)
            for page in pages(marks, self._next):
                self.folded.fold(page.rows)
                self._next = page.next_offset
        times, offsets = self._times.due(log, self.folded, until_ms)
        waits = ~np.isin(offsets, np.fromiter(self.folded.cancelled, np.int64))
        return times[waits], offsets[waits]

    def overdue(self, log: PartitionLog, marks: PartitionLog | None, now_ms: int) -> tuple[int, int | None]:
        """Return how many messages wait, and when the first that is due was due. Blocks."""
        times, _ = self.left(log, marks, now_ms)
        not_ended = sum(high - low for low, high in self.folded.ended.gaps(log.min_offset, log.end_offset))
        return max(0, not_ended - len(self.folded.cancelled)), int(times[0]) if len(times) else None


class _Order(NamedTuple):
    """All that waits at some brokers, ascending; brokers by their index among the sorted names."""

    times: Int64s
    brokers: Int64s
    offsets: Int64s

    def place(self, names: list[str], at: int) -> WaitingPlace:
        return WaitingPlace(int(self.times[at]), names[self.brokers[at]], int(self.offsets[at]))

    def first_after(self, names: list[str], place: WaitingPlace) -> int:
        """Return the index of the first message behind a place."""
        low, high = (
            np.searchsorted(self.times, place.due_ms, "left"),
            np.searchsorted(self.times, place.due_ms, "right"),
        )
        same = zip(self.brokers[low:high].tolist(), self.offsets[low:high].tolist(), strict=True)
        return int(low) + sum((names[broker], offset) <= place[1:] for broker, offset in same)


class WaitingList:
    """Lists what waits; used on the event loop."""

    def __init__(self, partitions: Partitions, delays: Delays, warehouse: Warehouse, cluster: str) -> None:
        self._partitions = partitions
        self._delays = delays
        self._warehouse = warehouse
        self._cluster = cluster
        self._marks: dict[str, _Marks] = {}

    async def page(self, topic: Topic, after: WaitingPlace | None, limit: int) -> WaitingPage:
        """Return at most `limit` messages that wait for the topic, behind a place.

        Raises
        ------
        Corrupt
            A delay log cannot be read.
        """
        names = sorted(brokers_of(topic))
        logs = {name: log for name in names if (log := await self._delays.partition(name).look()) is not None}
        order = await self._order(names, logs)
        at = 0 if after is None else order.first_after(names, after)
        loop, pieces, count = asyncio.get_running_loop(), [MESSAGE_SCHEMA.empty_table()], 0
        until = loop.time() + _LOOK_S
        begin = at
        while at < len(order.times) and count < limit and (at == begin or loop.time() < until):
            piece = _Order(*(column[at : at + _PIECE] for column in order))
            rows, positions = await self._partitions.run(partial(_of_topic, topic, names, logs, piece))
            room = limit - count
            is_whole = len(positions) <= room
            at += len(piece.times) if is_whole else int(positions[room - 1]) + 1
            pieces.append(rows.slice(0, room))
            count += min(room, len(positions))
        last = None if at >= len(order.times) else order.place(names, at - 1)
        return WaitingPage(pa.concat_tables(pieces), last)

    async def overdue(self, broker: str, now_ms: int) -> tuple[int, int | None]:
        """Return how many messages wait at a broker, and when the first that is due was due; raise as `page`."""
        log = await self._delays.partition(broker).look()
        if log is None:
            return 0, None
        return await self._by_marks(broker, log, partial(_Marks.overdue, now_ms=now_ms))

    async def _by_marks(
        self, broker: str, log: PartitionLog, work: Callable[[_Marks, PartitionLog, PartitionLog | None], T]
    ) -> T:
        """Run work on a broker's marks, its delay log and the log of the marks on a thread."""
        marks = self._marks.get(broker)
        if marks is None:
            marks = self._marks[broker] = _Marks(self._warehouse, self._cluster, broker)
        marks_log = await self._partitions.of(marks.ref).look()
        async with marks.lock:
            return await self._partitions.run(partial(work, marks, log, marks_log))

    async def _order(self, names: list[str], logs: Mapping[str, PartitionLog]) -> _Order:
        parts = [_Order(*(np.empty(0, np.int64) for _ in _Order._fields))]
        for number, name in enumerate(names):
            if name not in logs:
                continue
            times, offsets = await self._by_marks(name, logs[name], _Marks.left)
            parts.append(_Order(times, np.full(len(times), number, np.int64), offsets))
        times, brokers, offsets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((offsets, brokers, times))
        return _Order(times[order], brokers[order], offsets[order])


def _of_topic(
    topic: Topic, names: list[str], logs: Mapping[str, PartitionLog], piece: _Order
) -> tuple[pa.Table, Int64s]:
    """Return the rows of a topic among these messages, in their order, and their positions there. Blocks."""
    tables, positions = [], []
    for number in np.unique(piece.brokers).tolist():
        log = logs[names[number]]
        at = np.flatnonzero(piece.brokers == number)
        at = at[np.argsort(piece.offsets[at])]
        picked = pick(log, piece.offsets[at], bytes_max=None)
        if picked.unreadable:
            raise Corrupt(f"{log.ref.name}: {next(iter(picked.unreadable.values()))}")
        rows = pa.Table.from_batches([picked.rows])
        at = at[np.isin(piece.offsets[at], picked.offsets)]
        origins = pc.struct_field(rows.column("origin"), "topic")
        is_its = pc.fill_null(pc.equal(origins, f"{topic.id}/{topic.name}"), False).to_numpy()
        tables.append(rows.filter(pa.array(is_its)))
        positions.append(at[is_its])
    where: Int64s = np.concatenate(positions)
    order = np.argsort(where)
    return pa.concat_tables(tables).take(pa.array(order)), where[order]
