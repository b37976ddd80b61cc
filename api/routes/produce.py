"""`POST /v1/topics/{topic}/messages`: decode, route, commit, answer.

    body ──decode──> rows ──route──> shares ──queue──> commit of each partition ──> {"ranges": ...}
                                       └── delayed messages: to delay partitions (see `api.queue.delays`)

It is a plain ASGI endpoint, since a framework's time on this path would reduce the throughput. Nothing is stored, and
no topic is created, before the whole request has been checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from deltamq.api.auth.caller import caller_of, permit_put
from deltamq.api.host.clusters import from_cluster, unknown_here
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.host.peers import Call
from deltamq.api.host.typed_topics import TopicCodecs
from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.sending.global_sender import GlobalSender
from deltamq.api.sending.request_appender import INLINE_BYTES, RequestAppender
from deltamq.api.sending.store_request import StoreRequest, check_new
from deltamq.api.sending.typed_bodies import check_bytes, typed_body
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.arrow_body import decode_arrow
from deltamq.api.wire.cloud_events import BATCHED, STRUCTURED, binary_decoder, decode_batch, decode_structured
from deltamq.api.wire.json_rows import decode_json, decode_ndjson
from deltamq.api.wire.request import (
    STEPS,
    Admission,
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
    unquoted,
)
from deltamq.api.wire.rows import Decoded, Named
from deltamq.api.wire.steps import Step, Steps
from deltamq.mq.errors import Refused, Unprocessable, UnsupportedMedia
from deltamq.mq.limits import COMMIT_WINDOW_MS_MAX, OFFSET_MAX, PRODUCER_ID_LENGTH_MAX, PRODUCER_SEQ_MAX
from deltamq.mq.names import check_client_topic
from deltamq.mq.wire.produce import ProduceAnswer, Producer
from deltamq.tables.failpoints import failpoint

JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_PARAMETERS: Final = frozenset({"ids", "flush", "commit_window_ms", "partition", "expected_offset"})


class ProduceEndpoint:
    """Produce requests of all topics; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        appender: RequestAppender,
        partitions: Partitions,
        metrics: Metrics,
        *,
        admission: Admission,
        bytes_max: int,
        within_ms: int,
        now_ms: Callable[[], int],
        global_sender: GlobalSender,
        codecs: TopicCodecs,
    ) -> None:
        """`bytes_max` bounds a body, which must be there `within_ms`; delays count from `now_ms`."""
        self._codecs = codecs
        self._topics = topics
        self._appender = appender
        self._partitions = partitions
        self._metrics = metrics
        self._admission = admission
        self._bytes_max = bytes_max
        self._within_ms = within_ms
        self._now_ms = now_ms
        self._global = global_sender

    async def answer(self, topic_segment: bytes, scope: Scope, receive: Receive) -> Answer:
        """Answer one produce request."""
        topic_name = check_client_topic(unquoted(topic_segment, "topic"))
        query = parse_query(scope["query_string"], _PARAMETERS)
        with self._admission.enter() as ticket:
            now_ms = self._now_ms()
            want_ids = one_of(query, "ids", ("true", "false")) == "true"
            flush = one_of(query, "flush", ("sync", "async"))
            window_ms = _integer(query, "commit_window_ms", COMMIT_WINDOW_MS_MAX)
            expected = _integer(query, "expected_offset", OFFSET_MAX)
            raw, body = await self._decoded(headers_of(scope), receive, ticket, now_ms)
            began = time.perf_counter()
            expected = _agreed(expected, body.expected_offset)
            named = _named(query.get("partition"), expected, body)
            steps: Steps | None = scope.get(STEPS)
            request = StoreRequest(
                body=body,
                named=named,
                expected_offset=expected,
                now_ms=now_ms,
                flush=flush,
                want_ids=want_ids,
                window_ms=window_ms,
                steps=steps,
            )
            topic = self._topics.find(topic_name)
            if topic is None and from_cluster(scope["headers"]):
                raise unknown_here(topic_name)
            if topic is None:
                topic = await self._topics.for_produce(
                    topic_name, partial(check_new, topic_name, request), permit_put(caller_of(scope), topic_name)
                )
            elsewhere: Answer | None = None
            await self._typed(topic, body)
            try:
                if topic.topic.world is not None:
                    call = Call.of(scope, raw, wait_ms=self._appender.window_of(topic, request))
                    elsewhere = await self._global.append(topic, request, call)
                else:
                    answer = await self._appender.append(topic, request)
            except GONE as error:
                raise await self._topics.explained(topic, error) from error
            metrics, took_s = self._metrics, time.perf_counter() - began
            if steps is not None:
                steps.add(Step("store", began, began + took_s))
            metrics.produce_seconds.observe(took_s)
            metrics.produced_messages[topic_name] += body.rows.count
            metrics.produced_bytes[topic_name] += body.rows.nbytes
        failpoint("ack.before_respond")
        return _answer(answer) if elsewhere is None else elsewhere

    async def _typed(self, topic: HostedTopic, body: Decoded) -> None:
        """Make and check the bodies of a request to a typed topic; raise as `typed_body` does."""
        codec = self._codecs.of(topic.topic)
        if codec is None:
            check_bytes(topic.name, body)
        elif body.rows.nbytes <= INLINE_BYTES:
            typed_body(codec, body)
        else:
            await self._partitions.run(partial(typed_body, codec, body))

    async def _decoded(
        self, headers: Headers, receive: Receive, ticket: Ticket, now_ms: int
    ) -> tuple[bytes | bytearray, Decoded]:
        """Return the body, as it is and decoded, with the producer that headers name; delays count from `now_ms`."""
        kind = media_type(headers)
        decode = binary_decoder(headers) or _DECODERS.get(kind)
        if decode is None:
            raise UnsupportedMedia(
                f"content-type {kind or 'is missing; it'} must be one of {', '.join(_DECODERS)}", field="content-type"
            )
        header_producer = _producer_of_headers(headers)
        body = await read_body(headers, receive, ticket, limit=self._bytes_max, within_ms=self._within_ms)
        if len(body) <= INLINE_BYTES:
            decoded = decode(body, now_ms)
        else:
            decoded = await self._partitions.run(partial(decode, body, now_ms))
        if header_producer is not None:
            if decoded.producer is not None:
                raise Refused("producer: given in the body and in headers", field="producer")
            decoded.producer = header_producer
        return body, decoded


