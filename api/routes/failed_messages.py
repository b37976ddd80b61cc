"""`POST /v1/groups/{group}/topics/{topic}/aside`: failed messages of an exclusive client (SPEC ORDER-8).

The holder of a partition's pull lock reports failed messages: they are copied to the group's dead letters or to its
retry topic, and the client goes on behind them. It commits after the copies are stored. A repeated request, by any
client, stores nothing twice.

In a static topic the client names a logical queue and logical offsets, and holds the lock of the queue. The copies name
the partitions that have the messages (SPEC STATIC-18).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from deltamq.api.host.global_topics import refuse_global
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.logs import Dying
from deltamq.api.routes.groups import GroupName
from deltamq.api.routes.order_request import check_client
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.statistics import Outcome
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic, no_partition
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.retry import RetryTopic, check_reason
from deltamq.mq.static.logical_queue import LogicalQueue, SegmentOf, TopicQueues
from deltamq.mq.wire.groups import AsideAnswer, AsideRequest
from deltamq.tables.log.log import PartitionLog

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


@router.post(
    "",
    summary="Copy failed messages to the dead letters or to the retry topic",
    responses=answers(AsideAnswer, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_ASIDE.described,
)
async def set_aside(group: GroupName, topic: TopicName, service: Running, request: Request) -> Response:
    asked = await _ASIDE.read(request)
    check_client(asked.client_id)
    reason = _REASON if asked.reason is None else check_reason(asked.reason)
    known_topic = (await service.topics.require(topic)).topic
    refuse_global(known_topic, "sending back")
    known_group = await service.groups.require(group)
    queue = _check_allowed(known_group, known_topic, service.topics.queues_of(known_topic), asked)
    broker = broker_of(asked.partition if queue is None else queue.leader.partition)
    elsewhere: Response | None = await service.peers.elsewhere_as_response(broker, request)
    if elsewhere is not None:
        return elsewhere
    epoch = service.hosting.epoch(broker)
    lane = LaneKey(known_topic.id, group, False, asked.partition)
    service.locks.check_commit(known_group, known_topic, lane, asked.client_id, asked.lock, "partition")
    moved = await _move(service.lanes, known_group, known_topic, _parts(lane, queue, asked.offsets), asked, reason)
    await service.hosting.confirm(broker, epoch)
    outcome = Outcome.DEAD if asked.to == "dead" else Outcome.FAILED
    service.statistics.put_aside(group, known_topic, asked.partition, broker, asked.offsets, outcome)
    return json_answer(AsideAnswer(moved))


def _check_allowed(group: Group, topic: Topic, queues: TopicQueues | None, asked: AsideRequest) -> LogicalQueue | None:
    """Return the logical queue that the client names in a static topic; refuse what is not allowed."""
    if group.settings.consume_strategy != "exclusive":
        raise Conflict(
            f"group {group.name} is {group.settings.consume_strategy}; only an exclusive one puts messages aside",
            code="group_not_exclusive",
            field="group",
        )
    queue = None if queues is None else queues.require(asked.partition, topic.name)
    if queue is None and asked.partition not in topic.route.partitions:
        raise no_partition(topic.name, asked.partition)
    if asked.to == "retry" and topic.settings.order_strategy == "strict":
        raise Conflict(
            f"topic {topic.name} is strict: nothing may overtake a message that failed", code="topic_strict", field="to"
        )
    return queue


class _Part(NamedTuple):
    """The messages of a request that one partition has."""

    lane: LaneKey
    offsets: list[int]
    #: The partition as a segment of a logical queue.
    segment: SegmentOf | None = None


def _parts(lane: LaneKey, queue: LogicalQueue | None, offsets: Sequence[int]) -> list[_Part]:
    """Return the messages at these offsets by the partitions that have them; `lane` is of the partition named.

    Messages of segments that retention dropped are left out.
    """
    if queue is None:
        return [_Part(lane, list(offsets))]
    parts: dict[str, _Part] = {}
    for offset in offsets:
        segment = queue.segment_at(offset)
        if offset < segment.logic_offset:
            continue
        new = _Part(lane._replace(partition=segment.partition), [], SegmentOf(queue, segment))
        parts.setdefault(segment.partition, new).offsets.append(segment.physical(offset))
    return list(parts.values())


async def _log_of(lanes: Lanes, topic: Topic, part: _Part) -> PartitionLog:
    """Return the log that has the messages; raise `Unprocessable` (`offset_out_of_range`) if one is not there."""
    partition = lanes.partition_of(part.lane, topic.name)
    log = await partition.opened()
    if max(part.offsets) >= log.end_offset:
        log = await partition.look() or log
    beyond = next((offset for offset in part.offsets if offset >= log.end_offset), None)
    if beyond is None:
        return log
    end_offset, name = log.end_offset, part.lane.partition
    if part.segment is not None:
        beyond, end_offset = part.segment.shown(beyond), part.segment.shown(end_offset)
        name = part.segment.queue.name
    raise Unprocessable(
        f"offsets: {beyond} is not before the end offset {end_offset} of {name}",
        code="offset_out_of_range",
        field="offsets",
        extra={"end_offset": end_offset},
    )


async def _move(
    lanes: Lanes, group: Group, topic: Topic, parts: Sequence[_Part], asked: AsideRequest, reason: str
) -> int:
    """Copy each message; return how many were copied."""
    logs = [await _log_of(lanes, topic, part) for part in parts]
    moved = 0
    for (lane, offsets, _), log in zip(parts, logs, strict=True):
        lane_epoch = lanes.groups.epoch_of(lane)
        for offset in offsets:
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
