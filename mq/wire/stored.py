"""Messages as the service shows them: fetched ones, and dead letters with requests about them (SPEC RETRY-3, 8)."""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from deltamq.mq.limits import ERASED_KEYS_MAX, KEY_BYTES_MAX, NAME_LENGTH_MAX, OFFSET_MAX, REASON_LENGTH_MAX
from deltamq.mq.queue.dead_letters import LetterState
from deltamq.mq.wire.answers import Time, TimeText

#: The number of the request that stored a message.
ProducerSeq = Annotated[
    int | None,
    Meta(description="Up to 2^62. JavaScript's numbers round it above 2^53; an answer in Arrow has it whole."),
]


class MessageOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a retried, delayed or dead message came from."""

    topic: str | None
    partition: str | None
    offset: int | None


#: The fields of the topic's schema, if they were asked for; then there is no body.
Value = Annotated[msgspec.Raw, Meta(description="The fields of the topic's schema, in place of the body.")]
#: What did not fit the schema, and why (SPEC TYPE-3).
Rescued = Annotated[msgspec.Raw, Meta(description="What did not fit the topic's schema.")]


class StoredMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """One message, with one of `body`, `body_base64` and `value`."""

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

    @property
    def payload(self) -> bytes:
        """The body as bytes."""
        return b64decode(self.body_base64 or "") if self.body is None else self.body.encode()


class FoundMessage(StoredMessage, kw_only=True):
    """A message that a search has found, and the partition, or logical queue, that has it."""

    partition: str


class DelayedMessage(StoredMessage, kw_only=True):
    """A message that waits until `deliver_time` for its target `partition`, a partition or logical queue.

    `offset` is its offset in the delay log of its broker.
    """

    partition: str


class DelayedList(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that wait for a topic, the next due first; what is due before `now_time` is late.

    `cursor` is where the next page begins, null on the last one. A page may have no messages and a cursor.
    """

    topic: str
    now_time: Time
    messages: list[DelayedMessage]
    cursor: str | None = None


class LookedAt(msgspec.Struct, frozen=True, kw_only=True):
    """What one call has looked at. All messages that were stored up to `through_time` were looked at, null for none."""

    messages: int
    bytes: int
    through_time: Time | None = None


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that a search has found, the oldest first; `cursor` is where it goes on, null if all were looked at.

    A call may find nothing and have a cursor.
    """

    messages: list[FoundMessage]
    cursor: str | None = None
    looked_at: LookedAt


class LatestValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest value of a key, and the message that had it."""

    topic: str
    key: str
    partition: str
    offset: int
    append_time: Time
    value: Annotated[msgspec.Raw, Meta(description="The fields of the topic's schema.")]
    rescued: Rescued | UnsetType = UNSET

    @property
    def fields(self) -> dict[str, Any]:
        """The value's fields: what is null is left out; times, decimals and bytes are texts."""
        fields: dict[str, Any] = msgspec.json.decode(self.value)
        return fields


class FetchAnswer(msgspec.Struct):
    """A fetch's answer; `next_offset` is the offset to ask for next, `max_offset` the next one to be written."""

    status: str
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int


#: Where dead letters are sent back to.
Target = Literal["origin", "retry"]
_Offsets = dict[str, list[Annotated[int, Meta(ge=0, le=OFFSET_MAX)]]]


class LetterFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which dead letters: those for which everything holds that is said."""

    offsets: Annotated[
        Annotated[_Offsets, Meta(min_length=1)] | None, Meta(description="Offsets by partition of dead letters.")
    ] = None
    state: Annotated[LetterState | None, Meta(description="Those in this state.")] = None
    reason: Annotated[
        Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None,
        Meta(description="Those with this reason."),
    ] = None
    topic: Annotated[
        Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] | None, Meta(description="Those from this topic.")
    ] = None
    from_time: Annotated[
        TimeText | None,
        Meta(description="Those that are dead since then (RFC 3339) or later."),
    ] = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is said: all dead letters."""
        return (self.offsets, self.state, self.reason, self.topic, self.from_time) == (None,) * 5


