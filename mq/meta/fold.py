"""Everything that the metadata log adds up to, as a fold of the events of all families (SPEC META-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, get_args

from mq.errors import Corrupt
from mq.meta.brokers import BROKER_EVENTS, BrokerEvent, BrokersState, HostRenewed
from mq.meta.group import GROUP_EVENTS, GroupEvent, GroupsState
from mq.meta.moved_keys import MOVE_EVENTS, MovedKeys, MoveEvent
from mq.meta.online import OnlineState
from mq.meta.online_events import ONLINE_EVENTS, OnlineEvent
from mq.meta.topics import TOPIC_EVENTS, Event, MetaState, TopicDeleted
from mq.stored_json import Form, corrupt_when_damaged

__all__ = ["AnyEvent", "Meta", "event_from_json", "event_to_json", "parts_told"]

AnyEvent = Event | GroupEvent | BrokerEvent | OnlineEvent | MoveEvent

_NO_MOVES: Final = MovedKeys()


@dataclass(frozen=True, slots=True)
class Meta:
    """The state of all families. Immutable: `apply_all` returns the next one."""

    topics: MetaState = field(default_factory=MetaState)
    groups: GroupsState = field(default_factory=GroupsState)
    brokers: BrokersState = field(default_factory=BrokersState)
    online: OnlineState = field(default_factory=OnlineState)
    #: Keys that expansions moved, by the id of the topic's life; never modified.
    moved: Mapping[str, MovedKeys] = field(default_factory=dict)

    def apply_all(self, events: Sequence[AnyEvent]) -> Meta:
        """The state after `events`. The families know of each other only that a topic ends."""
        of_topics = [e for e in events if isinstance(e, Event)]
        of_brokers = [e for e in events if isinstance(e, BrokerEvent)]
        of_clients = [e for e in events if isinstance(e, OnlineEvent)]
        groups, moved = self.groups, dict(self.moved)
        waiting: list[GroupEvent] = []
        for event in events:
            if isinstance(event, TopicDeleted):
                groups = groups.apply_all(waiting).without_topic(event.id)
                waiting = []
                moved.pop(event.id, None)
            elif isinstance(event, MoveEvent):
                moved[event.topic_id] = moved.get(event.topic_id, _NO_MOVES).apply_all([event])
            elif isinstance(event, GroupEvent):
                waiting.append(event)
        return Meta(
            topics=self.topics.apply_all(of_topics) if of_topics else self.topics,
            groups=groups.apply_all(waiting) if waiting else groups,
            brokers=self.brokers.apply_all(of_brokers) if of_brokers else self.brokers,
            online=self.online.apply_all(of_clients) if of_clients else self.online,
            moved=moved,
        )

    def over(self, known: Meta) -> Meta:
        """This state, with the very parts of `known` that are equal: who compares by identity sees no change there."""
        same = {part.name for part in fields(Meta) if getattr(self, part.name) == getattr(known, part.name)}
        return replace(self, **{name: getattr(known, name) for name in same})

    def moved_keys(self, topic_id: str) -> MovedKeys:
        """The keys of this life of a topic that expansions moved."""
        return self.moved.get(topic_id, _NO_MOVES)


def parts_told(event: AnyEvent) -> tuple[str, ...]:
    """Which parts of `Meta` an event tells something about; none for one that only says that a host is alive."""
    return _TOLD[type(event)]


#: A topic ends with what there is about it elsewhere.
_TOLD: Final[Mapping[type, tuple[str, ...]]] = {
    **dict.fromkeys(get_args(Event), ("topics",)),
    **dict.fromkeys(get_args(GroupEvent), ("groups",)),
    **dict.fromkeys(get_args(BrokerEvent), ("brokers",)),
    **dict.fromkeys(get_args(OnlineEvent), ("online",)),
    **dict.fromkeys(get_args(MoveEvent), ("moved",)),
    TopicDeleted: ("topics", "groups", "moved"),
    HostRenewed: (),
}
_FORMS: Final[Mapping[str, Form[Any]]] = {
    **TOPIC_EVENTS,
    **GROUP_EVENTS,
    **BROKER_EVENTS,
    **ONLINE_EVENTS,
    **MOVE_EVENTS,
}


def event_to_json(event: AnyEvent) -> bytes:
    """The text of an event in the metadata log, where its kind stands beside it."""
    return _FORMS[event.kind].to_json(event)


def event_from_json(kind: str, body: bytes) -> AnyEvent:
    """The event of this `kind`, of whichever family, that `event_to_json` wrote.

    Raises
    ------
    Corrupt
        `meta_event_unknown` when a newer release wrote a kind that this one does not know: deciding without it could
        undo it. `meta_event_corrupt` when the body is damaged, `route_corrupt` when a route in it is.
    """
    form = _FORMS.get(kind)
    if form is None:
        raise Corrupt(f"the metadata log holds an event of unknown kind {kind!r}", code="meta_event_unknown")
    with corrupt_when_damaged(f"a stored {kind} event", code="meta_event_corrupt"):
        event: AnyEvent = form.from_json(body)
        return event
