"""Produce and InitProducerId: record batches become rows of the partitions that the client chose.

    batch --checksum--> queue of the partition --decode all that wait--> commit --> base offset
                        '-- in the order of arrival: several requests of a connection may be under way

Batches that wait for the same commit are decoded together, whichever requests brought them (`api/kafka/records`).

The acknowledgement is the Delta commit, whatever `acks` says; with `acks=0` there is no answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

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
from api.kafka.records import BatchHeader, batches_of, decode_batches, expanded_batch
from api.kafka.rows import rows_of
from api.log import RecordRows
from api.sending import INLINE_BYTES, InLine, InQueue, PartitionAppender, QueueAppender
from api.service import Service
from mq.errors import Conflict, DeltaMQError, Forbidden, Refused
from mq.limits import REQUEST_BYTES_MAX
from mq.names import check_client_topic
from mq.sequences import RANDOM_BITS, born_ms_of, new_producer_id
from mq.sequences import Sequence as ProducerSequence
from tables.delta import ProducerStamp
from tables.key_column import kafka_hashes_of_keys
from tables.settings import Flush

__all__ = ["Producing"]

_ACKS: Final = (-1, 0, 1)
_PRODUCER: Final = "kafka-"
#: Most seconds that a producer waits for the logical offset of messages that are stored.
_DECIDED_S: Final = 10.0


class _Batch(NamedTuple):
    """A batch, and whether its records may go to the partition that the client chose."""

    header: BatchHeader
    is_in_place: bool


@dataclass(frozen=True, slots=True)
class _Queued:
    """A batch in the queue of its partition, or in the line of its logical queue."""

    topic: HostedTopic
    index: int
    #: Empty for a logical queue.
    partition: str
    count: int
    nbytes: int
    placed: InLine | InQueue


class Producing:
    """The producers' calls; used on the event loop."""

    def __init__(self, service: Service, places: Places) -> None:
        self._places = places
        self._topics = service.topics
        self._partitions = service.partitions
        self._metrics = service.metrics
        self._now_ms = service.now_ms
        self._flush = service.config.log.flush
        self._appender = PartitionAppender(service.topics, service.meta, service.partitions, service.sealer)
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
    ) -> _Queued | ProducedPartition:
        try:
            _check(request)
            asker.check(ProduceRequest, topic=topic)
            return await self._queued(topic, part, request.timeout_ms)
        except DeltaMQError as error:
            return _refused(part.index, error)

    async def _queued(self, name: str, part: ProducePartition, timeout_ms: int) -> _Queued:
        """Check the partition's batch and put it into the queue.

        Raises
        ------
        DeltaMQError
            Nothing of the batch was stored.
        """
        hosted = await self._places.topic(check_client_topic(name))
        queue = self._places.queue(hosted, part.index)
        partition = "" if queue is not None else self._places.partition(hosted, part.index)
        records = b"" if part.records is None else part.records
        check = partial(_checked, records, _key_check(hosted, part.index))
        batch = check() if len(records) <= INLINE_BYTES else await self._partitions.run(check)
        if not batch.is_in_place:
            raise _strict(hosted)
        flush = {"sync": Flush.SYNC, "async": Flush.ASYNC}.get(hosted.settings.flush or "", self._flush)
        header = batch.header
        rows = RecordRows([header], _rows, count=header.count, nbytes=len(header.records))
        stamp = _stamp(header)
        if queue is not None:
            # The client is told a logical offset, so it waits for one; its timeout is longer than what we wait.
            wait_s = min(_DECIDED_S, max(timeout_ms, 0) / 2_000)
            now_ms = self._now_ms()
            queued = self._queues.begin(hosted, part.index, rows, flush, stamp, now_ms=now_ms, wait_s=wait_s)
            return _Queued(hosted, part.index, partition, rows.count, rows.nbytes, queued)
        placed = self._appender.begin(hosted, partition, rows, flush, stamp)
        return _Queued(hosted, part.index, partition, rows.count, rows.nbytes, placed)

    async def _stored(self, queued: _Queued) -> ProducedPartition:
        topic, placed, log_start_offset = queued.topic, queued.placed, -1
        try:
            if isinstance(placed, InLine):
                offset = (await placed.stored()).offset
                log = topic.partition(queued.partition).log
                log_start_offset = 0 if log is None else log.min_offset
            else:
                offset = await placed.offset()
        except GONE as error:
            return _refused(queued.index, await self._topics.explained(topic, error))
        except DeltaMQError as error:
            return _refused(queued.index, error)
        self._metrics.produced_messages[topic.name] += queued.count
        self._metrics.produced_bytes[topic.name] += queued.nbytes
        return ProducedPartition(queued.index, ErrorCode.NONE, offset, log_start_offset=log_start_offset)

    async def _answer(
        self, request: ProduceRequest, waiting: list[tuple[str, list[_Queued | ProducedPartition]]]
    ) -> ProduceResponse | None:
        topics = []
        for name, parts in waiting:
            done = [await self._stored(one) if isinstance(one, _Queued) else one for one in parts]
            topics.append(ProducedTopic(name, done))
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


