"""A group's offsets in one topic over REST: read, commit, reset."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel

from api.host import Call, Groups, HostedMeta, Hosting, Owners, Peer, Topics, is_forwarded, together
from api.queue import Lanes, begin, bounds_at
from api.routes.groups import GroupName
from api.routes.lane_views import LaneView, Others, ask_others, lane_bounds, lane_views
from api.routes.order_request import check_named
from api.routes.topics import Running, TopicName
from api.wire import JsonBody, problems
from mq.errors import Conflict, NotFound, Unprocessable
from mq.meta import Topic, lanes_of
from mq.names import broker_of
from mq.queue import Bounds, Committed, LaneKey, Start, check_epoch, reset_position
from mq.wire import CommitRequest, ResetRequest

__all__ = [
    "router",
]

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/offsets", tags=["groups"])

_EMPTY: Final = Bounds(0, 0)


_COMMIT: Final = JsonBody(CommitRequest, {"offsets": {"orders@broker-a": 120}, "client_id": "worker-1"})
_RESET: Final = JsonBody(ResetRequest, {"to": "first", "retries": "drop"})


class GroupOffsets(BaseModel):
    """The group's progress: `offsets` of partitions where it has committed, and `partitions` with details of all.

    `epochs` and `topic_id` may be sent with a commit.
    """

    group: str
    topic: str
    topic_id: str
    offsets: dict[str, int]
    epochs: dict[str, int]
    partitions: list[LaneView]


class CommittedOffsets(BaseModel):
    """The group's offsets after the commit, and their epochs; an offset that was already higher stays."""

    group: str
    topic: str
    topic_id: str
    offsets: dict[str, int]
    epochs: dict[str, int]


class ResetOffsets(BaseModel):
    """Where the group goes on, and its new epoch there; handles of earlier epochs are refused."""

    group: str
    topic: str
    epoch: int
    offsets: dict[str, int]


@router.get("", summary="A group's offsets in a topic", response_model=GroupOffsets, responses=problems(400, 404, 500))
async def show_offsets(group: GroupName, topic: TopicName, service: Running, request: Request) -> Any:
    await service.groups.require(group)
    found = (await service.topics.require(topic)).topic
    call = Call.of(request.scope)
    others = None
    if not is_forwarded(call.headers):
        others = Others()
        for answer in await ask_others(service.owners, _brokers(found), call, all_of_them=True):
            others.add(topic, answer["partitions"])
    views = await lane_views(service.lanes, service.hosting, group, found, consumed=False, others=others)
    offsets = {view.partition: view.committed_offset for view in views if view.committed_offset is not None}
    epochs = {view.partition: view.epoch for view in views if view.epoch is not None}
    place = {"group": group, "topic": topic, "topic_id": found.id}
    return place | {"offsets": offsets, "epochs": epochs, "partitions": views}


def _brokers(topic: Topic) -> set[str]:
    return {broker_of(name) for name in topic.route.partitions}


