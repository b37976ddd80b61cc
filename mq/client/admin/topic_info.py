"""The description of a topic as typed values: its physical partitions and, of a static topic, its logical queues.

plain topic     partitions                             clients name these
static topic    logical_queues ──segments──► partitions     clients name the queues (SPEC STATIC-2)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from deltamq.mq.client.http.calls import decoded
from deltamq.mq.errors import Corrupt, Unavailable

_SERVING = "serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One physical partition; `max_offset` is the next offset to be written, `location` its Delta table.

    `state` is `serving`, or the code of the error that stopped the partition; what is not known then is None.
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
    last_append_time: datetime | None = None
    version: int | None = None
    #: What is allowed now, by the partition's own access and its broker's, and why something is not, until when.
    readable: bool = True
    writable: bool = True
    reason: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StayInfo:
    """A global topic's queue in one cluster, from `local_start` to `local_end` of the cluster's own offsets.

    The first of them is `logic_offset` of the queue. -1 stands for what is not decided yet.
    """

    cluster: str
    local_start: int
    logic_offset: int
    local_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """One logical queue of a static topic, in logical offsets; `messages` does not count the `holes` between them.

    `state` is `serving`, or the code of the error that stopped one of its partitions. Of a queue whose mapping cannot
    be had (`queue_unserved`), only number, name and `logical_partitions` are known.
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
    #: Of a global topic: the cluster that takes messages (None while the queue moves), and where messages lie.
    cluster: str | None = None
    stays: tuple[StayInfo, ...] | None = None

    @property
    def leader(self) -> SegmentInfo | None:
        """The newest segment; None if the queue's mapping cannot be had."""
        return self.segments[-1] if self.segments else None

    @property
    def broker(self) -> str | None:
        """The broker of the leader; None if the queue's mapping cannot be had."""
        return self.segments[-1].broker if self.segments else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic: its settings, its route, and its partitions in route order.

    A static topic has `total_queues` logical queues; those are what clients name, and its partitions are their
    segments.
    """

    topic: str
    id: str
    order_strategy: str
    retention_ms: int
    message_type: str
    flush: str | None
    created_time: datetime
    routes_epoch: int
    partitions: tuple[PartitionInfo, ...]
    #: By which hash keys go to partitions: `lp`, that of Spark SQL, or `kafka`; then no partition has logical ones.
    partitioner: str = "lp"
    static: bool = False
    total_queues: int | None = None
    logical_queues: tuple[QueueInfo, ...] | None = None
    #: Of a static topic `cluster` or `global`; of a global one the cluster that decides, and all that have a part.
    scope: str | None = None
    home: str | None = None
    clusters: tuple[str, ...] | None = None

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
            `queue_unserved`: the mapping of a logical queue cannot be had.
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
        raise Unavailable(f"the mapping of queue {one.partition} cannot be had, nor its offsets", code="queue_unserved")
    raise Corrupt(f"partition {one.partition} is damaged ({one.state}); its offsets are not known")


def topic_info(body: bytes) -> TopicInfo:
    """Decode the service's description of a topic."""
    return decoded(body, TopicInfo)
