"""The JSON bodies of heartbeats and pull locks, with the checks that a type cannot express; refusals name the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from deltamq.api.wire.fields import message_filter
from deltamq.api.wire.json_body import JsonBody
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.limits import NAME_LENGTH_MAX, WAIT_MS_MAX
from deltamq.mq.meta.online import Subscription
from deltamq.mq.meta.topics import Topic, no_partition
from deltamq.mq.names import check_client_topic
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.wire.groups import CLIENT_PATTERN, HeartbeatRequest, LocksRequest, ReleaseRequest, SubscriptionRequest

_CLIENT: Final = re.compile(CLIENT_PATTERN)


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
    return {name: _subscription(name, subscription) for name, subscription in (asked.topics or {}).items()}, stays


def _subscription(topic: str, asked: SubscriptionRequest) -> Subscription:
    field = f"topics.{topic}"
    try:
        check_client_topic(topic)
    except Refused as error:
        raise Refused(error.detail, code=error.code, field=field, extra=error.extra) from None
    try:
        message_filter(asked.tags, asked.filter)
    except Unprocessable as error:
        raise Unprocessable(error.detail, code=error.code, field=f"{field}.{error.field}", extra=error.extra) from None
    return Subscription(order=asked.order is True, tags="*" if asked.tags is None else asked.tags, filter=asked.filter)


def locks_of(asked: LocksRequest, topic: Topic, queues: TopicQueues | None) -> LocksAsked:
    """Return the checked request for locks; a partition in both lists counts as held.

    `queues` are the logical queues of a static topic.
    """
    client = check_client(asked.client_id)
    held = _partitions(asked.held or (), "held", topic, queues)
    wanted = _partitions(asked.partitions or (), "partitions", topic, queues)
    if not held and not wanted:
        raise Unprocessable("partitions must name at least one partition", field="partitions")
    wait_ms = check_wait(asked.wait_ms or 0)
    return LocksAsked(client, tuple(dict.fromkeys((*held, *wanted))), frozenset(held), wait_ms)


def release_of(asked: ReleaseRequest, topic: Topic, queues: TopicQueues | None) -> LocksReleased:
    """Return the checked request to give locks back."""
    client = check_client(asked.client_id)
    partitions = _partitions(asked.partitions, "partitions", topic, queues)
    numbers = asked.locks or {}
    check_named(numbers, "locks", partitions)
    return LocksReleased(client, partitions, numbers)


def _partitions(names: Collection[str], field: str, topic: Topic, queues: TopicQueues | None) -> tuple[str, ...]:
    """Return the names, each once; refuse one that is not a partition of the topic as clients see it."""
    there = set(topic.client_partitions)
    for partition in names:
        if partition not in there:
            if queues is not None:
                queues.require(partition, topic.name, field)
            raise no_partition(topic.name, partition, field)
    return tuple(dict.fromkeys(names))


def check_named(numbers: Collection[str], name: str, partitions: Collection[str]) -> None:
    """Refuse the field `name` if it has a number for a partition that is not among `partitions`."""
    for partition in numbers:
        if partition not in partitions:
            field = f"{name}.{partition}"
            raise Unprocessable(f"{field}: the request does not name this partition", field=field)
