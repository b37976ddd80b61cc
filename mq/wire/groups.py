"""Groups: their settings, progress and statistics; commits and resets of offsets; what exclusive groups need.

Exclusive groups have heartbeats, pull locks, and messages that are set aside.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from deltamq.mq.limits import (
    COMMIT_METADATA_BYTES_MAX,
    MAX_ATTEMPTS_MAX,
    NAME_LENGTH_MAX,
    OFFSET_MAX,
    PARTITIONS_MAX,
    POP_MESSAGES_MAX,
    PRODUCER_ID_LENGTH_MAX,
    REASON_LENGTH_MAX,
    SUBSCRIPTIONS_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.wire.answers import NamePage, Time
from deltamq.mq.wire.pop import FilterText
from deltamq.mq.wire.stored import MessageOrigin

#: `first`, `last`, or an RFC 3339 time, for `Start.from_json`.
StartText = Annotated[str, Meta(extra_json_schema={"anyOf": [{"enum": ["first", "last"]}, {"format": "date-time"}]})]
_Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
_Offsets = Annotated[dict[str, _Offset], Meta(min_length=1, description="By partition, `NAME@BROKER`.")]
_Attempts = dict[str, Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS_MAX)]]


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Offsets up to which a client has consumed, each of them the next one that the group wants."""

    offsets: _Offsets
    client_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=PRODUCER_ID_LENGTH_MAX)] | None,
        Meta(description="The client that commits; in an exclusive group it must hold the pull locks."),
    ] = None
    locks: Annotated[
        dict[str, _Offset] | None, Meta(description="Numbers of the client's pull locks, by partition.")
    ] = None
    epochs: Annotated[
        dict[str, _Offset] | None,
        Meta(description="Epochs with which the offsets were read; refused (`epoch_over`) if they were reset since."),
    ] = None
    topic_id: Annotated[
        str | None, Meta(description="The topic's id when it was read; refused if it was made again since.")
    ] = None
    attempts: Annotated[
        _Attempts | None,
        Meta(
            description="In an exclusive group: how often the message at the offset has failed; the lock's next holder "
            "gets this number."
        ),
    ] = None
    metadata: Annotated[
        dict[str, str] | None,
        Meta(
            description=f"Texts to store with the offsets, by partition, of at most {COMMIT_METADATA_BYTES_MAX} bytes. "
            "A commit without one removes that of before, unless it is earlier and ignored."
        ),
    ] = None


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The position to which a group is reset: in the whole topic, or in each named partition."""

    to: Annotated[
        StartText | _Offsets, Meta(description="`first`, `last`, a time, or an object of partition to offset.")
    ]
    retries: Annotated[
        Literal["keep", "drop"] | None,
        Meta(description="Whether messages that wait for redelivery are kept (default) or dropped."),
    ] = None
    plan: Annotated[bool, Meta(description="Only say what the reset would do, and change nothing.")] = False


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as the group sees it; `retry` marks the group's retry partition of a broker.

    `lag` is the number of messages after its committed offset, all if it has committed nothing. `in_flight` is the
    number of messages that clients hold, or that wait to be delivered again after their invisible time. A message that
    a client holds for long leaves the lag when its checkpoint is stored, within a minute, and stays in flight: both
    together are not done. What is not known of a damaged partition is null. `last_consume_time` is the time of the last
    pop, acknowledgement, commit, or pull under a lock; null if there was none since the service began. `epoch` is the
    epoch of these offsets: each reset, and each life of the group, has a new one. `metadata` is the text that was
    committed with `committed_offset`; null without one.
    """

    partition: str
    retry: bool = False
    committed_offset: int | None = None
    min_offset: int | None = None
    end_offset: int | None = None
    lag: int | None = None
    in_flight: int = 0
    last_consume_time: Time | None = None
    epoch: int | None = None
    metadata: str | None = None


class FencedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """A group's offsets in a topic, with the epochs and the topic id that they belong to.

    A commit that names these is stored only if they are still current.
    """

    offsets: dict[str, int]
    epochs: dict[str, int] = {}
    topic_id: str | None = None


