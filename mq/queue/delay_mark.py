"""What became of delayed messages, as records of the delay marks: cancelled, or dealt with (SPEC RETRY-4, RETRY-5).

Every record only adds to a set: order and repetition do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq.errors import Corrupt
from mq.stored_json import corrupt_when_damaged, integer, mapping, pairs, text

__all__ = ["Cancelled", "DelayMark", "Ended", "mark_from_json", "mark_to_json"]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The message that waits at `offset` of a delay partition is not to be delivered.

    It names the place, and the id only for people: an id may be used again after its message was cancelled.
    """

    delay_partition: str
    offset: int
    message_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Offsets `[low, high)` of a delay partition are forwarded, or nobody is to get them."""

    delay_partition: str
    ranges: tuple[tuple[int, int], ...]


DelayMark = Cancelled | Ended


def mark_to_json(mark: DelayMark) -> tuple[str, dict[str, object]]:
    """The tag and the body of a mark."""
    if isinstance(mark, Cancelled):
        place = {"partition": mark.delay_partition, "offset": mark.offset}
        return "cancelled", {**place, "message_id": mark.message_id}
    return "ended", {"partition": mark.delay_partition, "ranges": [list(one) for one in mark.ranges]}


def mark_from_json(tag: str, value: object) -> DelayMark:
    """The mark that `mark_to_json` wrote; raises `Corrupt` (`delay_mark_corrupt`) when it is none."""
    with corrupt_when_damaged(f"a stored {tag} mark", code="delay_mark_corrupt"):
        stored = mapping(value)
        if tag == "cancelled":
            return Cancelled(text(stored["partition"]), integer(stored["offset"]), text(stored["message_id"]))
        if tag == "ended":
            return Ended(text(stored["partition"]), pairs(stored["ranges"]))
    raise Corrupt(f"the delay marks hold a record of unknown kind {tag!r}", code="delay_mark_corrupt")