def _key_check(hosted: HostedTopic, index: int) -> Callable[[pa.BinaryArray], bool] | None:
    """Return what finds out whether records with these keys may go to a partition; None if any may (SPEC KAFKA-12)."""
    if hosted.settings.order_strategy != "strict":
        return None
    if hosted.settings.partitioner != "kafka":
        return _has_no_keys
    return partial(_all_belong, index=index, partitions=len(hosted.route.partitions))


def _has_no_keys(key: pa.BinaryArray) -> bool:
    return bool(key.null_count == len(key))


def _all_belong(key: pa.BinaryArray, *, index: int, partitions: int) -> bool:
    """Return whether all keys belong to the partition with this index by Kafka's default partitioner."""
    hashes = kafka_hashes_of_keys(key)
    return bool(((hashes < 0) | (hashes % np.int32(partitions) == index)).all())


def _strict(hosted: HostedTopic) -> Conflict:
    detail = f"topic {hosted.name} keeps the order of keys (strict), and "
    if hosted.settings.partitioner == "kafka":
        detail += (
            "a key came for another partition than that of Kafka's default partitioner: let the producer choose by it "
            "(librdkafka: partitioner=murmur2_random), and name no partition"
        )
    else:
        detail += (
            "Kafka clients choose partitions in their own way: send without keys, or through the SDK or REST, or make "
            "the topic with `partitioner: kafka`"
        )
    return Conflict(detail, code="strict_topic")


def _checked(records: bytes | memoryview, key_check: Callable[[pa.BinaryArray], bool] | None) -> _Batch:
    """Return the one batch that a partition gets in a request, checked but for its records, and not compressed.

    With a `key_check`, the keys of its records are looked at, too.
    """
    headers = list(batches_of(records))
    if len(headers) != 1:
        raise Refused(f"records: {len(headers)} batches for one partition; one is allowed", code="invalid_record")
    header = expanded_batch(headers[0], REQUEST_BYTES_MAX)
    return _Batch(header, key_check is None or key_check(decode_batches([header]).key))


def _rows(batches: Sequence[BatchHeader]) -> pa.RecordBatch:
    return rows_of(decode_batches(batches))


def _stamp(header: BatchHeader) -> ProducerStamp | None:
    if header.producer_id < 0:
        return None
    sequence = ProducerSequence(header.producer_epoch, header.base_sequence, born_ms_of(header.producer_id))
    return ProducerStamp(f"{_PRODUCER}{header.producer_id}", -1, None, header.count, sequence)


def _refused(index: int, error: DeltaMQError) -> ProducedPartition:
    return ProducedPartition(index, error_code_of(error), error_message=error.detail)
