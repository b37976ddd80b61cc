"""`POST /v1/topics/{topic}/messages`: decode, route, commit, answer.

    body ──decode──> rows ──route──> shares ──queue──> commit of each partition ──> {"ranges": ...}
                                       └── what must wait: to delay partitions (see `api.delays`)

A plain ASGI endpoint: on this path every microsecond of framework is a message less. Nothing is stored, and no topic
created, before the whole request has been checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType

from api.answer import Answer
from api.decode_arrow import ArrowRows, decode_arrow
from api.decode_json import Decoded, Producer, decode_json, decode_ndjson
from api.delays import producer_in_delay, split_shares
from api.deliver_times import AT_ONCE, Times
from api.group_commit import Part, Pending
from api.partition import Partition
from api.producers import draw_of
from api.request import (
    Headers,
    Receive,
    Scope,
    Ticket,
    header_text,
    headers_of,
    integer,
    media_type,
    one_of,
    parse_query,
    read_body,
)
from api.route_batch import Named, Share, replayed, route_messages
from api.rows import Indexes, Rows
from api.service import HostedTopic, Service
from mq.errors import Conflict, NotFound, Refused, Unprocessable, UnsupportedMedia
from mq.limits import FETCH_BYTES_MAX, OFFSET_MAX, PRODUCER_ID_LENGTH_MAX, PRODUCER_SEQ_MAX
from mq.names import check_client_topic
from mq.producer import Part as StoredPart
from tables.encode import ProducerStamp
from tables.failpoints import failpoint
from tables.fetch import FetchStatus
from tables.log import Appended, PartitionLog
from tables.settings import Flush

__all__ = ["ARROW_TYPE", "JSON_TYPE", "NDJSON_TYPE", "ProduceAnswer", "Range", "produce"]

JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_PARAMETERS: Final = frozenset({"ids", "flush", "partition", "expected_offset"})
#: Bodies above this are decoded on a thread; below, the hand-over would cost more than the work.
_INLINE_BYTES: Final = 64 * 1024
_FLUSHES: Final = {"sync": Flush.SYNC, "async": Flush.ASYNC}


class Range(msgspec.Struct, omit_defaults=True):
    """Where some messages of the request went: offsets `[base_offset, base_offset + count)`, in request order.

    `delayed`: they wait there until they are due.
    """

    partition: str
    base_offset: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1)]
    indexes: list[int] | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    delayed: bool | UnsetType = UNSET


class ProduceAnswer(msgspec.Struct):
    """The answer after the commits that hold the messages; `duplicate`: some of it was stored by an earlier copy."""

    ranges: list[Range]
    duplicate: bool
    durable: bool
    message_ids: list[str] | UnsetType = UNSET


class _Request:
    """A decoded and checked request."""

    __slots__ = ("expected_offset", "flush", "messages", "named", "now_ms", "producer", "times", "want_ids")

    def __init__(self, query: dict[str, str], now_ms: int) -> None:
        self.now_ms = now_ms
        self.times: Times | None = None
        self.want_ids = one_of(query, "ids", ("true", "false")) == "true"
        self.flush = one_of(query, "flush", ("sync", "async"))
        self.expected_offset: int | None = None
        if "expected_offset" in query:
            self.expected_offset = integer(query, "expected_offset", 0, 0, OFFSET_MAX)
        self.named: Named = None
        self.producer: Producer | None = None
        self.messages: Rows | ArrowRows


async def produce(service: Service, topic_name: str, scope: Scope, receive: Receive) -> Answer:
    """Answer one produce request."""
    check_client_topic(topic_name)
    query = parse_query(scope["query_string"], _PARAMETERS)
    with service.admission.enter() as ticket:
        request = _Request(query, service.now_ms())
        await _decode(service, request, headers_of(scope), receive, ticket)
        began = time.perf_counter()
        _apply_query_partition(request, query)
        topic = await service.topic_for_produce(topic_name)
        answer = await _store(service, topic, request)
        metrics = service.metrics
        metrics.produce_seconds.observe(time.perf_counter() - began)
        metrics.produced_messages[topic_name] += request.messages.count
        metrics.produced_bytes[topic_name] += request.messages.nbytes
    failpoint("ack.before_respond")
    return _answer(answer)


def _answer(answer: ProduceAnswer) -> Answer:
    body = msgspec.json.encode(answer)
    return Answer(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)


# Decode -------------------------------------------------------------------------------------------------------


async def _decode(service: Service, request: _Request, headers: Headers, receive: Receive, ticket: Ticket) -> None:
    kind = media_type(headers)
    decode = _DECODERS.get(kind)
    if decode is None:
        raise UnsupportedMedia(
            f"content-type {kind or 'is missing; it'} must be one of {', '.join(_DECODERS)}", field="content-type"
        )
    header_producer = _producer_of_headers(headers)
    settings = service.settings
    body = await read_body(headers, receive, ticket, limit=settings.request_bytes_max, within_ms=settings.request_ms)
    if len(body) <= _INLINE_BYTES:
        decode(request, body)
    else:
        await service.run(lambda: decode(request, body))
    if header_producer is not None:
        if request.producer is not None:
            raise Refused("producer: given in the body and in headers", field="producer")
        request.producer = header_producer


def _into(request: _Request, decoded: Decoded) -> None:
    request.messages = decoded.rows
    request.named = decoded.partitions
    request.times = decoded.times
    request.producer = decoded.producer
    if decoded.expected_offset is not None:
        if request.expected_offset not in (None, decoded.expected_offset):
            raise Refused("expected_offset: differs between query and body", field="expected_offset")
        request.expected_offset = decoded.expected_offset


def _json(request: _Request, body: bytes | bytearray) -> None:
    _into(request, decode_json(body, request.now_ms))


def _ndjson(request: _Request, body: bytes | bytearray) -> None:
    _into(request, decode_ndjson(body, request.now_ms))


def _arrow(request: _Request, body: bytes | bytearray) -> None:
    request.messages, request.named, request.times = decode_arrow(body, request.now_ms)


_DECODERS: Final[dict[str, Callable[[_Request, bytes | bytearray], None]]] = {
    JSON_TYPE: _json,
    NDJSON_TYPE: _ndjson,
    ARROW_TYPE: _arrow,
}


def _producer_of_headers(headers: Headers) -> Producer | None:
    """The idempotent producer of an NDJSON or Arrow request."""
    producer_id = header_text(headers, b"producer-id")
    seq = header_text(headers, b"producer-seq")
    if producer_id is None and seq is None:
        return None
    if producer_id is None or seq is None:
        missing = "Producer-Id" if producer_id is None else "Producer-Seq"
        raise Refused(f"{missing}: both producer headers are needed", code="missing_field", field=missing)
    if not 1 <= len(producer_id) <= PRODUCER_ID_LENGTH_MAX or not all("!" <= c <= "~" for c in producer_id):
        raise Unprocessable(
            f"Producer-Id: 1 to {PRODUCER_ID_LENGTH_MAX} visible ASCII characters",
            field="Producer-Id",
            extra={"limit": PRODUCER_ID_LENGTH_MAX},
        )
    return Producer(producer_id, integer({"Producer-Seq": seq}, "Producer-Seq", 0, 0, PRODUCER_SEQ_MAX))


def _apply_query_partition(request: _Request, query: dict[str, str]) -> None:
    """The query's `partition` is that of every message; `expected_offset` needs one named partition."""
    partition = query.get("partition")
    if partition is not None:
        if request.named is not None:
            raise Refused("partition: given in the query and in messages", field="partition")
        request.named = partition
    if request.expected_offset is not None:
        if request.times is not None:
            raise Unprocessable("expected_offset: not for messages that wait", field="expected_offset")
        request.named = _only_partition(request.named)


