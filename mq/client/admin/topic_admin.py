"""The description of a topic as typed values, and the calls of static topics: create, grow, remap, check, repair.

    plain topic     partitions                             clients name these
    static topic    logical_queues ──segments──► partitions     clients name the queues (SPEC STATIC-2)

The calls are those of SPEC STATIC-5, STATIC-7 to STATIC-9 and STATIC-23.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from deltamq.mq.client.http.calls import Calls, decoded, read_answer
from deltamq.mq.client.http.endpoint import Answer, path_of
from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.names import check_client_topic

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


_CREATED: Final = 201

#: `strict`: close the old leader of a queue, then open the new one; a short stop and no hole. `available`: the new one
#: takes messages at once; no stop, and a hole in the logical offsets.
RemapMode: TypeAlias = Literal["strict", "available"]


class MovedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A logical queue that moved, or would move, from one broker to another.

    `end_offset` is the physical offset at which its old partition was sealed, `logic_offset` the logical one at which
    the new partition begins; both are None in a plan and until the old partition is sealed. Between clusters, `source`
    and `target` are clusters, and no partitions are named.
    """

    queue: int
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    old_partition: str | None = None
    new_partition: str | None = None
    end_offset: int | None = None
    logic_offset: int | None = None


class Remapping(msgspec.Struct, frozen=True, kw_only=True):
    """What a remapping moved, or, as a `plan`, would move; `seal_ms` is how long one of the queues waited
    for its seal at most.
    """

    topic: str
    plan: bool
    mode: RemapMode
    moved: tuple[MovedQueue, ...]
    seal_ms: float | None = None


class FaultInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is missing or torn in the mappings; `broker` and `queue` are None if it is in no single one of them."""

    kind: str
    broker: str | None = None
    queue: int | None = None
    detail: str


class MappingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The mapping that one broker stores: how many queues it leads, and of how many it keeps a copy."""

    broker: str
    epoch: int
    total_queues: int
    hosted: int
    copies: int


class TopicCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the mappings of a static topic are complete, with all their faults."""

    topic: str
    epoch: int
    total_queues: int
    complete: bool
    faults: tuple[FaultInfo, ...] = ()
    mappings: tuple[MappingInfo, ...] = ()


class TopicRepair(msgspec.Struct, frozen=True, kw_only=True):
    """The faults that a repair found, and the brokers whose mappings it wrote, or, as a `plan`, would write."""

    topic: str
    plan: bool
    faults: tuple[FaultInfo, ...] = ()
    repaired: tuple[str, ...] = ()


class StaticAdmin(Calls):
    """The part of `Admin` that manages static topics."""

    def create_static_topic(
        self,
        topic: str,
        total_queues: int,
        *,
        brokers: Sequence[str] | None = None,
        clusters: Sequence[str] | None = None,
        order_strategy: Literal["best_tried", "strict"] | None = None,
        retention_ms: int | None = None,
        message_type: str | None = None,
        flush: Literal["sync", "async"] | None = None,
    ) -> TopicInfo:
        """Create a static topic of `total_queues` logical queues, or add queues to one, or change its settings.

        Parameters
        ----------
        total_queues
            The number of logical queues; it can only grow. Settings change only together with it (STATIC-23).
        brokers
            The brokers that get the new queues, evenly; by default those that lead queues now, or all.
        clusters
            The clusters that get the queues, evenly: the topic is global then, and has no brokers to name (STATIC-19).
        """
        return self.put_static_topic(
            topic,
            total_queues,
            brokers=brokers,
            clusters=clusters,
            order_strategy=order_strategy,
            retention_ms=retention_ms,
            message_type=message_type,
            flush=flush,
        )[0]

    def put_static_topic(
        self,
        topic: str,
        total_queues: int,
        *,
        brokers: Sequence[str] | None = None,
        clusters: Sequence[str] | None = None,
        **settings: str | int | None,
    ) -> tuple[TopicInfo, bool]:
        """Do the same as `create_static_topic`, and also return whether the topic is new."""
        request: dict[str, object] = {"static": True, "total_queues": total_queues}
        if brokers is not None:
            request["brokers"] = list(brokers)
        if clusters is not None:
            request |= {"scope": "global", "clusters": list(clusters)}
        request |= {name: value for name, value in settings.items() if value is not None}
        answer = self._call("PUT", path_of("topics", check_client_topic(topic)), body=msgspec.json.encode(request))
        return topic_info(answer.body), answer.status == _CREATED

    def remap(
        self,
        topic: str,
        brokers: Sequence[str],
        *,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        plan: bool = False,
    ) -> Remapping:
        """Move logical queues so that `brokers` lead them, evenly; nothing moves that need not.

        A repeated remapping moves nothing and finishes what was cut short. So, if an answer is lost, the one to the
        retry may name no queues although some have moved.

        Parameters
        ----------
        mode
            See `RemapMode`.
        queues
            Only these may move; by default all.
        plan
            Only tell what would move.
        """
        return self._remap(topic, {"brokers": list(brokers), "mode": mode}, queues, plan=plan)

    def remap_clusters(
        self,
        topic: str,
        clusters: Sequence[str],
        *,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        plan: bool = False,
    ) -> Remapping:
        """Move queues of a global topic so that `clusters` take all messages, evenly; else as `remap` (STATIC-19)."""
        return self._remap(topic, {"clusters": list(clusters), "mode": mode}, queues, plan=plan)

    def _remap(
        self, topic: str, request: dict[str, object], queues: Collection[int] | None, *, plan: bool
    ) -> Remapping:
        if queues is not None:
            request["queues"] = sorted(queues)
        if plan:
            request["plan"] = True
        return read_answer(self._topic_call(topic, "remap", request), Remapping)

    def check_topic(self, topic: str) -> TopicCheck:
        """Return whether all mappings of a static topic are there, of one epoch and whole; names every fault."""
        return read_answer(self._topic_call(topic, "check", {}), TopicCheck)

    def repair_topic(self, topic: str, *, plan: bool = False) -> TopicRepair:
        """Write the mappings anew from the copies that survive, if the check finds faults; a `plan` writes nothing.

        If an answer is lost, the one to the retry finds nothing to repair.
        """
        return read_answer(self._topic_call(topic, "repair", {"plan": True} if plan else {}), TopicRepair)

    def _topic_call(self, topic: str, verb: str, request: Mapping[str, object]) -> Answer:
        path = path_of("topics", check_client_topic(topic), verb)
        return self._call("POST", path, body=msgspec.json.encode(request))
