"""A message as a row of the outbox, and back: the same row always gives the same message (SPEC SEND-5, SEND-7)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from deltamq.mq.client.admin.topic_view import lp_of
from deltamq.mq.client.messages.message import Message, as_bytes
from deltamq.mq.errors import Refused
from deltamq.mq.limits import LOGICAL_PARTITIONS

#: The lanes of a topic's keys. Neighbouring logical partitions share one, because they are mostly in one partition:
#: when its broker is out, the lanes of the others go on.
LANES: Final = 16
_KEYLESS: Final = "-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Row:
    """A message of the outbox, with the number of its row."""

    id: int
    message: Message


def lane_of(topic: str, key: str | None) -> str:
    """Return the lane of a key, whose messages are sent one request after another; one lane has those without a key."""
    return f"{topic}/{_KEYLESS if key is None else f'{lp_of(key) * LANES // LOGICAL_PARTITIONS:02}'}"


def topic_of(lane: str) -> str:
    """Return the topic of a lane."""
    return lane.rpartition("/")[0]


def row_of(topic: str, message: Message) -> tuple[object, ...]:
    """Return the columns of a new row: its lane, then those of `MESSAGE_COLUMNS`.

    A message without an id or time gets one. Its delay begins now, and not when the message is sent.
    """
    now_us = time.time_ns() // 1000
    deliver_us = None if message.deliver_time is None else _us_of(message.deliver_time)
    if message.delay_ms is not None:
        deliver_us = now_us + message.delay_ms * 1000
    return (
        lane_of(topic, message.key),
        topic,
        message.key,
        message.tag,
        None if message.headers is None else msgspec.json.encode(message.headers).decode(),
        message.body,
        message.partition,
        message.message_id or uuid4().hex,
        now_us if message.born_time is None else _us_of(message.born_time),
        deliver_us,
    )


def message_of(columns: Sequence[object]) -> Message:
    """Return the message of a row's `MESSAGE_COLUMNS`; raises `Refused` if there is none."""
    _, key, tag, headers, body, partition, message_id, born_us, deliver_us = columns
    plain: dict[str, object] = {
        "key": key,
        "tag": tag,
        "headers": headers,
        "partition": partition,
        "message_id": message_id,
        "born_time": None,
        "deliver_time": None,
    }
    try:
        # Text, because another program wrote it into SQLite, or what a driver returns for bytes.
        plain["body"] = as_bytes(body)
        if isinstance(headers, (str, bytes)):
            plain["headers"] = msgspec.json.decode(headers, type=dict[str, str])
        message = msgspec.convert(plain, Message)
        return replace(message, born_time=_time_of(born_us), deliver_time=_time_of(deliver_us))
    except (Refused, msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"the row holds no message: {error}", code="row_unreadable", field="message") from error


def _us_of(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _time_of(moment_us: object) -> datetime | None:
    if moment_us is None:
        return None
    if not isinstance(moment_us, int):
        raise TypeError("a time is microseconds since 1970")
    return _EPOCH + timedelta(microseconds=moment_us)
