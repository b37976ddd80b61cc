"""Produce and InitProducerId: record batches become rows of the partitions that the client chose.

    batch --check, decode--> rows --queue of the partition--> commit --> base offset
                                  '-- in the order of arrival: several requests of a connection may be under way

The acknowledgement is the Delta commit, whatever `acks` says; with `acks=0` there is no answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from functools import partial
from typing import Final

from api.host import GONE, HostedTopic
from api.kafka.access import Asker
from api.kafka.calls.places import Places
from api.kafka.messages import (
    ErrorCode,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    error_code_of,
)
from api.kafka.records import BatchHeader, batches_of, decode_records
from api.kafka.rows import rows_of
from api.sending import INLINE_BYTES, PartitionAppender, QueueAppender
from api.service import Service
from api.wire import ArrowRows
from mq.errors import Conflict, DeltaMQError, Forbidden, Refused
from mq.limits import REQUEST_BYTES_MAX
from mq.names import check_client_topic
from mq.sequences import RANDOM_BITS, Sequence, born_ms_of, new_producer_id
from tables.delta import ProducerStamp
from tables.log import Appended
from tables.settings import Flush

__all__ = ["Producing"]

_ACKS: Final = (-1, 0, 1)
_PRODUCER: Final = "kafka-"
#: Most seconds that a producer waits for the logical offset of messages that are stored.
_DECIDED_S: Final = 10.0


class Producing:
    """The producers' calls; used on the event loop."""

    def __init__(self, service: Service, places: Places) -> None:
        self._places = places
        self._topics = service.topics
        self._partitions = service.partitions
        self._metrics = service.metrics
        self._now_ms = service.now_ms
        self._flush = service.config.log.flush
        self._appender = PartitionAppender(service.topics, service.meta, service.partitions)
        self._queues = QueueAppender(service.topics, service.meta, service.partitions, service.sealer)

    async def begin(self, request: ProduceRequest, asker: Asker) -> Awaitable[ProduceResponse | None]:
        """Queue all batches, and return what waits for their commits and makes the answer; None for `acks=0`."""
        waiting = []
        for topic in request.topics:
            parts = [await self._begun(request, topic.name, part, asker) for part in topic.partitions]
            waiting.append((topic.name, parts))
        return self._answer(request, waiting)

    async def _begun(
        self, request: ProduceRequest, topic: str, part: ProducePartition, asker: Asker
    ) -> Awaitable[ProducedPartition]:
        try:
            _check(request)
            asker.check(ProduceRequest, topic=topic)
            return await self._queued(topic, part, request.timeout_ms)
        except DeltaMQError as error:
            return _told(part.index, error)

    async def _queued(self, name: str, part: ProducePartition, timeout_ms: int) -> Awaitable[ProducedPartition]:
        """Decode the partition's batch and put it into the queue.

        Raises
        ------
        DeltaMQError
            Nothing of the batch was stored.
        """
        hosted = await self._places.topic(check_client_topic(name))
        queue = self._places.queue(hosted, part.index)
        partition = "" if queue is not None else self._places.partition(hosted, part.index)
        records = b"" if part.records is None else part.records
        decode = partial(_decoded, records)
        header, rows = decode() if len(records) <= INLINE_BYTES else await self._partitions.run(decode)
        if hosted.settings.order_strategy == "strict" and rows.key is not None:
            detail = (
                f"topic {name} keeps the order of keys (strict), and Kafka clients choose partitions in their own way: "
                "send without keys, or through the SDK or REST"
            )
            raise Conflict(detail, code="strict_topic")
        flush = {"sync": Flush.SYNC, "async": Flush.ASYNC}.get(hosted.settings.flush or "", self._flush)
        if queue is not None:
            # The client is told a logical offset, so it waits for one; its timeout is longer than what we wait.
            wait_s = min(_DECIDED_S, max(timeout_ms, 0) / 2_000)
            decided = self._queues.begin(
                hosted, part.index, rows, flush, _stamp(header), now_ms=self._now_ms(), wait_s=wait_s
            )
            return asyncio.ensure_future(self._stored_in_queue(hosted, part.index, rows, decided))
        committed = self._appender.begin(hosted, partition, rows, flush, _stamp(header))
        return asyncio.ensure_future(self._stored(hosted, part.index, rows, committed))

    async def _stored(
        self, topic: HostedTopic, index: int, rows: ArrowRows, committed: Awaitable[Appended]
    ) -> ProducedPartition:
        try:
            appended = await committed
        except GONE as error:
            return _refused(index, await self._topics.explained(topic, error))
        except DeltaMQError as error:
            return _refused(index, error)
        self._metrics.produced_messages[topic.name] += rows.count
        self._metrics.produced_bytes[topic.name] += rows.nbytes
        log = topic.partition(self._places.partition(topic, index)).log
        return ProducedPartition(
            index, ErrorCode.NONE, appended.base_offset, log_start_offset=0 if log is None else log.min_offset
        )

    async def _stored_in_queue(
        self, topic: HostedTopic, index: int, rows: ArrowRows, decided: Awaitable[int]
    ) -> ProducedPartition:
        """Return the answer with a logical offset; -1 if the messages are stored and do not have one yet."""
        try:
            offset = await decided
        except GONE as error:
            return _refused(index, await self._topics.explained(topic, error))
        except DeltaMQError as error:
            return _refused(index, error)
        self._metrics.produced_messages[topic.name] += rows.count
        self._metrics.produced_bytes[topic.name] += rows.nbytes
        return ProducedPartition(index, ErrorCode.NONE, offset)

    async def _answer(
        self, request: ProduceRequest, waiting: list[tuple[str, list[Awaitable[ProducedPartition]]]]
    ) -> ProduceResponse | None:
        topics = [ProducedTopic(name, list(await asyncio.gather(*parts))) for name, parts in waiting]
        return ProduceResponse(topics) if request.acks else None

    def init_producer_id(self, request: InitProducerIdRequest, asker: Asker) -> InitProducerIdResponse:
        """Return a new producer id; its first epoch is 0, whatever the client had before."""
        try:
            asker.check(InitProducerIdRequest)
            if request.transactional_id is not None:
                raise _no_transactions()
        except Forbidden as error:
            return InitProducerIdResponse(error_code=error_code_of(error))
        made = new_producer_id(self._now_ms(), secrets.randbits(RANDOM_BITS))
        return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=made, producer_epoch=0)