class CommittedOffsets(FencedOffsets, frozen=True, kw_only=True):
    """The group's offsets after the commit, and their epochs; an offset that was already higher stays."""

    group: str
    topic: str


class GroupOffsets(CommittedOffsets, frozen=True, kw_only=True):
    """The group's progress: `offsets` of partitions where it has committed, and `partitions` with details of all.

    `epochs` and `topic_id` may be sent with a commit.
    """

    partitions: tuple[GroupPartition, ...]


class ResetOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Where the group goes on, and its new epoch there; handles of earlier epochs are refused."""

    group: str
    topic: str
    epoch: int
    offsets: dict[str, int]


class HeldMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in flight: popped at `since_time` by `client_id`, null if the client did not name itself.

    It is delivered again after `visible_time`, unless it is acknowledged before; if that is over, it waits for the job
    `revive`. `attempt` is the number of this delivery. `retry`: its partition is the group's retry partition.
    `given_back`: its client has failed, and nobody holds it.
    """

    topic: str
    partition: str
    offset: int
    client_id: str | None = None
    since_time: Time
    visible_time: Time
    attempt: int
    retry: bool = False
    given_back: bool = False


class HolderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a client holds, and since when the oldest."""

    client_id: str | None = None
    messages: int
    since_time: Time


class InFlightAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a group has in flight, the oldest delivery first, and how many each client holds.

    `total` counts also those behind `limit`. Who holds a message that was popped before a restart is not known.
    """

    group: str
    total: int
    messages: tuple[HeldMessage, ...]
    by_client: tuple[HolderInfo, ...]


#: `waiting`: it was given back as failed. `overdue`: its time is over, and the job `revive` brings it. `ready`: it was
#: brought, and a consumer gets it next.
RetryState = Literal["waiting", "overdue", "ready"]


class RetryMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is delivered again at `due_time`; of one that is `ready`, when it was brought.

    `attempt` is the number of that delivery; behind the group's `max_attempts`, it becomes a dead letter in its place.
    `partition` and `offset` are where the present copy is stored, in the group's retry partition after the first
    retry; `origin` is where the message was first stored, null if that cannot be read now. `handle` is that of a
    `waiting` message, for `invisible` (0 brings it forward) and `dead`; null to a caller that may not subscribe.
    """

    topic: str
    partition: str
    offset: int
    origin: MessageOrigin | None = None
    attempt: int
    state: RetryState
    due_time: Time
    handle: str | None = None


class RetryCount(msgspec.Struct, frozen=True):
    """How many messages are in a state before their delivery number `attempt`."""

    attempt: int
    state: RetryState
    messages: int


class RetriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a group that are delivered again, the next due first.

    `total` counts also those behind `limit`; `by_attempt` of what is `ready` at most 10,000 messages of each process.
    """

    group: str
    total: int
    messages: tuple[RetryMessage, ...]
    by_attempt: tuple[RetryCount, ...]


