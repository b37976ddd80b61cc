"""`POST /v1/groups/{group}/topics/{topic}/aside`: messages that an exclusive client lets go of (SPEC ORDER-8).

The holder of a partition's pull lock says that messages of it failed: they are copied to the group's dead letters, or
to its retry topic, and the client goes on behind them. It commits when the copies are stored. Asked again, whoever
asks, nothing is stored twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.queue import Dying
from api.routes.groups import GroupName
from api.routes.order_request import CLIENT_PATTERN, check_client
from api.routes.topics import Running, TopicName
from api.service import Service
from api.wire import json_object, known_fields, problems
from mq.errors import Conflict, NotFound, Refused, Unprocessable
from mq.limits import OFFSET_MAX
from mq.meta import Group, Topic
from mq.names import broker_of
from mq.queue import LaneKey, RetryTopic, check_reason
from mq.queue_limits import POP_MESSAGES_MAX, REASON_LENGTH_MAX

__all__ = ["router"]

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/aside", tags=["order"])

_REASON: Final = "rejected"
_ATTEMPTS_MAX: Final = 2**31 - 1
_Offset = Annotated[int, Field(ge=0, le=OFFSET_MAX)]


class AsideRequest(BaseModel):
    """Messages of one partition, all of which the client has tried `attempts` times."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "client_id": "worker-1",
                    "partition": "orders@broker-a",
                    "lock": 12_884_901_889,
                    "offsets": [120],
                    "to": "dead",
                    "reason": "no such account",
                    "attempts": 16,
                }
            ]
        },
    )
    client_id: Annotated[str, Field(json_schema_extra={"pattern": CLIENT_PATTERN})]
    partition: Annotated[str, Field(description="`NAME@BROKER`.")]
    lock: Annotated[_Offset | None, Field(description="The number of the client's lock.")] = None
    offsets: Annotated[list[_Offset], Field(min_length=1, max_length=POP_MESSAGES_MAX)]
    to: Literal["dead", "retry"]
    reason: Annotated[str | None, Field(min_length=1, max_length=REASON_LENGTH_MAX)] = None
    attempts: Annotated[int | None, Field(ge=1, le=_ATTEMPTS_MAX)] = None


class AsideAnswer(BaseModel):
    """How many are there now; the others were taken by retention, which is recorded."""

    moved: int


class _Aside(NamedTuple):
    """A checked `AsideRequest`."""

    client: str
    partition: str
    lock: int | None
    offsets: tuple[int, ...]
    to: str
    reason: str
    attempts: int


_SCHEMA: Final = AsideRequest.model_json_schema(ref_template="#/components/schemas/{model}")


@router.post(
    "",
    summary="Put messages that failed among the dead letters, or into the retry topic",
    response_model=AsideAnswer,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}},
)
async def set_aside(group: GroupName, topic: TopicName, service: Running, request: Request) -> Any:
    asked = _asked(await json_object(request))
    found = (await service.topics.require(topic)).topic
    its_group = await service.groups.require(group)
    _check_allowed(its_group, found, asked)
    broker = broker_of(asked.partition)
    elsewhere: Response | None = await service.peers.elsewhere_as_response(broker, request)
    if elsewhere is not None:
        return elsewhere
    epoch = service.hosting.epoch(broker)
    lane = LaneKey(found.id, group, False, asked.partition)
    service.locks.check_commit(its_group, found, lane, asked.client, asked.lock, "partition")
    moved = await _move(service, its_group, found, lane, asked)
    service.hosting.check(broker, epoch)
    return {"moved": moved}


def _check_allowed(group: Group, topic: Topic, asked: _Aside) -> None:
    if group.settings.consume_strategy != "exclusive":
        raise Conflict(
            f"group {group.name} is shared: its messages have handles", code="group_not_exclusive", field="group"
        )
    if asked.partition not in topic.route.partitions:
        detail = f"partition: topic {topic.name} has no partition {asked.partition!r}"
        raise NotFound(detail, code="partition_not_found", field="partition")
    if asked.to == "retry" and topic.settings.order_strategy == "strict":
        raise Conflict(
            f"topic {topic.name} is strict: nothing may overtake a message that failed", code="topic_strict", field="to"
        )


async def _move(service: Service, group: Group, topic: Topic, lane: LaneKey, asked: _Aside) -> int:
    """Copy each message; how many were there."""
    log = await service.lanes.partition_of(lane, topic.name).opened()
    beyond = next((offset for offset in asked.offsets if offset >= log.end_offset), None)
    if beyond is not None:
        raise Unprocessable(
            f"offsets: {beyond} is not before the end offset {log.end_offset} of {lane.partition}",
            code="offset_out_of_range",
            field="offsets",
            extra={"end_offset": log.end_offset},
        )
    lane_epoch = service.groups.state.epoch_of(lane)
    logs = service.lanes.logs
    moved = 0
    for offset in asked.offsets:
        name = _request_name(lane, lane_epoch, offset, asked.to)
        dying = Dying(group, topic.name, lane, offset, asked.attempts, asked.reason, name)
        if asked.to == "dead":
            moved += await logs.bury(dying, log)
        else:
            retry = LaneKey(topic.id, group.name, True, RetryTopic(group.name, topic.name).partition(dying.broker))
            moved += await logs.retry(dying, log, service.lanes.partition_of(retry, topic.name))
    return moved


def _request_name(lane: LaneKey, epoch: int | None, offset: int, to: str) -> str:
    """The idempotent producer of one message's copy: the same for every client and every try."""
    digest = hashlib.sha256(json.dumps([*lane, epoch, offset, to]).encode()).hexdigest()
    return f"aside-{digest[:32]}"


# What is asked --------------------------------------------------------------------------------------------------------


def _asked(body: Mapping[str, object]) -> _Aside:
    known_fields(body, AsideRequest)
    to = _text(body, "to")
    if to not in ("dead", "retry"):
        raise Unprocessable("to must be dead or retry", field="to")
    lock, attempts = body.get("lock"), body.get("attempts")
    return _Aside(
        client=check_client(body.get("client_id")),
        partition=_text(body, "partition"),
        lock=None if lock is None else _whole(lock, "lock", 0, OFFSET_MAX),
        offsets=_offsets(body.get("offsets")),
        to=to,
        reason=_REASON if body.get("reason") is None else check_reason(_text(body, "reason")),
        attempts=1 if attempts is None else _whole(attempts, "attempts", 1, _ATTEMPTS_MAX),
    )


def _text(body: Mapping[str, object], field: str) -> str:
    value = body.get(field)
    if value is None:
        raise Refused(f"{field} is missing", code="missing_field", field=field)
    if not isinstance(value, str):
        raise Refused(f"{field} must be text", code="invalid_type", field=field)
    return value


def _whole(value: object, field: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{field} must be a whole number", code="invalid_type", field=field)
    if not low <= value <= high:
        raise Unprocessable(
            f"{field} must be from {low} to {high}", field=field, extra={"limit": low if value < low else high}
        )
    return value


def _offsets(value: object) -> tuple[int, ...]:
    if value is None:
        raise Refused("offsets is missing", code="missing_field", field="offsets")
    if not isinstance(value, list):
        raise Refused("offsets must be a list", code="invalid_type", field="offsets")
    if not 1 <= len(value) <= POP_MESSAGES_MAX:
        raise Unprocessable(
            f"offsets: 1 to {POP_MESSAGES_MAX}", field="offsets", extra={"limit": POP_MESSAGES_MAX if value else 1}
        )
    return tuple(_whole(one, f"offsets[{at}]", 0, OFFSET_MAX) for at, one in enumerate(value))
