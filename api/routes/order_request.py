"""The JSON bodies of heartbeats and pull locks, with the checks that a type cannot express; refusals name the field."""

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

#: Visible ASCII without the slash, which separates segments of a path.
CLIENT_PATTERN: Final = rf"^[!-.0-~]{{1,{NAME_LENGTH_MAX}}}$"
_CLIENT: Final = re.compile(CLIENT_PATTERN)

#: The id of a client in a body; `check_client` checks it, as in paths and queries.
ClientText = Annotated[str, Meta(extra_json_schema={"pattern": CLIENT_PATTERN})]
_Partitions = Annotated[list[str], Meta(max_length=PARTITIONS_MAX)]
_Numbers = Annotated[dict[str, Annotated[int, Meta(ge=0, le=OFFSET_MAX)]], Meta(max_length=PARTITIONS_MAX)]


class SubscriptionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How a client consumes a topic."""

    order: Annotated[bool | None, Meta(description="Whether the client wants the messages in order.")] = None
    tags: Annotated[str | None, Meta(description="`*` (default, all messages) or `TagA||TagB`.")] = None


_Subscriptions = Annotated[dict[str, SubscriptionRequest], Meta(max_length=SUBSCRIPTIONS_MAX)]


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The topics that a client consumes, or that it leaves, so that its partitions are handed over at once."""

    topics: Annotated[_Subscriptions | None, Meta(description="By topic; needed unless the client leaves.")] = None
    online: Annotated[bool | None, Meta(description="False if the client leaves; by default true.")] = None


class LocksRequest(msgspec.Struct, forbid_unknown_fields=True):
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


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions whose locks a client gives back."""

    client_id: ClientText
    partitions: Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)]
    locks: Annotated[_Numbers | None, Meta(description="Numbers of the client's locks.")] = None


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
    """Return the id of a client; refuse one that is not valid."""
    if _CLIENT.fullmatch(client) is None:
        raise Unprocessable(
            f"client_id: 1 to {NAME_LENGTH_MAX} visible ASCII characters without a slash",
            field="client_id",
            extra={"limit": NAME_LENGTH_MAX},
        )
    return client


def check_wait(wait_ms: int) -> int:
    """Return how long a call may wait; refuse a value out of bounds."""
    if not 0 <= wait_ms <= WAIT_MS_MAX:
        limit = 0 if wait_ms < 0 else WAIT_MS_MAX
        raise Unprocessable(f"wait_ms: must be from 0 to {WAIT_MS_MAX}", field="wait_ms", extra={"limit": limit})
    return wait_ms


def heartbeat_of(asked: HeartbeatRequest) -> tuple[dict[str, Subscription], bool]:
    """Return the client's subscriptions, and whether it stays online."""
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
    """Return the checked request for locks; a partition in both lists counts as held."""
    client = check_client(asked.client_id)
    held = _partitions(asked.held or (), "held", topic)
    wanted = _partitions(asked.partitions or (), "partitions", topic)
    if not held and not wanted:
        raise Unprocessable("partitions must name at least one partition", field="partitions")
    wait_ms = check_wait(asked.wait_ms or 0)
    return LocksAsked(client, tuple(dict.fromkeys((*held, *wanted))), frozenset(held), wait_ms)


def release_of(asked: ReleaseRequest, topic: Topic) -> LocksReleased:
    """Return the checked request to give locks back."""
    client = check_client(asked.client_id)
    partitions = _partitions(asked.partitions, "partitions", topic)
    numbers = asked.locks or {}
    check_named(numbers, "locks", partitions)
    return LocksReleased(client, partitions, numbers)


def _partitions(names: Collection[str], field: str, topic: Topic) -> tuple[str, ...]:
    """Return the names, each once; refuse one that is not a partition of the topic."""
    there = set(topic.route.partitions)
    for partition in names:
        if partition not in there:
            raise NotFound(
                f"{field}: topic {topic.name} has no partition {partition!r}", code="partition_not_found", field=field
            )
    return tuple(dict.fromkeys(names))


def check_named(numbers: Collection[str], name: str, partitions: Collection[str]) -> None:
    """Refuse the field `name` if it has a number for a partition that is not among `partitions`."""
    for partition in numbers:
        if partition not in partitions:
            field = f"{name}.{partition}"
            raise Unprocessable(f"{field}: the request does not name this partition", field=field)
