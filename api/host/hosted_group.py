"""The groups as the service sees them: the metadata log's state, and the ends of groups, topics and epochs.

Looking a group up never blocks. A deletion goes in this order, so that after a kill no request reaches the remains:

    metadata (an event)  ->  lanes in memory are void  ->  folders of retries and dead letters
                                                           (the next start sweeps what a kill left)
A reset removes no stored data, but must stop a revive run from appending messages of the old epoch:

    metadata (an event)  ->  lanes in memory are void  ->  fences in retries and dead letters  ->  answer
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import together
from deltamq.api.host.tables import Life, Tables
from deltamq.api.log.partition import Partitions
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import (
    Group,
    GroupEvent,
    GroupsState,
    Pause,
    decide_begin,
    decide_delete_group,
    decide_pause_group,
    decide_put_group,
)
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.reset import decide_reset, lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of, check_group, check_reader, split_member
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import StartKind
from deltamq.mq.queue.retry import DeadLetterTopic, RetryTopic
from deltamq.tables.log.fences import RESET_FENCE
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import dead_ref, lives_of_retry, retry_life, retry_ref

log = logging.getLogger("deltamq.api")

_SPACES: Final = (Space.RETRY, Space.DLQ)


class Groups:
    """All groups of the warehouse."""

    def __init__(
        self,
        meta: HostedMeta,
        partitions: Partitions,
        tables: Tables,
        *,
        forget: Callable[[Iterable[LaneKey]], None],
        auto_create: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`forget` makes memory forget lanes; `now_ms` is the clock for a new group's time of creation."""
        self._meta = meta
        self._partitions = partitions
        self._tables = tables
        self._forget = forget
        self._auto_create = auto_create
        self._now_ms = now_ms
        meta.follow(self._void)

    @property
    def state(self) -> GroupsState:
        return self._meta.now.groups

    def find(self, name: str) -> Group | None:
        """Return the group, or the client of a broadcast group, as far as this process knows."""
        return self.state.find(name)

    async def require(self, name: str) -> Group:
        """Return the group; raise `NotFound` if no process has created it."""
        return await self.reader(check_group(name))

    async def reader(self, name: str) -> Group:
        """Return the group or the client of a broadcast group; raise `NotFound` if no process has created the group."""
        group = self.find(check_reader(name))
        return group or (await self._meta.refresh()).groups.group(name)

    async def for_use(self, name: str) -> Group:
        """Return the group; create it with default settings if it is unknown and auto-creation is on."""
        group = self.find(name)
        if group is None and self._auto_create and split_member(name) is None:
            group, _ = await self.put(name, GroupRequest())
        return group or await self.reader(name)

    async def put(self, name: str, request: GroupRequest) -> tuple[Group, bool]:
        """Create or change a group; return it, and True if it was created."""
        now_ms = self._now_ms()
        created = False

        def decide(meta: Meta) -> tuple[GroupEvent, ...]:
            nonlocal created
            before = meta.groups.groups.get(name)
            created = before is None
            events = decide_put_group(meta.groups, name, request, now_ms)
            if before is not None and before.settings.consume_from.kind is StartKind.FIRST:
                # Where the group has begun is not recorded, so it counts as begun in all present partitions.
                events += decide_begin(meta.groups.apply_all(events), name, _partitions(meta.topics.topics.values()))
            return events

        meta = await self._meta.submit_groups(decide)
        log.info("event=group_put group=%r created=%s", name, created)
        return meta.groups.group(name), created

    async def pause(self, name: str, pause: Pause | None) -> Group:
        """Pause a group, or with None let it go on (SPEC CONS-12)."""
        meta = await self._meta.submit_groups(lambda meta: decide_pause_group(meta.groups, name, pause))
        log.info("event=group_%s group=%r", "resumed" if pause is None else "paused", name)
        return meta.groups.group(name)

    async def reset(self, name: str, topic: Topic, offsets: Mapping[LaneKey, int]) -> tuple[int, dict[LaneKey, int]]:
        """Put the group at `offsets` of lanes in `topic`, in a new epoch (SPEC POP-18); return that epoch.

        Its retries and dead letters are fenced against messages from before the reset. Also returns the ends of its
        retry partitions on the brokers of `offsets`: all later messages there are from after the reset.
        """
        assert offsets, "a topic has partitions"
        epoch = -1

        def decide(meta: Meta) -> tuple[GroupEvent, ...]:
            nonlocal epoch
            events = decide_reset(meta, name, topic, offsets)
            epoch = meta.groups.apply_all(events).epoch
            return events

        await self._meta.submit_groups(decide)
        log.info("event=offsets_reset group=%r topic=%r lanes=%d", name, topic.name, len(offsets))
        return epoch, await self._shut_out(name, topic, {broker_of(lane.partition) for lane in offsets}, epoch)

    async def _shut_out(self, name: str, topic: Topic, brokers: Iterable[str], epoch: int) -> dict[LaneKey, int]:
        """Fence retries and dead letters against messages from before this epoch; return the ends of the retries."""
        if split_member(name) is not None:  # it has no retries
            return {}
        group = await self.require(name)
        fence = partial(self._fenced_end, epoch=epoch)

        async def fenced(broker: str) -> tuple[LaneKey, int]:
            retry = retry_ref(name, group.epoch, topic.name, topic.generation, broker)
            end, _ = await together([fence(retry), fence(dead_ref(name, group.epoch, broker))])
            return LaneKey(topic.id, name, True, retry.name), end

        return dict(await together([fenced(broker) for broker in sorted(brokers)]))

    async def _fenced_end(self, ref: PartitionRef, epoch: int) -> int:
        opened = await self._partitions.of(ref).opened()
        return await self._partitions.run(partial(opened.fence, RESET_FENCE, epoch))

    async def delete(self, name: str) -> None:
        """Delete a group with its progress, handles, retried messages and dead letters (SPEC POP-12).

        For a client of a broadcast group, it drops the client's progress (SPEC CONS-7).
        """
        group = await self.reader(name)
        topics: tuple[Topic, ...] = ()

        def decide(meta: Meta) -> tuple[GroupEvent, ...]:
            nonlocal group, topics
            group, topics = meta.groups.group(name), tuple(meta.topics.topics.values())
            return decide_delete_group(meta.groups, name)

        await self._meta.submit_groups(decide)
        log.info("event=group_deleted group=%r", name)
        if split_member(name) is not None:
            return
        retries = [_retries(group, topic) for topic in topics]
        await self._drop([*retries, (Space.DLQ, DeadLetterTopic(name).storage_name, group.epoch)])

    async def drop_retries(self, topic: Topic) -> None:
        """Remove the groups' retry partitions for a deleted topic (SPEC POP-12)."""
        await self._drop([_retries(group, topic) for group in self.state.groups.values()])

    async def sweep(self) -> None:
        """Remove retries and dead letters of ended groups and topics whose removal was cut short."""
        warehouse = self._partitions.warehouse

        def stored() -> set[Life]:
            return {(ref.space, ref.topic, ref.generation) for space in _SPACES for ref in warehouse.refs(space)}

        # List folders before the metadata: the metadata of their groups and topics exists before they do.
        lives = await self._partitions.run(stored)
        meta = await self._meta.refresh()
        await self._drop([life for life in lives if _is_over(meta, life)])

    async def _drop(self, lives: Iterable[Life]) -> None:
        lives = list(lives)
        for life in lives:
            self._partitions.drop(*life)
        await self._tables.drop(lives)

    def _void(self, before: Meta, after: Meta) -> None:
        if after.topics is before.topics and after.groups is before.groups:
            return
        lanes = ended_lanes(before, after)
        if lanes:
            self._forget(lanes)


