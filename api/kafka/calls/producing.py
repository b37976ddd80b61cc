"""Produce and InitProducerId: record batches become rows of the partitions that the client chose.

    batch --checksum--> queue of the partition --decode all that wait--> commit --> base offset
                        '-- in the order of arrival: several requests of a connection may be under way

Batches that wait for the same commit are decoded together, whichever requests brought them (`api/kafka/records`).

The acknowledgement is the Delta commit, whatever `acks` says; with `acks=0` there is no answer. A batch that cannot be
stored closes the connection then: a client that waits for no answer learns of it in no other way.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.layout import Layout
from deltamq.api.kafka.calls.sent_batches import SentBatch, SentBatches
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.log_messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    RecordError,
)
from deltamq.api.kafka.records.batch import BatchHeader, Compression, batches_of, has_no_flags, with_offset
from deltamq.api.kafka.records.decode import decode_batches, expanded_batch
from deltamq.api.kafka.rows import native_decoder, rows_of
from deltamq.api.kafka.topic_settings import value_bytes_of
from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.log.parts import RecordRows
from deltamq.api.sending.commit_defaults import CommitDefaults
from deltamq.api.sending.line import InLine
from deltamq.api.sending.named_appender import InQueue, PartitionAppender, QueueAppender
from deltamq.api.sending.request_appender import INLINE_BYTES
from deltamq.api.wire.request import Ticket
from deltamq.api.wire.rows import Misfits
from deltamq.api.wire.steps import CallTrace
from deltamq.mq.errors import Conflict, DeltaMQError, Forbidden, Refused, TooLarge
from deltamq.mq.limits import MIB, REQUEST_BYTES_MAX
from deltamq.mq.meta.topic_settings import is_compacted, schema_of
from deltamq.mq.names import check_client_topic
from deltamq.mq.producer import RANDOM_BITS, born_ms_of, new_producer_id
from deltamq.mq.producer import Sequence as ProducerSequence
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.key_column import kafka_hashes_of_keys
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.message_limits import check_bodies

_ACKS: Final = (-1, 0, 1)
_PRODUCER: Final = "kafka-"
#: Most seconds that a producer waits for the logical offset of messages that are stored.
_DECIDED_S: Final = 10.0
#: Most bytes to which the batches of a request are expanded on the event loop, beyond what they were given as.
_EXPANDED_AT_ONCE: Final = MIB


class _Checks(NamedTuple):
    """What is asked of the records of a batch before they are queued."""

    #: Whether records with some keys may go to the partition; None if any may.
    keys: Callable[[pa.BinaryArray], bool] | None
    value_bytes_max: int


class _Batch(NamedTuple):
    """A batch, and whether its records may go to the partition that the client chose."""

    header: BatchHeader
    #: How the client compressed it; the header is that of the batch without.
    compression: Compression
    is_in_place: bool
    #: How many bytes it takes more than it was given as.
    expanded: int
    #: All of it, as the client sent it.
    sent: bytes | memoryview


class _Queued(msgspec.Struct, frozen=True):
    """A batch in the queue of its partition, or in the line of its logical queue."""

    topic: HostedTopic
    index: int
    #: Empty for a logical queue.
    partition: str
    count: int
    nbytes: int
    placed: InLine | InQueue
    batch: _Batch


class _Room:
    """The bytes that the batches of a request may take together, uncompressed; the ticket holds what they do take."""

    __slots__ = ("_ticket", "left")

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        #: Bytes that the next batches may take.
        self.left = REQUEST_BYTES_MAX

    def take(self, batch: _Batch) -> None:
        """Note a batch; raises `Overloaded` if the service has no room for what it takes more than before."""
        self.left -= len(batch.header.records)
        if batch.expanded > 0:
            self._ticket.grow(batch.expanded)


#: The batches of a request by topic as the client calls it: each is queued, or was refused.
_Topics: TypeAlias = list[tuple[ProduceTopic, list[_Queued | ProducedPartition]]]


class Reply(Protocol):
    """The callbacks for the answer to a request; one of the two is called, once."""

    def ready(self, answer: Message | None) -> None:
        """Take the answer, None if the client wants none."""

    def later(self, ask: Callable[[], Awaitable[Message | None]]) -> None:
        """Ask for the answer in a task."""


class _Waiting:
    """An answer that waits for the commits of its batches, without a task."""

    __slots__ = ("_left", "_lines", "_producing", "_reply", "_request", "_topics")

    def __init__(self, producing: Producing, request: ProduceRequest, topics: _Topics, reply: Reply) -> None:
        self._producing = producing
        self._request = request
        self._topics = topics
        self._reply = reply
        placed = (part.placed for _, parts in topics for part in parts if isinstance(part, _Queued))
        self._lines = [line for line in placed if isinstance(line, InLine)]
        self._left = len(self._lines)
        for line in self._lines:
            assert line.outcome is None, "a commit ends later"
            line.settled = self._settled
        if not self._lines:
            self._answer()

    @property
    def _is_refused(self) -> bool:
        return any(isinstance(part, ProducedPartition) for _, parts in self._topics for part in parts) or any(
            isinstance(line.outcome, DeltaMQError) for line in self._lines
        )

    def _settled(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._answer()

    def _answer(self) -> None:
        is_gone = any(isinstance(line.outcome, GONE) for line in self._lines)
        if is_gone or (not self._request.acks and self._is_refused):
            self._reply.later(partial(self._producing.answer, self._request, self._topics))
        else:
            self._reply.ready(self._producing.answer_at_once(self._request, self._topics))


class Producing:
    """The producers' calls; used on the event loop."""

    def __init__(
        self,
        layout: Layout,
        topics: Topics,
        partitions: Partitions,
        appender: PartitionAppender,
        queues: QueueAppender,
        metrics: Metrics,
        *,
        defaults: CommitDefaults,
        now_ms: Callable[[], int],
    ) -> None:
        self._layout = layout
        self._topics = topics
        self._partitions = partitions
        self._appender = appender
        self._queues = queues
        self._metrics = metrics
        self._defaults = defaults
        self._now_ms = now_ms
        #: The newest batches as they came, for readers.
        self.sent = SentBatches()

    def begin_at_once(self, request: ProduceRequest, asker: Asker, ticket: Ticket, reply: Reply) -> bool:
        """Queue all batches, if they are small and their topics plain and known; else queue none, and return False."""
        known = []
        for topic in request.topics:
            name = topic.name or self._layout.ids.find(topic.topic_id)
            hosted = None if name is None else self._topics.find(name)
            if hosted is None or hosted.topic.static is not None or not self._layout.served(hosted.topic):
                return False
            if any(part.records is not None and len(part.records) > INLINE_BYTES for part in topic.partitions):
                return False
            known.append((topic, hosted))
        checked, expanded = [], 0
        for topic, hosted in known:
            batches = [_checked_at_once(hosted, part) for part in topic.partitions]
            expanded += sum(batch.expanded for batch in batches if isinstance(batch, _Batch))
            if expanded > _EXPANDED_AT_ONCE or any(isinstance(batch, TooLarge) for batch in batches):
                return False
            checked.append((topic, hosted, zip(topic.partitions, batches, strict=True)))
        room = _Room(ticket)
        topics = [
            (topic, [self._begun_at_once(request, hosted, part, batch, asker, room) for part, batch in pairs])
            for topic, hosted, pairs in checked
        ]
        _Waiting(self, request, topics, reply)
        return True

    def _begun_at_once(
        self,
        request: ProduceRequest,
        hosted: HostedTopic,
        part: ProducePartition,
        batch: _Batch | DeltaMQError,
        asker: Asker,
        room: _Room,
    ) -> _Queued | ProducedPartition:
        try:
            _check(request)
            asker.check(ProduceRequest, topic=hosted.name)
            check_client_topic(hosted.name)
            partition = self._layout.partition(hosted, part.index)
            if isinstance(batch, DeltaMQError):
                raise batch
            room.take(batch)
            return self._placed(hosted, part.index, partition, batch, asker.trace)
        except DeltaMQError as error:
            return _refused(part.index, error)

    async def begin(self, request: ProduceRequest, asker: Asker, ticket: Ticket) -> Awaitable[ProduceResponse | None]:
        """Queue all batches, and return what waits for their commits and makes the answer; None for `acks=0`."""
        waiting, room = [], _Room(ticket)
        for topic in request.topics:
            parts = [await self._begun(request, topic, part, asker, room) for part in topic.partitions]
            waiting.append((topic, parts))
        return self.answer(request, waiting)

    async def _begun(
        self, request: ProduceRequest, topic: ProduceTopic, part: ProducePartition, asker: Asker, room: _Room
    ) -> _Queued | ProducedPartition:
        try:
            _check(request)
            name = topic.name or await self._layout.ids.name(topic.topic_id)
            asker.check(ProduceRequest, topic=name)
            return await self._queued(name, part, request.timeout_ms, room, asker.trace)
        except DeltaMQError as error:
            return _refused(part.index, error)

    async def _queued(
        self, name: str, part: ProducePartition, timeout_ms: int, room: _Room, trace: CallTrace | None
    ) -> _Queued:
        """Check the partition's batch and put it into the queue; after an error, nothing of it is stored."""
        hosted = await self._layout.topic(name)
        queue = self._layout.queue(hosted, part.index)
        partition = "" if queue is not None else self._layout.partition(hosted, part.index)
        records = b"" if part.records is None else part.records
        batch = _checked_at_once(hosted, part) if len(records) <= INLINE_BYTES else None
        if batch is None or isinstance(batch, TooLarge):
            check = partial(_checked, records, _checks_of(hosted, part.index), room.left)
            batch = await self._partitions.run(check)
        if isinstance(batch, DeltaMQError):
            raise batch
        room.take(batch)
        return self._placed(hosted, part.index, partition, batch, trace, timeout_ms)

    def _placed(
        self,
        hosted: HostedTopic,
        index: int,
        partition: str,
        batch: _Batch,
        trace: CallTrace | None,
        timeout_ms: int = 0,
    ) -> _Queued:
        """Put a batch into the queue of its partition, or of the logical queue if `partition` is empty."""
        if not batch.is_in_place:
            raise _strict(hosted)
        flush = self._defaults.flush_of(hosted.settings)
        window_s = self._defaults.window_of(hosted.settings) / 1000
        header = batch.header
        self.sent.compression_of[hosted] = batch.compression
        rows = RecordRows([header], _rows, count=header.count, nbytes=len(header.records))
        stamp = _stamp(header)
        steps = None if trace is None else trace.steps_of(hosted.name, header.records)
        placed: InLine | InQueue
        if partition:
            placed = self._appender.begin(hosted, partition, rows, flush, stamp, window_s=window_s, steps=steps)
        else:
            # The answer has a logical offset, and waits for it, not as long as the client does.
            wait_s = min(_DECIDED_S, max(timeout_ms, 0) / 2_000)
            now_ms = self._now_ms()
            placed = self._queues.begin(
                hosted, index, rows, flush, stamp, window_s=window_s, now_ms=now_ms, wait_s=wait_s, steps=steps
            )
        return _Queued(hosted, index, partition, rows.count, rows.nbytes, placed, batch)

    async def answer(self, request: ProduceRequest, topics: _Topics) -> ProduceResponse | None:
        """Return the answer when all batches have their outcome; None for `acks=0`.

        Raises
        ------
        Refused
            `not_stored`: the client waits for no answer, and a batch was not stored.
        """
        made = []
        for topic, parts in topics:
            done = [await self._stored(part) if isinstance(part, _Queued) else part for part in parts]
            made.append(ProducedTopic(name=topic.name, topic_id=topic.topic_id, partitions=done))
        if request.acks:
            return ProduceResponse(made)
        for called, part in ((produced, part) for produced in made for part in produced.partitions if part.error_code):
            name = called.name or called.topic_id.hex()
            detail = f"acks=0: topic {name}, partition {part.index}: {part.error_message}"
            raise Refused(detail, code="not_stored")
        return None

    async def _stored(self, queued: _Queued) -> ProducedPartition:
        placed = queued.placed
        try:
            offset = (await placed.stored()).offset if isinstance(placed, InLine) else await placed.offset()
        except GONE as error:
            return _refused(queued.index, await self._topics.explained(queued.topic, error))
        except DeltaMQError as error:
            return _refused(queued.index, error)
        return self._produced(queued, offset)

    def answer_at_once(self, request: ProduceRequest, topics: _Topics) -> ProduceResponse | None:
        """Return the answer to a request whose batches all have their outcome; None for `acks=0`."""
        made = []
        for topic, parts in topics:
            done = [self._settled(part) if isinstance(part, _Queued) else part for part in parts]
            made.append(ProducedTopic(name=topic.name, topic_id=topic.topic_id, partitions=done))
        return ProduceResponse(made) if request.acks else None

    def _settled(self, queued: _Queued) -> ProducedPartition:
        assert isinstance(queued.placed, InLine), "of a plain topic"
        outcome = queued.placed.outcome
        assert outcome is not None, "it was waited for"
        if isinstance(outcome, DeltaMQError):
            return _refused(queued.index, outcome)
        return self._produced(queued, outcome.offset)

    def _produced(self, queued: _Queued, offset: int) -> ProducedPartition:
        topic = queued.topic
        self._metrics.produced_messages[topic.name] += queued.count
        self._metrics.produced_bytes[topic.name] += queued.nbytes
        log = topic.partition(queued.partition).log if queued.partition else None
        start = -1 if not queued.partition else 0 if log is None else log.min_offset
        if log is not None and queued.batch.compression:
            self._keep(queued, log, offset)
        return ProducedPartition(queued.index, ErrorCode.NONE, offset, log_start_offset=start)

    def _keep(self, queued: _Queued, log: PartitionLog, offset: int) -> None:
        """Keep a compressed batch for readers, if what they get of it is what came: all of its records, as they are."""
        batch, placed = queued.batch, queued.placed
        part = placed.part if isinstance(placed, InLine) else None
        if part is None or part.appended is None or part.appended.duplicate:
            return
        is_whole = schema_of(queued.topic.settings) is None
        if is_whole and batch.header.first_time_ms >= 0 and has_no_flags(batch.sent):
            data = with_offset(batch.sent, offset)
            self.sent.keep(log, SentBatch(offset, offset + queued.count, batch.compression, data))

    def init_producer_id(self, request: InitProducerIdRequest, asker: Asker) -> InitProducerIdResponse:
        """Return a new producer id; its first epoch is 0, whatever the client had before."""
        try:
            asker.check(InitProducerIdRequest)
            if request.transactional_id is not None:
                raise _no_transactions()
            if (request.producer_id < 0) != (request.producer_epoch < 0):
                raise Refused("a producer has both an id and an epoch, or neither")
        except Refused as error:
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


