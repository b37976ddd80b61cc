"""The calls of POP one by one, and their wire format, for programs with a loop of their own; most need `PopConsumer`.

    with PopClient("http://127.0.0.1:8080", "billing") as client:
        batch = client.pop("orders", max_messages=32, wait_ms=5_000)
        for message in batch.messages:
            ...
        client.ack([message.handle for message in batch.messages])

A call is retried while the service is away. If the answer to a pop is lost, its messages are delivered again when their
invisible time ends; no message is lost. A pop that is asked for in order has an `attempt_id`, by which its retry gets
the same messages at once.
"""

from __future__ import annotations

import time
import uuid
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypedDict, Unpack, cast

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.http.calls import Calls, ClientAccess, decoded
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PopBatch, PoppedMessage, PopTable, popped_messages_of
from deltamq.mq.client.produce.wire import ARROW
from deltamq.mq.client.shells.both import Awaiting, Blocking, both
from deltamq.mq.client.shells.shell import Answer, Shell
from deltamq.mq.errors import Conflict, DeltaMQError, Refused, Unknown
from deltamq.mq.limits import POP_MESSAGES_MAX, WAIT_MS_MAX
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.names import check_group, check_topic
from deltamq.mq.queue.retry import check_reason
from deltamq.mq.wire import pop as wire
from deltamq.mq.wire.pop import (
    FAILED_KEY,
    AckRequest,
    DeadRequest,
    FailedHandle,
    InvisibleAnswer,
    InvisibleRequest,
    NackRequest,
    PopAnswer,
    PopRequest,
)

#: Maximum number of handles in one call.
HANDLES_MAX: Final = POP_MESSAGES_MAX

#: Code: the message was delivered again, or is about to be.
HANDLE_EXPIRED: Final = "handle_expired"
#: Code: the message was settled so late that it is not known whether that counts.
OUTCOME_UNKNOWN: Final = "outcome_unknown"
#: Code: the cluster that gave the handle, of a global topic, cannot be reached.
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
    #: True: a partition's messages one after another (POP-16); `"key"`: messages of a key (POP-17); False: no order. By
    #: default the group's setting.
    order: Ordering | None
    #: Handles to acknowledge first, in the same call.
    ack: Sequence[str]
    #: `only`: pop only messages that are delivered again; an exclusive group allows no other pops.
    retry: Literal["only"] | None
    #: An id of this pop in order, such as a UUID: a pop that is repeated with it gets the same messages (POP-20). A
    #: pop that asks for order makes one by default.
    attempt_id: str | None
    #: Whether messages have a `value`: the fields of the topic's schema.
    typed: bool


class PopAsk(msgspec.Struct, frozen=True, kw_only=True):
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
    #: Whether messages have a `value`.
    typed: bool = False

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
        path = path_of("groups", self.group, "topics", self.topic, "pop")
        return f"{path}?typed=true" if self.typed else path

    @property
    def headers(self) -> dict[str, str]:
        return _ARROW_HEADERS if self.arrow or self.typed else JSON_HEADERS

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
        None,
        None,
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


def batch_of(ask: PopAsk, headers: Mapping[str, str], body: bytes) -> PopBatch:
    """Parse the answer of a pop as messages."""
    if not ask.typed:
        return parse_batch(ask.topic, body)
    table = parse_table(headers, body)
    return PopBatch(
        messages=popped_messages_of(ask.topic, table.rows),
        invisible_ms=table.invisible_ms,
        rest=table.rest,
        failed_acks=table.failed_acks,
    )


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


