"""Dead letters as the JSON messages of an answer."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from api.wire.message_json import StoredMessage, stored_messages
from mq.queue import DEAD_REASON_HEADER

__all__ = ["DeadLetter", "DeadLetters", "dead_letters"]


class DeadLetter(StoredMessage, kw_only=True):
    """A dead letter of the group, at `offset` of its dead letters' `partition`.

    `origin` is where the message was first, `reason` is why it is dead, `attempts` is how often it was delivered.
    """

    partition: str
    topic: str | None
    reason: str | None
    attempts: int


class DeadLetters(msgspec.Struct):
    """Some of a group's `total` dead letters; `next_offset` is the offset to ask for next, null after the last."""

    group: str
    total: int
    messages: list[DeadLetter]
    next_offset: int | None


def dead_letters(partition: str, rows: pa.Table) -> list[DeadLetter]:
    """Return rows of a partition of dead letters as JSON messages."""
    letters = []
    for message in stored_messages(rows):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        letters.append(
            DeadLetter(
                **fields,
                partition=partition,
                topic=message.origin.topic if message.origin else None,
                reason=(message.headers or {}).get(DEAD_REASON_HEADER),
                attempts=message.reconsume_times,
            )
        )
    return letters
