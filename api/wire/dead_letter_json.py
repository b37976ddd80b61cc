"""Dead letters as the JSON messages of an answer."""

from __future__ import annotations

import pyarrow as pa

from api.wire.message_json import stored_messages
from mq.queue import DEAD_REASON_HEADER
from mq.wire import DeadLetter

__all__ = ["dead_letters"]


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
