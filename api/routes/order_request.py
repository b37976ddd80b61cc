"""The JSON bodies of heartbeats and pull locks, checked: every refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from api.routes.read import parse_tags
from api.wire import known_fields
from mq.errors import NotFound, Refused, Unprocessable
from mq.limits import NAME_LENGTH_MAX, OFFSET_MAX, PARTITIONS_MAX, WAIT_MS_MAX
from mq.meta import Subscription, Topic
from mq.names import check_client_topic
from mq.order_limits import SUBSCRIPTIONS_MAX

__all__ = [
    "CLIENT_PATTERN",
    "HeartbeatRequest",
    "LocksAsked",
    "LocksReleased",
    "LocksRequest",
    "ReleaseRequest",
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

_Client = Annotated[str, Field(json_schema_extra={"pattern": CLIENT_PATTERN})]
_Partitions = Annotated[list[str], Field(max_length=PARTITIONS_MAX)]
_Numbers = Annotated[dict[str, Annotated[int, Field(ge=0, le=OFFSET_MAX)]], Field(max_length=PARTITIONS_MAX)]


class SubscriptionView(BaseModel):
    """How a client consumes a topic."""

    model_config = ConfigDict(extra="forbid")
    order: Annotated[bool | None, Field(description="Whether it wants the messages in order.")] = None
    tags: Annotated[str | None, Field(description="`*` (default) or `TagA||TagB`.")] = None


class HeartbeatRequest(BaseModel):
    """What a client consumes, or that it goes: then what it has is handed over at once."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"topics": {"orders": {"order": True, "tags": "*"}}, "online": True}]},
    )
    topics: Annotated[
        dict[str, SubscriptionView] | None,
        Field(max_length=SUBSCRIPTIONS_MAX, description="By topic. May be left out when the client goes."),
    ] = None
    online: Annotated[bool | None, Field(description="By default true.")] = None


class LocksRequest(BaseModel):
    """Partitions that a client of an exclusive group wants to pull."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"client_id": "worker-1", "partitions": ["orders@broker-a"]}]}
    )
    client_id: _Client
    partitions: Annotated[_Partitions | None, Field(description="Those whose locks are asked for.")] = None
    held: Annotated[
        _Partitions | None,
        Field(description="Those whose locks the client has had without a break: they are renewed."),
    ] = None
    # No maximum in the schema: whoever probes boundaries would wait for it.
    wait_ms: Annotated[
        int | None,
        Field(ge=0, description=f"Wait so long for the first lock, at most {WAIT_MS_MAX}; of one process alone."),
    ] = None


class ReleaseRequest(BaseModel):
    """Partitions that a client has finished with."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"client_id": "worker-1", "partitions": ["orders@broker-a"]}]}
    )
    client_id: _Client
    partitions: Annotated[_Partitions, Field(min_length=1)]
    locks: Annotated[_Numbers | None, Field(description="The numbers of the locks that are meant.")] = None


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


def check_client(value: object, field: str = "client_id") -> str:
    """The id of a client."""
    if value is None:
        raise Refused(f"{field} is missing", code="missing_field", field=field)
    if not isinstance(value, str):
        raise Refused(f"{field} must be text", code="invalid_type", field=field)
    if _CLIENT.fullmatch(value) is None:
        raise Unprocessable(
            f"{field}: 1 to {NAME_LENGTH_MAX} visible ASCII characters without a slash",
            field=field,
            extra={"limit": NAME_LENGTH_MAX},
        )
    return value


