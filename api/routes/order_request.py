"""The JSON bodies of heartbeats and pull locks, and what of them a type cannot say: every refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from api.routes.read import parse_tags
from api.wire import JsonBody
from mq.errors import NotFound, Refused, Unprocessable
from mq.limits import NAME_LENGTH_MAX, OFFSET_MAX, PARTITIONS_MAX, WAIT_MS_MAX
from mq.meta import Subscription, Topic
from mq.names import check_client_topic
from mq.order_limits import SUBSCRIPTIONS_MAX

__all__ = [
    "CLIENT_PATTERN",
    "HEARTBEAT",
    "LOCKS",
    "RELEASE",
    "ClientText",
    "LocksAsked",
    "LocksReleased",
    "check_client",
    "check_named",
    "check_wait",
    "heartbeat_of",
    "locks_of",
    "release_of",
]

#: Visible ASCII without the slash, which is a path's.
CLIENT_PATTERN: Final = rf"^[!-.0-~]{{1,{NAME_LENGTH_MAX}}}$"
_CLIENT: Final = re.compile(CLIENT_PATTERN)

#: The id of a client in a body, for `check_client`: paths and queries have it, too.
ClientText = Annotated[str, Meta(extra_json_schema={"pattern": CLIENT_PATTERN})]
_Partitions = Annotated[list[str], Meta(max_length=PARTITIONS_MAX)]
_Numbers = Annotated[dict[str, Annotated[int, Meta(ge=0, le=OFFSET_MAX)]], Meta(max_length=PARTITIONS_MAX)]


class SubscriptionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How a client consumes a topic."""

    order: Annotated[bool | None, Meta(description="Whether it wants the messages in order.")] = None
    tags: Annotated[str | None, Meta(description="`*` (default) or `TagA||TagB`.")] = None


_Subscriptions = Annotated[dict[str, SubscriptionRequest], Meta(max_length=SUBSCRIPTIONS_MAX)]


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a client consumes, or that it goes: then what it has is handed over at once."""

    topics: Annotated[_Subscriptions | None, Meta(description="By topic. May be left out when the client goes.")] = None
    online: Annotated[bool | None, Meta(description="By default true.")] = None


class LocksRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions that a client of an exclusive group wants to pull."""

    client_id: ClientText
    partitions: Annotated[_Partitions | None, Meta(description="Those whose locks are asked for.")] = None
    held: Annotated[
        _Partitions | None,
        Meta(description="Those whose locks the client has had without a break: they are renewed."),
    ] = None
    # No maximum in the schema: whoever probes boundaries would wait for it.
    wait_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description=f"Wait so long for the first lock, at most {WAIT_MS_MAX}; of one process alone."),
    ] = None


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions that a client has finished with."""

    client_id: ClientText
    partitions: Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)]
    locks: Annotated[_Numbers | None, Meta(description="The numbers of the locks that are meant.")] = None


HEARTBEAT: Final = JsonBody(HeartbeatRequest, {"topics": {"orders": {"order": True, "tags": "*"}}, "online": True})
LOCKS: Final = JsonBody(LocksRequest, {"client_id": "worker-1", "partitions": ["orders@broker-a"]})
RELEASE: Final = JsonBody(ReleaseRequest, {"client_id": "worker-1", "partitions": ["orders@broker-a"]})


class LocksAsked(NamedTuple):
    """A checked `LocksRequest`."""

    client: str
    partitions: tuple[str, ...]
    held: frozenset[str]
    wait_ms: int


class LocksReleased(NamedTuple):
    """A checked `ReleaseRequest`."""

    client: str
    partitions: tuple[str, ...]
    numbers: Mapping[str, int]


def check_client(client: str) -> str:
    """The id of a client."""
    if _CLIENT.fullmatch(client) is None:
        raise Unprocessable(
            f"client_id: 1 to {NAME_LENGTH_MAX} visible ASCII characters without a slash",
            field="client_id",
            extra={"limit": NAME_LENGTH_MAX},
        )
    return client


def check_wait(wait_ms: int) -> int:
    """How long a call may wait."""
    if not 0 <= wait_ms <= WAIT_MS_MAX:
        limit = 0 if wait_ms < 0 else WAIT_MS_MAX
        raise Unprocessable(f"wait_ms: must be from 0 to {WAIT_MS_MAX}", field="wait_ms", extra={"limit": limit})
    return wait_ms


def heartbeat_of(asked: HeartbeatRequest) -> tuple[dict[str, Subscription], bool]:
    """What a client subscribes to, and whether it stays."""
    stays = asked.online is not False
    if asked.topics is None and stays:
        raise Refused("topics is missing", code="missing_field", field="topics")
    return {name: _subscription(name, one) for name, one in (asked.topics or {}).items()}, stays


def _subscription(topic: str, asked: SubscriptionRequest) -> Subscription:
    field = f"topics.{topic}"
    try:
        check_client_topic(topic)
    except Refused as error:
        raise Refused(error.detail, code=error.code, field=field, extra=error.extra) from None
    try:
        parse_tags(asked.tags)
    except Unprocessable as error:
        raise Unprocessable(error.detail, code=error.code, field=f"{field}.tags", extra=error.extra) from None
    return Subscription(order=asked.order is True, tags="*" if asked.tags is None else asked.tags)


def locks_of(asked: LocksRequest, topic: Topic) -> LocksAsked:
    """The locks that are asked for; a partition that stands in both lists is one that is held."""
    client = check_client(asked.client_id)
    held = _partitions(asked.held or (), "held", topic)
    wanted = _partitions(asked.partitions or (), "partitions", topic)
    if not held and not wanted:
        raise Unprocessable("partitions must name at least one partition", field="partitions")
    wait_ms = check_wait(asked.wait_ms or 0)
    return LocksAsked(client, tuple(dict.fromkeys((*held, *wanted))), frozenset(held), wait_ms)


def release_of(asked: ReleaseRequest, topic: Topic) -> LocksReleased:
    """The locks that are given back."""
    client = check_client(asked.client_id)
    partitions = _partitions(asked.partitions, "partitions", topic)
    numbers = asked.locks or {}
    check_named(numbers, "locks", partitions)
    return LocksReleased(client, partitions, numbers)


def _partitions(names: Collection[str], field: str, topic: Topic) -> tuple[str, ...]:
    """Names of partitions of the topic, each once."""
    there = set(topic.route.partitions)
    for partition in names:
        if partition not in there:
            raise NotFound(
                f"{field}: topic {topic.name} has no partition {partition!r}", code="partition_not_found", field=field
            )
    return tuple(dict.fromkeys(names))


def check_named(numbers: Collection[str], name: str, partitions: Collection[str]) -> None:
    """Refuse a number in the field `name` that is of none of the `partitions` which the request names."""
    for partition in numbers:
        if partition not in partitions:
            field = f"{name}.{partition}"
            raise Unprocessable(f"{field}: the request does not name this partition", field=field)