@router.put(
    "",
    summary="Commit offsets; durable when answered",
    response_model=CommittedOffsets,
    responses=problems(400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_COMMIT.described,
)
async def commit_offsets(group: GroupName, topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _COMMIT.read(request)
    wanted, numbers, epochs, attempts = asked.offsets, asked.locks or {}, asked.epochs or {}, asked.attempts or {}
    check_named(numbers, "locks", wanted)
    check_named(attempts, "attempts", wanted)
    found = await _topic_meant(service.topics, service.meta, topic, asked.topic_id)
    its_group = await service.groups.for_use(group)
    if attempts and its_group.settings.consume_strategy != "exclusive":
        raise Conflict(
            f"group {group} is shared: pops count its attempts", code="group_not_exclusive", field="attempts"
        )
    lanes = _named_lanes(group, found, wanted, "offsets")
    await _check_epochs(service.meta, lanes, epochs)
    # Check all of them before any is stored.
    for lane, offset in lanes.items():
        _check_offset(lane, offset, await lane_bounds(service.lanes, lane, topic) or _EMPTY, "offsets")
    ours, theirs = _by_owner(service.owners, lanes, Call.of(request.scope))
    for lane in ours:
        number, where = numbers.get(lane.partition), f"offsets.{lane.partition}"
        service.locks.check_commit(its_group, found, lane, asked.client_id, number, where)
    await begin(service.meta, found, its_group)
    asking = [_commit_elsewhere(service.owners, peer, part, request, asked) for peer, part in theirs.items()]
    done = await together([_commit_here(service.lanes, service.hosting, topic, ours, epochs, attempts), *asking])
    committed = {name: at for part in done for name, at in part.items()}
    offsets = {name: committed[name].offset for name in wanted}
    place = {"group": group, "topic": topic, "topic_id": found.id}
    return place | {"offsets": offsets, "epochs": {name: committed[name].epoch for name in wanted}}


async def _topic_meant(topics: Topics, meta: HostedMeta, name: str, topic_id: str | None) -> Topic:
    """Return the topic, checked against `topic_id` if one is given."""
    found = (await topics.require(name)).topic
    if topic_id in (None, found.id):
        return found
    await meta.refresh()
    found = (await topics.require(name)).topic
    if found.id != topic_id:
        raise Conflict(
            f"topic {name} was deleted and made again since its offsets were read",
            code="epoch_over",
            field="topic_id",
            extra={"topic_id": found.id},
        )
    return found


async def _check_epochs(meta: HostedMeta, lanes: Iterable[LaneKey], epochs: Mapping[str, int]) -> None:
    """Check all epochs before any offset is stored, as far as this process knows; each lane's owner checks again."""
    if max(epochs.values(), default=0) > meta.now.groups.epoch:
        await meta.refresh()
    for lane in lanes:
        check_epoch(lane.partition, epochs.get(lane.partition), meta.now.groups.epoch_of(lane) or 0)


def _by_owner(
    owners: Owners, lanes: Mapping[LaneKey, int], call: Call
) -> tuple[dict[LaneKey, int], dict[Peer, dict[str, int]]]:
    """Return the offsets of our lanes, and of those that other processes serve, by process."""
    ours: dict[LaneKey, int] = {}
    theirs: dict[Peer, dict[str, int]] = {}
    for lane, offset in lanes.items():
        peer = owners.of(broker_of(lane.partition), call)
        if peer is None:
            ours[lane] = offset
        else:
            theirs.setdefault(peer, {})[lane.partition] = offset
    return ours, theirs


async def _commit_here(
    hosted: Lanes,
    hosting: Hosting,
    topic: str,
    lanes: Mapping[LaneKey, int],
    epochs: Mapping[str, int],
    attempts: Mapping[str, int],
) -> dict[str, Committed]:
    held = {broker: hosting.epoch(broker) for broker in {broker_of(one.partition) for one in lanes}}

    def commit(lane: LaneKey, offset: int) -> Awaitable[Committed]:
        tried = attempts.get(lane.partition, 0)
        return hosted.commit(lane, topic, offset, epochs.get(lane.partition), attempts=tried)

    done = await together([commit(lane, at) for lane, at in lanes.items()])
    for broker, epoch in held.items():
        hosting.check(broker, epoch)
    now_ms = hosted.logs.now_ms()
    for lane in lanes:
        hosted.consumed(lane, now_ms)
    return {lane.partition: committed for lane, committed in zip(lanes, done, strict=True)}


async def _commit_elsewhere(
    owners: Owners, peer: Peer, offsets: dict[str, int], request: Request, asked: CommitRequest
) -> dict[str, Committed]:
    """Let another process commit the offsets of its brokers' partitions, under the locks that it granted."""

    def its(numbers: Mapping[str, int] | None) -> dict[str, int]:
        return {name: number for name, number in (numbers or {}).items() if name in offsets}

    part = msgspec.structs.replace(
        asked, offsets=offsets, locks=its(asked.locks), epochs=its(asked.epochs), attempts=its(asked.attempts)
    )
    answer = await owners.ask(peer, Call.of(request.scope, msgspec.json.encode(part)))
    return {name: Committed(answer["epochs"][name], at) for name, at in answer["offsets"].items()}


@router.post(
    "/reset",
    summary="Reset a group's offsets in a topic, in a new epoch",
    response_model=ResetOffsets,
    responses=problems(400, 404, 413, 415, 422, 500, 507),
    openapi_extra=_RESET.described,
)
async def reset_offsets(group: GroupName, topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _RESET.read(request)
    drop = asked.retries == "drop"
    target = Start.from_json(asked.to, field="to") if isinstance(asked.to, str) else asked.to
    await service.groups.require(group)
    found = (await service.topics.require(topic)).topic
    offsets = await _targets(service.lanes, group, found, target)
    if drop:
        offsets |= await _past_retries(service.lanes, group, found)
    epoch, ends = await _reset(service.groups, group, found, offsets)
    if drop and any(end > offsets.get(lane, 0) for lane, end in ends.items()):
        # A revive run appended meanwhile: go past that, too. Later runs know of the reset.
        offsets |= ends
        epoch, _ = await _reset(service.groups, group, found, offsets)
    # The next request to the owners of the lanes must find them in the new epoch.
    await service.owners.tell({broker_of(lane.partition) for lane in offsets}, Call.of(request.scope))
    return {
        "group": group,
        "topic": topic,
        "epoch": epoch,
        "offsets": {lane.partition: offset for lane, offset in offsets.items()},
    }


async def _reset(
    groups: Groups, group: str, topic: Topic, offsets: Mapping[LaneKey, int]
) -> tuple[int, dict[LaneKey, int]]:
    """Reset the group; return its new epoch, and the ends of its retry partitions: older messages lie before them."""
    epoch = await groups.reset(group, topic, offsets)
    brokers = {broker_of(lane.partition) for lane in offsets}
    return epoch, await groups.shut_out(group, topic, brokers, epoch)


# Named partitions -----------------------------------------------------------------------------------------------------


def _named_lanes(group: str, topic: Topic, wanted: Mapping[str, int], field: str) -> dict[LaneKey, int]:
    """Return the lanes of the named partitions, which may be retry partitions, too."""
    lanes = {lane.partition: lane for lane in lanes_of(group, topic)}
    for partition in wanted:
        if partition not in lanes:
            raise NotFound(
                f"{field}: topic {topic.name} has no partition {partition!r}",
                code="partition_not_found",
                field=f"{field}.{partition}",
            )
    return {lanes[partition]: offset for partition, offset in wanted.items()}


def _check_offset(lane: LaneKey, offset: int, bounds: Bounds, field: str) -> None:
    if offset > bounds.end_offset:
        raise Unprocessable(
            f"{field}: {offset} is beyond the end offset {bounds.end_offset} of {lane.partition}",
            code="offset_out_of_range",
            field=f"{field}.{lane.partition}",
            extra={"end_offset": bounds.end_offset},
        )


# Where a reset goes ---------------------------------------------------------------------------------------------------


async def _targets(hosted: Lanes, group: str, topic: Topic, target: Start | Mapping[str, int]) -> dict[LaneKey, int]:
    """Return the new offset of each lane to be reset."""
    if isinstance(target, Start):
        lanes = [lane for lane in lanes_of(group, topic) if not lane.retry]
        return {
            lane: reset_position(target, await _bounds_at(hosted, lane, topic.name, target.time_ms)) for lane in lanes
        }
    offsets = {}
    for lane, offset in _named_lanes(group, topic, target, "to").items():
        bounds = await lane_bounds(hosted, lane, topic.name) or _EMPTY
        _check_offset(lane, offset, bounds, "to")
        offsets[lane] = reset_position(offset, bounds)
    return offsets


async def _bounds_at(hosted: Lanes, lane: LaneKey, topic: str, time_ms: int | None) -> Bounds:
    """Return the bounds of a partition, and the offset of `time_ms` in it."""
    log = await hosted.partition_of(lane, topic).look()
    assert log is not None, "a topic's partition is there, or raised why not"
    return await bounds_at(hosted.logs.run, log, time_ms)


async def _past_retries(hosted: Lanes, group: str, topic: Topic) -> dict[LaneKey, int]:
    """Return the end of each of the group's existing retry partitions."""
    offsets = {}
    for lane in lanes_of(group, topic):
        bounds = await lane_bounds(hosted, lane, topic.name) if lane.retry else None
        if bounds is not None:
            offsets[lane] = bounds.end_offset
    return offsets
