"""`GET /v1/topics/{topic}/partitions/{partition}/messages`: one read of a partition as JSON, Arrow or an event stream.

A fetch needs no session: any process gives the same answer. Arrow is copied once, while it is sent; large JSON answers
are encoded on a work thread.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from deltamq.api.auth.caller import require_also
from deltamq.api.host.clusters import from_cluster, unknown_here
from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.host.peers import Call, Peers
from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.order.pull_gate import Gate, Gates
from deltamq.api.reading.global_reader import GlobalReader
from deltamq.api.reading.readers import FetchQuery, PartitionReader, QueueReader
from deltamq.api.reading.sse import EVENTS_TYPE, EventPlace, stream_events
from deltamq.api.routes.order_request import check_client
from deltamq.api.sending.global_sender import local_name
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.arrow_body import ArrowPieces
from deltamq.api.wire.fields import message_filter
from deltamq.api.wire.message_json import stored_messages
from deltamq.api.wire.request import (
    Admission,
    Client,
    Receive,
    Scope,
    Send,
    Ticket,
    accepts,
    header_text,
    headers_of,
    integer,
    parse_query,
    unquoted,
)
from deltamq.mq.errors import NotFound
from deltamq.mq.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_MESSAGES_DEFAULT,
    FETCH_MESSAGES_MAX,
    OFFSET_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.static.logical_queue import queue_index
from deltamq.mq.wire.stored import FetchAnswer
from deltamq.tables.log.fetch import Fetched

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
_PARAMETERS: Final = frozenset(
    {"offset", "max_messages", "max_bytes", "wait_ms", "tags", "filter", "group", "client_id", "topic_id"}
)
#: Number of rows above which a JSON answer is encoded on a thread.
_JSON_INLINE_ROWS: Final = 200


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
    ) -> None:
        """`admission` bounds the bytes of rows that are being sent."""
        self._topics = topics
        self._groups = groups
        self._reader = reader
        self._queues = queues
        self._gates = gates
        self._global = global_reader
        self._peers = peers
        self._partitions = partitions
        self._metrics = metrics
        self._admission = admission

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
            detail = f"partition: topic {topic_name} has no partition {partition_name!r}"
            raise NotFound(detail, code="partition_not_found", field="partition")
        headers = headers_of(scope)
        events = accepts(headers, EVENTS_TYPE)
        client = Client(scope, receive)
        try:
            if "group" in parameters:
                require_also(scope, "group", parameters["group"], "subscribe")
            gate = await self._gate(topic, partition_name, parameters)
            if gate is not None and gate.is_owners and not events:
                call = Call.of(scope, wait_ms=query.wait_ms)
                broker = self._topics.broker_of(topic.topic, partition_name)
                elsewhere = await self._peers.elsewhere(broker, call, client)
                if elsewhere is not None:
                    return elsewhere
            if events:
                resumed = header_text(headers, b"last-event-id")
                read = self._explained(topic, partial(self._read, topic, partition_name, client=client, gate=gate))
                place = EventPlace.of(topic.topic, partition_name)
                await stream_events(read, place, query, resumed, client, send, lambda: self._partitions.stopping)
                return None
            found = await self._read(topic, partition_name, query, client=client, gate=gate)
        except GONE as error:
            raise await self._topics.explained(topic, error) from error
        finally:
            client.close()
        ticket.grow(found.rows.nbytes)
        answer = await self._encoded(found, arrow=accepts(headers, ARROW_TYPE))
        self._metrics.fetched_messages[topic_name] += found.rows.num_rows
        self._metrics.fetched_bytes[topic_name] += answer.size
        self._metrics.fetch_seconds.observe(time.perf_counter() - began)
        return answer

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
            found_group = self._groups.find(group) or await self._groups.require(group)
            if found_group.settings.consume_strategy == "exclusive":
                refuse_global(topic.topic, "an exclusive group")
        queue = queue_index(local_name(topic, name))
        assert queue is not None, "the name was checked"
        headers = headers_of(scope)
        try:
            if accepts(headers, EVENTS_TYPE):
                read = self._explained(topic, partial(self._global.rows, topic, queue, call=call, client=client))
                resumed = header_text(headers, b"last-event-id")
                place = EventPlace.of(topic.topic, name)
                await stream_events(read, place, query, resumed, client, send, lambda: self._partitions.stopping)
                return None
            found = await self._global.read(topic, queue, query, call, client)
        except GONE as error:
            raise await self._topics.explained(topic, error) from error
        if isinstance(found, Answer):
            ticket.grow(found.size)
            return found
        ticket.grow(found.rows.nbytes)
        answer = await self._encoded(found, arrow=accepts(headers, ARROW_TYPE))
        self._metrics.fetched_messages[topic.name] += found.rows.num_rows
        self._metrics.fetched_bytes[topic.name] += answer.size
        return answer

    def _explained(
        self, topic: HostedTopic, read: Callable[[FetchQuery], Awaitable[Fetched]]
    ) -> Callable[[FetchQuery], Awaitable[Fetched]]:
        """Return a `read` that says of a topic whose files are gone what became of it."""

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

    async def _encoded(self, found: Fetched, *, arrow: bool) -> Answer:
        if arrow:
            return _arrow_answer(found)
        if found.rows.num_rows <= _JSON_INLINE_ROWS:
            return _json_answer(found)
        return await self._partitions.run(partial(_json_answer, found))


def _json_answer(found: Fetched) -> Answer:
    body = msgspec.json.encode(
        FetchAnswer(
            found.status.value, stored_messages(found.rows), found.next_offset, found.min_offset, found.max_offset
        )
    )
    return Answer.of_json(body)


def _arrow_answer(found: Fetched) -> Answer:
    body = ArrowPieces(found.rows)
    headers = [
        (b"content-type", ARROW_TYPE.encode()),
        (b"content-length", b"%d" % body.size),
        (b"mq-status", found.status.value.encode()),
        (b"mq-next-offset", b"%d" % found.next_offset),
        (b"mq-min-offset", b"%d" % found.min_offset),
        (b"mq-max-offset", b"%d" % found.max_offset),
    ]
    return Answer(200, headers, body)
