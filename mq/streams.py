"""Streaming reads: a query's position, which of its runs has the checkpoint, and how much the next batch takes.

    {"stream": "...", "topics": {"orders": {"id": "...", "partitions": {"orders@broker-a": 120}}}, "version": 1,
     "warehouse": "..."}

Each offset of a position is the next one to read. The topic's id distinguishes the current topic from deleted ones of
the same name; the warehouse's id reveals a checkpoint folder of another warehouse. Both are empty where there is no
metadata log. The stream's id is drawn for the first position and stays: every run from the checkpoint has it (`Claim`).
Streaming engines compare positions as text, so keys are sorted: equal positions have equal text. `version` is the
version of this format: a newer one is refused, an older one is upgraded step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from deltamq.mq.errors import Corrupt, Refused
from deltamq.mq.stored_json import corrupt_when_damaged, integer, mapping, reader

FORMAT_VERSION: Final = 1

Json = Mapping[str, object]
#: For each older version, the function that converts it to the next version.
Upgrades = Mapping[int, Callable[[Json], Json]]
_UPGRADES: Final[Upgrades] = {}


class TopicOffset(msgspec.Struct, frozen=True):
    """The position in one life of a topic."""

    id: str
    #: The next offset of each partition, by name; never modified.
    partitions: Mapping[str, Annotated[int, msgspec.Meta(ge=0)]]
    #: The ranges `[low, high)` of offsets without messages, of each logical queue that has any; only in the position of
    #: the end, from which the lag is computed, and in no checkpoint.
    holes: Mapping[str, tuple[tuple[int, int], ...]] = msgspec.field(default_factory=dict)


class StreamOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a streaming read."""

    warehouse: str = ""
    #: Identifies the checkpoint; empty in a position that is in none.
    stream: str = ""
    #: By name; never modified.
    topics: Mapping[str, TopicOffset] = msgspec.field(default_factory=dict)

    def of(self, topic: str, topic_id: str, partition: str) -> int | None:
        """Return the position in a partition of the topic with this id; None where the read has not begun."""
        position = self.topics.get(topic)
        return position.partitions.get(partition) if position is not None and position.id == topic_id else None

    def places(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield topic, id of the topic, partition and offset of every partition."""
        for name, topic in self.topics.items():
            for partition, offset in topic.partitions.items():
                yield name, topic.id, partition, offset

    def is_before(self, other: StreamOffset) -> bool:
        """Whether `other` can be a later position of the same stream."""
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
    without = sum(max(0, min(high, end) - max(low, at)) for low, high in holes)
    return max(0, end - at - without)


#: Claims that are kept for each checkpoint.
CLAIMS_KEPT: Final = 16
_DIGITS: Final = 20
_SUFFIX: Final = ".json"


class Claim(NamedTuple):
    """One run's claim; the larger one counts, also of two with one number.

    Claims are numbered, and only ever added. So every run finds the same claim that counts, at any time and without a
    clock: a killed run blocks no other, and a run that slept finds that it is no longer its turn (SPEC SPARK-22).
    """

    number: int
    run: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.number:0{_DIGITS}d}-{self.run}{_SUFFIX}"

    @classmethod
    def of(cls, name: str) -> Claim | None:
        """Return the claim of a file's name; None for another file."""
        number, dash, run = name.removesuffix(_SUFFIX).partition("-")
        if not name.endswith(_SUFFIX) or not dash or len(number) != _DIGITS or not number.isdecimal():
            return None
        return cls(int(number), run)


def claim_that_counts(there: Collection[Claim], run: str, *, claimed: bool) -> Claim:
    """Return the claim that counts. If it is of `run` and not in `there`, the caller writes it and asks again.

    Parameters
    ----------
    claimed
        Whether this run has made a claim before: then it never makes a second one while there is any of another run.
    """
    newest = max(there, default=None)
    if newest is None:
        return Claim(1, run)
    if claimed or any(claim.run == run for claim in there):
        return newest
    return Claim(newest.number + 1, run)


K = TypeVar("K")


class TriggerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a query sets for its batches; None for a limit that it does not set.

    The rules are as for the options `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and `maxTriggerDelay` of Spark's
    Kafka source.
    """

    messages_max: int | None = None
    messages_min: int | None = None
    #: Longest wait for `messages_min`, counted from the previous batch, in milliseconds.
    delay_ms_max: int = 15 * 60 * 1000

    def must_wait(self, available: int, *, since_last_ms: int | None) -> bool:
        """Return whether the next batch waits for more messages; the first (`since_last_ms` None) never does."""
        if self.messages_min is None or since_last_ms is None or since_last_ms >= self.delay_ms_max:
            return False
        return available < self.messages_min


def admitted(available: Mapping[K, int], messages_max: int | None) -> dict[K, int]:
    """Return how many messages of each partition the next batch takes.

    Partitions share `messages_max` in proportion to their available messages. Each gets at least one, so that none
    starves beside a busy one; a batch may therefore exceed the limit by at most one message for each partition.
    """
    total = sum(available.values())
    if messages_max is None or total <= messages_max:
        return dict(available)
    return {key: min(count, max(1, count * messages_max // total)) for key, count in available.items()}