def _check(request: ProduceRequest) -> None:
    if request.transactional_id is not None:
        raise _no_transactions()
    if request.acks not in _ACKS:
        raise Refused(f"acks must be -1, 0 or 1, not {request.acks}", code="invalid_acks")


def _no_transactions() -> Forbidden:
    return Forbidden("transactions are not supported: set no transactional.id", code="transactions_unsupported")


def _decoded(records: bytes | memoryview) -> tuple[BatchHeader, ArrowRows]:
    """Return the one batch that a partition gets in a request, as rows."""
    headers = list(batches_of(records))
    if len(headers) != 1:
        raise Refused(f"records: {len(headers)} batches for one partition; one is allowed", code="invalid_record")
    rows = rows_of(decode_records(headers[0], bytes_max=REQUEST_BYTES_MAX))
    return headers[0], ArrowRows(rows.num_rows, rows.nbytes, rows)


def _stamp(header: BatchHeader) -> ProducerStamp | None:
    if header.producer_id < 0:
        return None
    sequence = Sequence(header.producer_epoch, header.base_sequence, born_ms_of(header.producer_id))
    return ProducerStamp(f"{_PRODUCER}{header.producer_id}", -1, None, header.count, sequence)


def _refused(index: int, error: DeltaMQError) -> ProducedPartition:
    return ProducedPartition(index, error_code_of(error), error_message=error.detail)


async def _at_once(found: ProducedPartition) -> ProducedPartition:
    return found


def _told(index: int, error: DeltaMQError) -> Awaitable[ProducedPartition]:
    return _at_once(_refused(index, error))