def _partitions(topics: Iterable[Topic]) -> dict[str, int]:
    return {topic.id: len(topic.route.partitions) for topic in topics}


def ended_lanes(before: Meta, after: Meta) -> set[LaneKey]:
    """Return the lanes whose epoch has ended: the group or topic is over, or its offsets were reset."""
    topics, groups = before.topics.topics, before.groups.groups
    over_groups = [name for name, group in groups.items() if _epoch(after, name) != group.epoch]
    over_topics = [topic for topic in topics.values() if _topic_id(after, topic.name) != topic.id]
    ended = {lane for group in over_groups for topic in topics.values() for lane in lanes_of(group, topic)}
    ended |= {lane for topic in over_topics for group in groups for lane in lanes_of(group, topic)}
    gone = [name for name, epoch in after.groups.forgotten.items() if before.groups.forgotten.get(name) != epoch]
    ended |= {lane for member in gone for topic in topics.values() for lane in lanes_of(member, topic)}
    known = before.groups.resets
    return ended | {lane for lane, reset in after.groups.resets.items() if known.get(lane) != reset}


def _epoch(meta: Meta, group: str) -> int | None:
    state = meta.groups.groups.get(group)
    return None if state is None else state.epoch


def _topic_id(meta: Meta, topic: str) -> str | None:
    state = meta.topics.topics.get(topic)
    return None if state is None else state.id


def _retries(group: Group, topic: Topic) -> Life:
    return (Space.RETRY, RetryTopic(group.name, topic.name).storage_name, retry_life(group.epoch, topic.generation))


def _is_over(meta: Meta, life: Life) -> bool:
    """Whether the metadata says that this life has ended; an unknown life has not."""
    space, storage_name, generation = life
    if space is Space.DLQ:
        return _group_is_over(meta, storage_name, generation)
    retry = RetryTopic.of_storage_name(storage_name)
    group_epoch, topic_generation = lives_of_retry(generation)
    return _group_is_over(meta, retry.group, group_epoch) or topic_generation < meta.topics.ended.get(retry.topic, 0)


def _group_is_over(meta: Meta, name: str, epoch: int) -> bool:
    return epoch <= meta.groups.epoch and _epoch(meta, name) != epoch
