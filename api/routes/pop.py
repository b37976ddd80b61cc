"""`POST /v1/groups/{group}/topics/{topic}/pop`: acknowledge messages of earlier pops, and pop more.

    body --decode, check--> acks begin --> pop (in memory, or from files) --> acks stored --> JSON or Arrow
                  '--> another process, when that serves the topic's brokers

It is a plain ASGI endpoint, as are produce and fetch. Acknowledgements of this call that must be stored are stored
before the answer. Popped messages are the client's for their invisible time, even if the answer is lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from api.host import GONE, Call
from api.queue import ARROW_TYPE, Popped, Taken, TopicPopRequest, arrow_answer, json_answer
from api.routes.pop_elsewhere import ack_elsewhere, pop_elsewhere
from api.routes.read import parse_tags
from api.service import Service
from api.wire import (
    BODY_BYTES_MAX,
    Answer,
    Client,
    Receive,
    Scope,
    Ticket,
    accepts,
    decode_pop,
    headers_of,
    parse_query,
    read_body,
)
from mq.errors import Conflict, NotFound
from mq.meta import Group, Subscription, Topic
from mq.names import broker_of, check_topic
from mq.wire import POP_MESSAGES_DEFAULT, FailedHandle, PopRequest
from tables.failpoints import failpoint

__all__ = ["answer_pop"]

#: Number of rows above which a JSON answer is encoded on a thread.
_JSON_INLINE_ROWS: Final = 200


async def answer_pop(
    service: Service, group_name: str, topic_name: str, *, scope: Scope, receive: Receive, ticket: Ticket
) -> Answer | None:
    """Answer one pop; `ticket` reserves the bytes of its rows until they are sent."""
    began = time.perf_counter()
    parse_query(scope["query_string"], ())
    headers = headers_of(scope)
    settings = service.settings
    with service.pops.enter() as reserved:
        body = await read_body(headers, receive, reserved, limit=BODY_BYTES_MAX, within_ms=settings.request_ms)
        request = decode_pop(headers, body)
    topic = service.topics.find(topic_name) or await service.topics.require(check_topic(topic_name))
    group = await service.groups.for_use(group_name)
    wanted = _checked(service, topic.topic, group, request)
    if request.client_id is not None:
        subscription = Subscription(order=wanted.order is not False, tags=request.tags or "*")
        service.seen.note(group.name, request.client_id, {wanted.topic.name: subscription})
    acks = request.ack or []
    handles, refused = acks, list[FailedHandle]()
    client = Client(receive)
    try:
        if not service.hosting.alone:
            call = Call.of(scope, body, wait_ms=wanted.wait_ms)
            peer = service.owners.of_any(_brokers(wanted), call)
            handles, refused = await ack_elsewhere(service, group_name, acks, call, peer)
            if peer is not None:
                answer = await pop_elsewhere(service, peer, request, handles, refused, call=call, client=client)
                ticket.grow(answer.size)
                return answer
        acking = service.handles.begin_ack(group_name, handles)
        try:
            popped = await service.popper.pop(wanted, client)
        except GONE as error:
            raise await service.topics.explained(topic, error) from error
        finally:
            failed = await service.handles.finish(acking)
    finally:
        client.close()
    refused += [FailedHandle(handles[position], code) for position, code in sorted(failed.items())]
    answer = await _encoded(service, wanted, popped, refused, scope=scope, ticket=ticket)
    _count(service, wanted, popped.taken, len(acks) - len(refused))
    service.metrics.pop_seconds.observe(time.perf_counter() - began)
    failpoint("pop.before_respond")
    service.popper.check(popped)
    return answer


def _brokers(wanted: TopicPopRequest) -> dict[str, None]:
    """Return the brokers that a pop visits, in route order."""
    names = wanted.topic.route.partitions if wanted.partition is None else (wanted.partition,)
    return dict.fromkeys(broker_of(name) for name in names)


async def _encoded(
    service: Service,
    wanted: TopicPopRequest,
    popped: Popped,
    refused: list[FailedHandle],
    *,
    scope: Scope,
    ticket: Ticket,
) -> Answer:
    taken = popped.taken
    rest = service.popper.rest(wanted)
    if rest and taken:
        service.popper.wake_others(wanted)
    ticket.grow(sum(one.nbytes for one in taken))
    pop_time_ms = taken[0].pop.pop_time_ms if taken else service.lanes.logs.now_ms()
    encode = partial(
        arrow_answer if accepts(headers_of(scope), ARROW_TYPE) else json_answer,
        taken,
        pop_time_ms=pop_time_ms,
        invisible_ms=wanted.invisible_ms,
        rest=rest,
        failed=refused,
    )
    inline = encode.func is arrow_answer or sum(len(one.handles) for one in taken) <= _JSON_INLINE_ROWS
    return encode() if inline else await service.run(encode)


def _checked(service: Service, topic: Topic, group: Group, request: PopRequest) -> TopicPopRequest:
    """Return the checked request; the group's settings fill in what it leaves out."""
    if request.partition is not None and request.partition not in topic.route.partitions:
        detail = f"partition: topic {topic.name} has no partition {request.partition!r}"
        raise NotFound(detail, code="partition_not_found", field="partition")
    retries_only = request.retry is not None
    if group.settings.consume_strategy == "exclusive" and not retries_only:
        raise Conflict(
            f'group {group.name} is exclusive: its clients pull; pop only retried messages (retry: "only")',
            code="group_exclusive",
            field="group",
        )
    order = group.settings.order if request.order is None else request.order
    invisible_ms = request.invisible_ms
    return TopicPopRequest(
        topic=topic,
        group=group,
        max_messages=request.max_messages or POP_MESSAGES_DEFAULT,
        invisible_ms=group.settings.invisible_ms if invisible_ms is None else service.invisible.check(invisible_ms),
        wait_ms=request.wait_ms or 0,
        tags=parse_tags(request.tags),
        partition=request.partition,
        # Retried messages have no order.
        order=False if retries_only else order,
        retries_only=retries_only,
    )


def _count(service: Service, wanted: TopicPopRequest, taken: Sequence[Taken], acked: int) -> None:
    count = sum(len(one.handles) for one in taken)
    metrics = service.metrics
    name = (wanted.group.name, wanted.topic.name)
    if acked:
        metrics.acked_messages[wanted.group.name] += acked
    if not count:
        return
    metrics.popped_messages[name] += count
    for one in taken:
        attempts = one.attempts
        again = (len(one.handles) if attempts > 1 else 0) if isinstance(attempts, int) else sum(a > 1 for a in attempts)
        if again:
            metrics.redelivered_messages[name] += again
