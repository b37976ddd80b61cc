"""The position of a streaming read: an offset for each partition of each topic, and its form in a checkpoint folder.

    {"stream": "...", "topics": {"orders": {"id": "...", "partitions": {"orders@broker-a": 120}}}, "version": 1,
     "warehouse": "..."}

Each offset is the next one to read. The topic's id tells the current topic from deleted ones of the same name; the
warehouse's id reveals a checkpoint folder of another warehouse. Both are empty where there is no metadata log. The
stream's id is drawn for the first position and stays: all who go on from one checkpoint have it (`mq.jobs.claims`).
Streaming engines compare positions as text, so keys are sorted: equal positions have equal text. `version` is the
version of this format: a newer one is refused, an older one is upgraded step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from deltamq.mq.errors import Corrupt, Refused
from deltamq.mq.stored_json import corrupt_when_damaged, integer, mapping, reader

FORMAT_VERSION: Final = 1

Json = Mapping[str, object]
#: For each older version, the function that converts it to the next version.
Upgrades = Mapping[int, Callable[[Json], Json]]
_UPGRADES: Final[Upgrades] = {}


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The position in one life of a topic."""

    id: str
    #: The next offset of each partition, by name; never modified.
    partitions: Mapping[str, Annotated[int, msgspec.Meta(ge=0)]]
    #: The ranges `[low, high)` of offsets without messages, of each logical queue that has any; only in the position of
    #: the end, from which the lag is computed, and in no checkpoint.
    holes: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The position of a streaming read."""

    warehouse: str = ""
    #: Names the checkpoint, among all; empty in a position that is in none.
    stream: str = ""
    #: By name; never modified.
    topics: Mapping[str, TopicOffset] = field(default_factory=dict)

    def of(self, topic: str, topic_id: str, partition: str) -> int | None:
        """Return the position in a partition of the topic with this id; None where the read has not begun."""
        found = self.topics.get(topic)
        return found.partitions.get(partition) if found is not None and found.id == topic_id else None

    def places(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield topic, id of the topic, partition and offset of every partition."""
        for name, topic in self.topics.items():
            for partition, offset in topic.partitions.items():
                yield name, topic.id, partition, offset

    def is_before(self, other: StreamOffset) -> bool:
        """Whether the same stream goes on from here to `other`, as far as can be told."""
        theirs = {(topic, life, name): offset for topic, life, name, offset in other.places()}
        ours = {(topic, life, name): offset for topic, life, name, offset in self.places()}
        return ours != theirs and all(key in theirs and offset <= theirs[key] for key, offset in ours.items())

    def to_json(self) -> dict[str, object]:
        """Return the stored form, with sorted keys."""
        topics: dict[str, object] = {}
        for name, topic in sorted(self.topics.items()):
            holes = {"holes": dict(sorted(topic.holes.items()))} if topic.holes else {}
            topics[name] = {**holes, "id": topic.id, "partitions": dict(sorted(topic.partitions.items()))}
        stream = {"stream": self.stream} if self.stream else {}
        return {**stream, "topics": topics, "version": FORMAT_VERSION, "warehouse": self.warehouse}

    @classmethod
    def from_json(cls, value: object, *, upgrades: Upgrades = _UPGRADES) -> StreamOffset:
        """Return the position that `to_json` wrote, in this release or an older one.

        Raises
        ------
        Refused
            A newer release wrote the position.
        Corrupt
            The value is damaged, or is not a position of this source.
        """
        with corrupt_when_damaged("the position in the stream's checkpoint", code="stream_offset_corrupt"):
            stored = mapping(value)
            version = integer(stored["version"])
            if version > FORMAT_VERSION:
                raise Refused(
                    f"the checkpoint was written by a newer release (format {version}, this release reads up to "
                    f"{FORMAT_VERSION}): run the query with that release, or use a new checkpointLocation",
                    code="checkpoint_too_new",
                    field="checkpointLocation",
                )
            stored = _upgraded(stored, version, upgrades)
            read = _stored(stored)
            return cls(warehouse=read.warehouse, stream=read.stream, topics=read.topics)


class _Stored(msgspec.Struct):
    """The stored form of the position, in the current version."""

    warehouse: str
    topics: dict[str, TopicOffset]
    stream: str = ""


_stored: Final = reader(_Stored)


def _upgraded(stored: Json, version: int, upgrades: Upgrades) -> Json:
    for older in range(version, FORMAT_VERSION):
        if older not in upgrades:
            raise Corrupt(f"there was never a format {older} of stream positions", code="stream_offset_corrupt")
        stored = upgrades[older](stored)
    return stored


def messages_behind(end: StreamOffset, latest: StreamOffset) -> dict[tuple[str, str], int]:
    """Return for each topic and partition of `latest` how many messages a read at `end` has not read yet.

    A partition in which the read has not begun counts from offset 0, and so does a topic that was created again.
    """
    return {
        (topic, partition): _behind(
            end.of(topic, topic_id, partition) or 0, offset, latest.topics[topic].holes.get(partition, ())
        )
        for topic, topic_id, partition, offset in latest.places()
    }


def _behind(at: int, end: int, holes: tuple[tuple[int, int], ...]) -> int:
    """Return how many offsets of `[at, end)` are in none of the holes."""
    without = sum(max(0, min(high, end) - max(low, at)) for low, high in holes)
    return max(0, end - at - without)
