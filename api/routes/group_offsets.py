"""A group's offsets in one topic over REST: read, commit, reset.

    calls --> offsets: here, or in all clusters of a global topic (SPEC STATIC-19) --> views of lanes, commits, resets

A reset begins a new epoch (SPEC POP-18).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from deltamq.api.host.clusters import from_cluster
from deltamq.api.host.global_copies import GlobalCopies
from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call, is_forwarded
from deltamq.api.progress.global_group import GlobalGroup, Here, is_for_all
from deltamq.api.progress.global_times import GlobalTimes
from deltamq.api.progress.group_progress import QueueProgress, check_offset
from deltamq.api.queue.group_topic import bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.routes.groups import ReaderName
from deltamq.api.routes.lane_views import LaneViews, Others, ask_others
from deltamq.api.routes.offset_commits import EMPTY, OffsetCommits, check_not_broadcast, check_texts, named
from deltamq.api.routes.topics import TopicName
from deltamq.api.service.dependencies import Running
from deltamq.api.wire.fields import json_answer
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, Start, reset_position
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.wire.groups import (
    CommitRequest,
    CommittedOffsets,
    GroupOffsets,
    GroupPartition,
    PlannedReset,
    ResetOffsets,
    ResetPlan,
    ResetRequest,
)

router = APIRouter(prefix="/v1/groups/{group}/topics/{topic}/offsets", tags=["groups"])

_COMMIT: Final = JsonBody(CommitRequest, {"offsets": {"orders@broker-a": 120}, "client_id": "worker-1"})
_RESET_ANSWER: Final = {"group": "billing", "topic": "orders", "epoch": 2, "offsets": {"orders@broker-a": 0}}
_RESET: Final = JsonBody(ResetRequest, {"to": "first", "retries": "drop"})


async def _offsets_of(service: Running) -> TopicOffsets:
    topics, groups, owners, lanes = service.topics, service.groups, service.owners, service.lanes
    commits = OffsetCommits(
        service.meta,
        topics,
        groups,
        owners,
        service.hosting,
        lanes=lanes,
        locks=service.locks,
        commits=service.commits,
        progress=service.progress,
        statistics=service.statistics,
    )
    return TopicOffsets(
        topics,
        groups,
        owners,
        LaneViews(lanes, service.hosting, topics, service.moved),
        commits=commits,
        resets=OffsetResets(service.meta, topics, groups, owners, lanes=lanes, progress=service.progress),
        copies=service.global_copies,
        times=service.global_times,
    )


class TopicOffsets:
    """Shows, commits and resets the offsets of groups in topics; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        owners: Owners,
        views: LaneViews,
        *,
        commits: OffsetCommits,
        resets: OffsetResets,
        copies: GlobalCopies,
        times: GlobalTimes,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._owners = owners
        self._views = views
        self._commits = commits
        self._resets = resets
        self._copies = copies
        self._times = times

    async def show(self, group: str, topic: str, call: Call) -> GroupOffsets:
        """Return the group's offsets."""
        hosted = await self._topics.require(topic)
        if is_for_all(hosted.topic, call):
            return await self._in_all(group, hosted, call).show()
        return await self._show_here(group, hosted, call)

    async def commit(self, group: str, topic: str, call: Call, asked: CommitRequest) -> CommittedOffsets:
        """Commit offsets; they are durable when this returns."""
        hosted = await self._topics.of_group(topic)
        if is_for_all(hosted.topic, call):
            known_group = await self._groups.for_use(group)
            check_not_broadcast(known_group)
            if known_group.settings.consume_strategy == "exclusive":
                refuse_global(hosted.topic, "an exclusive group")
            return await self._in_all(group, hosted, call).commit(asked)
        await self._check_copy(hosted, call)
        return await self._commits.store(group, topic, call, asked)

    async def reset(self, group: str, topic: str, call: Call, asked: ResetRequest) -> ResetOffsets:
        """Reset offsets, in a new epoch."""
        hosted = await self._topics.require(topic)
        if is_for_all(hosted.topic, call):
            check_not_broadcast(await self._groups.reader(group))
            return await self._in_all(group, hosted, call).reset(asked)
        return await self._reset_here(group, hosted, call, asked)

    async def plan_reset(self, group: str, topic: str, call: Call, asked: ResetRequest) -> ResetPlan:
        """Return what a reset would do (SPEC POP-21)."""
        hosted = await self._topics.require(topic)
        refuse_global(hosted.topic, "a plan of a reset")
        views = {view.partition: view for view in (await self._show_here(group, hosted, call)).partitions}
        targets = await self._resets.plan(group, hosted, asked)
        starts = await self._resets.starts(group, hosted)
        planned = {name: _planned(views.get(name), starts.get(name), to) for name, to in targets.items()}
        return ResetPlan(group=group, topic=topic, offsets=planned)

    def _in_all(self, group: str, hosted: HostedTopic, call: Call) -> GlobalGroup:
        here = Here(
            show=partial(self._show_here, group, hosted, call),
            commit=partial(self._commits.store, group, hosted.name, call),
            reset=partial(self._reset_here, group, hosted, call),
        )
        return GlobalGroup(self._copies, self._times, group, hosted, call, here)

    async def _check_copy(self, hosted: HostedTopic, call: Call) -> None:
        """Check that the copy of a global topic is the one by which another cluster asks."""
        if hosted.topic.world is not None and from_cluster(call.headers) and not is_forwarded(call.headers):
            await self._copies.by_copy_of(hosted, call.headers)

    async def _show_here(self, group: str, hosted: HostedTopic, call: Call) -> GroupOffsets:
        """Return the group's offsets in a topic, or in this cluster's part of a global one."""
        await self._check_copy(hosted, call)
        await self._groups.reader(group)
        known_topic, topic = hosted.topic, hosted.name
        others = None
        if not is_forwarded(call.headers):
            others = Others()
            brokers = {broker_of(name) for name in known_topic.route.partitions}
            for answer in await ask_others(self._owners, brokers, call, GroupOffsets, all_of_them=True):
                others.add(topic, answer.partitions)
        views = await self._views.of(group, known_topic, consumed=False, others=others)
        return GroupOffsets(
            group=group,
            topic=topic,
            topic_id=known_topic.id,
            offsets={view.partition: view.committed_offset for view in views if view.committed_offset is not None},
            epochs={view.partition: view.epoch for view in views if view.epoch is not None},
            partitions=tuple(views),
        )

    async def _reset_here(self, group: str, hosted: HostedTopic, call: Call, asked: ResetRequest) -> ResetOffsets:
        await self._check_copy(hosted, call)
        return await self._resets.store(group, hosted, call, asked)


