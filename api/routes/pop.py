"""`POST /v1/groups/{group}/topics/{topic}/pop`: acknowledge messages of earlier pops, and pop more.

    body --decode, check--> acks begin --> pop (in memory, or from files) --> acks stored --> JSON or Arrow
                  '--> another process, when that serves the topic's brokers
                  '--> of a static topic, one process after another, as far as `PopForwarder.way` says
                  '--> of a global topic, one cluster after another (`GlobalPops`)

It is a plain ASGI endpoint, as are produce and fetch. Acknowledgements of this call that must be stored are stored
before the answer. Popped messages are the client's for their invisible time, even if the answer is lost. So a client
cancels a waiting pop by closing its half of the connection: it is answered, with the messages popped by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deltamq.api.auth.caller import caller_of
from deltamq.api.host.clusters import from_cluster, global_epoch_of, unknown_here
from deltamq.api.host.global_copies import GlobalCopies
from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import Call, Peer, is_forwarded
from deltamq.api.log.metrics import Metrics
from deltamq.api.log.partition import Partitions
from deltamq.api.queue.handle_calls import HandleCalls
from deltamq.api.queue.pop_requests import ARROW_TYPE, Taken, TopicPopRequest, arrow_answer, json_answer, shown
from deltamq.api.queue.popper import Popped, Popper
from deltamq.api.queue.seen_clients import SeenClients
from deltamq.api.reading.global_reader import GlobalPops
from deltamq.api.reading.values import Values
from deltamq.api.routes.pop_elsewhere import STATION_MS, PopForwarder, Way, has_messages, with_refused
from deltamq.api.sending.global_sender import local_name
from deltamq.api.statistics import GroupStatistics
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.cloud_events import BATCHED, asked_events, popped_events
from deltamq.api.wire.fields import message_filter
from deltamq.api.wire.json_body import BODY_BYTES_MAX, decode_pop
from deltamq.api.wire.message_json import INLINE_ROWS, READ_COLUMNS
from deltamq.api.wire.request import (
    Admission,
    Client,
    Receive,
    Scope,
    Ticket,
    headers_of,
    parse_query,
    preferred,
    read_body,
    unquoted,
)
from deltamq.mq.errors import Conflict, DeltaMQError
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.meta.online import Subscription
from deltamq.mq.meta.topics import no_partition
from deltamq.mq.names import broker_of, check_topic
from deltamq.mq.queue.ordered_pop import check_attempt_id
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.wire.pop import POP_MESSAGES_DEFAULT, FailedHandle, PopRequest
from deltamq.tables.failpoints import failpoint

_OK: Final = 200
#: Media types of the answer.
_ANSWERS: Final = ("application/json", ARROW_TYPE)


class PopEndpoint:
    """Pops of all groups; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        popper: Popper,
        handles: HandleCalls,
        *,
        hosting: Hosting,
        forwarder: PopForwarder,
        copies: GlobalCopies,
        seen: SeenClients,
        partitions: Partitions,
        metrics: Metrics,
        statistics: GroupStatistics,
        admission: Admission,
        answers: Admission,
        invisible: InvisibleBounds,
        within_ms: int,
        now_ms: Callable[[], int],
        values: Values,
    ) -> None:
        """`admission` bounds bodies, which must be there `within_ms`; `answers` bounds rows that are being sent."""
        self._topics = topics
        self._groups = groups
        self._values = values
        self._popper = popper
        self._handles = handles
        self._hosting = hosting
        self._forwarder = forwarder
        self._copies = copies
        self._global = GlobalPops(copies.clusters, _is_found, lambda: popper.stopping, answers)
        self._seen = seen
        self._partitions = partitions
        self._metrics = metrics
        self._statistics = statistics
        self._admission = admission
        self._answers = answers
        self._invisible = invisible
        self._within_ms = within_ms
        self._now_ms = now_ms
        self._repeated = RepeatedCalls()

    async def answer(
        self, group_segment: bytes, topic_segment: bytes, scope: Scope, receive: Receive, until_sent: ExitStack
    ) -> Answer | None:
        """Answer one pop; the bytes of its rows are reserved `until_sent`."""
        events = asked_events(scope)
        answer = await self._answer(group_segment, topic_segment, scope, receive, until_sent, events)
        if events is None:
            return answer
        return await self._partitions.run(partial(popped_events, answer, events, unquoted(topic_segment, "topic")))

    async def _answer(
        self,
        group_segment: bytes,
        topic_segment: bytes,
        scope: Scope,
        receive: Receive,
        until_sent: ExitStack,
        events: str | None,
    ) -> Answer:
        group_name, topic_name = unquoted(group_segment, "group"), unquoted(topic_segment, "topic")
        ticket = until_sent.enter_context(self._answers.enter())
        began = time.perf_counter()
        parameters = parse_query(scope["query_string"], ("typed",))
        headers = headers_of(scope)
        with self._admission.enter() as reserved:
            body = await read_body(headers, receive, reserved, limit=BODY_BYTES_MAX, within_ms=self._within_ms)
            request = decode_pop(headers, body)
            if events not in (None, BATCHED):
                request.max_messages = 1
        topic = await self._topic(topic_name, scope)
        # Ordered consumers pop only retried messages: a group that such a pop made would be shared.
        may_make = request.retry is None or from_cluster(scope["headers"])
        group = await (self._groups.for_use(group_name) if may_make else self._groups.reader(group_name))
        queues = self._topics.queues(topic)
        codec = self._values.asked(topic.topic, parameters)
        wanted = _checked(topic, queues, group, request, self._invisible, ticket)
        if request.client_id is not None:
            subscription = Subscription(
                order=wanted.order is not False, tags=request.tags or "*", filter=request.filter
            )
            self._seen.note(group.name, request.client_id, {wanted.topic.name: subscription})
        if codec is not None and codec.is_headless:
            wanted = replace(wanted, columns=READ_COLUMNS)
        call = Call.of(scope, body, wait_ms=wanted.wait_ms)
        request.ack, elsewhere = await self._forwarder.ack_in_clusters(request.ack or [], call)
        acks, barred = self._forwarder.allowed(group_name, request.ack, caller_of(scope))
        request.ack = acks
        client = Client(scope, receive)
        over = await self._repeated.begin(wanted.attempt, client)
        try:
            if topic.topic.world is None or is_forwarded(call.headers) or from_cluster(call.headers):
                popped, refused = await self._in_cluster(topic, wanted, request, call, client)
            else:
                refused = await self._forwarder.ack_all(group_name, acks, call)
                popped = await self._in_clusters(topic, wanted, request, call, client)
        finally:
            client.close()
            over()
        failed = barred + elsewhere + refused
        if isinstance(popped, Answer):
            answer = with_refused(popped, failed)
            # It was asked for while there was room; a client that did not get it would not have its messages.
            ticket.settle(answer.size)
            return answer
        if codec is not None:
            popped.taken = [
                taken._replace(rows=await self._values.of(topic.topic, taken.rows, waited=taken.pop.retry))
                for taken in popped.taken
            ]
        answer = await self._encoded(wanted, popped, failed, scope)
        self._count(wanted, popped, len(acks) - len(refused), request.client_id)
        self._metrics.pop_seconds.observe(time.perf_counter() - began)
        failpoint("pop.before_respond")
        await self._popper.confirm(popped)
        return answer

    async def _topic(self, name: str, scope: Scope) -> HostedTopic:
        """Return the topic; the copy of a global one is no older than in the cluster that sent the pop on."""
        topic = self._topics.find(name)
        if topic is None and from_cluster(scope["headers"]):
            raise unknown_here(name)
        topic = topic or await self._topics.require(check_topic(name))
        if topic.topic.world is not None:
            self._copies.clusters.refuse_guarded(name)
            if from_cluster(scope["headers"]):
                await self._copies.caught_up(name, global_epoch_of(scope["headers"]))
        return topic

    async def _in_clusters(
        self, topic: HostedTopic, wanted: TopicPopRequest, request: PopRequest, call: Call, client: Client
    ) -> Popped | Answer:
        """Pop from a global topic, in whichever cluster has messages; handles are acknowledged before."""

        async def here(wait_ms: int) -> Popped | Answer:
            popped, _ = await self._in_cluster(
                topic,
                replace(wanted, topic=topic.topic, wait_ms=wait_ms),
                msgspec.structs.replace(request, ack=[], wait_ms=wait_ms),
                call,
                client,
            )
            if isinstance(popped, Answer) and popped.status != _OK:
                raise Relayed.of(popped)
            return popped

        return await self._global.pop(self._copies.world(topic), request, call, client, here)

    async def _in_cluster(
        self, topic: HostedTopic, wanted: TopicPopRequest, request: PopRequest, call: Call, client: Client
    ) -> tuple[Popped | Answer, list[FailedHandle]]:
        """Acknowledge handles of this cluster and pop in it; also return the handles that were refused."""
        group, handles, refused = wanted.group.name, request.ack or [], list[FailedHandle]()
        if not self._hosting.alone:
            queues = self._topics.queues(topic)
            way = await self._forwarder.way(wanted, queues, call)
            answer: Popped | Answer | None
            if way.stations:
                refused = await self._forwarder.ack_all(group, handles, call)
                return await self._travel(way, topic, wanted, request, call, client), refused
            answer, handles, refused = await self._forwarder.forward(request, group, way.last, call, client)
            if answer is not None:
                return answer, refused
        acking: Awaitable[dict[int, str]] = self._handles.finish(self._handles.begin_ack(group, handles))
        if handles and wanted.wait_ms:
            # Beside the pop, which may wait for longer than the acknowledged messages are invisible.
            acking = asyncio.ensure_future(acking)
        try:
            popped = await self._pop_here(topic, wanted, client)
        finally:
            failed = await acking
        return popped, refused + [FailedHandle(handles[position], code) for position, code in sorted(failed.items())]

    def _count(self, wanted: TopicPopRequest, popped: Popped, acked: int, client_id: str | None) -> None:
        """Count what was popped; messages of a repeated pop were counted with its lost answer."""
        new = () if popped.repeated else popped.taken
        if new and client_id is not None:
            self._seen.holds(wanted.group.name, client_id, wanted.invisible_ms)
        for taken in new:
            broker = broker_of(taken.pop.partition)
            self._statistics.delivered(wanted.group.name, wanted.topic, broker, taken.rows, taken.attempts)
        _count(self._metrics, wanted, new, acked)

    async def _pop_here(self, topic: HostedTopic, wanted: TopicPopRequest, client: Client) -> Popped:
        try:
            return await self._popper.pop(wanted, client)
        except GONE as error:
            raise await self._topics.explained(topic, error) from error

    async def _travel(
        self, way: Way, topic: HostedTopic, wanted: TopicPopRequest, request: PopRequest, call: Call, client: Client
    ) -> Popped | Answer:
        """Pop at one process after another until one has messages; the time to wait is spent at the last.

        While closed segments have messages in flight, they are asked again each second: their messages may come again.
        """
        deadline = self._partitions.loop.time() + wanted.wait_ms / 1000

        async def pop_at(peer: Peer | None, wait_ms: int) -> Popped | Answer:
            if peer is None:
                return await self._pop_here(topic, replace(wanted, topic=topic.topic, wait_ms=wait_ms), client)
            return await self._forwarder.ask(peer, request, call, client, wait_ms=wait_ms)

        while True:
            for station in way.stations:
                try:
                    popped = await pop_at(station, 0)
                except DeltaMQError:
                    continue  # the others may serve; a pop that waits asks it again
                if _is_found(popped):
                    return popped
            left_ms = max(0, int((deadline - self._partitions.loop.time()) * 1000))
            wait_ms = min(left_ms, STATION_MS) if way.stations else left_ms
            popped = await pop_at(way.last, wait_ms)
            is_over = wait_ms == left_ms or client.gone.done() or self._popper.stopping
            if is_over or _is_found(popped) or (isinstance(popped, Answer) and popped.status != _OK):
                return popped
            way = await self._forwarder.way(wanted, self._topics.queues(topic), call)

    async def _encoded(
        self, wanted: TopicPopRequest, popped: Popped, refused: list[FailedHandle], scope: Scope
    ) -> Answer:
        world = self._topics.state.topics.get(wanted.topic.name, wanted.topic).world
        taken = shown(popped.taken, popped.queues, world)
        rest = self._popper.rest(wanted, popped.queues)
        if rest and taken:
            self._popper.wake_others(wanted)
        encode = partial(
            arrow_answer if preferred(headers_of(scope), _ANSWERS) == ARROW_TYPE else json_answer,
            taken,
            pop_time_ms=taken[0].pop.pop_time_ms if taken else self._now_ms(),
            invisible_ms=wanted.invisible_ms,
            rest=rest,
            failed=refused,
        )
        inline = encode.func is arrow_answer or sum(len(part.handles) for part in taken) <= INLINE_ROWS
        return encode() if inline else await self._partitions.run(encode)


