"""The outbox: messages that exist exactly if the caller's own database transaction commits (SPEC SEND-7).

    with connection:                                        # the caller's transaction
        connection.execute("UPDATE orders SET paid = 1 WHERE id = 17")
        outbox.put(connection, "orders", Message(b"paid", key="order-17"))

    OutboxRelay(connect, "http://127.0.0.1:8080").run()     # a thread or process of its own sends what is committed

Nothing here commits or rolls back: the caller does. A message gets its id and its time when it is put, and is a row
from then on: the same row always gives the same message (SPEC SEND-5).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from deltamq.mq.client.admin.topic_view import lp_of
from deltamq.mq.client.messages.message import Message, as_bytes, as_messages, check_message
from deltamq.mq.client.messages.values import json_of
from deltamq.mq.client.outbox.session import run
from deltamq.mq.client.outbox.statements import Connection, OutboxDialect, Tables, dialect_of, ids_in
from deltamq.mq.client.tracing.tracing import Tracing
from deltamq.mq.errors import Refused
from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.names import check_client_topic

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import TracerProvider

#: The lanes of a topic's keys. Neighbouring logical partitions share one, because they are mostly in one partition:
#: when its broker is out, the lanes of the others go on.
LANES: Final = 16
_KEYLESS: Final = "-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Row(msgspec.Struct, frozen=True):
    """A message of the outbox, with the number of its row."""

    id: int
    message: Message


def lane_of(topic: str, key: str | None) -> str:
    """Return the lane of a key, whose messages are sent one request after another; without a key there is one lane."""
    return f"{topic}/{_KEYLESS if key is None else f'{lp_of(key) * LANES // LOGICAL_PARTITIONS:02}'}"


def topic_of(lane: str) -> str:
    """Return the topic of a lane."""
    return lane.rpartition("/")[0]


def row_of(topic: str, message: Message) -> tuple[object, ...]:
    """Return the columns of a new row: its lane, then `MESSAGE_COLUMNS`.

    A message without an id or time gets one. Its delay begins now, and not when the message is sent. A value is JSON in
    the place of the body: the service encodes it, by the topic's schema when it is sent.
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
        message.body if message.value is None else json_of(message.value),
        message.partition,
        message.message_id or uuid4().hex,
        now_us if message.born_time is None else _us_of(message.born_time),
        deliver_us,
        int(message.value is not None),
    )


def message_of(columns: Sequence[object]) -> Message:
    """Return the message of a row's `MESSAGE_COLUMNS`; raises `Refused` if there is none."""
    _, key, tag, headers, body, partition, message_id, born_us, deliver_us, is_value = columns
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
        plain["value" if is_value else "body"] = as_bytes(body)
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


#: The outbox's table, if the caller names no other.
TABLE: Final = "mq_outbox"


