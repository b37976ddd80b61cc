"""Static topics over REST: how logical queues move, and what is wrong with mappings."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

_SERVING = "serving"


#: `strict`: close the old leader of a queue, then open the new one; a short stop and no hole. `available`: the new one
#: takes messages at once; no stop, and a hole in the logical offsets.
RemapMode: TypeAlias = Literal["strict", "available"]


class MovedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A logical queue that moved, or would move, from one broker to another.

    `end_offset` is the physical offset at which its old partition was sealed, `logic_offset` the logical one at which
    the new partition begins; both are null in a plan and until the old partition is sealed. Between clusters, `source`
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
    """What a remapping moved, or, as a `plan`, would move; `seal_ms` is the longest wait for a seal."""

    topic: str
    plan: bool
    mode: RemapMode
    moved: tuple[MovedQueue, ...]
    seal_ms: float | None = None


class FaultInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is missing or torn in the mappings; `broker` and `queue` are null if it is in no single one of them."""

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
