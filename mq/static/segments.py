"""What logical queues are made of: segments, each a partition, and stays, each in a cluster (SPEC STATIC-1, 19)."""

from __future__ import annotations

from typing import Final

import msgspec

from deltamq.mq.errors import Unavailable
from deltamq.mq.names import broker_of

#: Stands for a logic offset, an end offset or a time that is not known yet.
UNDECIDED: Final = -1


def not_decided(name: str) -> Unavailable:
    """Return the error for the messages of a partition or queue that have no logical offsets yet (SPEC STATIC-10)."""
    return Unavailable(
        f"the logical offsets of {name} are not decided yet; ask again",
        code="logic_offset_undecided",
        field="partition",
    )


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment. Times are milliseconds since 1970."""

    #: Grows by at least 1 from segment to segment of a queue.
    gen: int
    #: The physical partition; it never belongs to another segment (SPEC STATIC-12).
    partition: str
    #: The logical offset of the first message; UNDECIDED until the segment before is sealed.
    logic_offset: int
    #: The physical offset of the first message: always 0, because no partition is used twice.
    start_offset: int = 0
    #: The physical offset behind the last message; UNDECIDED until the segment is sealed.
    end_offset: int = UNDECIDED
    #: When the segment became a leader, when it was sealed, and the later of both.
    start_ms: int
    end_ms: int = UNDECIDED
    update_ms: int

    @property
    def broker(self) -> str:
        return broker_of(self.partition)

    @property
    def is_decided(self) -> bool:
        """Whether its messages have logical offsets."""
        return self.logic_offset >= 0

    @property
    def is_sealed(self) -> bool:
        """Whether it has got its last message."""
        return self.end_offset >= 0

    @property
    def delta(self) -> int:
        """The number that turns a physical offset into the logical one, when added.

        Raises
        ------
        Unavailable
            `logic_offset_undecided`: the segment before is not sealed yet.
        """
        if not self.is_decided:
            raise not_decided(self.partition)
        return self.logic_offset - self.start_offset

    def logical(self, offset: int) -> int:
        """Return the logical offset of a physical one; raises what `delta` does."""
        return max(offset, self.start_offset) + self.delta

    def physical(self, logical: int) -> int:
        """Return the physical offset of a logical one; raises what `delta` does."""
        return max(logical - self.delta, self.start_offset)

    @property
    def logic_end(self) -> int:
        """The logical offset behind the last message of a sealed segment; raises what `delta` does."""
        assert self.is_sealed, "an open segment has no end"
        return self.logical(self.end_offset)


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """Local offsets `[local_start, local_end)` of one cluster, which begin at the global offset `logic_offset`."""

    cluster: str
    local_start: int
    #: UNDECIDED until the stay before has ended.
    logic_offset: int
    #: UNDECIDED until the queue has left the cluster.
    local_end: int = UNDECIDED
    #: Whether the cluster takes messages before the stay's beginning is decided (an `available` remapping).
    at_once: bool = False
    #: When the home decided that the queue comes here, and when it recorded that it has left.
    start_ms: int
    end_ms: int = UNDECIDED

    @property
    def is_decided(self) -> bool:
        """Whether its messages have global offsets."""
        return self.logic_offset >= 0

    @property
    def is_ended(self) -> bool:
        """Whether it has got its last message."""
        return self.local_end >= 0

    @property
    def takes(self) -> bool:
        """Whether messages go here."""
        return not self.is_ended and (self.is_decided or self.at_once)

    @property
    def logic_end(self) -> int:
        """The global offset behind the last message of a stay that has ended."""
        assert self.is_ended and self.is_decided, "an open stay has no end"
        return self.shown(self.local_end)

    def shown(self, local: int) -> int:
        """Return the global offset of a local one; UNDECIDED while the stay is."""
        return self.logic_offset + max(local - self.local_start, 0) if self.is_decided else UNDECIDED

    def local(self, offset: int) -> int:
        """Return the local offset of a global one."""
        assert self.is_decided, "nothing is computed with an undecided offset"
        return self.local_start + max(offset - self.logic_offset, 0)


Stays = tuple[Stay, ...]
