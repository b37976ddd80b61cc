"""The wire format of pops, as JSON or Arrow, and of the answers to calls with handles."""

from __future__ import annotations

import uuid
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, TypedDict, cast

import msgspec
import pyarrow as pa

from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.http.calls import decoded
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.messages.received import PopBatch, PoppedMessage, PopTable
from deltamq.mq.client.produce.wire import ARROW
from deltamq.mq.errors import Refused, Unknown
from deltamq.mq.limits import POP_MESSAGES_MAX, WAIT_MS_MAX
from deltamq.mq.meta.settings import Ordering
from deltamq.mq.wire import pop as wire
from deltamq.mq.wire.pop import FAILED_KEY, FailedHandle, InvisibleAnswer, PopAnswer, PopRequest

#: Maximum number of handles in one call.
HANDLES_MAX: Final = POP_MESSAGES_MAX

#: Code: the message was delivered again, or is about to be.
HANDLE_EXPIRED: Final = "handle_expired"
#: Code: the message was settled so late that it is not known whether that counts.
OUTCOME_UNKNOWN: Final = "outcome_unknown"
#: The cluster that gave the handle, of a global topic, cannot be reached.
QUEUE_UNSERVED: Final = "queue_unserved"

JSON_HEADERS: Final = {"Content-Type": "application/json"}
_ARROW_HEADERS: Final = {**JSON_HEADERS, "Accept": ARROW}


class PopOptions(TypedDict, total=False):
    """Options of a pop; each has a default."""

    #: Invisible time of the popped messages, in milliseconds; by default the group's.
    invisible_ms: int | None
    #: Milliseconds to wait for the first message; 0 by default.
    wait_ms: int
    #: `*` (the default), or `TagA||TagB`: messages with other tags are skipped.
    tags: str
    #: A SQL condition (CONS-9): messages that it is not true for are skipped.
    filter: str | None
    #: `NAME@BROKER`: pop from this partition only.
    partition: str | None
    #: True: a partition's messages one after another (POP-16); `"key"`: those of a key (POP-17); False: no order. By
    #: default the group's setting.
    order: Ordering | None
    #: Handles to acknowledge first, in the same call.
    ack: Sequence[str]
    #: `only`: pop only messages that are delivered again; an exclusive group allows no other pops.
    retry: Literal["only"] | None
    #: An id of this pop in order, such as a UUID: repeated with it, it gets the same messages again (POP-20). A pop
    #: that asks for order has one of its own by default.
    attempt_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopAsk:
    """A pop's request: the group, the topic, the options (see `PopOptions`), and the format of the answer."""

    group: str
    topic: str
    max_messages: int = 32
    invisible_ms: int | None = None
    wait_ms: int = 0
    tags: str = "*"
    filter: str | None = None
    partition: str | None = None
    #: None: the group's setting.
    order: Ordering | None = None
    client_id: str | None = None
    ack: Sequence[str] = ()
    retry: Literal["only"] | None = None
    #: An id of this pop in order, which its repetitions share (POP-20).
    attempt_id: str | None = None
    arrow: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_messages <= POP_MESSAGES_MAX:
            raise Refused(f"max_messages must be 1 to {POP_MESSAGES_MAX}", field="max_messages")
        if not 0 <= self.wait_ms <= WAIT_MS_MAX:
            raise Refused(f"wait_ms must be 0 to {WAIT_MS_MAX}", field="wait_ms")

    def repeatable(self) -> PopAsk:
        """Return the pop with an id of its own if it is in order, so that its repetitions get the same messages."""
        if not self.order or self.retry is not None or self.attempt_id is not None:
            return self
        return replace(self, attempt_id=uuid.uuid4().hex)

    @property
    def path(self) -> str:
        return path_of("groups", self.group, "topics", self.topic, "pop")

    @property
    def headers(self) -> dict[str, str]:
        return _ARROW_HEADERS if self.arrow else JSON_HEADERS

    def body(self) -> bytes:
        """Return the request's JSON, without options that have their default."""
        request = PopRequest(
            max_messages=self.max_messages,
            invisible_ms=self.invisible_ms,
            wait_ms=self.wait_ms,
            tags=None if self.tags == "*" else self.tags,
            filter=self.filter,
            partition=self.partition,
            order=self.order,
            client_id=self.client_id,
            ack=list(self.ack),
            retry=self.retry,
            attempt_id=self.attempt_id,
        )
        return msgspec.json.encode(request)


# JSON ----------------------------------------------------------------------------------------------------------


_decoder: Final = msgspec.json.Decoder(PopAnswer)


def parse_batch(topic: str, body: bytes) -> PopBatch:
    """Parse the JSON answer of a pop."""
    try:
        answer = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise _unreadable(error) from error
    return PopBatch(
        messages=[_popped(topic, message) for message in answer.messages],
        invisible_ms=answer.invisible_ms,
        rest=bool(answer.rest),
        failed_acks=answer.failed_acks,
    )


def _popped(topic: str, message: wire.PoppedMessage) -> PoppedMessage:
    body = b64decode(message.body_base64 or "") if message.body is None else message.body.encode()
    return PoppedMessage(
        message.partition,
        message.offset,
        body,
        message.key,
        message.tag,
        cast("dict[str, str] | None", message.headers),
        message.message_id,
        _micros(message.born_time),
        _micros(message.append_time),
        topic,
        message.handle,
        message.delivery_attempt,
        _micros(message.deliver_time),
        message.origin,
    )


def _micros(moment: str | None) -> int | None:
    return None if moment is None else round(datetime.fromisoformat(moment).timestamp() * 1e6)


def _unreadable(error: Exception) -> Unknown:
    return Unknown(f"the answer to a pop is unreadable: {error}", code="answer_unreadable")


# Arrow ---------------------------------------------------------------------------------------------------------


def parse_table(headers: Mapping[str, str], body: bytes) -> PopTable:
    """Parse the Arrow answer of a pop."""
    try:
        rows = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        failed = (rows.schema.metadata or {}).get(FAILED_KEY)
        return PopTable(
            rows=rows,
            invisible_ms=int(headers["mq-invisible-ms"]),
            rest=headers.get("mq-rest", "0") != "0",
            failed_acks=decode_as(failed, list[FailedHandle]) if failed else (),
        )
    except (KeyError, ValueError, OSError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise _unreadable(error) from error


# Handles -------------------------------------------------------------------------------------------------------


class _Refused(msgspec.Struct):
    """What the answers to ack, nack and dead have in common."""

    failed: list[FailedHandle] = []


def failed_of(body: bytes) -> list[FailedHandle]:
    """Return the handles that an ack, nack or dead call refused."""
    return decoded(body, _Refused).failed


def new_handle(body: bytes) -> str:
    """Return the handle in the answer to a change of the invisible time."""
    return decoded(body, InvisibleAnswer).handle