def _checks_of(hosted: HostedTopic, index: int) -> _Checks:
    """Return what records must be to go to a partition (SPEC KAFKA-12, KAFKA-26)."""
    check: Callable[[pa.BinaryArray], bool] | None
    if hosted.settings.order_strategy != "strict":
        check = None
    elif hosted.settings.partitioner == "kafka":
        check = partial(_all_belong, index=index, partitions=len(hosted.route.partitions))
    else:
        check = _has_no_keys
    if is_compacted(hosted.topic.kafka):
        check = partial(_all_keyed, topic=hosted.name, check=check)
    return _Checks(check, value_bytes_of(hosted.topic.kafka))


def _all_keyed(key: pa.BinaryArray, *, topic: str, check: Callable[[pa.BinaryArray], bool] | None) -> bool:
    """Check the keys of a compacted topic further; refuse a record without one, as Kafka does (SPEC KAFKA-15)."""
    if key.null_count:
        raise Refused(f"topic {topic} is compacted, and a record has no key: give each one", code="invalid_record")
    return check is None or check(key)


def _has_no_keys(key: pa.BinaryArray) -> bool:
    return bool(key.null_count == len(key))


def _all_belong(key: pa.BinaryArray, *, index: int, partitions: int) -> bool:
    hashes = kafka_hashes_of_keys(key)
    return bool(((hashes < 0) | (hashes % np.int32(partitions) == index)).all())


