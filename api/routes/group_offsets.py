"""A group's offsets in one topic over REST: read, commit, reset."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel

from api.host import (
    Call,
    Groups,
    HostedMeta,
    HostedTopic,
    Owners,
    Peer,
    Topics,
    from_cluster,
    is_forwarded,
    refuse_global,
    together,
)
from api.progress import GlobalGroup, Here, check_offset, is_begin, is_for_all
from api.queue import Lanes, begin, bounds_at
from api.routes.groups import ReaderName
from api.routes.lane_views import LaneView, Others, ask_others, lane_bounds, lane_views
from api.routes.order_request import check_named
from api.routes.topics import TopicName
from api.service import Running, Service
from api.wire import JsonBody, problems
from mq.errors import Conflict, NotFound
from mq.meta import Group, Topic, lanes_of
from mq.names import broker_of
from mq.queue import Bounds, Committed, LaneKey, Start, check_epoch, check_metadata, reset_position
from mq.static import LogicalQueue
from mq.wire import CommitRequest, ResetRequest

__all__ = [
    "router",
]

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/offsets", tags=["groups"])

_EMPTY: Final = Bounds(0, 0)

#: A lane or a logical queue.
K = TypeVar("K")
#: A number or a text of a partition.
V = TypeVar("V")

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


@router.get(
    "", summary="A group's offsets in a topic", response_model=GroupOffsets, responses=problems(400, 404, 500, 503)
)
async def show_offsets(group: ReaderName, topic: TopicName, service: Running, request: Request) -> Any:
    hosted = await service.topics.require(topic)
    call = Call.of(request.scope)
    if is_for_all(hosted.topic, call):
        return await _global(service, group, hosted, call).show()
    return await _show(service, group, hosted, call)


def _global(service: Service, group: str, hosted: HostedTopic, call: Call) -> GlobalGroup:
    """Return the group in all clusters of a global topic (SPEC STATIC-19)."""
    here = Here(
        show=partial(_show, service, group, hosted, call),
        commit=partial(_commit, service, group, hosted.name, call),
        reset=partial(_reset_here, service, group, hosted, call),
    )
    return GlobalGroup(service.global_copies, service.global_times, group, hosted, call, here)


async def _as_asked(service: Service, hosted: HostedTopic, call: Call) -> None:
    """Return if the copy of a global topic is that by which another cluster asks."""
    if hosted.topic.world is not None and from_cluster(call.headers) and not is_forwarded(call.headers):
        await service.global_copies.by_copy_of(hosted, call.headers)


async def _show(service: Service, group: str, hosted: HostedTopic, call: Call) -> dict[str, Any]:
    """Return the group's offsets in a topic, or in this cluster's part of a global one."""
    await _as_asked(service, hosted, call)
    await service.groups.reader(group)
    found, topic = hosted.topic, hosted.name
    others = None
    if not is_forwarded(call.headers):
        others = Others()
        for answer in await ask_others(service.owners, _brokers(found), call, all_of_them=True):
            others.add(topic, answer["partitions"])
    views = await lane_views(
        service.lanes, service.hosting, service.topics, service.moved, group, found, consumed=False, others=others
    )
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
    responses=problems(400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_COMMIT.described,
)
async def commit_offsets(group: ReaderName, topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _COMMIT.read(request)
    _check_texts(asked)
    hosted = await service.topics.require(topic)
    call = Call.of(request.scope)
    if is_for_all(hosted.topic, call):
        its_group = await service.groups.for_use(group)
        _check_not_broadcast(its_group)
        if its_group.settings.consume_strategy == "exclusive":
            refuse_global(hosted.topic, "an exclusive group")
        return await _global(service, group, hosted, call).commit(asked)
    await _as_asked(service, hosted, call)
    return await _commit(service, group, topic, call, asked)


async def _commit(service: Service, group: str, topic: str, call: Call, asked: CommitRequest) -> dict[str, Any]:
    """Commit offsets, those of a global topic in this cluster's own names and offsets."""
    wanted, numbers, epochs, attempts = asked.offsets, asked.locks or {}, asked.epochs or {}, asked.attempts or {}
    check_named(numbers, "locks", wanted)
    check_named(attempts, "attempts", wanted)
    found = await _topic_meant(service.topics, service.meta, topic, asked.topic_id)
    its_group = await service.groups.for_use(group)
    _check_not_broadcast(its_group)
    if attempts and its_group.settings.consume_strategy != "exclusive":
        raise Conflict(
            f"group {group} is {its_group.settings.consume_strategy}: only exclusive groups commit attempts",
            code="group_not_exclusive",
            field="attempts",
        )
    queues, lanes = _named(service.topics, group, found, wanted, "offsets", from_peer=is_forwarded(call.headers))
    if max(epochs.values(), default=0) > service.meta.now.groups.epoch:
        await service.meta.refresh()
    ends = await _ends(service, found, queues)
    if any(offset > ends[queue] for queue, offset in queues.items()):
        # Another process may have told the client of a segment that is not known here yet.
        await service.meta.refresh()
        queues, lanes = _named(service.topics, group, found, wanted, "offsets", from_peer=is_forwarded(call.headers))
        ends = await _ends(service, found, queues)
    # Check all of them before any is stored.
    await _check(service, topic, lanes, epochs)
    for queue, offset in queues.items():
        check_epoch(queue.name, epochs.get(queue.name), service.progress.epoch_of(found, group, queue) or 0)
        check_offset(queue.name, offset, ends[queue], "offsets")
    ours, theirs = _by_owner(service.owners, {lane: broker_of(lane.partition) for lane in lanes}, call)
    our_queues, their_queues = _by_owner(service.owners, {queue: queue.leader.broker for queue in queues}, call)
    # Where a static topic's lane is named by itself, the process of its queue's leader has checked the lock.
    locked = [] if found.static is not None else [lane for lane in ours if not lane.retry]
    for lane in [*locked, *(LaneKey(found.id, group, False, queue.name) for queue in our_queues)]:
        number, where = numbers.get(lane.partition), f"offsets.{lane.partition}"
        service.locks.check_commit(its_group, found, lane, asked.client_id, number, where)
    await begin(service.meta, found, its_group)
    asking: list[Awaitable[dict[str, Committed]]] = [
        service.commits.there(peer, call, _part(asked, names)) for peer, names in _names(theirs, their_queues).items()
    ]
    begins = is_forwarded(call.headers) and is_begin(call.headers)
    here = service.commits.here(
        topic, {lane: lanes[lane] for lane in ours}, epochs, attempts, metadata=asked.metadata or {}, begins=begins
    )
    in_queues = _commit_queues(service, found, its_group, {queue: queues[queue] for queue in our_queues}, asked, call)
    done = await together([here, in_queues, *asking])
    committed = {name: at for part in done for name, at in part.items()}
    offsets = {name: committed[name].offset for name in wanted}
    leaders = {lane.partition: broker_of(lane.partition) for lane in locked}
    leaders |= {queue.name: queue.leader.broker for queue in our_queues}
    for name, broker in leaders.items():
        service.statistics.committed(group, found, name, broker, offsets[name])
    place = {"group": group, "topic": topic, "topic_id": found.id}
    return place | {"offsets": offsets, "epochs": {name: committed[name].epoch for name in wanted}}


