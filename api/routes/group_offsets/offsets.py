"""A group's offsets in one topic: in this cluster, or in all clusters of a global topic (SPEC STATIC-19)."""

from __future__ import annotations

from functools import partial
from typing import Any

from deltamq.api.host.clusters import from_cluster
from deltamq.api.host.global_copies import GlobalCopies
from deltamq.api.host.global_topics import refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call, is_forwarded
from deltamq.api.progress.global_group import GlobalGroup, Here, is_for_all
from deltamq.api.progress.global_times import GlobalTimes
from deltamq.api.routes.group_offsets.commits import OffsetCommits
from deltamq.api.routes.group_offsets.named import check_not_broadcast
from deltamq.api.routes.group_offsets.resets import OffsetResets
from deltamq.api.routes.lane_views import LaneViews, Others, ask_others
from deltamq.mq.names import broker_of
from deltamq.mq.wire.groups import CommitRequest, ResetRequest


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

    async def show(self, group: str, topic: str, call: Call) -> dict[str, Any]:
        """Return the group's offsets."""
        hosted = await self._topics.require(topic)
        if is_for_all(hosted.topic, call):
            return await self._in_all(group, hosted, call).show()
        return await self._show_here(group, hosted, call)

    async def commit(self, group: str, topic: str, call: Call, asked: CommitRequest) -> dict[str, Any]:
        """Commit offsets; they are durable when this returns."""
        hosted = await self._topics.require(topic)
        if is_for_all(hosted.topic, call):
            its_group = await self._groups.for_use(group)
            check_not_broadcast(its_group)
            if its_group.settings.consume_strategy == "exclusive":
                refuse_global(hosted.topic, "an exclusive group")
            return await self._in_all(group, hosted, call).commit(asked)
        await self._check_copy(hosted, call)
        return await self._commits.store(group, topic, call, asked)

    async def reset(self, group: str, topic: str, call: Call, asked: ResetRequest) -> dict[str, Any]:
        """Reset offsets, in a new epoch."""
        hosted = await self._topics.require(topic)
        if is_for_all(hosted.topic, call):
            check_not_broadcast(await self._groups.reader(group))
            return await self._in_all(group, hosted, call).reset(asked)
        return await self._reset_here(group, hosted, call, asked)

    def _in_all(self, group: str, hosted: HostedTopic, call: Call) -> GlobalGroup:
        here = Here(
            show=partial(self._show_here, group, hosted, call),
            commit=partial(self._commits.store, group, hosted.name, call),
            reset=partial(self._reset_here, group, hosted, call),
        )
        return GlobalGroup(self._copies, self._times, group, hosted, call, here)

    async def _check_copy(self, hosted: HostedTopic, call: Call) -> None:
        """Return if the copy of a global topic is that by which another cluster asks."""
        if hosted.topic.world is not None and from_cluster(call.headers) and not is_forwarded(call.headers):
            await self._copies.by_copy_of(hosted, call.headers)

    async def _show_here(self, group: str, hosted: HostedTopic, call: Call) -> dict[str, Any]:
        """Return the group's offsets in a topic, or in this cluster's part of a global one."""
        await self._check_copy(hosted, call)
        await self._groups.reader(group)
        found, topic = hosted.topic, hosted.name
        others = None
        if not is_forwarded(call.headers):
            others = Others()
            brokers = {broker_of(name) for name in found.route.partitions}
            for answer in await ask_others(self._owners, brokers, call, all_of_them=True):
                others.add(topic, answer["partitions"])
        views = await self._views.of(group, found, consumed=False, others=others)
        offsets = {view.partition: view.committed_offset for view in views if view.committed_offset is not None}
        epochs = {view.partition: view.epoch for view in views if view.epoch is not None}
        place = {"group": group, "topic": topic, "topic_id": found.id}
        return place | {"offsets": offsets, "epochs": epochs, "partitions": views}

    async def _reset_here(self, group: str, hosted: HostedTopic, call: Call, asked: ResetRequest) -> dict[str, Any]:
        await self._check_copy(hosted, call)
        return await self._resets.store(group, hosted, call, asked)