def check_wait(value: object) -> int:
    """How long a call may wait."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused("wait_ms must be a whole number", code="invalid_type", field="wait_ms")
    if not 0 <= value <= WAIT_MS_MAX:
        limit = 0 if value < 0 else WAIT_MS_MAX
        raise Unprocessable(f"wait_ms: must be from 0 to {WAIT_MS_MAX}", field="wait_ms", extra={"limit": limit})
    return value


def heartbeat_of(body: Mapping[str, object]) -> tuple[dict[str, Subscription], bool]:
    """What a client subscribes to, and whether it stays."""
    known_fields(body, HeartbeatRequest)
    online = body.get("online")
    if not isinstance(online, bool) and online is not None:
        raise Refused("online must be true or false", code="invalid_type", field="online")
    stays = online is not False
    topics = body.get("topics")
    if topics is None:
        if stays:
            raise Refused("topics is missing", code="missing_field", field="topics")
        return {}, False
    if not isinstance(topics, dict):
        raise Refused("topics must be an object by topic", code="invalid_type", field="topics")
    if len(topics) > SUBSCRIPTIONS_MAX:
        raise Unprocessable(f"topics: at most {SUBSCRIPTIONS_MAX}", field="topics", extra={"limit": SUBSCRIPTIONS_MAX})
    return {name: _subscription(name, value) for name, value in topics.items()}, stays


def _subscription(topic: str, value: object) -> Subscription:
    field = f"topics.{topic}"
    try:
        check_client_topic(topic)
    except Refused as error:
        raise Refused(error.detail, code=error.code, field=field, extra=error.extra) from None
    if not isinstance(value, dict):
        raise Refused(f"{field} must be an object", code="invalid_type", field=field)
    known_fields(value, SubscriptionView, prefix=f"{field}.")
    order, tags = value.get("order"), value.get("tags")
    if not isinstance(order, bool) and order is not None:
        raise Refused(f"{field}.order must be true or false", code="invalid_type", field=f"{field}.order")
    if not isinstance(tags, str) and tags is not None:
        raise Refused(f"{field}.tags must be text", code="invalid_type", field=f"{field}.tags")
    try:
        parse_tags(tags)
    except Unprocessable as error:
        raise Unprocessable(error.detail, code=error.code, field=f"{field}.tags", extra=error.extra) from None
    return Subscription(order=order is True, tags="*" if tags is None else tags)


def locks_of(body: Mapping[str, object], topic: Topic) -> LocksAsked:
    """The locks that are asked for; a partition that stands in both lists is one that is held."""
    known_fields(body, LocksRequest)
    client = check_client(body.get("client_id"))
    held = _partitions(body.get("held"), "held", topic)
    asked = _partitions(body.get("partitions"), "partitions", topic)
    if not held and not asked:
        raise Unprocessable("partitions must name at least one partition", field="partitions")
    wait = body.get("wait_ms")
    wait_ms = 0 if wait is None else check_wait(wait)
    return LocksAsked(client, tuple(dict.fromkeys((*held, *asked))), frozenset(held), wait_ms)


def release_of(body: Mapping[str, object], topic: Topic) -> LocksReleased:
    """The locks that are given back."""
    known_fields(body, ReleaseRequest)
    client = check_client(body.get("client_id"))
    partitions = _partitions(body.get("partitions"), "partitions", topic)
    if not partitions:
        raise Unprocessable("partitions must name at least one partition", field="partitions")
    return LocksReleased(client, partitions, lock_numbers_of(body.get("locks"), partitions))


def _partitions(value: object, field: str, topic: Topic) -> tuple[str, ...]:
    """Names of partitions of the topic, each once; none when nothing is given."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Refused(f"{field} must be a list of partitions", code="invalid_type", field=field)
    if len(value) > PARTITIONS_MAX:
        raise Unprocessable(f"{field}: at most {PARTITIONS_MAX}", field=field, extra={"limit": PARTITIONS_MAX})
    there = set(topic.route.partitions)
    for partition in value:
        if partition not in there:
            raise NotFound(
                f"{field}: topic {topic.name} has no partition {partition!r}", code="partition_not_found", field=field
            )
    return tuple(dict.fromkeys(value))


def lock_numbers_of(value: object, partitions: Collection[str]) -> dict[str, int]:
    """The numbers of locks by partition; only of the `partitions` that the request names."""
    return numbers_of(value, "locks", partitions)


def numbers_of(
    value: object, name: str, partitions: Collection[str] | None = None, *, most: int = OFFSET_MAX
) -> dict[str, int]:
    """The numbers in the field `name` by partition; only of `partitions`, if these are given."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"{name} must be an object of partition to number", code="invalid_type", field=name)
    for partition, number in value.items():
        field = f"{name}.{partition}"
        if partitions is not None and partition not in partitions:
            raise Unprocessable(f"{field}: the request does not name this partition", field=field)
        if not isinstance(number, int) or isinstance(number, bool):
            raise Refused(f"{field} must be a whole number", code="invalid_type", field=field)
        if not 0 <= number <= most:
            limit = 0 if number < 0 else most
            raise Unprocessable(f"{field} must be from 0 to {most}", field=field, extra={"limit": limit})
    return dict(value)


def check_named(numbers: Collection[str], name: str, partitions: Collection[str]) -> None:
    """Refuse a number in the field `name` that is of none of the `partitions` which the request names."""
    for partition in numbers:
        if partition not in partitions:
            field = f"{name}.{partition}"
            raise Unprocessable(f"{field}: the request does not name this partition", field=field)
