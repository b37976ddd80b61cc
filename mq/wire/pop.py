"""Pops, and the calls with their handles: acknowledge, return, change the invisible time, give up."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from deltamq.mq.limits import (
    ATTEMPT_ID_LENGTH_MAX,
    FILTER_CHARS_MAX,
    HANDLE_CHARS_MAX,
    HANDLES_MAX,
    INVISIBLE_MS_CEILING,
    NAME_LENGTH_MAX,
    POP_MESSAGES_MAX,
    REASON_LENGTH_MAX,
    TAG_BYTES_MAX,
    TAG_FILTER_TAGS_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.wire.answers import TimeText
from deltamq.mq.wire.stored import MessageOrigin, ProducerSeq, Rescued, Value

FILTER_DESCRIPTION: Final = (
    "A SQL92 condition over headers, `key` and `tag`, for example `region = 'eu' AND amount > 5`. Messages that it is"
    " not true for count as consumed."
)
#: The service refuses longer ones with the place of the fault, as all that are wrong.
FilterText = Annotated[
    str, Meta(description=FILTER_DESCRIPTION, extra_json_schema={"minLength": 1, "maxLength": FILTER_CHARS_MAX})
]


HandleText = Annotated[str, Meta(max_length=HANDLE_CHARS_MAX)]
Handles = Annotated[list[HandleText], Meta(max_length=HANDLES_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=INVISIBLE_MS_CEILING)]
Count = Annotated[int, Meta(ge=0)]


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Handles of messages to be acknowledged."""

    handles: Handles


class InvisibleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message's new invisible time in milliseconds, from now on; 0 returns the message at once."""

    handle: HandleText
    invisible_ms: Milliseconds


class NackRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Messages that failed: delivered again after `delay_ms`, by default as the group's retry policy says."""

    handles: Handles
    delay_ms: Milliseconds | None = None


class DeadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to be sent to the dead letters."""

    handles: Handles
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_LENGTH_MAX)] = "rejected"


class FailedHandle(msgspec.Struct, frozen=True, gc=False):
    """A handle that was refused, with the reason as `code`.

    `handle_invalid`: no valid handle of this group. `handle_expired`: the message is delivered again, or about to be.
    `forbidden`: the caller may not consume its topic.
    `outcome_unknown`: acknowledged in time, but stored so late that the message may be delivered again all the same.
    """

    handle: str
    code: str


class AckAnswer(msgspec.Struct):
    """The number of handles that were acknowledged, and those that were refused."""

    acked: Count
    failed: list[FailedHandle]


class NackAnswer(msgspec.Struct):
    """The number of messages that are delivered again or dead after their last attempt, and the refused handles."""

    nacked: Count
    failed: list[FailedHandle]


class DeadAnswer(msgspec.Struct):
    """The number of messages that go to the dead letters, and the refused handles."""

    dead: Count
    failed: list[FailedHandle]


class InvisibleAnswer(msgspec.Struct):
    """The message's new handle; the previous one is no longer valid."""

    handle: str


POP_MESSAGES_DEFAULT: Final = 32
#: The key of the schema's metadata under which an Arrow answer lists the handles that were not acknowledged: an HTTP
#: header has no room for a thousand of them.
FAILED_KEY: Final = b"mq-failed-acks"
#: The id of a pop in order; the service checks it (`mq.queue.ordered_pop`).
AttemptId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ATTEMPT_ID_LENGTH_MAX,
        description="An id of the caller's choice that no other pop of the group has, such as a UUID.",
        extra_json_schema={"pattern": rf"^[!-~]{{1,{ATTEMPT_ID_LENGTH_MAX}}}$"},
    ),
]
_TAGS_CHARS_MAX: Final = TAG_FILTER_TAGS_MAX * (TAG_BYTES_MAX + 2)


class PopRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Pop messages; first, the handles in `ack` are acknowledged. A field that is null counts as left out.

    `invisible_ms` and `order` default to the group's settings; `order` says whether a partition's messages come in
    order, or those of each `key`. Without `partition` all partitions are popped; in a static topic it names a logical
    queue. `retry` "only" takes only messages that are delivered again, without order; an exclusive group can pop only
    these, and such a pop creates no group. A pop in order may have an `attempt_id`: if its answer is lost and it is
    repeated with the same id, it gets the same messages with new handles, while they are leased.
    """

    max_messages: Annotated[int, Meta(ge=1, le=POP_MESSAGES_MAX)] | None = POP_MESSAGES_DEFAULT
    invisible_ms: Milliseconds | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] | None = 0
    tags: Annotated[str, Meta(max_length=_TAGS_CHARS_MAX)] | None = None
    filter: FilterText | None = None
    partition: Annotated[str, Meta(min_length=3)] | None = None
    order: bool | Literal["key"] | None = None
    client_id: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)] | None = None
    ack: Handles | None = []
    retry: Literal["only"] | None = None
    attempt_id: AttemptId | None = None


class PoppedMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """One message, with one of `body`, `body_base64` and `value`. `handle` names this delivery of it."""

    partition: str
    handle: str
    delivery_attempt: Annotated[int, Meta(ge=1)]
    offset: Annotated[int, Meta(ge=0)]
    message_id: str | None
    append_time: TimeText
    body: str | None = None
    body_base64: str | None = None
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str | None] | None = None
    born_time: TimeText | None = None
    deliver_time: TimeText | None = None
    reconsume_times: int = 0
    origin: MessageOrigin | None = None
    producer_id: str | None = None
    producer_seq: ProducerSeq = None
    value: Value | UnsetType = UNSET
    rescued: Rescued | UnsetType = UNSET


class PopAnswer(msgspec.Struct):
    """A pop's answer; `rest` is the number of messages left for the group in the partitions that the pop visits."""

    messages: list[PoppedMessage]
    pop_time: TimeText
    invisible_ms: int
    rest: Annotated[int, Meta(ge=0)]
    failed_acks: list[FailedHandle] = []