def _is_found(popped: Popped | Answer) -> bool:
    return bool(popped.taken) if isinstance(popped, Popped) else has_messages(popped)


def _checked(
    hosted: HostedTopic,
    queues: TopicQueues | None,
    group: Group,
    request: PopRequest,
    invisible: InvisibleBounds,
    answer: Ticket,
) -> TopicPopRequest:
    """Return the checked request, in this cluster's own names; the group's settings fill in what it leaves out.

    The bytes of the messages are reserved in `answer`.
    """
    topic, partition = hosted.topic, request.partition
    if partition is not None and topic.world is not None:
        partition = local_name(hosted, partition)
    if partition is not None and queues is not None:
        queues.require(partition, topic.name)
    elif request.partition is not None and request.partition not in topic.route.partitions:
        raise no_partition(topic.name, request.partition)
    retries_only = request.retry is not None
    if group.settings.consume_strategy == "broadcast":
        raise Conflict(
            f"group {group.name} is a broadcast group: its clients fetch, each with offsets of its own",
            code="group_broadcast",
            field="group",
        )
    if group.settings.consume_strategy == "exclusive" and not retries_only:
        raise Conflict(
            f'group {group.name} is exclusive: its clients pull; pop only retried messages (retry: "only")',
            code="group_exclusive",
            field="group",
        )
    order = group.settings.order if request.order is None else request.order
    # Retried messages have no order.
    in_order = False if retries_only else order
    invisible_ms, attempt_id = request.invisible_ms, request.attempt_id
    wanted = TopicPopRequest(
        topic=topic,
        group=group,
        max_messages=request.max_messages or POP_MESSAGES_DEFAULT,
        invisible_ms=group.settings.invisible_ms if invisible_ms is None else invisible.check(invisible_ms),
        wait_ms=request.wait_ms or 0,
        filter=message_filter(request.tags, request.filter),
        partition=partition,
        order=in_order,
        retries_only=retries_only,
        attempt_id=None if attempt_id is None else check_attempt_id(attempt_id, in_order=in_order is not False),
        client_id=request.client_id or "",
        answer=answer,
    )
    if wanted.keeps_order and not retries_only:  # no cluster knows the group's progress in another cluster's stays
        refuse_global(topic, "a pop in order, or of a topic with strict order,")
    return wanted


