"""Snapshots: the whole metadata in one event, so that earlier events are no longer needed (SPEC META-3).

The metadata log only grows: renewals of leases add a few hundred thousand events a week, and a process that starts
would have to read them all. So now and then the state itself is appended, and a process that starts reads from the last
one:

    e e e e [snapshot] e e e e e [snapshot] e e e
    '- no longer needed          '- a process that starts reads from here

A snapshot is an event like others: it is appended exactly where the state that it holds ends, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.auth.client_quotas import ClientQuota
from deltamq.mq.auth.keys import Key, Password
from deltamq.mq.auth.principals import AccessRule, Principal, Quota
from deltamq.mq.auth.state import AuthState
from deltamq.mq.meta.access import Access, AccessState, PartitionOf
from deltamq.mq.meta.brokers import BrokersState, Host, Ownership
from deltamq.mq.meta.features import FeaturesState
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import GroupsState, StoredGroup
from deltamq.mq.meta.moved_keys import MovedKeys, StoredMove
from deltamq.mq.meta.online import GroupOnline, OnlineClient, OnlineState, TopicAllocation
from deltamq.mq.meta.topics import MetaState, StoredTopic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from deltamq.mq.schemas.registry import Entry, RegistryState, Schema, SubjectRules
from deltamq.mq.static.mappings import QueueMapping, TopicMappings
from deltamq.mq.stored_json import check_nothing_lost, corrupt_when_damaged, to_json


class MetaSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state after all events before this one."""

    kind: ClassVar[str] = "snapshot"
    key: ClassVar[str] = "snapshot"
    meta: Meta
    #: The offset of the previous snapshot, 0 for none.
    previous: int
    #: For each part of `meta`, the offset after the last event that changed it; never modified.
    told: Mapping[str, int]

    def to_json(self) -> bytes:
        return to_json(_Stored.of(self))

    @classmethod
    def from_json(cls, body: bytes) -> MetaSnapshot:
        """Return the snapshot that `to_json` wrote.

        Raises
        ------
        Corrupt
            `meta_event_corrupt` when the body is damaged, `route_corrupt` when a route in it is.
        Unavailable
            `feature_unknown`, `metadata_newer`: a newer release wrote it (SPEC META-5, META-6).
        """
        with corrupt_when_damaged("a stored snapshot event", code="meta_event_corrupt"):
            _read_features(body).features.state()  # first: what else a newer release wrote may not be readable at all
            snapshot = _read(body).snapshot()
            check_nothing_lost("a snapshot", body, snapshot.to_json())
        return snapshot


# The stored form, from the parts to the whole.


class _Topics(msgspec.Struct):
    topics: list[StoredTopic]
    routes_epoch: int
    ended: Mapping[str, int]

    @classmethod
    def of(cls, state: MetaState) -> _Topics:
        return cls([StoredTopic.of(topic) for topic in state.topics.values()], state.routes_epoch, state.ended)

    def state(self) -> MetaState:
        topics = {stored.name: stored.topic() for stored in self.topics}
        return MetaState(topics=topics, routes_epoch=self.routes_epoch, ended=self.ended)


class _Groups(msgspec.Struct):
    groups: list[StoredGroup]
    #: Topic id, group, retry, partition, epoch, offset.
    resets: list[tuple[str, str, bool, str, int, int]]
    epoch: int
    #: Group, topic id, partitions.
    began: list[tuple[str, str, int]]
    #: Member, epoch.
    forgotten: list[tuple[str, int]]

    @classmethod
    def of(cls, state: GroupsState) -> _Groups:
        return cls(
            [StoredGroup.of(group) for group in state.groups.values()],
            [(*lane, reset.epoch, reset.offset) for lane, reset in state.resets.items()],
            state.epoch,
            [(*pair, count) for pair, count in state.began.items()],
            [*state.forgotten.items()],
        )

    def state(self) -> GroupsState:
        return GroupsState(
            groups={stored.name: stored.group() for stored in self.groups},
            resets={LaneKey(*reset[:4]): Committed(*reset[4:]) for reset in self.resets},
            epoch=self.epoch,
            began={(group, topic_id): count for group, topic_id, count in self.began},
            forgotten=dict(self.forgotten),
        )


class _Brokers(msgspec.Struct, omit_defaults=True):
    hosts: list[Host]
    #: Host and epoch of each role.
    roles: dict[str, tuple[str | None, int]]
    epoch: int
    asked: tuple[str, ...] = ()

    @classmethod
    def of(cls, state: BrokersState) -> _Brokers:
        roles = {role: (own.host, own.epoch) for role, own in state.roles.items()}
        return cls(list(state.hosts.values()), roles, state.epoch, tuple(sorted(state.asked)))

    def state(self) -> BrokersState:
        return BrokersState(
            hosts={host.id: host for host in self.hosts},
            roles={role: Ownership(*own) for role, own in self.roles.items()},
            epoch=self.epoch,
            asked=frozenset(self.asked),
        )


class _Allocation(msgspec.Struct):
    topic_id: str
    epoch: int
    owners: Mapping[str, tuple[str, ...]]
    earlier: dict[str, list[str]]

    @classmethod
    def of(cls, allocation: TopicAllocation) -> _Allocation:
        earlier = {partition: sorted(clients) for partition, clients in allocation.earlier.items()}
        return cls(allocation.topic_id, allocation.epoch, allocation.owners, earlier)

    def allocation(self) -> TopicAllocation:
        return TopicAllocation(
            topic_id=self.topic_id,
            epoch=self.epoch,
            owners=self.owners,
            owner={partition: client for client, partitions in self.owners.items() for partition in partitions},
            earlier={partition: frozenset(clients) for partition, clients in self.earlier.items()},
        )