def _only_partition(named: Named) -> str:
    """The partition that all messages name."""
    if isinstance(named, str):
        return named
    names = set(named.unique().to_pylist() if isinstance(named, pa.Array) else named or ())
    only = names.pop() if len(names) == 1 else None
    if only is None:
        raise Unprocessable("expected_offset: every message must name the same partition", field="expected_offset")
    assert isinstance(only, str)
    return only


# Store --------------------------------------------------------------------------------------------------------


async def _store(service: Service, topic: HostedTopic, request: _Request) -> ProduceAnswer:
    """Route the request, wait for its commits, and say where its messages are."""
    producer = request.producer
    if producer is None:
        shares = route_messages(
            topic.name, request.messages, request.named, topic.route, topic.draw(service.loop.time())
        )
        return await _commit(service, topic, request, await _split(service, topic, request, shares))
    logs, waiting = await topic.logs(), await service.delays.logs()
    waiting_id = producer_in_delay(topic.topic.id, producer.id) if waiting else ""
    await topic.gate.turn(producer)
    with topic.gate.claim(producer):
        stored = topic.gate.stored_parts(producer, logs, waiting, waiting_id)
        draw = draw_of(producer)
        here = {name: part for name, part in stored.items() if name not in waiting}
        if here:
            shares = replayed(topic.name, request.messages, request.named, topic.route, draw, here)
        else:
            shares = route_messages(topic.name, request.messages, request.named, topic.route, draw)
        return await _commit(service, topic, request, await _split(service, topic, request, shares, stored))


