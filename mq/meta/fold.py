"""The state of the metadata log, as a fold of the events of all families (SPEC META-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import fields, replace

from deltamq.mq.auth.state import AUTH_EVENTS, AuthEvent, AuthState
from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.access import ACCESS_EVENTS, AccessEvent, AccessState, PartitionOf
from deltamq.mq.meta.brokers import BROKER_EVENTS, BrokerEvent, BrokersState, HostAsked, HostRenewed
from deltamq.mq.meta.features import FEATURE_EVENTS, FeatureEvent, FeaturesState
from deltamq.mq.meta.group import GROUP_EVENTS, GroupEvent, GroupsState
from deltamq.mq.meta.moved_keys import MOVE_EVENTS, MovedKeys, MoveEvent, MoveSealed
from deltamq.mq.meta.online import ONLINE_EVENTS, OnlineEvent, OnlineState
from deltamq.mq.meta.topics import TOPIC_EVENTS, Event, MetaState, TopicDeleted
from deltamq.mq.schemas.registry import SCHEMA_EVENTS, RegistryState, SchemaEvent
from deltamq.mq.static.mappings import (
    NO_MAPPINGS,
    STATIC_EVENTS,
    MappingPut,
    MappingRemoved,
    Sealed,
    SegmentsDropped,
    StaticEvent,
    TopicMappings,
)
from deltamq.mq.stored_json import Form, check_nothing_lost, corrupt_when_damaged

AnyEvent = (
    Event
    | GroupEvent
    | BrokerEvent
    | OnlineEvent
    | MoveEvent
    | StaticEvent
    | AccessEvent
    | AuthEvent
    | FeatureEvent
    | SchemaEvent
)

_NO_MOVES: Final = MovedKeys()


class Meta(msgspec.Struct, frozen=True):
    """The state of all families. Immutable: `apply_all` returns the next one."""

    topics: MetaState = msgspec.field(default_factory=MetaState)
    groups: GroupsState = msgspec.field(default_factory=GroupsState)
    brokers: BrokersState = msgspec.field(default_factory=BrokersState)
    online: OnlineState = msgspec.field(default_factory=OnlineState)
    #: Keys that expansions moved, by topic id; never modified.
    moved: Mapping[str, MovedKeys] = msgspec.field(default_factory=dict)
    #: The mappings of static topics, by topic id; never modified.
    static: Mapping[str, TopicMappings] = msgspec.field(default_factory=dict)
    #: The brokers and partitions that may not be read or written to.
    access: AccessState = msgspec.field(default_factory=AccessState)
    #: Principals, keys and access rules.
    auth: AuthState = msgspec.field(default_factory=AuthState)
    #: The features that are switched on.
    features: FeaturesState = msgspec.field(default_factory=FeaturesState)
    #: The schema registry.
    schemas: RegistryState = msgspec.field(default_factory=RegistryState)

    def apply_all(self, events: Sequence[AnyEvent]) -> Meta:
        """Return the state after `events`. Families depend on each other only where a topic ends."""
        of_topics = [e for e in events if isinstance(e, Event)]
        of_brokers = [e for e in events if isinstance(e, BrokerEvent)]
        of_clients = [e for e in events if isinstance(e, OnlineEvent)]
        of_auth = [e for e in events if isinstance(e, AuthEvent)]
        of_features = [e for e in events if isinstance(e, FeatureEvent)]
        of_schemas = [e for e in events if isinstance(e, SchemaEvent)]
        groups, moved, static, access = self.groups, dict(self.moved), dict(self.static), self.access
        waiting: list[GroupEvent] = []
        seals: dict[str, list[Sealed]] = {}
        for event in events:
            if isinstance(event, TopicDeleted):
                groups = groups.apply_all(waiting).without_topic(event.id)
                waiting = []
                moved.pop(event.id, None)
                static.pop(event.id, None)
                access = access.without_topic(event.id)
                seals.pop(event.id, None)
            elif isinstance(event, MoveEvent):
                after = moved[event.topic_id] = moved.get(event.topic_id, _NO_MOVES).apply_all([event])
                if isinstance(event, MoveSealed) and event.topic_id in static:
                    seals.setdefault(event.topic_id, []).extend(_seals(after, event))
            elif isinstance(event, StaticEvent):
                # a seal changes the mappings that were stored before it, and no others
                static[event.topic_id] = static.get(event.topic_id, NO_MAPPINGS).sealed(seals.pop(event.topic_id, ()))
                if isinstance(event, SegmentsDropped):
                    moved[event.topic_id] = moved.get(event.topic_id, _NO_MOVES).without(frozenset(event.partitions))
                    groups = groups.apply_all(waiting)
                    groups = groups.without_partitions(event.topic_id, event.partitions, event.indexes)
                    waiting = []
                    access = access.without(PartitionOf(event.topic_id, partition) for partition in event.partitions)
                static[event.topic_id] = _mapped(static[event.topic_id], event)
            elif isinstance(event, AccessEvent):
                access = access.apply_all([event])
            elif isinstance(event, GroupEvent):
                waiting.append(event)
        for topic_id, remaining in seals.items():
            static[topic_id] = static[topic_id].sealed(remaining)
        return Meta(
            topics=self.topics.apply_all(of_topics) if of_topics else self.topics,
            groups=groups.apply_all(waiting) if waiting else groups,
            brokers=self.brokers.apply_all(of_brokers) if of_brokers else self.brokers,
            online=self.online.apply_all(of_clients) if of_clients else self.online,
            moved=moved,
            static=static,
            access=access,
            auth=self.auth.apply_all(of_auth) if of_auth else self.auth,
            features=self.features.apply_all(of_features) if of_features else self.features,
            schemas=self.schemas.apply_all(of_schemas) if of_schemas else self.schemas,
        )

    def over(self, known: Meta) -> Meta:
        """Return this state with the parts of `known` that are equal, so that they also compare equal by identity."""
        same = {part.name for part in fields(Meta) if getattr(self, part.name) == getattr(known, part.name)}
        return replace(self, **{name: getattr(known, name) for name in same})

    def moved_keys(self, topic_id: str) -> MovedKeys:
        """Return the keys that expansions moved in the topic with this id."""
        return self.moved.get(topic_id, _NO_MOVES)

    def mappings(self, topic_id: str) -> TopicMappings:
        """Return the mappings of the static topic with this id."""
        return self.static.get(topic_id, NO_MAPPINGS)


def _seals(moved: MovedKeys, event: MoveSealed) -> list[Sealed]:
    """Return the segment that a seal ended, if the move was a remapping."""
    return [
        Sealed(event.source, event.end_offset, event.at_ms, move.at_once)
        for move in moved.moves
        if move.remaps and (move.epoch, move.source) == (event.epoch, event.source)
    ]


def _mapped(mappings: TopicMappings, event: StaticEvent) -> TopicMappings:
    if isinstance(event, MappingPut):
        return mappings.put(event.holder, event.mapping)
    if isinstance(event, MappingRemoved):
        return mappings.removed(event.holder)
    return mappings.without(frozenset(event.partitions))


def parts_told(event: AnyEvent) -> tuple[str, ...]:
    """Return the parts of `Meta` that an event changes; none for an event about a lease only."""
    return _CHANGED_PARTS[type(event)]


#: The parts of `Meta` that each event changes. The end of a topic also removes its state in groups and moved keys.
_CHANGED_PARTS: Final[Mapping[type, tuple[str, ...]]] = {
    **dict.fromkeys(get_args(Event), ("topics",)),
    **dict.fromkeys(get_args(GroupEvent), ("groups",)),
    **dict.fromkeys(get_args(BrokerEvent), ("brokers",)),
    **dict.fromkeys(get_args(OnlineEvent), ("online",)),
    **dict.fromkeys(get_args(MoveEvent), ("moved", "static")),
    **dict.fromkeys(get_args(StaticEvent), ("static",)),
    **dict.fromkeys(get_args(AccessEvent), ("access",)),
    **dict.fromkeys(get_args(AuthEvent), ("auth",)),
    FeatureEvent: ("features",),
    **dict.fromkeys(get_args(SchemaEvent), ("schemas",)),
    SegmentsDropped: ("static", "moved", "groups", "access"),
    TopicDeleted: ("topics", "groups", "moved", "static", "access"),
    HostRenewed: (),
    HostAsked: (),
}
_FORMS: Final[Mapping[str, Form[Any]]] = {
    **TOPIC_EVENTS,
    **GROUP_EVENTS,
    **BROKER_EVENTS,
    **ONLINE_EVENTS,
    **MOVE_EVENTS,
    **STATIC_EVENTS,
    **ACCESS_EVENTS,
    **AUTH_EVENTS,
    **FEATURE_EVENTS,
    **SCHEMA_EVENTS,
}


def event_to_json(event: AnyEvent) -> bytes:
    """Return the body of an event in the metadata log; its kind is stored separately."""
    return _FORMS[event.kind].to_json(event)


def event_from_json(kind: str, body: bytes) -> AnyEvent:
    """Return the event of this `kind` that `event_to_json` wrote.

    Raises
    ------
    Corrupt
        `meta_event_unknown` when a newer release wrote an unknown kind: a decision without that event could undo it.
        `meta_event_corrupt` when the body is damaged, `route_corrupt` when a route in it is.
    Unavailable
        `metadata_newer` when a newer release wrote fields that this one does not know (SPEC META-6).
    """
    form = _FORMS.get(kind)
    if form is None:
        raise Corrupt(f"the metadata log holds an event of unknown kind {kind!r}", code="meta_event_unknown")
    with corrupt_when_damaged(f"a stored {kind} event", code="meta_event_corrupt"):
        event: AnyEvent = form.from_json(body)
        check_nothing_lost(f"a {kind} event", body, form.to_json(event))
    return event