def _strict(hosted: HostedTopic) -> Conflict:
    detail = f"topic {hosted.name} keeps the order of keys (strict), and "
    if hosted.settings.partitioner == "kafka":
        detail += (
            "a key came for another partition than Kafka's default partitioner chooses: let the producer choose by it "
            "(librdkafka: partitioner=murmur2_random), and name no partition"
        )
    else:
        detail += (
            "Kafka clients choose partitions in their own way: send without keys, or through the SDK or REST, or make "
            "the topic with `partitioner: kafka`"
        )
    return Conflict(detail, code="strict_topic")


def _checked_at_once(hosted: HostedTopic, part: ProducePartition) -> _Batch | DeltaMQError:
    """Do what `_checked` does, or return its error; `TooLarge` if that takes too long for an event loop."""
    try:
        return _checked(part.records or b"", _checks_of(hosted, part.index), INLINE_BYTES)
    except DeltaMQError as error:
        return error


def _checked(records: bytes | memoryview, checks: _Checks, bytes_max: int) -> _Batch:
    """Return the one batch that a partition gets in a request, uncompressed, with at most `bytes_max`.

    Its header is checked, and of its records what `checks` asks; they are not decoded if nothing asks for it.
    """
    headers = list(batches_of(records))
    if len(headers) != 1:
        raise Refused(f"records: {len(headers)} batches for one partition; one is allowed", code="invalid_record")
    header = expanded_batch(headers[0], bytes_max)
    is_in_place, may_be_long = True, len(header.records) > checks.value_bytes_max
    if checks.keys is not None or may_be_long:
        decoded = decode_batches([header], native_decoder())
        is_in_place = checks.keys is None or checks.keys(decoded.key)
        if may_be_long:
            check_bodies(decoded.value, checks.value_bytes_max)
    expanded = len(header.records) - len(headers[0].records)
    return _Batch(header, headers[0].compression, is_in_place, expanded, records)


def _rows(batches: Sequence[BatchHeader]) -> pa.RecordBatch:
    return rows_of(decode_batches(batches, native_decoder()))


def _stamp(header: BatchHeader) -> ProducerStamp | None:
    if header.producer_id < 0:
        return None
    sequence = ProducerSequence(header.producer_epoch, header.base_sequence, born_ms_of(header.producer_id))
    return ProducerStamp(f"{_PRODUCER}{header.producer_id}", -1, None, header.count, sequence)


def _refused(index: int, error: DeltaMQError) -> ProducedPartition:
    if isinstance(error, Misfits):
        records = [RecordError(int(one["index"] or 0), _why(one)) for one in error.shown]
        return ProducedPartition(index, ErrorCode.INVALID_RECORD, record_errors=records, error_message=error.detail)
    return ProducedPartition(index, error_code_of(error), error_message=error.detail)


def _why(misfit: Mapping[str, object]) -> str:
    return f"{misfit['field']}: {misfit['reason']}" if misfit["field"] else str(misfit["reason"])
