"""`POST /v1/groups/{group}/topics/{topic}/aside`: failed messages of an exclusive client (SPEC ORDER-8).

The holder of a partition's pull lock reports failed messages: they are copied to the group's dead letters or to its
retry topic, and the client goes on behind them. It commits after the copies are stored. A repeated request, by any
client, stores nothing twice.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from api.queue import Dying, Lanes
from api.routes.groups import GroupName
from api.routes.order_request import check_client
from api.routes.topics import Running, TopicName
from api.wire import JsonBody, problems
from mq.errors import Conflict, NotFound, Unprocessable
from mq.meta import Group, Topic
from mq.names import broker_of
from mq.queue import LaneKey, RetryTopic, check_reason
from mq.wire import AsideRequest

__all__ = ["router"]

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/aside", tags=["order"])

_REASON: Final = "rejected"


_ASIDE: Final = JsonBody(
    AsideRequest,
    {
        "client_id": "worker-1",
        "partition": "orders@broker-a",
        "lock": 12_884_901_889,
        "offsets": [120],
        "to": "dead",
        "reason": "no such account",
        "attempts": 16,
    },
    items=True,
)


class AsideAnswer(BaseModel):
    """How many messages are at their target now; retention took the others, which is recorded."""

    moved: int


@router.post(
    "",
    summary="Copy failed messages to the dead letters or to the retry topic",
    response_model=AsideAnswer,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_ASIDE.described,
)
async def set_aside(group: GroupName, topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _ASIDE.read(request)
    check_client(asked.client_id)
    reason = _REASON if asked.reason is None else check_reason(asked.reason)
    found = (await service.topics.require(topic)).topic
    its_group = await service.groups.require(group)
    _check_allowed(its_group, found, asked)
    broker = broker_of(asked.partition)
    elsewhere: Response | None = await service.peers.elsewhere_as_response(broker, request)
    if elsewhere is not None:
        return elsewhere
    epoch = service.hosting.epoch(broker)
    lane = LaneKey(found.id, group, False, asked.partition)
    service.locks.check_commit(its_group, found, lane, asked.client_id, asked.lock, "partition")
    moved = await _move(service.lanes, its_group, found, lane, asked, reason)
    service.hosting.check(broker, epoch)
    return {"moved": moved}


def _check_allowed(group: Group, topic: Topic, asked: AsideRequest) -> None:
    if group.settings.consume_strategy != "exclusive":
        raise Conflict(
            f"group {group.name} is shared: use its messages' handles", code="group_not_exclusive", field="group"
        )
    if asked.partition not in topic.route.partitions:
        detail = f"partition: topic {topic.name} has no partition {asked.partition!r}"
        raise NotFound(detail, code="partition_not_found", field="partition")
    if asked.to == "retry" and topic.settings.order_strategy == "strict":
        raise Conflict(
            f"topic {topic.name} is strict: nothing may overtake a message that failed", code="topic_strict", field="to"
        )


async def _move(lanes: Lanes, group: Group, topic: Topic, lane: LaneKey, asked: AsideRequest, reason: str) -> int:
    """Copy each message; return how many were copied."""
    log = await lanes.partition_of(lane, topic.name).opened()
    beyond = next((offset for offset in asked.offsets if offset >= log.end_offset), None)
    if beyond is not None:
        raise Unprocessable(
            f"offsets: {beyond} is not before the end offset {log.end_offset} of {lane.partition}",
            code="offset_out_of_range",
            field="offsets",
            extra={"end_offset": log.end_offset},
        )
    lane_epoch = lanes.groups.epoch_of(lane)
    moved = 0
    for offset in asked.offsets:
        name = _request_name(lane, lane_epoch, offset, asked.to)
        dying = Dying(group, topic.name, lane, offset, asked.attempts or 1, reason, name)
        if asked.to == "dead":
            moved += await lanes.logs.bury(dying, log)
        else:
            retry = LaneKey(topic.id, group.name, True, RetryTopic(group.name, topic.name).partition(dying.broker))
            moved += await lanes.logs.retry(dying, log, lanes.partition_of(retry, topic.name))
    return moved


def _request_name(lane: LaneKey, epoch: int | None, offset: int, to: str) -> str:
    """Return the idempotent producer of one message's copy: the same for every client and every try."""
    digest = hashlib.sha256(json.dumps([*lane, epoch, offset, to]).encode()).hexdigest()
    return f"aside-{digest[:32]}"