async def _split(
    service: Service,
    topic: HostedTopic,
    request: _Request,
    shares: list[Share],
    stored: Mapping[str, Sequence[StoredPart]] = {},
) -> list[Share]:
    """The shares, those of messages that must wait apart."""
    times = request.times
    if times is None:
        if not stored or stored.keys() <= set(topic.route.partitions):
            return shares
        # Another request had this number. Its parts are where they are.
        times = np.full(request.messages.count, AT_ONCE, dtype=np.int64)
    split = partial(
        split_shares,
        topic.topic,
        request.messages,
        shares,
        times,
        now_ms=request.now_ms,
        delays=service.delays.names(topic.topic),
        stored=stored,
    )
    return split() if request.messages.nbytes <= _INLINE_BYTES else await service.run(split)


async def _commit(service: Service, topic: HostedTopic, request: _Request, shares: Sequence[Share]) -> ProduceAnswer:
    pending = Pending(len(shares), service.loop)
    flush = _FLUSHES.get(request.flush or topic.settings.flush or "", service.flush_default)
    parts = []
    for share in shares:
        part = Part(
            share.messages,
            pending,
            flush if share.delay_broker is None else Flush.SYNC,
            indexes=share.indexes,
            stamp=_stamp(topic, request, share),
            expected_offset=request.expected_offset,
        )
        parts.append(part)
        _partition_of(service, topic, share).queue.put(part)
    await pending.wait()
    for part in parts:
        if part.error is not None:
            raise part.error
    return await _placed(service, topic, request, shares, parts)


def _partition_of(service: Service, topic: HostedTopic, share: Share) -> Partition:
    if share.delay_broker is None:
        return topic.partition(share.partition)
    return service.delays.partition(share.delay_broker)


def _stamp(topic: HostedTopic, request: _Request, share: Share) -> ProducerStamp | None:
    producer = request.producer
    if producer is None:
        return None
    name = producer.id if share.delay_broker is None else producer_in_delay(topic.topic.id, producer.id)
    indexes = None if share.indexes is None else tuple(int(i) for i in share.indexes)
    return ProducerStamp(name, producer.seq, indexes, request.messages.count)


async def _placed(
    service: Service, topic: HostedTopic, request: _Request, shares: Sequence[Share], parts: Sequence[Part]
) -> ProduceAnswer:
    """The answer to a request whose parts are all stored."""
    ranges = []
    duplicates = [part.appended is not None and part.appended.duplicate for part in parts]
    durable = True
    for share, part, duplicate in zip(shares, parts, duplicates, strict=True):
        appended = part.appended
        assert appended is not None, "a part without an error has its place"
        if appended.count != part.messages.count:
            raise Conflict(
                "producer.seq: it was used for a request of another size",
                code="producer_sequence_reused",
                field="producer.seq",
            )
        durable = durable and appended.durable
        placed = Range(share.partition, appended.base_offset, appended.count, _indexes(share.indexes))
        if duplicate and not all(duplicates):
            placed.duplicate = True
        if share.delay_broker is not None:
            placed.delayed = True
        ranges.append(placed)
    answer = ProduceAnswer(ranges, any(duplicates), durable)
    if request.want_ids:
        answer.message_ids = await _message_ids(service, topic, request.messages.count, shares, parts)
    return answer


def _indexes(indexes: Indexes | None) -> list[int] | UnsetType:
    if indexes is None:
        return UNSET
    return indexes.tolist() if isinstance(indexes, np.ndarray) else list(indexes)


async def _message_ids(
    service: Service, topic: HostedTopic, count: int, shares: Sequence[Share], parts: Sequence[Part]
) -> list[str]:
    """The ids of all messages, in request order; those of a replay are read back."""
    ids = [""] * count
    for share, part in zip(shares, parts, strict=True):
        appended = part.appended
        assert appended is not None
        found = appended.message_ids
        if appended.duplicate:
            found = await service.run(partial(_stored_ids, _partition_of(service, topic, share).open(), appended))
        for index, message_id in zip(
            share.indexes if share.indexes is not None else range(count), found.to_pylist(), strict=True
        ):
            ids[index] = message_id
    return ids


def _stored_ids(log: PartitionLog, appended: Appended) -> pa.ChunkedArray:
    """The ids in `[base_offset, base_offset + count)`; fewer when retention has passed by."""
    ids: list[str] = []
    while len(ids) < appended.count:
        fetched = log.read(
            appended.base_offset + len(ids), max_messages=appended.count - len(ids), max_bytes=FETCH_BYTES_MAX
        )
        if fetched.status is not FetchStatus.FOUND:
            raise NotFound("the messages of this request are no longer stored", code="offset_out_of_range", field="ids")
        ids += fetched.rows.column("message_id").to_pylist()
    return pa.array(ids, pa.string())
