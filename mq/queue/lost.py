"""Messages that a group can no longer have: recorded with the reason, never skipped silently (SPEC POP-12)."""

from __future__ import annotations

from dataclasses import dataclass

from mq.queue.checkpoint import LaneKey
from mq.queue.revive import LostReason
from mq.stored_json import corrupt_when_damaged, integer, mapping, pairs, text

__all__ = ["LostRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """Offsets `[low, high)` of one lane that were gone before the group was done with them."""

    lane: LaneKey
    topic: str
    ranges: tuple[tuple[int, int], ...]
    reason: LostReason
    time_ms: int

    def to_json(self) -> dict[str, object]:
        lane = self.lane
        return {
            "group": lane.group,
            "topic": self.topic,
            "topic_id": lane.topic_id,
            "retry": lane.retry,
            "partition": lane.partition,
            "ranges": [list(one) for one in self.ranges],
            "reason": self.reason.value,
            "time_ms": self.time_ms,
        }

    @classmethod
    def from_json(cls, value: object) -> LostRecord:
        """The record that `to_json` wrote; raises `Corrupt` (`lost_record_corrupt`) when it is damaged."""
        with corrupt_when_damaged("a stored loss", code="lost_record_corrupt"):
            stored = mapping(value)
            lane = LaneKey(
                text(stored["topic_id"]), text(stored["group"]), stored["retry"] is True, text(stored["partition"])
            )
            return cls(
                lane=lane,
                topic=text(stored["topic"]),
                ranges=pairs(stored["ranges"]),
                reason=LostReason(text(stored["reason"])),
                time_ms=integer(stored["time_ms"]),
            )
