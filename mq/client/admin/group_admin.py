"""Groups, their offsets and dead letters, and the cancelling of delayed messages over REST, as typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec

from mq.client.http import Calls, path_of, read_answer
from mq.client.messages import MessageOrigin
from mq.errors import NotFound, Unprocessable
from mq.meta import ConsumeStrategy, Ordering, Strategy
from mq.names import check_client_topic, check_group, check_topic

__all__ = [
    "ClientSubscription",
    "DeadLetter",
    "DeadLetterPage",
    "FailedReplay",
    "GroupAdmin",
    "GroupAllocation",
    "GroupClient",
    "GroupInfo",
    "GroupPartition",
    "GroupPlace",
    "GroupTopic",
    "Replayed",
    "ResetTarget",
]

_CREATED: Final = 201
#: Names in a page; the service gives no more at once.
_PAGE_NAMES: Final = 1_000

#: Where a group's offsets may be put: `first`, `last`, a time, or offsets by partition.
ResetTarget: TypeAlias = Literal["first", "last"] | str | datetime | Mapping[str, int]
#: Waits in milliseconds by attempt, `{"fixed_ms": n}` or `{"exponential": {...}}`.
RetryPolicyJson: TypeAlias = list[int] | dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """One partition as the group sees it; `retry` marks the one with its retried messages on a broker.

    `lag` counts the messages that the group has not committed; None where it is not known.
    """

    partition: str
    retry: bool = False
    committed_offset: int | None = None
    min_offset: int | None = None
    end_offset: int | None = None
    lag: int | None = None
    in_flight: int = 0
    last_consume_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Where a group is in a topic, and of which time that is: a commit may say it (see `GroupAdmin.commit_place`)."""

    offsets: dict[str, int]
    epochs: dict[str, int] = field(default_factory=dict)
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic:
    """How far a group is in a topic."""

    topic: str
    lag: int
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSubscription:
    """How a client consumes a topic."""

    order: bool
    tags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClient:
    """A client of an exclusive group; one that is not `online` has said that it goes, and may be finishing.

    `authorized_ms`: how long it may still consume, where the service that was asked knows.
    """

    client_id: str
    online: bool
    topics: dict[str, ClientSubscription]
    since_time: datetime
    authorized_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAllocation:
    """The partitions of a topic by client, in an exclusive group; `epoch` grows with each change."""

    epoch: int
    clients: dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group: its settings, and where it is in each topic that it has consumed or a client of it subscribes to.

    `clients` and `allocation` (by topic) are those of an exclusive group.
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
    created_time: datetime
    clients: tuple[GroupClient, ...] = ()
    allocation: dict[str, GroupAllocation] = field(default_factory=dict)
    topics: tuple[GroupTopic, ...] = ()

    @property
    def lag(self) -> int:
        """Messages that the group has not committed, in all topics that it consumes."""
        return sum(topic.lag for topic in self.topics)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the group gave up: `partition` and `offset` are its place among the group's dead letters.

    `origin` says where it first was, `reason` why it is dead, `attempts` how often it was delivered.
    """

    partition: str
    offset: int
    topic: str | None = None
    reason: str | None = None
    attempts: int = 0
    body: str | None = None
    body_base64: bytes | None = None
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str | None] | None = None
    message_id: str | None = None
    born_time: datetime | None = None
    append_time: datetime | None = None
    origin: MessageOrigin | None = None

    @property
    def payload(self) -> bytes:
        """The body as bytes."""
        return (self.body_base64 or b"") if self.body is None else self.body.encode()


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Some of a group's `total` dead letters; `next_offset` goes on behind them, None behind the last."""

    total: int
    messages: list[DeadLetter]
    next_offset: int | None = None


class FailedReplay(msgspec.Struct, frozen=True):
    """A dead letter that was not sent back: `topic_not_found`, `offset_out_of_range`, `corrupt`."""

    partition: str
    offset: int
    code: str


class Replayed(msgspec.Struct, frozen=True):
    """What became of dead letters that were to be sent back.

    `duplicates` had been sent back before. `failed` names the first thousand of `failed_total`.
    """

    replayed: int
    duplicates: int = 0
    failed: list[FailedReplay] = []
    failed_total: int = 0


