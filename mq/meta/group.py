"""Groups: their lives, settings and resets as a fold of events, and the decisions that make events.

Every life of a group and every reset of its offsets has an epoch, drawn from one counter that only grows. The progress
of a group in a partition belongs to one epoch; handles, checkpoints and commits of earlier ones are void:

    billing created (epoch 1)   reset orders@A (epoch 2)     deleted     created again (epoch 3)
    |---------- orders@A: 1 ----|---------- 2 --------------|            |---------- 3 ------
    |---------- orders@B: 1 --------------------------------|            |---------- 3 ------

A reset of one partition voids nothing in the others (SPEC POP-18). After a reset to `NO_OFFSET` the group has no offset
there: it begins again, as if it had never read the partition.

Each client of a broadcast group has progress of its own: it is a reader `GROUP@CLIENT` with the settings of the group
(SPEC CONS-7). No event makes such a member: it is there as soon as it commits, and ends with its group, or when it is
forgotten, which begins an epoch only for it.

The setting `consume_from` determines where a group begins. If that is not the first message, it also matters when the
group begins: a partition that an expansion adds later has only messages that came since, and the group gets them all
(SPEC MODEL-4, ROUTE-6). So the beginning in a topic is an event, too, with the number of partitions that the topic had
then: an expansion keeps these and adds others behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from deltamq.mq.errors import Conflict, NotFound, Refused
from deltamq.mq.meta.group_settings import GroupRequest, GroupSettings
from deltamq.mq.names import check_group, is_system, member_name, split_member
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, Start, StartKind
from deltamq.mq.stored_json import Form, check_event, form, forms_of

#: The offset of a reset after which the group has none.
NO_OFFSET: Final = -1


class Pause(msgspec.Struct, frozen=True):
    """Since when a group gets no messages, why, and who paused it (SPEC CONS-12)."""

    reason: str
    since_ms: int
    #: The principal; empty without authentication.
    by: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a group, or of a client of a broadcast group."""

    name: str
    #: The epoch of its creation; later lives and resets have greater ones.
    epoch: int
    settings: GroupSettings
    created_ms: int
    #: None while messages are delivered.
    paused: Pause | None = None

    @property
    def is_broadcast(self) -> bool:
        """Whether each client hears all messages; its clients have progress, and the group itself has none."""
        return self.settings.consume_strategy == "broadcast" and split_member(self.name) is None


class GroupPut(msgspec.Struct, frozen=True, kw_only=True):
    """A group was created, or its settings changed; holds the complete new state of the group."""

    kind: ClassVar[str] = "group_put"
    group: Group

    @property
    def key(self) -> str:
        return f"group/{self.group.name}"


class GroupDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A group was deleted."""

    kind: ClassVar[str] = "group_deleted"
    name: str
    epoch: int

    @property
    def key(self) -> str:
        return f"group/{self.name}"


class OffsetsReset(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of a group were reset in these lanes, in a new epoch (SPEC POP-18)."""

    kind: ClassVar[str] = "offsets_reset"
    group: str
    topic: str
    epoch: int
    offsets: tuple[tuple[LaneKey, int], ...]

    @property
    def key(self) -> str:
        return f"group/{self.group}"


class GroupBegan(msgspec.Struct, frozen=True, kw_only=True):
    """A group that does not begin at the first message began in topics: their ids and current partition counts."""

    kind: ClassVar[str] = "group_began"
    group: str
    topics: tuple[tuple[str, int], ...]

    @property
    def key(self) -> str:
        return f"group/{self.group}"


class ClientForgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a client of a broadcast group was dropped: if it comes back, it begins like a new one."""

    kind: ClassVar[str] = "client_forgotten"
    group: str
    client: str
    epoch: int

    @property
    def key(self) -> str:
        return f"group/{self.group}"


GroupEvent = GroupPut | GroupDeleted | OffsetsReset | GroupBegan | ClientForgotten


class StoredGroup(msgspec.Struct, omit_defaults=True):
    """The stored form of a group; its settings have the form of the API, and `GroupSettings.from_json` reads them."""

    name: str
    epoch: int
    settings: dict[str, object]
    created_ms: int
    paused: Pause | None = None

    @classmethod
    def of(cls, group: Group) -> StoredGroup:
        return cls(group.name, group.epoch, group.settings.to_json(), group.created_ms, group.paused)

    def group(self) -> Group:
        settings = GroupSettings.from_json(self.settings)
        return Group(
            name=self.name, epoch=self.epoch, settings=settings, created_ms=self.created_ms, paused=self.paused
        )


class _Put(msgspec.Struct):
    group: StoredGroup


class _Reset(msgspec.Struct):
    """The stored form of a reset; all its lanes belong to its group."""

    group: str
    topic: str
    epoch: int
    offsets: tuple[tuple[str, bool, str, int], ...]

    @classmethod
    def of(cls, event: OffsetsReset) -> _Reset:
        lanes = tuple((lane.topic_id, lane.retry, lane.partition, offset) for lane, offset in event.offsets)
        return cls(event.group, event.topic, event.epoch, lanes)

    def event(self) -> OffsetsReset:
        offsets = tuple(
            (LaneKey(topic_id, self.group, retry, partition), offset)
            for topic_id, retry, partition, offset in self.offsets
        )
        return OffsetsReset(group=self.group, topic=self.topic, epoch=self.epoch, offsets=offsets)


#: The stored form of each kind of event.
GROUP_EVENTS: Final[Mapping[str, Form[Any]]] = {
    GroupPut.kind: form(
        _Put, lambda stored: GroupPut(group=stored.group.group()), lambda event: _Put(StoredGroup.of(event.group))
    ),
    OffsetsReset.kind: form(_Reset, _Reset.event, _Reset.of),
    **forms_of(GroupDeleted, GroupBegan, ClientForgotten),
}


class GroupsState(msgspec.Struct, frozen=True):
    """The state of all groups. Immutable: `apply_all` returns the next one."""

    #: The groups by name; never modified.
    groups: Mapping[str, Group] = msgspec.field(default_factory=dict)
    #: The last reset of each lane that had one, in the current lives of groups; never modified.
    resets: Mapping[LaneKey, Committed] = msgspec.field(default_factory=dict)
    #: Grows with each creation, deletion and reset.
    epoch: int = 0
    #: The number of partitions that a topic had when a group began there, by group name and topic id, in the current
    #: lives of both; only for groups that do not begin at the first message; never modified.
    began: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict)
    #: The epochs in which clients of broadcast groups were last forgotten, by member; never modified.
    forgotten: Mapping[str, int] = msgspec.field(default_factory=dict)

    def find(self, name: str) -> Group | None:
        """Return the group with this name, or the client `GROUP@CLIENT` of a broadcast group; None without one."""
        group = self.groups.get(name)
        if group is not None:
            return group
        parts = split_member(name)
        group = None if parts is None else self.groups.get(parts[0])
        if group is None or not group.is_broadcast:
            return None
        return replace(group, name=name, epoch=self.forgotten.get(name, group.epoch))

    def group(self, name: str) -> Group:
        """Return what `find` finds; raises `NotFound` when there is nothing."""
        group = self.find(name)
        if group is None:
            parts = split_member(name)
            is_there = parts is not None and parts[0] in self.groups
            why = f": group {_base(name)} is not a broadcast group" if is_there else ""
            raise NotFound(f"there is no group {name}{why}", code="group_not_found", field="group")
        return group

    def epoch_of(self, lane: LaneKey) -> int | None:
        """Return the group's current epoch in a partition; None when there is no such group."""
        reset = self.resets.get(lane)
        if reset is not None:
            return reset.epoch
        group = self.find(lane.group)
        return None if group is None else group.epoch

    def committed_in(self, lane: LaneKey, stored: Committed | None) -> Committed | None:
        """Return the group's progress in its current epoch; None when it has not begun in the partition.

        `stored` is the progress in the offsets log, perhaps of an earlier epoch.
        """
        committed = self.resets.get(lane)
        if stored is not None and stored.epoch == self.epoch_of(lane):
            committed = stored if committed is None else stored.join(committed)
        return None if committed is not None and committed.offset == NO_OFFSET else committed

    def start_in(self, lane: LaneKey, group: Group, partitions: Sequence[str]) -> Start:
        """Return where a group begins in a lane without progress; `partitions` are the topic's, in route order.

        It begins at the first message in its retry partitions, whose messages are all its own, and in partitions that
        were added after it began in the topic, because all their messages came since.
        """
        began = self.began.get((group.name, lane.topic_id))
        if lane.retry or (began is not None and lane.partition in partitions[began:]):
            return Start()
        return group.settings.consume_from

    def apply_all(self, events: Iterable[GroupEvent]) -> GroupsState:
        """Return the state after `events`; copies the state once for all of them."""
        groups, resets, began, epoch = dict(self.groups), dict(self.resets), dict(self.began), self.epoch
        forgotten = dict(self.forgotten)
        for event in events:
            if isinstance(event, GroupPut):
                present = groups.get(event.group.name)
                check_event(
                    present is None or present.epoch == event.group.epoch, "an event of group", event.group.name
                )
                groups[event.group.name] = event.group
                epoch = max(epoch, event.group.epoch)
            elif isinstance(event, GroupDeleted):
                check_event(event.name in groups, "an event of group", event.name)
                del groups[event.name]
                resets = {lane: reset for lane, reset in resets.items() if _base(lane.group) != event.name}
                began = {pair: count for pair, count in began.items() if _base(pair[0]) != event.name}
                forgotten = {member: at for member, at in forgotten.items() if _base(member) != event.name}
                epoch = max(epoch, event.epoch)
            elif isinstance(event, ClientForgotten):
                check_event(event.group in groups and event.epoch > epoch, "an event of group", event.group)
                member = member_name(event.group, event.client)
                resets = {lane: reset for lane, reset in resets.items() if lane.group != member}
                began = {pair: count for pair, count in began.items() if pair[0] != member}
                forgotten[member] = epoch = event.epoch
            elif isinstance(event, GroupBegan):
                check_event(_base(event.group) in groups, "an event of group", event.group)
                began = {(event.group, topic_id): count for topic_id, count in event.topics} | began
            else:
                check_event(_base(event.group) in groups and event.epoch > epoch, "an event of group", event.group)
                resets |= {lane: Committed(event.epoch, offset) for lane, offset in event.offsets}
                epoch = event.epoch
        return GroupsState(groups=groups, resets=resets, epoch=epoch, began=began, forgotten=forgotten)

    def without_topic(self, topic_id: str) -> GroupsState:
        """Return the state without the resets and beginnings in the topic with this id, which was deleted."""
        return replace(
            self,
            resets={lane: at for lane, at in self.resets.items() if lane.topic_id != topic_id},
            began={pair: count for pair, count in self.began.items() if pair[1] != topic_id},
        )

    def without_partitions(self, topic_id: str, partitions: Collection[str], indexes: Collection[int]) -> GroupsState:
        """Return the state after a topic's route has lost partitions, which had these indexes in it."""

        def left(count: int) -> int:
            return count - sum(index < count for index in indexes)

        return replace(
            self,
            resets={
                lane: at
                for lane, at in self.resets.items()
                if lane.topic_id != topic_id or lane.retry or lane.partition not in partitions
            },
            began={pair: left(count) if pair[1] == topic_id else count for pair, count in self.began.items()},
        )


