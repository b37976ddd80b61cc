"""The whole metadata in one event, so that the events before it are needed no more (SPEC META-3).

A log of events grows for ever, with the renewals of leases a few hundred thousand a week, and who starts would have to
read them all. So now and then the state itself is appended, and who starts begins with the last one:

    e e e e [snapshot] e e e e e [snapshot] e e e
    '- nobody needs these        '- who starts begins here

It is an event like others: appended where the state that it holds ends, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mq.meta.brokers import BrokersState, Host, Ownership
from mq.meta.fold import Meta
from mq.meta.group import Group, GroupsState
from mq.meta.moved_keys import Move, MovedKeys
from mq.meta.online import GroupOnline, OnlineState, TopicAllocation
from mq.meta.online_events import OnlineClient
from mq.meta.topics import MetaState, Topic
from mq.queue import Committed, LaneKey
from mq.stored_json import array, corrupt_when_damaged, integer, mapping, pairs, text

__all__ = ["Snapshot"]

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state that all events before this one add up to."""

    kind: ClassVar[str] = "snapshot"
    key: ClassVar[str] = "snapshot"
    meta: Meta
    #: The offset of the snapshot before it, 0 for none.
    previous: int
    #: For each part of `meta` the offset behind the last event that told something about it; never modified.
    told: Mapping[str, int]

    def to_json(self) -> Json:
        return {
            "previous": self.previous,
            "told": dict(self.told),
            "topics": _topics_to_json(self.meta.topics),
            "groups": _groups_to_json(self.meta.groups),
            "brokers": _brokers_to_json(self.meta.brokers),
            "online": _online_to_json(self.meta.online),
            "moved": {
                topic_id: [_move_to_json(one) for one in keys.moves] for topic_id, keys in self.meta.moved.items()
            },
        }

    @classmethod
    def from_json(cls, value: object) -> Snapshot:
        """What `to_json` wrote.

        Raises
        ------
        Corrupt
            `meta_event_corrupt` when the value is damaged.
        """
        with corrupt_when_damaged("a stored snapshot event", code="meta_event_corrupt"):
            stored = mapping(value)
            moved = mapping(stored["moved"])
            meta = Meta(
                topics=_topics(mapping(stored["topics"])),
                groups=_groups(mapping(stored["groups"])),
                brokers=_brokers(mapping(stored["brokers"])),
                online=_online(mapping(stored["online"])),
                moved={topic_id: MovedKeys(tuple(map(_move, array(those)))) for topic_id, those in moved.items()},
            )
            told = {family: integer(offset) for family, offset in mapping(stored["told"]).items()}
            return cls(meta=meta, previous=integer(stored["previous"]), told=told)


def _topics_to_json(state: MetaState) -> Json:
    return {
        "topics": [topic.to_json() for topic in state.topics.values()],
        "routes_epoch": state.routes_epoch,
        "ended": dict(state.ended),
    }


def _topics(stored: Mapping[str, object]) -> MetaState:
    topics = [Topic.from_json(one) for one in array(stored["topics"])]
    return MetaState(
        topics={topic.name: topic for topic in topics},
        routes_epoch=integer(stored["routes_epoch"]),
        ended={name: integer(lives) for name, lives in mapping(stored["ended"]).items()},
    )


def _groups_to_json(state: GroupsState) -> Json:
    resets = [
        [lane.topic_id, lane.group, lane.retry, lane.partition, reset.epoch, reset.offset]
        for lane, reset in state.resets.items()
    ]
    return {
        "groups": [group.to_json() for group in state.groups.values()],
        "resets": resets,
        "epoch": state.epoch,
        "began": [[group, topic_id, count] for (group, topic_id), count in state.began.items()],
    }


def _groups(stored: Mapping[str, object]) -> GroupsState:
    groups = [Group.from_json(one) for one in array(stored["groups"])]
    return GroupsState(
        groups={group.name: group for group in groups},
        resets=dict(map(_reset, array(stored["resets"]))),
        epoch=integer(stored["epoch"]),
        # Snapshots of earlier releases have none.
        began=dict(map(_began, array(stored.get("began", [])))),
    )


def _began(value: object) -> tuple[tuple[str, str], int]:
    group, topic_id, count = array(value)
    return (text(group), text(topic_id)), integer(count)


def _reset(value: object) -> tuple[LaneKey, Committed]:
    topic_id, group, retry, partition, epoch, offset = array(value)
    lane = LaneKey(text(topic_id), text(group), retry is True, text(partition))
    return lane, Committed(integer(epoch), integer(offset))


def _brokers_to_json(state: BrokersState) -> Json:
    return {
        "hosts": [host.to_json() for host in state.hosts.values()],
        "roles": {role: [own.host, own.epoch] for role, own in state.roles.items()},
        "epoch": state.epoch,
    }


def _brokers(stored: Mapping[str, object]) -> BrokersState:
    hosts = [Host.from_json(one) for one in array(stored["hosts"])]
    return BrokersState(
        hosts={host.id: host for host in hosts},
        roles={role: _ownership(own) for role, own in mapping(stored["roles"]).items()},
        epoch=integer(stored["epoch"]),
    )


def _ownership(value: object) -> Ownership:
    host, epoch = array(value)
    return Ownership(None if host is None else text(host), integer(epoch))


def _online_to_json(state: OnlineState) -> Json:
    groups: Json = {
        name: {
            "clients": [client.to_json() for client in group.clients.values()],
            "topics": {topic: _allocation_to_json(one) for topic, one in group.topics.items()},
        }
        for name, group in state.groups.items()
    }
    return {"groups": groups, "epoch": state.epoch}


def _online(stored: Mapping[str, object]) -> OnlineState:
    groups = {}
    for name, value in mapping(stored["groups"]).items():
        group = mapping(value)
        clients = [OnlineClient.from_json(one) for one in array(group["clients"])]
        groups[name] = GroupOnline(
            clients={client.id: client for client in clients},
            topics={topic: _allocation(mapping(one)) for topic, one in mapping(group["topics"]).items()},
        )
    return OnlineState(groups=groups, epoch=integer(stored["epoch"]))


def _allocation_to_json(one: TopicAllocation) -> Json:
    return {
        "topic_id": one.topic_id,
        "epoch": one.epoch,
        "owners": {client: list(those) for client, those in one.owners.items()},
        "earlier": {partition: sorted(clients) for partition, clients in one.earlier.items()},
    }


def _allocation(stored: Mapping[str, object]) -> TopicAllocation:
    owners = {client: tuple(map(text, array(those))) for client, those in mapping(stored["owners"]).items()}
    return TopicAllocation(
        topic_id=text(stored["topic_id"]),
        epoch=integer(stored["epoch"]),
        owners=owners,
        owner={partition: client for client, those in owners.items() for partition in those},
        earlier={
            partition: frozenset(map(text, array(clients))) for partition, clients in mapping(stored["earlier"]).items()
        },
    )


def _move_to_json(move: Move) -> list[object]:
    return [move.epoch, move.source, move.target, [list(pair) for pair in move.ranges], move.end_offset]


def _move(value: object) -> Move:
    epoch, source, target, ranges, end = array(value)
    return Move(integer(epoch), text(source), text(target), pairs(ranges), None if end is None else integer(end))