class PlannedReset(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset would do in one partition: the group goes `from` where it would go on now `to` another offset.

    That is its committed offset, or where it begins. `messages` is how many offsets that are still there lie between:
    they come again, or, if `to` is the higher one, are passed over.
    """

    before: int = msgspec.field(name="from")
    to: int
    messages: int


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset would do, by partition; nothing was changed."""

    group: str
    topic: str
    plan: bool = True
    offsets: dict[str, PlannedReset]


#: `waiting`: not delivered yet. `held`: a client has it until `due_time`. `overdue`: it had it, and it comes again.
#: `retried`: a copy waits to be delivered again. `failed`: it was copied to `moved_to`, or comes again at `due_time`.
#: `done`, `dead`.
DeliveryState = Literal["waiting", "held", "overdue", "retried", "failed", "done", "dead"]


class DeliveryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a message to a group, or what became of it: `attempt` 0 if it was not delivered yet.

    `time` is when it was popped, or when its copy was stored; null where that is not kept. `moved_to` is the retry
    partition, or the dead letters, with the offset there: `PARTITION:OFFSET`.
    """

    group: str
    attempt: int
    state: DeliveryState
    time: Time | None = None
    client_id: str | None = None
    due_time: Time | None = None
    moved_to: str | None = None
    reason: str | None = None


class DeliveriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What each group did with a message, by group and attempt; groups that have not begun there are left out."""

    topic: str
    partition: str
    offset: int
    deliveries: tuple[DeliveryInfo, ...]


#: Waits in milliseconds by attempt, `{"fixed_ms": n}` or `{"exponential": {...}}`.
RetryPolicyJson: TypeAlias = list[int] | dict[str, Any]


class GroupTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A group's progress in a topic; `lag` is the sum over its partitions."""

    topic: str
    lag: int
    partitions: tuple[GroupPartition, ...]


class ClientSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """How a client consumes a topic; `filter` is its SQL condition."""

    order: bool
    tags: str
    filter: str | None = None


class GroupClient(msgspec.Struct, frozen=True, kw_only=True):
    """A known client; one that is not `online` has announced that it leaves, and may finish what it holds.

    `authorized_ms` is how much longer it may consume; null if the process that answers does not know. Clients of a
    shared group need no authorization: they are those that named themselves in pops or heartbeats lately.
    """

    client_id: str
    online: bool
    topics: dict[str, ClientSubscription]
    since_time: Time
    authorized_ms: int | None = None


class GroupAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a topic by client, in an exclusive group; `epoch` grows with each change."""

    epoch: int
    clients: dict[str, list[str]]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A client of a broadcast group with its progress; its offsets are those of the group `group`, `GROUP@CLIENT`."""

    group: str
    client_id: str
    lag: int
    topics: tuple[GroupTopic, ...] = ()


class GroupPause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a group gets no messages, since when, and who paused it: a principal, or nobody without authentication."""

    reason: str
    since_time: Time
    by: str = ""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group's settings, its clients, and its progress in each topic that it consumed or that a client subscribes to.

    So a backlog is lag even before the first pop or commit. Only an exclusive group has an `allocation`, by topic.
    Clients of a shared group do not register: `clients` are those that named themselves in pops or heartbeats within
    the time of an authorization. Only a broadcast group has `members`: its clients that have committed, each with
    progress of its own.
    """

    group: str
    epoch: int
    consume_strategy: str
    allocation_strategy: str = "sticky"
    order: Ordering
    consume_from: str
    max_attempts: int
    retry_policy: RetryPolicyJson
    invisible_ms: int
    created_time: Time
    paused: GroupPause | None = None
    clients: tuple[GroupClient, ...] = ()
    allocation: dict[str, GroupAllocation] = {}
    topics: tuple[GroupTopic, ...] = ()
    members: tuple[GroupMember, ...] = ()

    @property
    def lag(self) -> int:
        """Messages that the group has not committed, in all its topics; of a broadcast group, over all its clients."""
        return sum(topic.lag for topic in self.topics) + sum(member.lag for member in self.members)


class GroupList(NamePage, frozen=True, kw_only=True, omit_defaults=True):
    """Names of groups, sorted; `next` is given if more follow: send it as `after` to get them."""

    groups: list[str]


class TopicStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a group did with a topic's messages.

    Of the `delivered` messages, popped or pulled under a lock, `redelivered` ones were delivered before. Clients
    acknowledged or committed those that `succeeded`, gave `failed` ones back, and sent `dead` ones to the dead letters;
    `success_rate` is null if there are none of these. `age_ms` is the sum of the ages of messages when they were
    delivered, by their born time; `handling_ms` the sum of the times from delivery to outcome. Means are null if there
    is nothing to count.
    """

    topic: str
    delivered: int
    redelivered: int
    succeeded: int
    failed: int
    dead: int
    age_ms: int = 0
    age_max_ms: int = 0
    handling_ms: int = 0
    handling_max_ms: int = 0
    delivered_per_s: float
    succeeded_per_s: float
    failed_per_s: float
    success_rate: float | None = None
    age_mean_ms: float | None = None
    handling_mean_ms: float | None = None


class GroupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What all clients of a group did since `since_time`, as `processes` service processes counted it.

    A process that is new counts from its start. SQL has older minutes.
    """

    group: str
    since_time: Time
    seconds: float
    processes: int
    topics: tuple[TopicStatistics, ...] = ()


# Exclusive groups.

#: Visible ASCII without the slash, which separates segments of a path.
CLIENT_PATTERN: Final = rf"^[!-.0-~]{{1,{NAME_LENGTH_MAX}}}$"
#: The id of a client in a body; the service checks it, as in paths and queries.
ClientText = Annotated[str, Meta(extra_json_schema={"pattern": CLIENT_PATTERN})]
_ATTEMPTS_MAX: Final = 2**31 - 1
_Partitions = Annotated[list[str], Meta(max_length=PARTITIONS_MAX)]
_Numbers = Annotated[dict[str, _Offset], Meta(max_length=PARTITIONS_MAX)]


class SubscriptionRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a client consumes a topic."""

    order: Annotated[bool | None, Meta(description="Whether the client wants the messages in order.")] = None
    tags: Annotated[str | None, Meta(description="`*` (default, all messages) or `TagA||TagB`.")] = None
    filter: FilterText | None = None


_Subscriptions = Annotated[dict[str, SubscriptionRequest], Meta(max_length=SUBSCRIPTIONS_MAX)]


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The topics that a client consumes, or that it leaves, so that its partitions are handed over at once."""

    topics: Annotated[_Subscriptions | None, Meta(description="By topic; needed unless the client leaves.")] = None
    online: Annotated[bool | None, Meta(description="False if the client leaves; by default true.")] = None


class LocksRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Partitions that a client of an exclusive group wants to pull."""

    client_id: ClientText
    partitions: Annotated[_Partitions | None, Meta(description="Partitions whose locks are requested.")] = None
    held: Annotated[
        _Partitions | None,
        Meta(description="Partitions whose locks the client has held without a break; they are renewed."),
    ] = None
    # No maximum in the schema: a tool that probes boundaries would wait that long.
    wait_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description=f"Milliseconds to wait for the first lock, at most {WAIT_MS_MAX}; only if one process serves"
            " all of the partitions."
        ),
    ] = None


class LocksGiven(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for each named partition.

    `partitions` are those whose locks the client has now, `locks` are the locks' numbers, `offsets` is where the group
    goes on there, and `attempts` is how often the message at that offset was tried before, if it was. `refused` are
    partitions whose lock another client has, or that are not allocated to this client. `unanswered` are those whose
    broker's process did not answer: whether their locks were granted is not known.
    """

    partitions: list[str] = []
    locks: dict[str, int] = {}
    offsets: dict[str, int] = {}
    attempts: dict[str, int] = {}
    refused: list[str] = []
    unanswered: list[str] = []


class LocksReturned(msgspec.Struct, frozen=True):
    """The partitions whose locks the client had and released."""

    partitions: list[str]


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the client may consume, and how long.

    `authorized_ms` counts from the moment when the client sent the heartbeat; 0 means no authorization.
    `authorized_until_ms` is the same in the service's wall time, for display. A leaving client gets no new
    authorization: under its last one it may finish, commit and release what it holds. `allocation_epoch` changes with
    the client's allocation.
    """

    consume_strategy: str
    authorized_until_ms: int
    authorized_ms: Annotated[int, Meta(ge=0)]
    allocation: dict[str, list[str]]
    routes_epoch: int
    allocation_epoch: int


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Partitions whose locks a client gives back."""

    client_id: ClientText
    partitions: Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)]
    locks: Annotated[_Numbers | None, Meta(description="Numbers of the client's locks.")] = None


class AsideRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Failed messages of one partition, each of which the client has tried `attempts` times."""

    client_id: ClientText
    partition: Annotated[str, Meta(description="`NAME@BROKER`.")]
    offsets: Annotated[list[_Offset], Meta(min_length=1, max_length=POP_MESSAGES_MAX)]
    to: Literal["dead", "retry"]
    lock: Annotated[_Offset | None, Meta(description="The number of the client's lock.")] = None
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_LENGTH_MAX)] | None = None
    attempts: Annotated[int, Meta(ge=1, le=_ATTEMPTS_MAX)] | None = None


class AsideAnswer(msgspec.Struct, frozen=True):
    """How many messages are at their target now; retention took the others, which is recorded."""

    moved: int
