"""The newest value of a key, without Spark: the table of the job `latest`, and what is behind it (SPEC TYPE-47).

    tables.state.latest: the key's row, merged offsets --> messages of the key behind them, of all partitions at once
                                                            '--> the newer of both; without a value, the key is deleted

So the answer has what was acknowledged before, however late the job is; where there is no job, all messages are read.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.typed_topics import TopicCodecs
from deltamq.api.log.partition import Partitions
from deltamq.api.reading.readers import FetchQuery, PartitionReader
from deltamq.mq.errors import Unavailable, Unprocessable
from deltamq.mq.limits import MIB
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.state.latest import LatestTables
from deltamq.tables.typed_row import RESCUED, VALUE

#: What one call looks at behind the merged offsets: bytes of messages, and seconds.
_BYTES_MAX: Final = 64 * MIB
_LOOK_S: Final = 2.0
#: What is read at once.
_PIECE_MESSAGES: Final = 20_000
_PIECE_BYTES: Final = 4 * MIB
_COLUMNS: Final = ("offset", "append_time", "body", "key")


class Newest(NamedTuple):
    """The newest value of a key, and the stored message that had it; `partition` and `offset` are physical."""

    partition: str
    offset: int
    append_us: int
    #: One value of the topic's columns, and what did not fit.
    value: pa.StructArray
    rescued: str | None


class _Seen(NamedTuple):
    """The newest message of the key in a partition."""

    append_us: int
    offset: int
    partition: str


class _Left:
    """What a call may still look at."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.bytes = _BYTES_MAX


class LatestValues:
    """Looks up the newest value of keys; used on the event loop."""

    def __init__(
        self,
        tables: LatestTables,
        topics: Topics,
        partitions: Partitions,
        reader: PartitionReader,
        codecs: TopicCodecs,
    ) -> None:
        self._tables = tables
        self._topics = topics
        self._partitions = partitions
        self._reader = reader
        self._codecs = codecs

    async def of(self, hosted: HostedTopic, key: str) -> Newest | None:
        """Return the newest value of a key; None if no message has it, or the newest one has no value.

        Raises
        ------
        Unprocessable
            `no_schema`: the topic has none.
        Unavailable
            `latest_behind`: the job `latest` is too far behind for one call.
        Conflict
            `latest_too_large`: the table has more keys than a process looks up.
        """
        if self._codecs.of(hosted.topic) is None:
            raise Unprocessable(
                f"topic {hosted.name} has no schema, so its keys have no newest value", code="no_schema"
            )
        looked = await self._partitions.run(partial(self._tables.look_up, hosted.topic.id, key))
        left = _Left(asyncio.get_running_loop().time() + _LOOK_S)
        names = hosted.route.partitions
        tails = await asyncio.gather(*(self._tail(hosted, name, looked.ends.get(name, 0), key, left) for name in names))
        newest = max((seen for seen in tails if seen is not None), default=None)
        merged = None if looked.row is None else _of_table(looked.row)
        if newest is None or (merged is not None and newest.append_us < merged.append_us):
            return merged
        return await self._read(hosted, newest)

    async def _tail(self, hosted: HostedTopic, name: str, offset: int, key: str, left: _Left) -> _Seen | None:
        """Return the newest message of the key from an offset on."""
        partition, newest = hosted.partition(name), None
        log = await partition.opened()
        loop = asyncio.get_running_loop()
        while True:
            self._topics.check_readable(hosted, name)
            query = FetchQuery(offset, _PIECE_MESSAGES, _PIECE_BYTES, 0, None, _COLUMNS)
            read = await self._reader.look(partition, log, query, offset)
            if read.status is FetchStatus.OFFSET_TOO_SMALL:  # retention took the messages before
                offset = max(offset + 1, read.min_offset)
                continue
            if not read.rows.num_rows and read.next_offset <= offset:
                return newest
            newest = _last_of(read.rows, key, name) or newest
            offset = read.next_offset
            left.bytes -= read.rows.nbytes
            if (left.bytes <= 0 or loop.time() >= left.until) and offset < log.end_offset:
                raise Unavailable(
                    f"topic {hosted.name}: too many messages of {name} are behind its table of newest values to look"
                    " at them; run the job `latest` (deltamq jobs run latest --once), or more often",
                    code="latest_behind",
                )

    async def _read(self, hosted: HostedTopic, seen: _Seen) -> Newest | None:
        """Return the stored value of a message; None if it has none, or was removed since."""
        log = await hosted.partition(seen.partition).opened()
        row = await self._partitions.run(partial(_row_at, log, seen.offset))
        if row is None or VALUE not in row.column_names or not row.column(VALUE)[0].is_valid:
            return None
        rescued = row.column(RESCUED)[0].as_py() if RESCUED in row.column_names else None
        value = row.column(VALUE).combine_chunks()
        return Newest(seen.partition, seen.offset, seen.append_us, value, rescued)


def _last_of(rows: pa.Table, key: str, name: str) -> _Seen | None:
    found = rows.filter(pc.equal(rows.column("key"), key), null_selection_behavior="drop")
    if not found.num_rows:
        return None
    last = found.slice(found.num_rows - 1)
    return _Seen(_micros(last.column("append_time")), last.column("offset")[0].as_py(), name)


def _row_at(log: PartitionLog, offset: int) -> pa.Table | None:
    read = log.read(offset, max_messages=1, max_bytes=1, columns=(*_COLUMNS, VALUE, RESCUED))
    return read.rows if read.status is FetchStatus.FOUND else None


def _of_table(row: pa.Table) -> Newest:
    def cell(name: str) -> Any:
        return row.column(name)[0].as_py()

    at = _micros(row.column("mq_append_time"))
    value = row.column(VALUE).combine_chunks()
    return Newest(cell("mq_partition"), cell("mq_offset"), at, value, cell("mq_rescued"))


def _micros(times: pa.ChunkedArray) -> int:
    micros: int = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())[0].as_py()
    return micros