def _check_texts(asked: CommitRequest) -> None:
    """Refuse a text of a partition that is not committed, and one that is too large."""
    texts = asked.metadata or {}
    check_named(texts, "metadata", asked.offsets)
    for name, text in texts.items():
        check_metadata(name, text)


def _check_not_broadcast(group: Group) -> None:
    if group.is_broadcast:
        raise Conflict(
            f"group {group.name} is a broadcast group: name one of its clients, {group.name}@CLIENT",
            code="group_broadcast",
            field="group",
        )


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


async def _check(service: Service, topic: str, lanes: Mapping[LaneKey, int], epochs: Mapping[str, int]) -> None:
    """Check epochs and offsets of lanes, as far as this process knows; each lane's owner checks the epochs again."""
    for lane in lanes:
        check_epoch(lane.partition, epochs.get(lane.partition), service.meta.now.groups.epoch_of(lane) or 0)
    for lane, offset in lanes.items():
        bounds = await lane_bounds(service.lanes, lane, topic) or _EMPTY
        check_offset(lane.partition, offset, bounds.end_offset, "offsets")


async def _ends(service: Service, topic: Topic, queues: Iterable[LogicalQueue]) -> dict[LogicalQueue, int]:
    return {queue: await service.progress.end(topic, queue) for queue in queues}


