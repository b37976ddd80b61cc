"""Answers about topics: their partitions, logical queues and offsets; what a remapping, a check or a repair found.

plain topic     partitions                             clients name these
static topic    logical_queues ──segments──► partitions     clients name the queues (SPEC STATIC-2)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.static.segments import Stay
from deltamq.mq.wire.answers import AccessInfo, NamePage, Time

_SERVING = "serving"


class PartitionInfo(AccessInfo, frozen=True, kw_only=True):
    """One physical partition; `max_offset` is the next offset to be written, `location` its Delta table.

    `state` is `serving`, or the code of the error that stopped the partition; what is not known then is null. What may
    not be read or written to follows from the partition's broker and from itself.
    """

    partition: str
    broker: str
    logical_partitions: tuple[tuple[int, int], ...]
    location: str
    state: str = _SERVING
    min_offset: int | None = None
    max_offset: int | None = None
    messages: int | None = None
    bytes: int | None = None
    files: int | None = None
    last_append_time: Time | None = None
    version: int | None = None
    #: Stored messages that did not fit the schema: as they came, whatever became of them; null for none.
    quarantined: int | None = None


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a logical queue, a physical partition of its own; its first message has `logic_offset`.

    `end_offset` is the physical offset behind its last message. Both are -1 while they are not decided. `state` is
    `sealed`, `sealing`, `leader`, or `undecided` (a leader whose messages have no logical offsets yet).
    """

    gen: int
    partition: str
    broker: str
    logic_offset: int
    start_offset: int
    end_offset: int
    state: str

    @property
    def is_decided(self) -> bool:
        """Whether its messages have logical offsets; until then they are stored and cannot be read (SPEC STATIC-10)."""
        return self.logic_offset >= 0

    @property
    def is_sealed(self) -> bool:
        """Whether it has got its last message."""
        return self.end_offset >= 0


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One logical queue of a static topic, in logical offsets; `messages` does not count the `holes` between them.

    `state` is `serving`, or the code of the error that stopped one of its partitions. Of a queue without a mapping
    (`queue_unserved`), only number, name and `logical_partitions` are known. Of a global topic's queue, `cluster` takes
    its messages, `stays` say where they lie, and `segments` are those of this cluster; what only a cluster that is away
    knows is null.
    """

    queue: int
    partition: str
    min_offset: int | None = None
    max_offset: int | None = None
    messages: int | None = None
    holes: int | None = None
    epoch: int | None = None
    state: str = _SERVING
    logical_partitions: tuple[tuple[int, int], ...] = ()
    #: Oldest first; the last one is the leader, to which messages are sent.
    segments: tuple[SegmentInfo, ...] = ()
    #: Of a global topic: the cluster that takes messages, null while the queue moves.
    cluster: str | None = None
    stays: tuple[Stay, ...] | None = None

    @property
    def leader(self) -> SegmentInfo | None:
        """The newest segment; None of a queue without a mapping."""
        return self.segments[-1] if self.segments else None

    @property
    def broker(self) -> str | None:
        """The broker of the leader; None of a queue without a mapping."""
        return self.segments[-1].broker if self.segments else None


class NextRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """The next file that retention takes of a partition: its messages are below offset `below`.

    It goes at `time` at the earliest: by its `age`, or by `size`, when as many bytes as are kept lie behind it. What
    would go by age goes earlier if messages that are sent until then put it beyond the size.
    """

    below: int
    messages: int
    bytes: int
    time: Time
    why: Literal["age", "size"]


class PartitionRetention(msgspec.Struct, frozen=True, kw_only=True):
    """What retention takes of a partition: `due_messages` at its next run, then `next`.

    `held_by` are the groups, as far as the caller may see them, that hold back messages that would go: they have popped
    and not acknowledged them, or have not consumed them, if retention waits for groups. The partition is as it is
    stored: of a static topic a segment.
    """

    partition: str
    messages: int
    bytes: int
    due_messages: int
    held_by: tuple[str, ...] = ()
    next: NextRemoval | None = None


class RetentionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What retention takes next of each partition of a topic; partitions that are damaged are left out.

    The limits are those that were asked for, else the topic's.
    """

    topic: str
    retention_ms: int
    retention_bytes: int
    partitions: tuple[PartitionRetention, ...]


class SchemaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the messages of a topic are written in."""

    format: Literal["avro", "json", "protobuf", "columns"]
    subject: str
    wire: Literal["confluent", "none"]
    on_invalid: Literal["reject", "quarantine", "rescue"]
    message: str = ""
    unwrap: str = ""
    #: The newest version of the subject; null if it has none any more.
    version: int | None = None
    #: The id of its schema.
    schema_id: int | None = None


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its settings, its route, and its partitions in route order.

    `logical_partitions` of a partition are half-open ranges within 0 to 1024. With the partitioner `kafka` there are
    none: keys go to the partition whose place in the route is their hash modulo the number of partitions. A static
    topic has `total_queues` logical queues; those are what clients name, and its partitions are their segments.
    """

    topic: str
    id: str
    order_strategy: str
    retention_ms: int
    message_type: str
    flush: str | None
    created_time: Time
    routes_epoch: int
    partitions: tuple[PartitionInfo, ...]
    #: The bytes that each partition keeps at least when older messages go; -1 for no limit.
    retention_bytes: int = -1
    #: How long messages wait for others that share their commit; null for the service's own setting.
    commit_window_ms: int | None = None
    #: By which hash keys go to partitions: `lp`, that of Spark SQL, or `kafka`; then no partition has logical ones.
    partitioner: Partitioner = "lp"
    #: The number of logical partitions; 0 with the partitioner `kafka`.
    logical_partitions: int = 0
    static: bool = False
    total_queues: int | None = None
    logical_queues: tuple[QueueInfo, ...] | None = None
    #: Of a static topic `cluster` or `global`; of a global one the cluster that decides, and all that have a part.
    scope: str | None = None
    home: str | None = None
    clusters: tuple[str, ...] | None = None
    #: What messages are written in; null for a topic whose bodies are bytes.
    schema: SchemaInfo | None = None

    @property
    def queues(self) -> tuple[QueueInfo, ...]:
        """The logical queues, in order; none of a plain topic."""
        return self.logical_queues or ()

    @property
    def messages(self) -> int:
        """Messages stored in all partitions; those of a damaged partition do not count."""
        return sum(p.messages or 0 for p in self.partitions)

    @property
    def named(self) -> Mapping[str, PartitionInfo | QueueInfo]:
        """What clients send to and read from, by name, in order: logical queues of a static topic, else partitions."""
        return {one.partition: one for one in (self.queues if self.static else self.partitions)}

    def min_offsets(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Return the first offset of each of these partitions or logical queues, by default of all.

        Raises
        ------
        Corrupt
            One of them is damaged, so that its offsets are not known.
        Unavailable
            `queue_unserved`: a logical queue has no mapping.
        """
        return {name: _known(one, one.min_offset) for name, one in self._chosen(names).items()}

    def max_offsets(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Return the next offset to be written of each of them; raises what `min_offsets` does."""
        return {name: _known(one, one.max_offset) for name, one in self._chosen(names).items()}

    def _chosen(self, names: Collection[str] | None) -> Mapping[str, PartitionInfo | QueueInfo]:
        return {name: one for name, one in self.named.items() if names is None or name in names}


def _known(one: PartitionInfo | QueueInfo, offset: int | None) -> int:
    if offset is not None:
        return offset
    if isinstance(one, QueueInfo) and one.leader is None:
        raise Unavailable(f"queue {one.partition} has no mapping, so its offsets are not known", code="queue_unserved")
    raise Corrupt(f"partition {one.partition} is damaged ({one.state}); its offsets are not known")


class TopicList(NamePage, frozen=True, kw_only=True, omit_defaults=True):
    """Names of topics, sorted; `next` is given if more follow: send it as `after` to get them."""

    topics: list[str]


class PartitionOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first offset whose append time is at or after the requested time; the end offset if there is none.

    Only between clusters, `found` says whether it is a message's, and not the end.
    """

    partition: str
    offset: int
    found: bool | None = None


class OffsetsByTime(msgspec.Struct, frozen=True, kw_only=True):
    """One offset for each partition."""

    topic: str
    time: Time
    offsets: list[PartitionOffset]
