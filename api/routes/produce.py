"""`POST /v1/topics/{topic}/messages`: decode, route, commit, answer.

    body ──decode──> rows ──route──> shares ──queue──> commit of each partition ──> {"ranges": ...}
                                       └── what must wait: to delay partitions (see `api.queue.delays`)

A plain ASGI endpoint: on this path every microsecond of framework is a message less. Nothing is stored, and no topic
created, before the whole request has been checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from api.host import GONE
from api.routes.store_request import INLINE_BYTES, ProduceAnswer, ProduceRequest, Range, check_new, store
from api.service import Service
from api.wire import (
    Answer,
    Decoded,
    Headers,
    Named,
    Producer,
    Receive,
    Scope,
    Ticket,
    decode_arrow,
    decode_json,
    decode_ndjson,
    header_text,
    headers_of,
    integer,
    media_type,
    one_of,
    parse_query,
    read_body,
)
from mq.errors import Refused, Unprocessable, UnsupportedMedia
from mq.limits import OFFSET_MAX, PRODUCER_ID_LENGTH_MAX, PRODUCER_SEQ_MAX
from mq.names import check_client_topic
from tables.failpoints import failpoint

__all__ = ["ARROW_TYPE", "JSON_TYPE", "NDJSON_TYPE", "ProduceAnswer", "Range", "answer_produce"]

JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_PARAMETERS: Final = frozenset({"ids", "flush", "partition", "expected_offset"})


async def answer_produce(service: Service, topic_name: str, scope: Scope, receive: Receive) -> Answer:
    """Answer one produce request."""
    check_client_topic(topic_name)
    query = parse_query(scope["query_string"], _PARAMETERS)
    with service.admission.enter() as ticket:
        request = _asked(query, service.now_ms())
        await _decode(service, request, headers_of(scope), receive, ticket)
        began = time.perf_counter()
        _apply_query_partition(request, query)
        topic = service.topics.find(topic_name)
        if topic is None:
            topic = await service.topics.for_produce(topic_name, partial(check_new, topic_name, request))
        try:
            answer = await store(service, topic, request)
        except GONE as error:
            raise await service.topics.explained(topic, error) from error
        metrics = service.metrics
        metrics.produce_seconds.observe(time.perf_counter() - began)
        metrics.produced_messages[topic_name] += request.messages.count
        metrics.produced_bytes[topic_name] += request.messages.nbytes
    failpoint("ack.before_respond")
    return _answer(answer)


def _asked(query: dict[str, str], now_ms: int) -> ProduceRequest:
    """What the query says; the body says the rest."""
    request = ProduceRequest(now_ms)
    request.want_ids = one_of(query, "ids", ("true", "false")) == "true"
    request.flush = one_of(query, "flush", ("sync", "async"))
    if "expected_offset" in query:
        request.expected_offset = integer(query, "expected_offset", 0, 0, OFFSET_MAX)
    return request


def _answer(answer: ProduceAnswer) -> Answer:
    body = msgspec.json.encode(answer)
    return Answer(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)


# Decode -------------------------------------------------------------------------------------------------------


async def _decode(
    service: Service, request: ProduceRequest, headers: Headers, receive: Receive, ticket: Ticket
) -> None:
    kind = media_type(headers)
    decode = _DECODERS.get(kind)
    if decode is None:
        raise UnsupportedMedia(
            f"content-type {kind or 'is missing; it'} must be one of {', '.join(_DECODERS)}", field="content-type"
        )
    header_producer = _producer_of_headers(headers)
    settings = service.settings
    body = await read_body(headers, receive, ticket, limit=settings.request_bytes_max, within_ms=settings.request_ms)
    if len(body) <= INLINE_BYTES:
        decode(request, body)
    else:
        await service.run(lambda: decode(request, body))
    if header_producer is not None:
        if request.producer is not None:
            raise Refused("producer: given in the body and in headers", field="producer")
        request.producer = header_producer


def _into(request: ProduceRequest, decoded: Decoded) -> None:
    request.messages = decoded.rows
    request.named = decoded.partitions
    request.times = decoded.times
    request.producer = decoded.producer
    if decoded.expected_offset is not None:
        if request.expected_offset not in (None, decoded.expected_offset):
            raise Refused("expected_offset: differs between query and body", field="expected_offset")
        request.expected_offset = decoded.expected_offset


def _json(request: ProduceRequest, body: bytes | bytearray) -> None:
    _into(request, decode_json(body, request.now_ms))


def _ndjson(request: ProduceRequest, body: bytes | bytearray) -> None:
    _into(request, decode_ndjson(body, request.now_ms))


def _arrow(request: ProduceRequest, body: bytes | bytearray) -> None:
    request.messages, request.named, request.times = decode_arrow(body, request.now_ms)


_DECODERS: Final[dict[str, Callable[[ProduceRequest, bytes | bytearray], None]]] = {
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


def _apply_query_partition(request: ProduceRequest, query: dict[str, str]) -> None:
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
