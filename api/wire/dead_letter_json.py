"""Dead letters as the JSON messages of an answer."""

from __future__ import annotations

import pyarrow as pa

from deltamq.api.wire.message_json import stored_messages
from deltamq.api.wire.times import rfc3339
from deltamq.mq.queue.dead_letters import LetterMarks
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.mq.wire.stored import DeadLetter


def dead_letters(partition: str, rows: pa.Table, marks: LetterMarks) -> list[DeadLetter]:
    """Return rows of a partition of dead letters as JSON messages."""
    letters = []
    for message in stored_messages(rows):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        sent = marks.sent(message.offset)
        letters.append(
            DeadLetter(
                **fields,
                partition=partition,
                topic=message.origin.topic if message.origin else None,
                reason=(message.headers or {}).get(DEAD_REASON_HEADER),
                attempts=message.reconsume_times,
                state=marks.state(message.offset),
                sent_back_time=None if sent is None else rfc3339(sent[0] * 1_000),
                sent_back_by=None if sent is None else sent[1] or None,
            )
        )
    return letters