class _GroupOnline(msgspec.Struct):
    clients: list[OnlineClient]
    topics: dict[str, _Allocation]

    @classmethod
    def of(cls, group: GroupOnline) -> _GroupOnline:
        topics = {topic: _Allocation.of(allocation) for topic, allocation in group.topics.items()}
        return cls(list(group.clients.values()), topics)

    def group(self) -> GroupOnline:
        return GroupOnline(
            clients={client.id: client for client in self.clients},
            topics={topic: stored.allocation() for topic, stored in self.topics.items()},
        )


class _Online(msgspec.Struct):
    groups: dict[str, _GroupOnline]
    epoch: int

    @classmethod
    def of(cls, state: OnlineState) -> _Online:
        return cls({name: _GroupOnline.of(group) for name, group in state.groups.items()}, state.epoch)

    def state(self) -> OnlineState:
        return OnlineState(groups={name: group.group() for name, group in self.groups.items()}, epoch=self.epoch)


class _Access(msgspec.Struct):
    brokers: Mapping[str, Access] = {}
    #: Topic id, partition, access.
    partitions: list[tuple[str, str, Access]] = []

    @classmethod
    def of(cls, state: AccessState) -> _Access:
        return cls(state.brokers, [(*place, access) for place, access in state.partitions.items()])

    def state(self) -> AccessState:
        return AccessState(self.brokers, {PartitionOf(*row[:2]): row[2] for row in self.partitions})


class _Auth(msgspec.Struct):
    principals: list[Principal] = []
    keys: list[Key] = []
    rules: list[AccessRule] = []
    quotas: list[Quota] = []
    #: These are not there while nothing is: a release without them reads it then.
    passwords: Mapping[str, Mapping[str, Password]] | UnsetType = UNSET
    client_quotas: list[ClientQuota] | UnsetType = UNSET

    @classmethod
    def of(cls, state: AuthState) -> _Auth:
        return cls(
            list(state.principals.values()),
            list(state.keys.values()),
            list(state.rules.values()),
            list(state.quotas.values()),
            state.passwords or UNSET,
            list(state.client_quotas.values()) or UNSET,
        )

    def state(self) -> AuthState:
        return AuthState(
            {principal.name: principal for principal in self.principals},
            {key.id: key for key in self.keys},
            {rule.id: rule for rule in self.rules},
            {quota.principal: quota for quota in self.quotas},
            {} if self.passwords is UNSET else self.passwords,
            {} if self.client_quotas is UNSET else {quota.entity: quota for quota in self.client_quotas},
        )


class _Features(msgspec.Struct):
    on: Mapping[str, str] = {}

    def state(self) -> FeaturesState:
        features = FeaturesState(self.on)
        features.check_known()
        return features


class _Schemas(msgspec.Struct):
    subjects: Mapping[str, Mapping[int, Entry]] = {}
    schemas: Mapping[int, Schema] = {}
    rules: Mapping[str, SubjectRules] = {}
    last_id: int = 0

    @classmethod
    def of(cls, state: RegistryState) -> _Schemas:
        return cls(state.subjects, state.schemas, state.rules, state.last_id)

    def state(self) -> RegistryState:
        return RegistryState(self.subjects, self.schemas, self.rules, self.last_id)


class _OnlyFeatures(msgspec.Struct):
    features: _Features = msgspec.field(default_factory=_Features)


class _Stored(msgspec.Struct):
    previous: int
    told: Mapping[str, int]
    topics: _Topics
    groups: _Groups
    brokers: _Brokers
    online: _Online
    moved: dict[str, list[StoredMove]]
    #: The mappings of each static topic, by its id.
    static: dict[str, dict[str, QueueMapping]]
    access: _Access
    auth: _Auth
    features: _Features
    #: Not there while nothing is: a release without the registry reads it then.
    schemas: _Schemas | UnsetType = UNSET

    @classmethod
    def of(cls, snapshot: MetaSnapshot) -> _Stored:
        meta = snapshot.meta
        return cls(
            snapshot.previous,
            snapshot.told,
            _Topics.of(meta.topics),
            _Groups.of(meta.groups),
            _Brokers.of(meta.brokers),
            _Online.of(meta.online),
            {topic_id: list(map(StoredMove.of, keys.moves)) for topic_id, keys in meta.moved.items()},
            {topic_id: dict(mappings.by_broker) for topic_id, mappings in meta.static.items()},
            _Access.of(meta.access),
            _Auth.of(meta.auth),
            _Features(meta.features.on),
            _Schemas.of(meta.schemas) if meta.schemas else UNSET,
        )

    def snapshot(self) -> MetaSnapshot:
        moved = {id_: MovedKeys(tuple(move.move() for move in moves)) for id_, moves in self.moved.items()}
        meta = Meta(
            topics=self.topics.state(),
            groups=self.groups.state(),
            brokers=self.brokers.state(),
            online=self.online.state(),
            moved=moved,
            static={topic_id: TopicMappings(by_broker) for topic_id, by_broker in self.static.items()},
            access=self.access.state(),
            auth=self.auth.state(),
            features=self.features.state(),
            schemas=RegistryState() if self.schemas is UNSET else self.schemas.state(),
        )
        return MetaSnapshot(meta=meta, previous=self.previous, told=self.told)


_read: Final = msgspec.json.Decoder(_Stored).decode
_read_features: Final = msgspec.json.Decoder(_OnlyFeatures).decode
