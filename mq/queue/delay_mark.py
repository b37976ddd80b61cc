"""Delay marks: records that delayed messages were cancelled, or ended (SPEC RETRY-4, RETRY-5).

Every record only adds to a set, so order and repetition do not matter.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import field

from deltamq.mq.errors import Corrupt
from deltamq.mq.stored_json import corrupt_when_damaged, to_json


class Cancelled(msgspec.Struct, frozen=True):
    """The message at `offset` of a delay partition must not be delivered.

    The place identifies the message. The id is only for people: it may be used again after its message was cancelled.
    """

    delay_partition: str = field(name="partition")
    offset: int
    message_id: str


class Ended(msgspec.Struct, frozen=True):
    """Offsets `[low, high)` of a delay partition were forwarded or dropped."""

    delay_partition: str = field(name="partition")
    ranges: tuple[tuple[int, int], ...]


DelayMark = Cancelled | Ended
_cancelled: Final = msgspec.json.Decoder(Cancelled).decode
_ended: Final = msgspec.json.Decoder(Ended).decode


def mark_to_json(mark: DelayMark) -> tuple[str, bytes]:
    """Return the tag and the body of a mark."""
    return ("cancelled" if isinstance(mark, Cancelled) else "ended"), to_json(mark)


def mark_from_json(tag: str, body: bytes) -> DelayMark:
    """Return the mark that `mark_to_json` wrote; raises `Corrupt` (`delay_mark_corrupt`) when it is damaged."""
    with corrupt_when_damaged(f"a stored {tag} mark", code="delay_mark_corrupt"):
        if tag == "cancelled":
            return _cancelled(body)
        if tag == "ended":
            return _ended(body)
    raise Corrupt(f"the delay marks hold a record of unknown kind {tag!r}", code="delay_mark_corrupt")