_Offsets = Annotated[TopicOffsets, Depends(_offsets_of)]


@router.get("", summary="A group's offsets in a topic", responses=answers(GroupOffsets, 400, 404, 500, 503))
async def show_offsets(group: ReaderName, topic: TopicName, offsets: _Offsets, request: Request) -> Response:
    return json_answer(await offsets.show(group, topic, Call.of(request.scope)))


@router.put(
    "",
    summary="Commit offsets; durable when answered",
    responses=answers(CommittedOffsets, 400, 404, 409, 413, 415, 422, 500, 503, 507),
    openapi_extra=_COMMIT.described,
)
async def commit_offsets(group: ReaderName, topic: TopicName, offsets: _Offsets, request: Request) -> Response:
    asked = await _COMMIT.read(request)
    check_texts(asked)
    return json_answer(await offsets.commit(group, topic, Call.of(request.scope), asked))


@router.post(
    "/reset",
    summary="Reset a group's offsets in a topic, in a new epoch; with `plan`, only say what that would do",
    responses=answers(ResetOffsets | ResetPlan, 400, 404, 413, 415, 422, 500, 503, 507, example=_RESET_ANSWER),
    openapi_extra=_RESET.described,
)
async def reset_offsets(group: ReaderName, topic: TopicName, offsets: _Offsets, request: Request) -> Response:
    asked = await _RESET.read(request)
    if asked.plan:
        return json_answer(await offsets.plan_reset(group, topic, Call.of(request.scope), asked))
    return json_answer(await offsets.reset(group, topic, Call.of(request.scope), asked))


def _planned(view: GroupPartition | None, start: int | None, to: int) -> PlannedReset:
    """Return what a reset does in a partition; `start`: where the group begins there, None for the first message."""
    low = to if view is None or view.min_offset is None else view.min_offset
    before = low if start is None else start
    if view is not None and view.committed_offset is not None:
        before = view.committed_offset
    # What retention has removed meanwhile neither comes again nor is passed over.
    return PlannedReset(before=before, to=to, messages=abs(to - max(before, low)))


