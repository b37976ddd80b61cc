"""Fetch: rows of partitions become record batches, and what clients will ask for next is read ahead.

    read each partition once --> enough bytes, or an error? -- yes --> answer
              ^                            | no
              '--- about enough commits -- wait until max_wait_ms

There are no fetch sessions: every answer says session 0, and clients then name all partitions each time (KIP-227).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.commit_records import COLUMNS, CommitRecords
from deltamq.api.kafka.calls.layout import Layout, check_epoch
from deltamq.api.kafka.calls.read_ahead import Chunk, Position, ReadAhead
from deltamq.api.kafka.calls.sent_batches import SentBatch, SentBatches
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.log_messages import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from deltamq.api.kafka.records.batch import Compression, gap_batch
from deltamq.api.kafka.records.columns import Int64s, Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.kafka.rows import RECORD_COLUMNS, native_encoder, records_of
from deltamq.api.kafka.topic_settings import compression_of
from deltamq.api.log.metrics import Gauge, Metrics
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.reading.readers import FetchQuery, PartitionReader, QueueReader
from deltamq.api.sending.request_appender import INLINE_BYTES
from deltamq.api.wire.request import Ticket
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import FETCH_BYTES_MAX, FETCH_MESSAGES_MAX, KIB, WAIT_MS_MAX
from deltamq.mq.names import CONSUMER_OFFSETS
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.reading import read_start
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.log.log import PartitionLog

#: Errors after which consumers should try again, but with these numbers would not.
_TRY_AGAIN: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE)


class _Asked(msgspec.Struct):
    """One partition of a fetch; for a logical queue, `partition` is its newest readable segment."""

    topic: HostedTopic
    partition: Partition
    wanted: FetchPartition
    queue: LogicalQueue | None = None
    #: The messages and bytes that were read, where to read on, and where the partition ended then.
    messages: int = 0
    size: int = 0
    next_offset: int = 0
    end_offset: int = 0


class _Round(msgspec.Struct):
    """The result of one read of all partitions."""

    topics: list[FetchedTopic]
    #: Whether it is the answer however few bytes it has: a partition has an error, or there was no more room.
    is_final: bool = False
    #: The partitions without an error.
    read: list[_Asked] = msgspec.field(default_factory=list)
    size: int = 0

    def missing(self, bytes_min: int) -> int:
        """Return about how many more messages make `bytes_min`, if they are like the messages that were read."""
        messages = sum(asked.messages for asked in self.read)
        return min(-(-(bytes_min - self.size) * messages // self.size), FETCH_MESSAGES_MAX) if messages else 1


#: Bytes that a client gets at least if they are there, whatever its limits: Kafka sends a whole batch.
_BYTES_MIN: Final = KIB
#: Most bytes of rows that are compressed on the event loop: gzip takes 0.1 ms.
_COMPRESSED_INLINE: Final = 4 * KIB
#: Epochs of a fetch that belongs to no session: it is the first of one, or ends one.
_WHOLE_EPOCHS: Final = (0, -1)


class Fetching:
    """The readers' calls; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        topics: Topics,
        partitions: Partitions,
        reader: PartitionReader,
        queues: QueueReader,
        commits: CommitRecords,
        metrics: Metrics,
        sent: SentBatches,
    ) -> None:
        """`metrics` shows how much was read ahead and what is kept; `sent` are the newest batches as they came."""
        self._sent = sent
        self._layout = layout
        self._topics = topics
        self._partitions = partitions
        self._reader = reader
        self._queues = queues
        self._commits = commits
        self._metrics = metrics
        self._ahead = ahead = ReadAhead()
        text = "Messages for Kafka's consumers that were read before they were asked for."
        metrics.counters.append(Gauge("deltamq_kafka_read_ahead", text, lambda: ahead.taken))
        text = "Bytes reserved for reading ahead for Kafka's consumers."
        metrics.gauges.append(Gauge("deltamq_kafka_read_ahead_bytes", text, lambda: ahead.bytes))
        text = "Bytes of batches that are kept as Kafka's producers sent them."
        metrics.gauges.append(Gauge("deltamq_kafka_sent_bytes", text, lambda: sent.bytes))
        self._loop = asyncio.get_running_loop()

    def begin_stop(self) -> None:
        """Read nothing ahead any more."""
        self._ahead.end()

    async def fetch(self, request: FetchRequest, ticket: Ticket, asker: Asker) -> FetchResponse:
        """Return what the partitions have from the given offsets on; the bytes of rows are reserved in `ticket`."""
        # With the epoch 0 or -1 a fetch is whole, whatever session it ends or asks for; there are no sessions here.
        if request.session_id and request.session_epoch not in _WHOLE_EPOCHS:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, topics=[])
        deadline = self._loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        bytes_max = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        bytes_min = min(request.min_bytes, bytes_max)
        worth = 1
        while True:
            result = await self._read_all(request, bytes_max, ticket, asker)
            left_s = deadline - self._loop.time()
            if result.is_final or result.size >= bytes_min or left_s <= 0 or self._reader.stopping or not result.read:
                self._note(result.read)
                return FetchResponse(topics=result.topics)
            # Messages may be larger than the ones before: look after a few, then after more each time.
            await self._more(result.read, min(worth, result.missing(bytes_min)), deadline)
            worth *= 2

    async def _read_all(self, request: FetchRequest, bytes_max: int, ticket: Ticket, asker: Asker) -> _Round:
        result = _Round(topics=[])
        for topic in request.topics:
            answers = []
            for wanted in topic.partitions:
                try:
                    name = topic.name or await self._layout.ids.name(topic.topic_id)
                    asked = await self._asked(name, wanted, asker)
                    left = bytes_max - result.size
                    answer = await self._read(asked, left, result.size, ticket)
                    result.read.append(asked)
                    is_cut = left < wanted.partition_max_bytes and asked.next_offset < asked.end_offset
                    result.is_final = result.is_final or is_cut
                except DeltaMQError as error:
                    answer = FetchedPartition(wanted.partition, _code_of(error))
                result.is_final = result.is_final or answer.error_code != ErrorCode.NONE
                result.size += len(answer.records or b"")
                answers.append(answer)
            result.topics.append(FetchedTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return result

    def _note(self, read: list[_Asked]) -> None:
        for asked in read:
            self._metrics.fetched_messages[asked.topic.name] += asked.messages
            self._metrics.fetched_bytes[asked.topic.name] += asked.size

    async def _asked(self, name: str, wanted: FetchPartition, asker: Asker) -> _Asked:
        topic = await self._layout.readable(FetchRequest, name, asker)
        queue = self._layout.queue(topic, wanted.partition)
        partition = "" if queue is not None else self._layout.partition(topic, wanted.partition)
        check_epoch(wanted.current_leader_epoch)
        if queue is not None:
            return _Asked(topic, topic.partition(queue.newest_readable.partition), wanted, queue)
        self._topics.check_readable(topic, partition)
        return _Asked(topic, topic.partition(partition), wanted)

    async def _read(self, asked: _Asked, left: int, size: int, ticket: Ticket) -> FetchedPartition:
        """Read one partition without waiting, for an answer that has `size` bytes and may get `left` more.

        Only the first partition that has messages may go beyond that.
        """
        wanted = asked.wanted
        bytes_max = min(left, max(wanted.partition_max_bytes, 1)) if left > 0 else 0
        if not size:
            bytes_max = max(bytes_max, _BYTES_MIN)
        position = Position(asked.topic.topic.id, wanted.partition, wanted.fetch_offset)
        was_expected = position in self._ahead
        chunk = await self._read_ahead(asked, position, bytes_max)
        # It is still expected if what was read ahead is too large for this answer: reading on would not help either.
        reads_on = was_expected and position not in self._ahead
        if chunk is None:
            chunk = await self._chunk(asked, wanted.fetch_offset, bytes_max, ticket, size)
        asked.queue, asked.next_offset, asked.end_offset = chunk.queue, chunk.next_offset, chunk.max_offset
        if chunk.queue is not None:
            asked.partition = asked.topic.partition(chunk.queue.newest_readable.partition)
        records = chunk.records if len(chunk.records) <= left or not size else b""
        if records:
            ticket.grow(max(0, size + len(records) - ticket.bytes))
            asked.messages, asked.size = chunk.messages, len(records)
            if chunk.max_offset - chunk.next_offset >= chunk.messages:  # as much again: the next one will be full, too
                limit = max(min(size + left, wanted.partition_max_bytes), _BYTES_MIN)
                read = partial(self._chunk, asked, chunk.next_offset, limit)
                self._ahead.expect(position._replace(offset=chunk.next_offset), limit, read if reads_on else None)
        out = wanted.fetch_offset < 0 or chunk.status in (FetchStatus.OFFSET_TOO_SMALL, FetchStatus.OFFSET_TOO_LARGE)
        return FetchedPartition(
            wanted.partition,
            ErrorCode.OFFSET_OUT_OF_RANGE if out else ErrorCode.NONE,
            high_watermark=chunk.max_offset,
            last_stable_offset=chunk.max_offset,
            log_start_offset=chunk.min_offset,
            records=records,
        )

    async def _read_ahead(self, asked: _Asked, position: Position, bytes_max: int) -> Chunk | None:
        """Return what was read ahead, if a read would still find it: it was not removed, and may be read."""
        chunk = await self._ahead.take(position, bytes_max)
        if chunk is None or not chunk.records:
            return None
        queue, log = asked.queue, asked.partition.log
        if queue is not None:
            self._topics.check_readable(asked.topic, read_start(queue, position.offset).segment.partition, queue.name)
            return chunk if queue == chunk.queue else None
        if log is None or log.min_offset > position.offset:
            return None
        return replace(chunk, min_offset=log.min_offset, max_offset=log.end_offset)

    async def _chunk(self, asked: _Asked, offset: int, bytes_max: int, ticket: Ticket, held: int = 0) -> Chunk:
        """Read and encode about `bytes_max` of a partition, nothing for 0; `ticket` holds `held` bytes already."""
        count = FETCH_MESSAGES_MAX if bytes_max else 1
        is_of_offsets = asked.topic.name == CONSUMER_OFFSETS
        columns = COLUMNS if is_of_offsets else RECORD_COLUMNS
        query = FetchQuery(max(offset, 0), count, bytes_max or 1, 0, None, columns)
        queue, compression = asked.queue, compression_of(asked.topic.topic.kafka)
        try:
            if queue is not None:
                fetched, queue = await self._queues.look(asked.topic, queue.name, query)
            else:
                log = await asked.partition.opened()
                if self._sent.find(log, query.offset, bytes_max, compression):
                    await self._reader.bring_up(asked.partition, log, query, query.offset)
                    # An erasure by another process may be news.
                    found = self._sent.find(log, query.offset, bytes_max, compression)
                    if found:
                        return _as_sent(found, query.offset, log)
                fetched = await self._reader.look(asked.partition, log, query, query.offset)
        except GONE as error:
            raise await self._topics.explained(asked.topic, error) from error
        records = b""
        if fetched.rows.num_rows and bytes_max:
            ticket.grow(max(0, held + fetched.rows.nbytes - ticket.bytes))
            if compression is None:
                compression = self._sent.compression_of.get(asked.topic, Compression.NONE)
            if is_of_offsets:
                offsets, made = await self._commits.of(fetched.rows)
                encode = partial(_sparse, fetched, offsets, made)
            else:
                encode = partial(_encoded, fetched, compression)
            is_short = fetched.rows.nbytes <= (_COMPRESSED_INLINE if compression else INLINE_BYTES)
            records = encode() if is_short else await self._partitions.run(encode)
        elif bytes_max and query.offset < fetched.next_offset and fetched.status is FetchStatus.FOUND:
            # Consumers go on behind what they were handed: nothing that was read fits its schema.
            records = gap_batch(query.offset, fetched.next_offset)
        return Chunk(
            fetched.status,
            records,
            fetched.rows.num_rows,
            fetched.next_offset,
            fetched.min_offset,
            fetched.max_offset,
            queue,
        )

    async def _more(self, read: list[_Asked], messages: int, deadline: float) -> None:
        """Wait until the partitions have got `messages` together since they were read, or one must be read again.

        With fewer the answer would still be too small, and each commit would have everything read for nothing.
        """
        while sum(map(self._appended, read)) < messages and not self._reader.stopping:
            waiter: asyncio.Future[None] = self._loop.create_future()
            for asked in read:
                asked.partition.watch(waiter)
            try:
                done, _ = await asyncio.wait({waiter}, timeout=max(0.0, deadline - self._loop.time()))
            finally:
                for asked in read:
                    asked.partition.forget(waiter)
            if not done:
                return

    def _appended(self, asked: _Asked) -> int:
        """Return how many messages a partition has got since it was read; many if it was closed or remapped."""
        log, queue = asked.partition.log, asked.queue
        if log is None:
            return FETCH_MESSAGES_MAX
        if queue is None:
            return log.end_offset - asked.end_offset
        newest, queues = queue.newest_readable, self._topics.queues(asked.topic)
        if queues is None or queues.find(queue.name) != queue:
            return FETCH_MESSAGES_MAX
        return 0 if newest.is_sealed else newest.logical(log.end_offset) - asked.end_offset


def _code_of(error: DeltaMQError) -> ErrorCode:
    """Return the number of an error in the answer to a fetch: consumers fail with codes that they do not expect there.

    After `NOT_LEADER_OR_FOLLOWER` they look up the partition's leader, and try again.
    """
    code = error_code_of(error)
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _TRY_AGAIN else code


def _as_sent(batches: list[SentBatch], offset: int, log: PartitionLog) -> Chunk:
    end, records = batches[-1].end, b"".join([batch.data for batch in batches])
    return Chunk(FetchStatus.FOUND, records, end - offset, end, log.min_offset, log.end_offset, None)


def _encoded(fetched: Fetched, compression: Compression) -> bytes:
    """Return rows as one batch; their offsets are dense, unless some between them did not fit their schema."""
    return _batch(fetched.rows.column("offset").to_numpy(), records_of(fetched.rows), compression)


def _sparse(fetched: Fetched, offsets: Int64s, records: Records) -> bytes:
    """Return the records of some rows as one batch; one that brings consumers on if there are none."""
    if records.count:
        return _batch(offsets, records, Compression.NONE)
    return gap_batch(fetched.rows.column("offset")[0].as_py(), fetched.next_offset)


def _batch(offsets: Int64s, records: Records, compression: Compression) -> bytes:
    base_offset, last = int(offsets[0]), int(offsets[-1])
    return encode_records(
        records,
        base_offset=base_offset,
        deltas=None if last - base_offset < len(offsets) else offsets - base_offset,
        compression=compression,
        native=native_encoder(),
    )