def _by_owner(owners: Owners, brokers: Mapping[K, str], call: Call) -> tuple[list[K], dict[Peer, list[K]]]:
    """Return what this process serves, and what others serve, by process; `brokers` has the broker of each."""
    ours: list[K] = []
    theirs: dict[Peer, list[K]] = {}
    for one, broker in brokers.items():
        peer = owners.of(broker, call)
        if peer is None:
            ours.append(one)
        else:
            theirs.setdefault(peer, []).append(one)
    return ours, theirs


def _names(lanes: Mapping[Peer, list[LaneKey]], queues: Mapping[Peer, list[LogicalQueue]]) -> dict[Peer, set[str]]:
    """Return the names of what each process serves."""
    return {
        peer: {*(lane.partition for lane in lanes.get(peer, ())), *(queue.name for queue in queues.get(peer, ()))}
        for peer in {*lanes, *queues}
    }


def _part(asked: CommitRequest, names: Collection[str]) -> CommitRequest:
    """Return the part of a request that concerns these partitions."""

    def its(given: Mapping[str, V] | None) -> dict[str, V]:
        return {name: one for name, one in (given or {}).items() if name in names}

    return msgspec.structs.replace(
        asked,
        offsets=its(asked.offsets),
        locks=its(asked.locks),
        epochs=its(asked.epochs),
        attempts=its(asked.attempts),
        # An earlier release knows no such field.
        metadata=its(asked.metadata) or None,
    )


async def _commit_queues(
    service: Service,
    topic: Topic,
    group: Group,
    queues: Mapping[LogicalQueue, int],
    asked: CommitRequest,
    call: Call,
) -> dict[str, Committed]:
    """Commit logical offsets of queues that this process leads, in lanes of any process (SPEC STATIC-16)."""
    held = {queue.leader.broker: service.hosting.epoch(queue.leader.broker) for queue in queues}
    epochs, attempts, texts = asked.epochs or {}, asked.attempts or {}, asked.metadata or {}
    done = await together(
        [
            service.progress.store(
                topic,
                group,
                queue,
                offset,
                meant=epochs.get(queue.name),
                attempts=attempts.get(queue.name, 0),
                metadata=texts.get(queue.name, ""),
                headers=call.headers,
            )
            for queue, offset in queues.items()
        ]
    )
    for broker, epoch in held.items():
        service.hosting.check(broker, epoch)
    return {queue.name: committed for queue, committed in zip(queues, done, strict=True)}


@router.post(
    "/reset",
    summary="Reset a group's offsets in a topic, in a new epoch",
    response_model=ResetOffsets,
    responses=problems(400, 404, 413, 415, 422, 500, 503, 507),
    openapi_extra=_RESET.described,
)
async def reset_offsets(group: ReaderName, topic: TopicName, service: Running, request: Request) -> Any:
    asked = await _RESET.read(request)
    hosted = await service.topics.require(topic)
    call = Call.of(request.scope)
    if is_for_all(hosted.topic, call):
        _check_not_broadcast(await service.groups.reader(group))
        return await _global(service, group, hosted, call).reset(asked)
    return await _reset_here(service, group, hosted, call, asked)