class GroupAdmin(Calls):
    """The calls about groups; see `Admin`."""

    # Groups -----------------------------------------------------------------------------------------------------

    def create_group(
        self,
        group: str,
        *,
        consume_strategy: ConsumeStrategy | None = None,
        allocation_strategy: Strategy | None = None,
        order: Ordering | None = None,
        consume_from: Literal["first", "last"] | str | datetime | None = None,
        max_attempts: int | None = None,
        retry_policy: RetryPolicyJson | None = None,
        invisible_ms: int | None = None,
    ) -> GroupInfo:
        """Create a group, or change an existing one to this; what is left out keeps its value or its default.

        Parameters
        ----------
        allocation_strategy
            Who gets which partition of an exclusive group: `sticky`, `average`, `circle`, `consistent_hash`.
        consume_from
            Where it begins in a partition that it never consumed: `first`, `last`, or a time.
        max_attempts
            A message is delivered so often, then it is dead.
        retry_policy
            Waits in milliseconds by attempt, `{"fixed_ms": 1000}`, or `{"exponential": {"initial_ms": 5000}}`.
        invisible_ms
            How long a popped message is hidden from others, for pops that do not say.
        """
        return self.put_group(
            group,
            consume_strategy=consume_strategy,
            allocation_strategy=allocation_strategy,
            order=order,
            consume_from=_moment(consume_from) if isinstance(consume_from, datetime) else consume_from,
            max_attempts=max_attempts,
            retry_policy=retry_policy,
            invisible_ms=invisible_ms,
        )[0]

    def put_group(self, group: str, **settings: object) -> tuple[GroupInfo, bool]:
        """As `create_group`; also says whether the group is new."""
        body = msgspec.json.encode({name: value for name, value in settings.items() if value is not None})
        answer = self._call("PUT", path_of("groups", check_group(group)), body=body)
        return read_answer(answer, GroupInfo), answer.status == _CREATED

    def list_groups(self) -> list[str]:
        """The names of all groups, sorted; asked for in pages, so that no answer is large."""
        return self._names("groups")

    def _names(self, kind: Literal["topics", "groups"]) -> list[str]:
        names, query = list[str](), {"limit": str(_PAGE_NAMES)}
        while True:
            found = read_answer(self._call("GET", path_of(kind), query=query), _Names)
            names += found.topics if kind == "topics" else found.groups
            if found.next is None:
                return names
            query["after"] = found.next

    def get_group(self, group: str) -> GroupInfo:
        """One group with its progress; raises `NotFound`."""
        return read_answer(self._call("GET", path_of("groups", check_group(group))), GroupInfo)

    def delete_group(self, group: str) -> None:
        """Remove a group with its progress, retried and dead messages; raises `NotFound` when there is none.

        A repetition after a lost answer that finds nothing counts as done.
        """
        self._end(path_of("groups", check_group(group)), NotFound)

    # Offsets ----------------------------------------------------------------------------------------------------

    def group_offsets(self, group: str, topic: str) -> dict[str, int]:
        """The committed offset of each partition in which the group has begun: the next one that it wants."""
        return self.group_place(group, topic).offsets

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[str, int], *, client_id: str | None = None
    ) -> dict[str, int]:
        """Commit offsets by partition; returns where the group is then. It never goes back: see `reset_offsets`."""
        request: dict[str, object] = {"offsets": dict(offsets)}
        if client_id is not None:
            request["client_id"] = client_id
        return self._commit(group, topic, request).offsets

    def group_place(self, group: str, topic: str) -> GroupPlace:
        """`group_offsets` with what a later `commit_place` says of them."""
        return read_answer(self._call("GET", _offsets_path(group, topic)), GroupPlace)

    def commit_place(self, group: str, topic: str, place: GroupPlace) -> GroupPlace:
        """Commit `place.offsets`, if the group is still in the epochs and in the life of the topic that `place` names.

        Raises
        ------
        Conflict
            `epoch_over`: it was put elsewhere, or the topic was made again. Read anew where it is, and go on there.
        """
        request: dict[str, object] = {"offsets": place.offsets}
        epochs = {name: place.epochs[name] for name in place.offsets if name in place.epochs}
        if epochs:
            request["epochs"] = epochs
        if place.topic_id is not None:
            request["topic_id"] = place.topic_id
        return self._commit(group, topic, request)

    def _commit(self, group: str, topic: str, request: dict[str, object]) -> GroupPlace:
        body = msgspec.json.encode(request)
        return read_answer(self._call("PUT", _offsets_path(group, topic), body=body), GroupPlace)

    def reset_offsets(self, group: str, topic: str, to: ResetTarget, *, keep_retries: bool = True) -> dict[str, int]:
        """Put the group elsewhere in a topic, in a new epoch (POP-18); returns where it goes on.

        What its clients hold now is void: they cannot answer for it any more.

        Parameters
        ----------
        to
            `first`, `last`, a time, or offsets by partition (the others stay as they are).
        keep_retries
            Whether messages that wait to be delivered again still are.
        """
        target = dict(to) if isinstance(to, Mapping) else _moment(to) if isinstance(to, datetime) else to
        body = msgspec.json.encode({"to": target, "retries": "keep" if keep_retries else "drop"})
        return read_answer(self._call("POST", f"{_offsets_path(group, topic)}/reset", body=body), _Offsets).offsets

    # Dead letters -----------------------------------------------------------------------------------------------

    def dead_letters(self, group: str, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        """The group's dead letters, at most `limit`, leaving out the first `offset`; broker by broker, oldest first."""
        query = {"limit": limit, "offset": offset}
        answer = self._call("GET", path_of("groups", check_group(group), "dead-letters"), query=query)
        return read_answer(answer, DeadLetterPage)

    def replay_dead_letters(
        self,
        group: str,
        *,
        offsets: Mapping[str, Sequence[int]] | None = None,
        to: Literal["origin", "retry"] = "origin",
    ) -> Replayed:
        """Send dead letters back; asked again, it stores nothing twice.

        Parameters
        ----------
        offsets
            Which, by partition of the dead letters; all by default.
        to
            `origin`: to the topic that they came from, for all groups; `retry`: to this group alone.
        """
        request: dict[str, object] = {"to": to}
        if offsets is not None:
            request["offsets"] = {partition: list(some) for partition, some in offsets.items()}
        path = path_of("groups", check_group(group), "dead-letters", "replay")
        return read_answer(self._call("POST", path, body=msgspec.json.encode(request)), Replayed)

    # Delayed messages -------------------------------------------------------------------------------------------

    def cancel_message(self, topic: str, message_id: str) -> None:
        """Take back a delayed message before it is due (RETRY-4).

        Raises
        ------
        NotFound
            `message_not_found`: no such message waits.
        Conflict
            `already_due`.
        """
        self._end(path_of("topics", check_client_topic(topic), "messages", message_id), NotFound)


def _offsets_path(group: str, topic: str) -> str:
    return path_of("groups", check_group(group), "topics", check_topic(topic), "offsets")


def _moment(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise Unprocessable("a time needs a time zone", field="to")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


class _Names(msgspec.Struct):
    """A page of names; a service of before there were pages answers with all of them."""

    topics: list[str] = []
    groups: list[str] = []
    next: str | None = None


class _Offsets(msgspec.Struct):
    offsets: dict[str, int]
