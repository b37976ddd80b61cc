"""`POST`, `DELETE /v1/groups/{group}/topics/{topic}/locks`: pull locks of an exclusive group (SPEC ORDER-4, ORDER-5).

A request may name partitions of several brokers. It is split by the processes that serve them, and the answers are
joined. Partitions of a process that does not answer are neither granted nor refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request, Response

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.owners import Owners, Relayed
from deltamq.api.host.peers import Call, Peer, Peers, is_forwarded, json_of
from deltamq.api.order.lock_handover import LockRequest
from deltamq.api.order.pull_locks import Locks
from deltamq.api.routes.groups import GroupName
from deltamq.api.routes.order_request import LOCKS, RELEASE, LocksAsked, LocksReleased, locks_of, release_of
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.openapi_parts import answers
from deltamq.api.wire.request import Client
from deltamq.mq.errors import Conflict, Unavailable, Unknown, Unprocessable
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import check_broker
from deltamq.mq.order.pull_lock import LockAccount
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.wire.groups import LocksGiven, LocksReturned

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/locks", tags=["order"])

T = TypeVar("T")

QueueName = Annotated[str, Query(description="A logical queue.", examples=["0@__logical_queue_broker__"])]
BrokerName = Annotated[str, Query(description="A broker that led it before.", examples=["broker-a"])]


class _Share(NamedTuple):
    """The partitions of one process; `owner` is None for this one."""

    owner: Peer | None
    partitions: tuple[str, ...]


@router.post(
    "",
    summary="Ask for pull locks, or renew them",
    responses=answers(LocksGiven, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=LOCKS.described,
)
async def take_locks(group: GroupName, topic: TopicName, service: Running, request: Request) -> Response:
    body = await LOCKS.read(request)
    known_group, hosted = await _exclusive(service.topics, service.groups, service.meta, group, topic)
    asked = locks_of(body, hosted, service.topics.queues_of(hosted))
    shares, unserved = _shares(service.topics, service.owners, hosted, asked.partitions, Call.of(request.scope))
    wait_ms = asked.wait_ms if len(shares) == 1 and not unserved else 0
    client = Client(request.scope, request.receive)
    try:
        parts: list[Awaitable[LocksGiven]] = [
            _take_here(service.locks, known_group, hosted, asked, share, wait_ms, client, request)
            if share.owner is None
            else _take_there(service.peers, request, asked, share, share.owner, wait_ms, client)
            for share in shares
        ]
        return json_answer(_joined(await asyncio.gather(*parts), unserved))
    finally:
        client.close()


@router.get(
    "",
    summary="What a broker knows of the lock of a logical queue that it led before",
    responses=answers(LockAccount, 400, 404, 409, 422),
)
async def show_lock(
    group: GroupName, topic: TopicName, partition: QueueName, broker: BrokerName, service: Running, request: Request
) -> Response:
    _, hosted = await _exclusive(service.topics, service.groups, service.meta, group, topic)
    queues = service.topics.queues_of(hosted)
    if queues is None:
        raise Unprocessable(f"topic {topic} is not static: its partitions stay at their brokers", field="topic")
    queues.require(partition, topic)
    check_broker(broker)
    there: Response | None = await service.peers.elsewhere_as_response(broker, request, b"")
    if there is not None:
        return there
    return json_answer(await service.locks.account(broker, topic, LaneKey(hosted.id, group, False, partition)))


@router.delete(
    "",
    summary="Give pull locks back",
    responses=answers(LocksReturned, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=RELEASE.described,
)
async def release_locks(group: GroupName, topic: TopicName, service: Running, request: Request) -> Response:
    body = await RELEASE.read(request)
    _, hosted = await _exclusive(service.topics, service.groups, service.meta, group, topic)
    asked = release_of(body, hosted, service.topics.queues_of(hosted))
    shares, unserved = _shares(service.topics, service.owners, hosted, asked.partitions, Call.of(request.scope))
    released: set[str] = set()
    for share in shares:
        if share.owner is None:
            headers = request.scope["headers"]
            here = service.locks.release(group, hosted, asked.client, share.partitions, asked.numbers, headers)
            released.update(await here)
    parts = [_release_there(service.peers, request, asked, share, share.owner) for share in shares if share.owner]
    for there in await asyncio.gather(*parts):
        released.update(there)
    if unserved:
        raise Unavailable(f"no process serves the broker of {unserved[0]} now; ask again", code="broker_unavailable")
    return json_answer(LocksReturned([partition for partition in asked.partitions if partition in released]))


async def _exclusive(topics: Topics, groups: Groups, meta: HostedMeta, group: str, topic: str) -> tuple[Group, Topic]:
    """Return group and topic; refuse a group that is not exclusive, since it has no pull locks."""
    hosted = await topics.require(topic)
    refuse_global(hosted.topic, "a pull lock")
    known_group = await groups.require(group)
    if known_group.settings.consume_strategy != "exclusive":
        known_group = (await meta.refresh()).groups.group(group)
    if known_group.settings.consume_strategy != "exclusive":
        raise Conflict(
            f"group {group} is {known_group.settings.consume_strategy}: its partitions need no locks",
            code="group_not_exclusive",
            field="group",
        )
    return known_group, hosted.topic


def _shares(
    topics: Topics, owners: Owners, topic: Topic, partitions: Iterable[str], call: Call
) -> tuple[list[_Share], list[str]]:
    """Return the partitions by the process that serves them, and the partitions that no process serves."""
    by_owner: dict[Peer | None, list[str]] = {}
    unserved: list[str] = []
    for partition in partitions:
        try:
            by_owner.setdefault(owners.of(topics.broker_of(topic, partition), call), []).append(partition)
        except Unavailable:
            if is_forwarded(call.headers):
                raise
            unserved.append(partition)
    return [_Share(owner, tuple(names)) for owner, names in by_owner.items()], unserved


# Taking ---------------------------------------------------------------------------------------------------------------


async def _take_here(
    locks: Locks,
    group: Group,
    topic: Topic,
    asked: LocksAsked,
    share: _Share,
    wait_ms: int,
    client: Client,
    request: Request,
) -> LocksGiven:
    held, headers = asked.held.intersection(share.partitions), request.scope["headers"]
    here = LockRequest(group, topic, asked.client, share.partitions, held, headers)
    try:
        return await locks.take_or_wait(here, wait_ms, client)
    except Unavailable:
        return LocksGiven(unanswered=list(share.partitions))


async def _take_there(
    peers: Peers,
    request: Request,
    asked: LocksAsked,
    share: _Share,
    owner: Peer,
    wait_ms: int,
    client: Client,
) -> LocksGiven:
    body: dict[str, object] = {
        "client_id": asked.client,
        "partitions": share.partitions,
        "held": sorted(asked.held.intersection(share.partitions)),
        "wait_ms": wait_ms,
    }
    try:
        return await _ask(peers, request, owner, body, wait_ms, client, LocksGiven)
    except (Unavailable, Unknown):
        return LocksGiven(unanswered=list(share.partitions))


def _joined(parts: Sequence[LocksGiven], unserved: Sequence[str]) -> LocksGiven:
    locks = {name: number for part in parts for name, number in part.locks.items()}
    return LocksGiven(
        partitions=list(locks),
        locks=locks,
        offsets={name: offset for part in parts for name, offset in part.offsets.items()},
        attempts={name: count for part in parts for name, count in part.attempts.items()},
        refused=[name for part in parts for name in part.refused],
        unanswered=[*unserved, *(name for part in parts for name in part.unanswered)],
    )


# Giving back ----------------------------------------------------------------------------------------------------------


async def _release_there(peers: Peers, request: Request, asked: LocksReleased, share: _Share, owner: Peer) -> list[str]:
    body: dict[str, object] = {
        "client_id": asked.client,
        "partitions": share.partitions,
        "locks": {name: number for name, number in asked.numbers.items() if name in share.partitions},
    }
    return (await _ask(peers, request, owner, body, 0, None, LocksReturned)).partitions


async def _ask(
    peers: Peers,
    request: Request,
    owner: Peer,
    body: Mapping[str, object],
    wait_ms: int,
    client: Client | None,
    kind: type[T],
) -> T:
    """Return the answer of another process to its share of the request.

    Raises
    ------
    Relayed
        The process refused the caller.
    Unavailable
        The process did not answer, or answered with another problem, or with something else.
    """
    call = Call.of(request.scope, msgspec.json.encode(body), wait_ms=wait_ms)
    answer = await peers.ask(*owner, call, client)
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise Relayed.of(answer)
    if answer.status != 200:
        raise Unavailable(f"the process that serves a broker answered {answer.status}; ask again")
    return json_of(answer.body, kind)