async def _reset_here(
    service: Service, group: str, hosted: HostedTopic, call: Call, asked: ResetRequest
) -> dict[str, Any]:
    """Reset offsets, those of a global topic in this cluster alone, in its own names and offsets."""
    await _as_asked(service, hosted, call)
    drop = asked.retries == "drop"
    target = Start.from_json(asked.to, field="to") if isinstance(asked.to, str) else asked.to
    _check_not_broadcast(await service.groups.reader(group))
    found = (await service.topics.require(hosted.name)).topic
    if found.static is not None:
        await service.meta.refresh()  # the newest segments count
    offsets, shown = await _targets(service, group, found, target)
    if drop:
        offsets |= await _past_retries(service.lanes, group, found)
    epoch, ends = await _reset(service.groups, group, found, offsets)
    if drop and any(end > offsets.get(lane, 0) for lane, end in ends.items()):
        # A revive run appended meanwhile: go past that, too. Later runs know of the reset.
        offsets |= ends
        epoch, _ = await _reset(service.groups, group, found, offsets)
    # The next request to the owners of the lanes must find them in the new epoch.
    await service.owners.tell({broker_of(lane.partition) for lane in offsets}, call)
    return {
        "group": group,
        "topic": hosted.name,
        "epoch": epoch,
        "offsets": shown | {lane.partition: at for lane, at in offsets.items() if found.static is None or lane.retry},
    }


async def _reset(
    groups: Groups, group: str, topic: Topic, offsets: Mapping[LaneKey, int]
) -> tuple[int, dict[LaneKey, int]]:
    """Reset the group; return its new epoch, and the ends of its retry partitions: older messages lie before them."""
    epoch = await groups.reset(group, topic, offsets)
    brokers = {broker_of(lane.partition) for lane in offsets}
    return epoch, await groups.shut_out(group, topic, brokers, epoch)


# Named partitions -----------------------------------------------------------------------------------------------------


def _named(
    topics: Topics, group: str, topic: Topic, wanted: Mapping[str, int], field: str, *, from_peer: bool = False
) -> tuple[dict[LogicalQueue, int], dict[LaneKey, int]]:
    """Return what a request names: logical queues of a static topic, and lanes, which may be retry partitions.

    Another process (`from_peer`) names the lanes of single segments, too.
    """
    queues = topics.queues_of(topic)
    lanes = {lane.partition: lane for lane in lanes_of(group, topic) if queues is None or from_peer or lane.retry}
    in_queues: dict[LogicalQueue, int] = {}
    in_lanes: dict[LaneKey, int] = {}
    for partition, offset in wanted.items():
        lane = lanes.get(partition)
        if lane is not None:
            in_lanes[lane] = offset
        elif queues is not None:
            in_queues[queues.require(partition, topic.name, f"{field}.{partition}")] = offset
        else:
            raise NotFound(
                f"{field}: topic {topic.name} has no partition {partition!r}",
                code="partition_not_found",
                field=f"{field}.{partition}",
            )
    return in_queues, in_lanes


# Where a reset goes ---------------------------------------------------------------------------------------------------


async def _targets(
    service: Service, group: str, topic: Topic, target: Start | Mapping[str, int]
) -> tuple[dict[LaneKey, int], dict[str, int]]:
    """Return the new offset of each lane to be reset, and the logical one of each queue of a static topic."""
    if not isinstance(target, Start):
        wanted, lanes = _named(service.topics, group, topic, target, "to")
        offsets = {}
        for lane, offset in lanes.items():
            bounds = await lane_bounds(service.lanes, lane, topic.name) or _EMPTY
            check_offset(lane.partition, offset, bounds.end_offset, "to")
            offsets[lane] = reset_position(offset, bounds)
        in_queues, shown = await _queue_targets(service, group, topic, wanted)
        return offsets | in_queues, shown
    queues = service.topics.queues_of(topic)
    if queues is not None:
        all_of_them = {queues.require(name, topic.name): target for name in queues.names}
        return await _queue_targets(service, group, topic, all_of_them)
    lanes_there = [lane for lane in lanes_of(group, topic) if not lane.retry]
    return {
        lane: reset_position(target, await _bounds_at(service.lanes, lane, topic.name, target.time_ms))
        for lane in lanes_there
    }, {}


async def _queue_targets(
    service: Service, group: str, topic: Topic, targets: Mapping[LogicalQueue, Start | int]
) -> tuple[dict[LaneKey, int], dict[str, int]]:
    lanes: dict[LaneKey, int] = {}
    shown: dict[str, int] = {}
    for queue, target in targets.items():
        its, shown[queue.name] = await service.progress.reset_lanes(topic, group, queue, target, "to")
        lanes |= its
    return lanes, shown


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