class PopCalls(Calls):
    """The calls of `PopClient` and `AsyncPopClient`."""

    def __init__(
        self,
        url: str | Sequence[str],
        group: str,
        *,
        client_id: str | None = None,
        patience: Patience | None = None,
        shell: Shell | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        super().__init__(url, patience=patience, shell=shell, **access)
        self.group = check_group(group)
        self.client_id = client_id

    # Pop --------------------------------------------------------------------------------------------------------

    @both
    async def pop(self, topic: str, max_messages: int = 32, **options: Unpack[PopOptions]) -> PopBatch:
        """Pop up to `max_messages` messages of `topic`; each must be settled within its invisible time.

        `PopOptions` lists the further options.
        """
        began_ns = time.time_ns()
        ask = self.ask(topic, max_messages, **options)
        answer = await self._pop(ask)
        batch = batch_of(ask, answer.headers, answer.body)
        if batch.messages and (spans := self.hosts.tracing.spans) is not None:
            carriers = (message.headers for message in batch.messages)
            spans.received(topic, self.group, carriers, len(batch.messages), began_ns)
        return batch

    @both
    async def pop_arrow(self, topic: str, max_messages: int = HANDLES_MAX, **options: Unpack[PopOptions]) -> PopTable:
        """Pop into an Arrow table, with the additional columns `partition`, `handle` and `delivery_attempt`."""
        began_ns = time.time_ns()
        answer = await self._pop(replace(self.ask(topic, max_messages, **options), arrow=True))
        table = parse_table(answer.headers, answer.body)
        if len(table.rows) and (spans := self.hosts.tracing.spans) is not None:
            spans.received(topic, self.group, [table.rows], len(table.rows), began_ns)
        return table

    def ask(self, topic: str, max_messages: int, **options: Unpack[PopOptions]) -> PopAsk:
        """Return the checked request of a pop for this group."""
        return PopAsk(
            group=self.group, topic=check_topic(topic), max_messages=max_messages, client_id=self.client_id, **options
        )

    async def _pop(self, ask: PopAsk) -> Answer:
        ask = ask.repeatable()
        return await self._call("POST", ask.path, headers=ask.headers, body=ask.body(), wait_ms=ask.wait_ms)

    # Settle messages --------------------------------------------------------------------------------------------

    @both
    async def ack(self, handles: Sequence[str]) -> list[FailedHandle]:
        """Acknowledge messages; returns the handles that were refused. Acknowledging twice is harmless (POP-8)."""
        return await self._each("ack", handles, AckRequest)

    @both
    async def nack(self, handles: Sequence[str], *, delay_ms: int | None = None) -> list[FailedHandle]:
        """Report failed messages: they are delivered again by the group's retry policy, or after `delay_ms`.

        After the last attempt they go to the dead letters. Returns the handles that were refused.
        """
        return await self._each("nack", handles, partial(NackRequest, delay_ms=delay_ms))

    @both
    async def dead(self, handles: Sequence[str], reason: str) -> list[FailedHandle]:
        """Send messages to the group's dead letters; returns the handles that were refused."""
        return await self._each("dead", handles, partial(DeadRequest, reason=check_reason(reason)))

    @both
    async def change_invisible(self, handle: str, invisible_ms: int) -> str:
        """Give a message another invisible time, counted from now; returns its new handle and voids the old one.

        0 returns the message to the group at once.

        Raises
        ------
        Conflict
            `handle_expired`: the message was delivered again, or is about to be.
        Unknown
            The answer was lost, and the new handle with it: the message is delivered again when its new time ends.
        """
        lost = [False]

        def note(error: DeltaMQError) -> None:
            lost[0] = lost[0] or isinstance(error, Unknown)

        try:
            return await self.repeat(partial(self.change_once, handle, invisible_ms), on_failure=note)
        except Conflict as error:
            if lost[0] and error.code == HANDLE_EXPIRED:
                raise Unknown("the answer with the new handle was lost; the message is delivered again") from error
            raise

    async def change_once(self, handle: str, invisible_ms: int, timeout_s: float, broker: str | None = None) -> str:
        """Make one attempt of `change_invisible`, at the host of `broker` if that is known."""
        body = msgspec.json.encode(InvisibleRequest(handle, invisible_ms))
        return new_handle((await self.call_once("invisible", body, timeout_s, broker)).body)

    async def call_once(self, verb: str, body: bytes, timeout_s: float, broker: str | None = None) -> Answer:
        """Make one attempt of a call of this group, at the host of `broker` if that is known."""
        path = path_of("groups", self.group, verb)
        return await self.hosts.call("POST", path, role=broker, headers=JSON_HEADERS, body=body, timeout_s=timeout_s)

    async def _each(
        self, verb: str, handles: Sequence[str], request: Callable[[list[str]], AckRequest | NackRequest | DeadRequest]
    ) -> list[FailedHandle]:
        if (spans := self.hosts.tracing.spans) is None:
            return await self._settled(verb, handles, request)
        with spans.settle(verb, self.group, len(handles)):
            return await self._settled(verb, handles, request)

    async def _settled(
        self, verb: str, handles: Sequence[str], request: Callable[[list[str]], AckRequest | NackRequest | DeadRequest]
    ) -> list[FailedHandle]:
        failed: list[FailedHandle] = []
        path = path_of("groups", self.group, verb)
        for low in range(0, len(handles), HANDLES_MAX):
            body = msgspec.json.encode(request(list(handles[low : low + HANDLES_MAX])))
            try:
                failed += failed_of((await self._call("POST", path, body=body)).body)
            except DeltaMQError as error:
                if low > 0:  # the calls before this one are applied
                    error.not_known()
                raise
        return failed


class PopClient(PopCalls, Blocking):
    """Pops and settles messages for one group. Safe for any number of threads.

    Parameters
    ----------
    url, group
        The service, and the group that consumes.
    client_id
        This client's id in the service's lists of clients.
    patience
        How long and how often a call is retried while the service is away.
    access
        How the service is reached, for example `token`; see `Calls`.
    """


class AsyncPopClient(PopCalls, Awaiting):
    """`PopClient` for an event loop: the same calls, awaited."""