class OffsetResets:
    """Resets offsets in this cluster's partitions; used on the event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        topics: Topics,
        groups: Groups,
        owners: Owners,
        *,
        lanes: Lanes,
        progress: QueueProgress,
    ) -> None:
        self._meta = meta
        self._topics = topics
        self._groups = groups
        self._owners = owners
        self._lanes = lanes
        self._progress = progress

    async def store(self, group: str, hosted: HostedTopic, call: Call, asked: ResetRequest) -> ResetOffsets:
        """Reset offsets, in a global topic by this cluster's own names and offsets; return the answer."""
        drop = asked.retries == "drop"
        known_topic, offsets, shown = await self._planned(group, hosted, asked)
        epoch, ends = await self._groups.reset(group, known_topic, offsets)
        if drop and any(end > offsets.get(lane, 0) for lane, end in ends.items()):
            # A revive run appended meanwhile: go past that, too. Later runs know of the reset.
            offsets |= ends
            epoch, _ = await self._groups.reset(group, known_topic, offsets)
        # The next request to the owners of the lanes must find them in the new epoch.
        await self._owners.tell({broker_of(lane.partition) for lane in offsets}, call)
        shown |= {lane.partition: at for lane, at in offsets.items() if known_topic.static is None or lane.retry}
        return ResetOffsets(group=group, topic=hosted.name, epoch=epoch, offsets=shown)

    async def plan(self, group: str, hosted: HostedTopic, asked: ResetRequest) -> dict[str, int]:
        """Return where a reset would let the group go on, by the names that clients know; change nothing."""
        topic, offsets, shown = await self._planned(group, hosted, asked)
        return shown | {lane.partition: at for lane, at in offsets.items() if topic.static is None or lane.retry}

    async def starts(self, group: str, hosted: HostedTopic) -> dict[str, int]:
        """Return where the group begins that has no progress, by the names that clients know.

        Partitions where it begins at the first message whatever its settings say are left out.
        """
        known = await self._groups.reader(group)
        start = known.settings.consume_from
        topic, offsets, shown = await self._planned(group, hosted, ResetRequest(to=start.to_json()))
        if topic.static is not None:
            return shown
        groups, partitions = self._meta.now.groups, topic.route.partitions
        begun = {lane: groups.start_in(lane, known, partitions) for lane in offsets}
        return {lane.partition: at for lane, at in offsets.items() if begun[lane] == start}

    async def _planned(
        self, group: str, hosted: HostedTopic, asked: ResetRequest
    ) -> tuple[Topic, dict[LaneKey, int], dict[str, int]]:
        """Return the topic, the new offset of each lane, and the logical ones of a static topic's queues."""
        target = Start.from_json(asked.to, field="to") if isinstance(asked.to, str) else asked.to
        check_not_broadcast(await self._groups.reader(group))
        topic = (await self._topics.require(hosted.name)).topic
        if topic.static is not None:
            await self._meta.refresh()  # the newest segments count
        offsets, shown = await self._targets(group, topic, target)
        if asked.retries == "drop":
            offsets |= await self._past_retries(group, topic)
        return topic, offsets, shown

    async def _targets(
        self, group: str, topic: Topic, target: Start | Mapping[str, int]
    ) -> tuple[dict[LaneKey, int], dict[str, int]]:
        """Return the new offset of each lane to be reset, and the logical one of each queue of a static topic."""
        if not isinstance(target, Start):
            wanted, lanes = named(self._topics, group, topic, target, "to")
            offsets = {}
            for lane, offset in lanes.items():
                bounds = await self._lanes.bounds(lane, topic.name) or EMPTY
                check_offset(lane.partition, offset, bounds.end_offset, "to")
                offsets[lane] = reset_position(offset, bounds)
            in_queues, shown = await self._queue_targets(group, topic, wanted)
            return offsets | in_queues, shown
        queues = self._topics.queues_of(topic)
        if queues is not None:
            all_of_them = {queues.require(name, topic.name): target for name in queues.names}
            return await self._queue_targets(group, topic, all_of_them)
        lanes_there = [lane for lane in lanes_of(group, topic) if not lane.retry]
        return {
            lane: reset_position(target, await self._bounds_at(lane, topic.name, target.time_ms))
            for lane in lanes_there
        }, {}

    async def _queue_targets(
        self, group: str, topic: Topic, targets: Mapping[LogicalQueue, Start | int]
    ) -> tuple[dict[LaneKey, int], dict[str, int]]:
        lanes: dict[LaneKey, int] = {}
        shown: dict[str, int] = {}
        for queue, target in targets.items():
            queue_lanes, shown[queue.name] = await self._progress.reset_lanes(topic, group, queue, target, "to")
            lanes |= queue_lanes
        return lanes, shown

    async def _bounds_at(self, lane: LaneKey, topic: str, time_ms: int | None) -> Bounds:
        log = await self._lanes.partition_of(lane, topic).look()
        assert log is not None, "a topic's partition is there, or raised why not"
        return await bounds_at(self._lanes.logs.run, log, time_ms)

    async def _past_retries(self, group: str, topic: Topic) -> dict[LaneKey, int]:
        """Return the end of each of the group's existing retry partitions."""
        offsets = {}
        for lane in lanes_of(group, topic):
            bounds = await self._lanes.bounds(lane, topic.name) if lane.retry else None
            if bounds is not None:
                offsets[lane] = bounds.end_offset
        return offsets
