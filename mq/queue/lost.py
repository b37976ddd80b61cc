"""Records of messages that a group has lost, each with the reason: no loss is silent (SPEC POP-12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.revive import LostReason
from deltamq.mq.stored_json import corrupt_when_damaged, to_json


class _Stored(msgspec.Struct):
    """The stored form of a loss."""

    group: str
    topic: str
    topic_id: str
    retry: bool
    partition: str
    ranges: tuple[tuple[int, int], ...]
    reason: LostReason
    time_ms: int


_read: Final = msgspec.json.Decoder(_Stored).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """Offsets `[low, high)` of one lane that were removed before the group was done with them."""

    lane: LaneKey
    topic: str
    ranges: tuple[tuple[int, int], ...]
    reason: LostReason
    time_ms: int

    def to_json(self) -> bytes:
        topic_id, group, retry, partition = self.lane
        return to_json(_Stored(group, self.topic, topic_id, retry, partition, self.ranges, self.reason, self.time_ms))

    @classmethod
    def from_json(cls, body: bytes) -> LostRecord:
        """Return the record that `to_json` wrote; raises `Corrupt` (`lost_record_corrupt`) when it is damaged."""
        with corrupt_when_damaged("a stored loss", code="lost_record_corrupt"):
            stored = _read(body)
        return cls(
            lane=LaneKey(stored.topic_id, stored.group, stored.retry, stored.partition),
            topic=stored.topic,
            ranges=stored.ranges,
            reason=stored.reason,
            time_ms=stored.time_ms,
        )