class ReplayRequest(LetterFilter, forbid_unknown_fields=True, omit_defaults=True):
    """The dead letters to send back, and their target; by default all that are new."""

    to: Annotated[
        Target | None,
        Meta(description="`origin` (default): their original partitions, for all groups; `retry`: this group alone."),
    ] = None


class DeleteLettersRequest(LetterFilter, forbid_unknown_fields=True, omit_defaults=True):
    """The dead letters to delete."""

    all: Annotated[bool, Meta(description="All of them: a request must say so, or which.")] = False


class DeadLetter(StoredMessage, kw_only=True):
    """A dead letter of the group, at `offset` of its dead letters' `partition`.

    `origin` is where the message was first, `reason` is why it is dead, `attempts` is how often it was delivered.
    It was last sent back at `sent_back_time` by the principal `sent_back_by`; both are null if it never was, and the
    principal if nobody had to say who it is.
    """

    partition: str
    topic: str | None
    reason: str | None
    attempts: int
    state: LetterState
    sent_back_time: TimeText | None
    sent_back_by: str | None


class DeadLetters(msgspec.Struct):
    """Some of the `total` dead letters that were asked for.

    `cursor` is where the next page begins, whatever is sent back or deleted meanwhile. `next_offset` is how many come
    before it; with `partition`, its first offset. Both are null after the last page.
    """

    group: str
    total: int
    messages: list[DeadLetter]
    next_offset: int | None
    cursor: str | None


class CountedLetters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many dead letters there are with a `reason`, or from a `topic`, by state."""

    reason: str | None = None
    topic: str | None = None
    new: int
    sent_back: int
    deleted: int


class DeadLetterCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters the group has, by state.

    `counts` has those with the most that are not deleted first, and at most a thousand; it is empty without `by`.
    """

    group: str
    new: int
    sent_back: int
    deleted: int
    counts: tuple[CountedLetters, ...] = ()


class FailedReplay(msgspec.Struct, frozen=True):
    """A dead letter that was not sent back, or deleted, and why.

    `code` is `topic_not_found`, `offset_out_of_range`, `dead_letter_deleted` or another code.
    """

    partition: str
    offset: int
    code: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """`replayed` dead letters were sent to their target; `duplicates` others had been sent back before.

    `failed` names the first thousand of `failed_total`.
    """

    replayed: int
    duplicates: int = 0
    failed: list[FailedReplay] = []
    failed_total: int = 0


class DeletedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """`deleted` dead letters are deleted; `duplicates` others were deleted before.

    `failed` names the first thousand of `failed_total`.
    """

    deleted: int
    duplicates: int = 0
    failed: list[FailedReplay] = []
    failed_total: int = 0


class EraseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The keys whose messages lose their content."""

    keys: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)]],
        Meta(description="Keys, as they were sent.", min_length=1, max_length=ERASED_KEYS_MAX),
    ]


class ErasureAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a request to erase, which shows how far it is."""

    erasure: str


class ErasedExportInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to erase did in an export's tables: `rows` were deleted, and old files go at `gone_time`.

    With a `failure`, the tables may still have the content, and the request is not done.
    """

    name: str
    rows: int
    gone_time: Time | None = None
    failure: str | None = None


class ErasureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a request to erase is, or its receipt; it never shows the keys, only their number.

    `waiting`: the job has not begun. `erased`: no reader sees the content any more. `gone`: no file of the warehouse
    has it, and no table of an export. `rows` are messages of the topic, `copies` those of each kind of copies.
    `gone_time` is when the old files go, and then when they were gone; null while it waits.
    """

    erasure: str
    topic: str
    state: Literal["waiting", "erased", "gone"]
    keys: int
    rows: int
    copies: dict[str, int]
    asked_time: Time
    gone_time: Time | None = None
    exports: list[ErasedExportInfo] = []
