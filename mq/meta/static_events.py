"""The events of static topics: a broker's mapping is stored or removed, segments are dropped (SPEC STATIC-4, 17).

A mapping is stored together with the topic's new route, in one append and before it, so no reader of a part of the
events sees the route without the mapping (SPEC STATIC-7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from deltamq.mq.static.queue_mapping import QueueMapping
from deltamq.mq.stored_json import Form, forms_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingPut:
    """A broker stored its mapping of a static topic."""

    kind: ClassVar[str] = "mapping_put"
    topic_id: str
    #: The broker that holds it; `mapping.broker` is the one that it was written for.
    holder: str
    mapping: QueueMapping

    @property
    def key(self) -> str:
        return f"mapping/{self.topic_id}/{self.holder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRemoved:
    """A broker's mapping of a static topic is gone."""

    kind: ClassVar[str] = "mapping_removed"
    topic_id: str
    holder: str

    @property
    def key(self) -> str:
        return f"mapping/{self.topic_id}/{self.holder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDropped:
    """Segments whose messages are all expired were dropped; append it behind the `TopicPut` without them."""

    kind: ClassVar[str] = "segments_dropped"
    topic_id: str
    partitions: tuple[str, ...]
    #: The indexes that they had in the route.
    indexes: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"segments/{self.topic_id}"


StaticEvent = MappingPut | MappingRemoved | SegmentsDropped

#: The stored form of each kind of event.
STATIC_EVENTS: Final[Mapping[str, Form[Any]]] = forms_of(MappingPut, MappingRemoved, SegmentsDropped)