def _base(name: str) -> str:
    """Return the group of a member's name; any other name as it is."""
    parts = split_member(name)
    return name if parts is None else parts[0]


def decide_put_group(state: GroupsState, name: str, request: GroupRequest, now_ms: int) -> tuple[GroupEvent, ...]:
    """Return the event that makes group `name` what `request` asks; none when nothing changes.

    Raises
    ------
    Refused
        `system_name`, `invalid_group_name`.
    Conflict
        `group_name_case` when another group's name differs only by case.
    """
    if is_system(check_group(name)):
        raise Refused(
            "names that start with %RETRY%, %DLQ%, rmq_sys_ or sys/ belong to the system",
            code="system_name",
            field="group",
        )
    present = state.groups.get(name)
    if present is None:
        _refuse_other_case(state, name)
        settings = request.over(GroupSettings())
        return (GroupPut(group=Group(name=name, epoch=state.epoch + 1, settings=settings, created_ms=now_ms)),)
    changed = replace(present, settings=request.over(present.settings))
    return () if changed == present else (GroupPut(group=changed),)


def _refuse_other_case(state: GroupsState, name: str) -> None:
    """Refuse a name that differs from another only by case: case-insensitive file systems would share retry folders."""
    folded = name.lower()
    for other in state.groups:
        if other.lower() == folded:
            raise Conflict(
                f"group {other} exists, and {name} differs from it only by case",
                code="group_name_case",
                field="group",
                extra={"group": other},
            )


def decide_pause_group(state: GroupsState, name: str, pause: Pause | None) -> tuple[GroupEvent, ...]:
    """Return the event that pauses group `name`, or with None lets it go on; none when nothing changes.

    A pause of a paused group changes its reason, not since when it is paused.

    Raises
    ------
    NotFound
        `group_not_found`.
    """
    present = state.groups.get(name) or state.group(name)
    if pause is not None and present.paused is not None:
        pause = replace(pause, since_ms=present.paused.since_ms)
    return () if pause == present.paused else (GroupPut(group=replace(present, paused=pause)),)


def decide_delete_group(state: GroupsState, name: str) -> tuple[GroupEvent, ...]:
    """Return the event that deletes group `name`, or drops the progress of a client of a broadcast group.

    Raises
    ------
    NotFound
        `group_not_found`.
    """
    state.group(name)
    member = split_member(name)
    if member is not None:
        return (ClientForgotten(group=member[0], client=member[1], epoch=state.epoch + 1),)
    return (GroupDeleted(name=name, epoch=state.epoch + 1),)


def decide_reset_offsets(
    state: GroupsState, group: str, topic: str, offsets: Mapping[LaneKey, int]
) -> tuple[GroupEvent, ...]:
    """Return the event that puts `group` at `offsets` of partitions of `topic`, in a new epoch; `NO_OFFSET` at none.

    To drop retried messages, include the group's retry partitions at their end offsets; else they are kept.

    Raises
    ------
    NotFound
        `group_not_found`.
    """
    state.group(group)
    assert all(lane.group == group for lane in offsets), "lanes of this group"
    if not offsets:
        return ()
    return (OffsetsReset(group=group, topic=topic, epoch=state.epoch + 1, offsets=tuple(sorted(offsets.items()))),)


def decide_begin(state: GroupsState, group: str, topics: Mapping[str, int]) -> tuple[GroupEvent, ...]:
    """Return the event that `group` begins in `topics` (partition counts by topic id); none if it has begun already.

    A group that begins at the first message needs no event: it does so in every partition, whenever that is added.

    Raises
    ------
    NotFound
        `group_not_found`.
    """
    if state.group(group).settings.consume_from.kind is StartKind.FIRST:
        return ()
    new = tuple(sorted((topic_id, n) for topic_id, n in topics.items() if (group, topic_id) not in state.began))
    return (GroupBegan(group=group, topics=new),) if new else ()
