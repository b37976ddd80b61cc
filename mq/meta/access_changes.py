"""Decisions about access and about the brokers that get new partitions (SPEC ROUTE-2, ROUTE-9, STATIC-23)."""

from __future__ import annotations

from collections.abc import Sequence

from deltamq.mq.errors import NotFound, Unavailable, Unprocessable
from deltamq.mq.meta.access import Access, AccessEvent, BrokerAccessPut, PartitionAccessPut, PartitionOf, not_writable
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.topics import brokers_for
from deltamq.mq.names import broker_of
from deltamq.mq.routing import check_by_hand


def decide_broker_access(meta: Meta, broker: str, access: Access, now_ms: int) -> tuple[AccessEvent, ...]:
    """Return the event that sets the access of a broker; none when nothing changes.

    Raises
    ------
    NotFound
        `broker_not_found`.
    Unprocessable
        `until_passed`: the access would have ended already.
    """
    if broker not in meta.brokers.brokers:
        raise NotFound(f"there is no broker {broker}", code="broker_not_found", field="broker")
    _check_end(access, now_ms)
    if meta.access.of_broker(broker) == access or (access.is_open and broker not in meta.access.brokers):
        return ()
    return (BrokerAccessPut(broker=broker, access=access),)


def decide_partition_access(
    meta: Meta, topic: str, partition: str, access: Access, now_ms: int
) -> tuple[AccessEvent, ...]:
    """Return the event that sets the access of a physical partition; none when nothing changes.

    Raises
    ------
    NotFound
        `topic_not_found`; `partition_not_found`: the topic has no such partition. Logical queues are not partitions.
    Unprocessable
        `until_passed`: the access would have ended already.
    """
    target = meta.topics.topic(topic)
    if partition not in target.route.index_of:
        more = "; name a physical partition of the static topic" if target.static is not None else ""
        detail = f"topic {topic} has no partition {partition!r}{more}"
        raise NotFound(detail, code="partition_not_found", field="partition")
    _check_end(access, now_ms)
    present = meta.access.partitions.get(PartitionOf(target.id, partition))
    if present == access or (access.is_open and present is None):
        return ()
    return (PartitionAccessPut(topic_id=target.id, partition=partition, access=access),)


def _check_end(access: Access, now_ms: int) -> None:
    if access.until_ms is not None and access.until_ms <= now_ms:
        raise Unprocessable("until has passed already", code="until_passed", field="until")


def brokers_for_new(meta: Meta, topic: str, named: Sequence[str], now_ms: int) -> Sequence[str]:
    """Return the brokers for new partitions of a topic, in the order in which they get them; none if all are closed.

    These are the brokers that are served and may be written to; `named` is as for `brokers_for`.
    """
    served = meta.brokers.available
    available = meta.access.at(now_ms).writable(served)
    return brokers_for(topic, available, named) if available or not served else ()


def check_routes(meta: Meta, topic: str, routes: Sequence[str], now_ms: int) -> None:
    """Return if the brokers of the new partitions of a route by hand can get them (SPEC ROUTE-8).

    Raises
    ------
    DeltaMQError
        What `check_by_hand` and `check_targets` raise.
    """
    check_by_hand(routes)
    present = meta.topics.topics.get(topic)
    added = (
        routes if present is None else [partition for partition in routes if partition not in present.route.index_of]
    )
    if added:
        check_targets(meta, [broker_of(partition) for partition in added], now_ms, field="routes")


def check_targets(meta: Meta, brokers: Sequence[str], now_ms: int, *, field: str = "brokers") -> list[str]:
    """Return the brokers, each once; refuse one that cannot get new partitions now (SPEC STATIC-23).

    `field` is the part of the request that names them.

    Raises
    ------
    Unprocessable
        `unknown_broker`.
    Unavailable
        `no_broker`: none is named; `broker_unavailable`: no process serves it; `not_writable`.
    """
    if not brokers:
        raise Unavailable("no broker is available to hold the topic", code="no_broker")
    served, access = meta.brokers.available, meta.access.at(now_ms)
    for broker in brokers:
        if broker in served:
            own = access.of_broker(broker)
            if not own.writable:
                raise not_writable(f"{field}: {broker}", own)
            continue
        if broker in meta.brokers.roles:
            raise Unavailable(
                f"{field}: no process serves {broker} at the moment",
                code="broker_unavailable",
                extra={"broker": broker},
            )
        raise Unprocessable(
            f"{field}: there is no broker {broker!r}; there are {', '.join(served) or 'none'}",
            code="unknown_broker",
            field=field,
        )
    return list(dict.fromkeys(brokers))