def _count(metrics: Metrics, wanted: TopicPopRequest, taken: Sequence[Taken], acked: int) -> None:
    count = sum(len(part.handles) for part in taken)
    name = (wanted.group.name, wanted.topic.name)
    if acked:
        metrics.acked_messages[wanted.group.name] += acked
    if not count:
        return
    metrics.popped_messages[name] += count
    for part in taken:
        attempts = part.attempts
        again = (
            (len(part.handles) if attempts > 1 else 0) if isinstance(attempts, int) else sum(a > 1 for a in attempts)
        )
        if again:
            metrics.redelivered_messages[name] += again


class _AtWork(NamedTuple):
    client: Client
    over: asyncio.Event


class RepeatedCalls:
    """The calls of this process that have an id, at most one of each at work; used on the event loop.

        pop x ──────────waits──────────┐ its client is counted as gone, so it ends with what it has by then
                        pop x again ───┴── gets that: the messages of the answer that no client reads

    Without this, the first pop could take messages after the second one had looked for them, and they would be hidden
    for their invisible time.
    """

    def __init__(self) -> None:
        self._at_work: dict[tuple[str, ...], _AtWork] = {}

    async def begin(self, key: tuple[str, ...] | None, client: Client) -> Callable[[], None]:
        """Wait until no other call of this key is at work; return what to call when this one has ended.

        None is the key of a call without an id.
        """
        if key is None:
            return _nothing
        while (before := self._at_work.get(key)) is not None:
            before.client.leave()
            await before.over.wait()
        mine = self._at_work[key] = _AtWork(client, asyncio.Event())

        def end() -> None:
            del self._at_work[key]
            mine.over.set()

        return end


def _nothing() -> None:
    """End a call without an id."""
