"""One checked produce request, and its shares: which messages go where by one placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.sending.logical_places import served, unserved
from deltamq.api.wire.route_batch import (
    PartitionShare,
    check_named,
    check_same_request,
    replayed,
    rerouted,
    route_messages,
)
from deltamq.api.wire.rows import ArrowRows, Decoded, Named, Rows
from deltamq.api.wire.steps import Steps
from deltamq.mq.errors import NOT_WRITABLE, Fenced, OffsetMismatch, Unavailable
from deltamq.mq.producer import Part
from deltamq.mq.routing import Route
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.queue.placement import Placement
from deltamq.tables.queue.redelivery_rows import producer_in_delay


class StoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: its body, and the parameters from query and body."""

    body: Decoded
    named: Named
    expected_offset: int | None
    now_ms: int
    flush: str | None
    want_ids: bool
    #: How long its messages may wait for others that share their commit; None for as long as the topic says.
    window_ms: int | None = None
    #: The indexes of the messages to store; None for all. The others go to other clusters.
    only: NDArray[np.int64] | None = None
    #: Whether to look only where messages are stored.
    stored_only: bool = False
    #: Where the request's commits are noted; None if it is not measured.
    steps: Steps | None = None


def check_new(topic: str, request: StoreRequest, route: Route) -> None:
    """Refuse a request that a topic about to be created with this route would not take."""
    check_named(topic, request.body.rows.count, request.named, route)
    if request.expected_offset:
        raise OffsetMismatch(
            f"expected_offset is {request.expected_offset}, the end offset is 0: there is no topic {topic}",
            field="expected_offset",
            extra={"end_offset": 0},
        )


def routed(
    topic: HostedTopic,
    request: StoreRequest,
    places: Placement,
    draw: int,
    stored: Mapping[str, Sequence[Part]] = {},
) -> list[PartitionShare]:
    """Return the shares of a request; `stored` are the parts that the topic's partitions hold already.

    Raises
    ------
    DeltaMQError
        A named partition does not exist, or is not available.
    Unavailable
        `queue_unserved`: the mapping of the logical queue of some keys is not available; else as for `served`.
    """
    rows = request.body.rows
    if request.stored_only:
        return _stored_shares(rows, request.only, stored)
    if not places.targets:
        raise unserved(topic, "its queues")
    if stored:
        shares = replayed(topic.name, rows, request.named, places, draw, stored, request.only)
    elif request.only is not None:
        wanted = PartitionShare("", rows.take(request.only), request.only)
        shares = rerouted(topic.name, wanted, request.named, places, draw)
    else:
        shares = route_messages(topic.name, rows, request.named, places, draw)
    return served(topic, places, shares, stored)


def _stored_shares(
    rows: Rows | ArrowRows, only: NDArray[np.int64] | None, stored: Mapping[str, Sequence[Part]]
) -> list[PartitionShare]:
    """Return the stored shares of a request that have some of the messages of `only`."""
    shares = []
    for partition, part in ((name, part) for name, parts in stored.items() for part in parts):
        check_same_request(part, rows.count)
        if part.indexes is None:
            return [PartitionShare(partition, rows, None)]
        indexes = np.array(part.indexes, dtype=np.int64)
        if only is None or np.isin(indexes, only).any():
            shares.append(PartitionShare(partition, rows.take(indexes), indexes))
    return shares


def routed_again(
    topic: HostedTopic, request: StoreRequest, places: Placement, share: PartitionShare, draw: int
) -> list[PartitionShare]:
    """Return the shares for the messages of one share by another placement; raises as `routed` does.

    Other shares of the request may be stored by now, so the error of a closed partition must not say that none is.
    """
    if not places.targets:
        raise unserved(topic, "its queues")
    try:
        return served(topic, places, rerouted(topic.name, share, request.named, places, draw))
    except Unavailable as error:
        if error.code != NOT_WRITABLE:
            raise
        raise Unavailable(error.detail, extra=error.extra) from error


def has_moved(share: PartitionShare, error: Fenced) -> bool:
    """Whether the messages of a refused share may belong elsewhere now."""
    return share.delay_broker is None and error.extra.get("fence") == ROUTE_FENCE


def place_of_share(share: PartitionShare) -> tuple[str, tuple[int, ...] | None]:
    """Return a key that differs from every other share's of the request."""
    return share.partition, None if share.indexes is None else tuple(int(at) for at in share.indexes)


def stamp_of(topic: HostedTopic, request: StoreRequest, share: PartitionShare) -> ProducerStamp | None:
    producer = request.body.producer
    if producer is None:
        return None
    name = producer.id if share.delay_broker is None else producer_in_delay(topic.topic.id, producer.id)
    indexes = None if share.indexes is None else tuple(int(i) for i in share.indexes)
    return ProducerStamp(name, producer.seq, indexes, request.body.rows.count)