class OutboxTopic(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of one topic wait to be sent, and how many were set aside with an error."""

    topic: str
    waiting: int
    set_aside: int
    oldest_time: datetime | None


class WaitingLane(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of some keys of a topic whose request has failed, and when it is repeated."""

    lane: str
    failures: int
    next_try_time: datetime
    code: str
    detail: str


class SetAsideMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be sent, and why."""

    id: int
    topic: str
    key: str | None
    message_id: str
    code: str
    detail: str
    failed_time: datetime


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is in an outbox; `messages` are the first messages that were set aside."""

    topics: tuple[OutboxTopic, ...]
    lanes: tuple[WaitingLane, ...]
    messages: tuple[SetAsideMessage, ...]

    @property
    def waiting(self) -> int:
        """Number of messages that wait to be sent."""
        return sum(topic.waiting for topic in self.topics)

    @property
    def set_aside(self) -> int:
        """Number of messages that were set aside."""
        return sum(topic.set_aside for topic in self.topics)


class Outbox:
    """The tables of an outbox in the caller's database. Safe for any number of threads, with a connection for each.

    Parameters
    ----------
    dialect
        How to talk to the database; by default found out by the connection's driver (SQLite, PostgreSQL).
    table
        The table of the messages; `TABLE_lanes` is the second one.
    tracer_provider
        Makes the spans of OpenTelemetry; by default the application's provider, and no spans if it has set none.
    """

    def __init__(
        self,
        dialect: OutboxDialect | None = None,
        *,
        table: str = TABLE,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._dialect = dialect
        self._tracing = Tracing(tracer_provider)
        self.tables = Tables(table)

    def create(self, connection: Connection) -> None:
        """Make the tables if they are missing, in the caller's transaction, which the caller commits."""
        dialect = self._dialect_of(connection)
        for statement in self.tables.definitions(dialect):
            run(connection, dialect, statement)

    def put(self, connection: Connection, topic: str, message: Message | bytes | str) -> str:
        """Write one message in the caller's transaction, and return its `message_id`.

        Raises
        ------
        Refused
            The message or the topic's name is against the rules (`TooLarge`: over 4 MiB); nothing was written.
        """
        return self.put_many(connection, topic, [message])[0]

    def put_many(self, connection: Connection, topic: str, messages: Iterable[Message | bytes | str]) -> list[str]:
        """Write messages in the caller's transaction, in order, and return their `message_id`s; raises as `put`."""
        check_client_topic(topic)
        batch = as_messages(messages)
        for message in batch:
            check_message(message)
        if not batch:
            return []
        if (spans := self._tracing.spans) is not None:
            batch = [
                replace(message, headers=spans.create(topic, message.headers, body_size=len(message.body)))
                for message in batch
            ]
        rows = [row_of(topic, message) for message in batch]
        dialect = self._dialect_of(connection)
        cursor = connection.cursor()
        try:
            cursor.executemany(dialect.sql(self.tables.insert), [dialect.parameters(row) for row in rows])
        finally:
            cursor.close()
        return [str(row[_MESSAGE_ID]) for row in rows]

    def status(self, connection: Connection, *, set_aside_max: int = 100) -> OutboxStatus:
        """Return what waits and what was set aside, as the connection's transaction sees it."""
        dialect = self._dialect_of(connection)
        topics, _ = run(connection, dialect, self.tables.counts)
        lanes, _ = run(connection, dialect, self.tables.failing_lanes)
        aside, _ = run(connection, dialect, self.tables.read_set_aside, set_aside_max)
        return OutboxStatus(
            topics=tuple(
                OutboxTopic(topic=topic, waiting=waiting, set_aside=gone, oldest_time=_time_of_us(oldest))
                for topic, waiting, gone, oldest in topics
            ),
            lanes=tuple(
                WaitingLane(lane=lane, failures=failures, next_try_time=_time_of_ms(at), code=code, detail=detail)
                for lane, failures, at, code, detail in lanes
            ),
            messages=tuple(
                SetAsideMessage(
                    id=number,
                    topic=topic,
                    key=key,
                    message_id=message_id,
                    code=code,
                    detail=detail,
                    failed_time=_time_of_ms(at),
                )
                for number, topic, key, message_id, code, detail, at in aside
            ),
        )

    def send_again(self, connection: Connection, ids: Sequence[int]) -> int:
        """Let messages that were set aside be sent again, in the caller's transaction; returns their number."""
        dialect = self._dialect_of(connection)
        if not ids:
            return 0
        rows, _ = run(
            connection, dialect, f"SELECT id, topic, message_key FROM {self.tables.messages} WHERE {ids_in(ids)}"
        )
        return sum(
            run(connection, dialect, self.tables.send_again, lane_of(topic, key), number)[1]
            for number, topic, key in rows
        )

    def _dialect_of(self, connection: Connection) -> OutboxDialect:
        return self._dialect if self._dialect is not None else dialect_of(connection)


#: The index of the message's id in a new row.
_MESSAGE_ID: Final = 7


def _time_of_us(moment_us: int | None) -> datetime | None:
    return None if moment_us is None else _EPOCH + timedelta(microseconds=moment_us)


def _time_of_ms(moment_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=moment_ms)
