"""`GET /v1/topics/{topic}/partitions/{partition}/messages`: one read of a partition as JSON, Arrow or an event stream.

A fetch needs no session: any process gives the same answer. Arrow is copied once, while it is sent; large JSON answers
are encoded on a work thread. An event stream (`api/reading/event_stream.py`) is a fetch that stays open.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from deltamq.api.auth.caller import require_also
from deltamq.api.host.clusters import from_cluster, unknown_here
from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.host.peers import Call, Peers
from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.order.pull_gate import Gate, Gates
from deltamq.api.reading.event_stream import EventIds, SharedReads, stream_events
from deltamq.api.reading.global_reader import GlobalReader
from deltamq.api.reading.readers import FetchQuery, PartitionReader, QueueReader
from deltamq.api.reading.values import Values
from deltamq.api.routes.order_request import check_client
from deltamq.api.sending.global_sender import local_name
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.arrow_body import ArrowPieces
from deltamq.api.wire.cloud_events import BATCHED, asked_events, fetched_events
from deltamq.api.wire.fields import message_filter
from deltamq.api.wire.message_json import INLINE_ROWS, READ_COLUMNS, stored_messages
from deltamq.api.wire.request import (
    Admission,
    Client,
    Receive,
    Scope,
    Send,
    Ticket,
    header_text,
    headers_of,
    integer,
    parse_query,
    preferred,
    unquoted,
)
from deltamq.mq.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_MESSAGES_DEFAULT,
    FETCH_MESSAGES_MAX,
    OFFSET_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.meta.topics import Topic, no_partition
from deltamq.mq.static.queue_names import queue_index
from deltamq.mq.wire.stored import FetchAnswer
from deltamq.tables.log.fetch import Fetched
from deltamq.tables.typed.codec import Codec

JSON_TYPE: Final = "application/json"
ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
EVENTS_TYPE: Final = "text/event-stream"
#: Media types of the answer.
_ANSWERS: Final = (JSON_TYPE, ARROW_TYPE, EVENTS_TYPE)
_PARAMETERS: Final = frozenset(
    {"offset", "max_messages", "max_bytes", "wait_ms", "tags", "filter", "group", "client_id", "topic_id", "typed"}
)


def _parse(query: dict[str, str]) -> FetchQuery:
    return FetchQuery(
        offset=integer(query, "offset", 0, 0, OFFSET_MAX),
        max_messages=integer(query, "max_messages", FETCH_MESSAGES_DEFAULT, 1, FETCH_MESSAGES_MAX),
        max_bytes=integer(query, "max_bytes", FETCH_BYTES_DEFAULT, 1, FETCH_BYTES_MAX),
        wait_ms=integer(query, "wait_ms", 0, 0, WAIT_MS_MAX),
        filter=message_filter(query.get("tags"), query.get("filter")),
    )


class FetchEndpoint:
    """Fetches of all partitions; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        reader: PartitionReader,
        queues: QueueReader,
        gates: Gates,
        global_reader: GlobalReader,
        *,
        peers: Peers,
        partitions: Partitions,
        metrics: Metrics,
        admission: Admission,
        values: Values,
    ) -> None:
        """`admission` bounds the bytes of rows that are being sent."""
        self._topics = topics
        self._values = values
        self._groups = groups
        self._reader = reader
        self._queues = queues
        self._gates = gates
        self._global = global_reader
        self._peers = peers
        self._partitions = partitions
        self._metrics = metrics
        self._admission = admission
        self._shared = SharedReads()

    async def answer(
        self,
        topic_segment: bytes,
        partition_segment: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
        until_sent: ExitStack,
    ) -> Answer | None:
        """Answer one fetch; the bytes of its rows are reserved `until_sent`. None after an event stream."""
        events = asked_events(scope)
        if events not in (None, BATCHED):
            others = [pair for pair in scope["query_string"].split(b"&") if pair[:13] != b"max_messages="]
            scope["query_string"] = b"&".join([*filter(None, others), b"max_messages=1"])
        answer = await self._answer(topic_segment, partition_segment, scope, receive, send, until_sent)
        if events is None or answer is None:
            return answer
        names = unquoted(topic_segment, "topic"), unquoted(partition_segment, "partition")
        return await self._partitions.run(partial(fetched_events, answer, events, *names))

    async def _answer(
        self,
        topic_segment: bytes,
        partition_segment: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
        until_sent: ExitStack,
    ) -> Answer | None:
        topic_name = unquoted(topic_segment, "topic")
        partition_name = unquoted(partition_segment, "partition")
        ticket = until_sent.enter_context(self._admission.enter())
        began = time.perf_counter()
        parameters = parse_query(scope["query_string"], _PARAMETERS)
        query = _parse(parameters)
        topic = self._topics.find(topic_name)
        if topic is None and from_cluster(scope["headers"]):
            raise unknown_here(topic_name)
        topic = topic or await self._topics.require(topic_name)
        if "topic_id" in parameters:
            topic = await self._topics.require_life(topic_name, parameters["topic_id"])
        if topic.topic.world is not None:
            call, client = Call.of(scope, wait_ms=query.wait_ms), Client(scope, receive)
            try:
                return await self._of_global(topic, partition_name, scope, send, query, call, client, ticket)
            finally:
                client.close()
        if topic.topic.static is not None:
            self._topics.require_queue(topic, partition_name, "partition")
        elif partition_name not in topic.route.partitions:
            raise no_partition(topic_name, partition_name)
        headers = headers_of(scope)
        kind = preferred(headers, _ANSWERS)
        codec = self._values.asked(topic.topic, parameters)
        client = Client(scope, receive)
        try:
            if "group" in parameters:
                require_also(scope, "group", parameters["group"], "subscribe")
            gate = await self._gate(topic, partition_name, parameters)
            if gate is not None and gate.is_owners and kind != EVENTS_TYPE:
                call = Call.of(scope, wait_ms=query.wait_ms)
                broker = self._topics.broker_of(topic.topic, partition_name)
                elsewhere = await self._peers.elsewhere(broker, call, client)
                if elsewhere is not None:
                    return elsewhere
            read = self._typed(partial(self._read, topic, partition_name, client=client, gate=gate), topic.topic, codec)
            if kind == EVENTS_TYPE:
                resumed = header_text(headers, b"last-event-id")
                ids = EventIds.of(topic.topic, partition_name, typed=codec is not None)
                read = self._explained(topic, read)
                shared = self._shared if query.filter is None and gate is None else None
                await stream_events(read, ids, query, resumed, client, send, self._is_stopping, shared)
                return None
            fetched = await read(query)
        except GONE as error:
            raise await self._topics.explained(topic, error) from error
        finally:
            client.close()
        ticket.grow(fetched.rows.nbytes)
        answer = await self._encoded(fetched, kind)
        self._metrics.fetched_messages[topic_name] += fetched.rows.num_rows
        self._metrics.fetched_bytes[topic_name] += answer.size
        self._metrics.fetch_seconds.observe(time.perf_counter() - began)
        return answer

    def _typed(
        self, read: Callable[[FetchQuery], Awaitable[Fetched]], topic: Topic, codec: Codec | None
    ) -> Callable[[FetchQuery], Awaitable[Fetched]]:
        """Return a `read` whose rows have values, if a codec is given."""
        if codec is None:
            return read

        async def typed(query: FetchQuery) -> Fetched:
            fetched = await read(replace(query, columns=READ_COLUMNS) if codec.is_headless else query)
            return replace(fetched, rows=await self._values.of(topic, fetched.rows))

        return typed

    async def _of_global(
        self,
        topic: HostedTopic,
        name: str,
        scope: Scope,
        send: Send,
        query: FetchQuery,
        call: Call,
        client: Client,
        ticket: Ticket,
    ) -> Answer | None:
        """Answer a fetch from a queue of a global topic, which may lie in another cluster (SPEC STATIC-19)."""
        group = parse_query(scope["query_string"], _PARAMETERS).get("group")
        if group is not None:
            require_also(scope, "group", group, "subscribe")
            known_group = self._groups.find(group) or await self._groups.require(group)
            if known_group.settings.consume_strategy == "exclusive":
                refuse_global(topic.topic, "an exclusive group")
        queue = queue_index(local_name(topic, name))
        assert queue is not None, "the name was checked"
        headers = headers_of(scope)
        kind = preferred(headers, _ANSWERS)
        try:
            if kind == EVENTS_TYPE:
                read = self._explained(topic, partial(self._global.rows, topic, queue, call=call, client=client))
                resumed = header_text(headers, b"last-event-id")
                ids = EventIds.of(topic.topic, name)
                # Another cluster answers each caller for itself.
                await stream_events(read, ids, query, resumed, client, send, self._is_stopping, None)
                return None
            fetched = await self._global.read(topic, queue, query, call, client)
        except GONE as error:
            raise await self._topics.explained(topic, error) from error
        if isinstance(fetched, Answer):
            ticket.grow(fetched.size)
            return fetched
        ticket.grow(fetched.rows.nbytes)
        answer = await self._encoded(fetched, kind)
        self._metrics.fetched_messages[topic.name] += fetched.rows.num_rows
        self._metrics.fetched_bytes[topic.name] += answer.size
        return answer

    def _is_stopping(self) -> bool:
        return self._partitions.stopping

    def _explained(
        self, topic: HostedTopic, read: Callable[[FetchQuery], Awaitable[Fetched]]
    ) -> Callable[[FetchQuery], Awaitable[Fetched]]:
        """Return a `read` whose errors say what became of a topic whose files are gone."""

        async def explained(query: FetchQuery) -> Fetched:
            try:
                return await read(query)
            except GONE as error:
                raise await self._topics.explained(topic, error) from error

        return explained

    def _read(
        self, topic: HostedTopic, name: str, query: FetchQuery, *, client: Client, gate: Gate | None
    ) -> Awaitable[Fetched]:
        """Read a partition or a logical queue (SPEC STATIC-2)."""
        if topic.topic.static is not None:
            return self._queues.read(topic, name, query, client, gate)
        check = partial(self._topics.check_readable, topic, name)
        return self._reader.read(topic.partition(name), query, client, gate, check=check)

    async def _gate(self, topic: HostedTopic, partition: str, parameters: dict[str, str]) -> Gate | None:
        """Return the checks of a group's fetch; None if the fetch names no group."""
        name, client = parameters.get("group"), parameters.get("client_id")
        if client is not None:
            check_client(client)
        if name is None:
            return None
        group = self._groups.find(name) or await self._groups.require(name)
        return self._gates.of(group, topic.topic, partition, client)

    async def _encoded(self, fetched: Fetched, kind: str) -> Answer:
        if kind == ARROW_TYPE:
            return _arrow_answer(fetched)
        if fetched.rows.num_rows <= INLINE_ROWS:
            return _json_answer(fetched)
        return await self._partitions.run(partial(_json_answer, fetched))


def _json_answer(fetched: Fetched) -> Answer:
    body = msgspec.json.encode(
        FetchAnswer(
            fetched.status.value,
            stored_messages(fetched.rows),
            fetched.next_offset,
            fetched.min_offset,
            fetched.max_offset,
        )
    )
    return Answer.of_json(body)


def _arrow_answer(fetched: Fetched) -> Answer:
    body = ArrowPieces(fetched.rows)
    headers = [
        (b"content-type", ARROW_TYPE.encode()),
        (b"content-length", b"%d" % body.size),
        (b"mq-status", fetched.status.value.encode()),
        (b"mq-next-offset", b"%d" % fetched.next_offset),
        (b"mq-min-offset", b"%d" % fetched.min_offset),
        (b"mq-max-offset", b"%d" % fetched.max_offset),
    ]
    return Answer(200, headers, body)