def _integer(query: dict[str, str], name: str, high: int) -> int | None:
    """Return a parameter that is a whole number from 0 to `high`; None if it is not given."""
    return integer(query, name, 0, 0, high) if name in query else None


def _answer(answer: ProduceAnswer) -> Answer:
    body = msgspec.json.encode(answer)
    return Answer.of_json(body)


# Decode -------------------------------------------------------------------------------------------------------


_DECODERS: Final[dict[str, Callable[[bytes | bytearray, int], Decoded]]] = {
    JSON_TYPE: decode_json,
    NDJSON_TYPE: decode_ndjson,
    ARROW_TYPE: decode_arrow,
    STRUCTURED: decode_structured,
    BATCHED: decode_batch,
}


def _producer_of_headers(headers: Headers) -> Producer | None:
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


def _agreed(queried: int | None, in_body: int | None) -> int | None:
    """Return the expected offset, which query and body may both give."""
    if queried is not None and in_body is not None and queried != in_body:
        raise Refused("expected_offset: differs between query and body", field="expected_offset")
    return in_body if queried is None else queried


def _named(queried: str | None, expected_offset: int | None, body: Decoded) -> Named:
    """Return the partitions that messages name, or the query's for all; `expected_offset` needs one for all."""
    if queried is not None and body.partitions is not None:
        raise Refused("partition: given in the query and in messages", field="partition")
    named = body.partitions if queried is None else queried
    if expected_offset is None:
        return named
    if body.times is not None:
        raise Unprocessable("expected_offset: not allowed with delayed messages", field="expected_offset")
    return _only_partition(named)


def _only_partition(named: Named) -> str:
    if isinstance(named, str):
        return named
    names = set(named.unique().to_pylist() if isinstance(named, pa.Array) else named or ())
    only = names.pop() if len(names) == 1 else None
    if only is None:
        raise Unprocessable("expected_offset: every message must name the same partition", field="expected_offset")
    assert isinstance(only, str)
    return only
