"""Sends to logical queues: which are refused, and how offsets are translated (SPEC STATIC-2, 10, 21, 22).

    request: 3@__logical_queue_broker__, expected offset 520  --Placement-->  orders#3@broker-a, expected offset 120
    answer:  3@__logical_queue_broker__, base offset 520      <--segment--    orders#3@broker-a, base offset 120

For a plain topic nothing is translated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.log.parts import RequestPart
from deltamq.api.wire.route_batch import PartitionShare
from deltamq.mq.errors import DeltaMQError, OffsetMismatch, Unavailable
from deltamq.mq.meta.access import not_writable
from deltamq.mq.producer import Part
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.mq.static.queue_names import global_queue_name, queue_name
from deltamq.mq.static.segments import Stay
from deltamq.tables.log.batch import Appended, MessageIds
from deltamq.tables.queue.placement import Placement


class LedElsewhere(Unavailable):
    """The messages go to a queue of a global topic that takes none in this cluster; none of them is stored here."""

    code = "queue_unserved"
    #: The cluster that takes the queue's messages; None while the queue moves, and no cluster does.
    cluster: str | None = None

    @classmethod
    def of(cls, topic: str, queue: int, cluster: str | None) -> Self:
        """Return the error for a queue whose messages `cluster` takes."""
        where = "is moving between clusters" if cluster is None else f"is in cluster {cluster}"
        detail = f"topic {topic}: queue {global_queue_name(queue)} {where}; ask again"
        error = cls(detail, extra={"cluster": cluster})
        error.cluster = cluster
        return error


def served(
    topic: HostedTopic, places: Placement, shares: list[PartitionShare], stored: Mapping[str, Sequence[Part]] = {}
) -> list[PartitionShare]:
    """Return the shares; refuse shares for partitions that take no messages: their messages never go elsewhere.

    `stored` are the parts of the request that are stored already: a closed partition still answers where they are.

    Raises
    ------
    Unavailable
            `queue_unserved`: the mapping of a logical queue is not available. `not_writable`: a partition is closed,
            and nothing of the request is stored; `unavailable`: the same, but a part of it may be stored.
    """
    if not places.avoided:
        return shares
    if places.away:
        _check_here(topic, places, shares, stored)
    refused = {places.partitions[number]: number for number in (*places.unserved, *places.closed)}
    for share in shares:
        number = refused.get(share.partition)
        if number is None:
            continue
        queues = {partition: queue for queue, partition in topic.topic.leaders().items()}
        queue = queues.get(share.partition)
        if number in places.unserved:
            raise unserved(topic, "a queue of these keys" if queue is None else f"queue {queue_name(queue)}")
        indexes = None if share.indexes is None else tuple(map(int, share.indexes))
        if any(part.overlaps(indexes) for part in stored.get(share.partition, ())):
            continue
        what = f"topic {topic.name}: {share.partition if queue is None else queue_name(queue)}"
        error = not_writable(what, places.closed[number])
        raise Unavailable(error.detail, extra=error.extra) if stored else error
    return shares


def _check_here(
    topic: HostedTopic, places: Placement, shares: Sequence[PartitionShare], stored: Mapping[str, Sequence[Part]]
) -> None:
    """Raise `LedElsewhere` if messages go to other clusters; it names the cluster if all go to one.

    A share that is already stored here as a whole is answered.
    """
    world = topic.topic.world
    assert world is not None, "only queues of global topics are away"
    queue_at = {places.partitions[number]: queue for number, queue in places.away.items()}
    away = [share for share in shares if share.partition in queue_at and share.partition not in stored]
    if not away:
        return
    takers = {world.taker(queue_at[share.partition]) for share in away}
    # Messages for several clusters were split by where the queues were a moment ago (`global_sender.py`).
    taker = takers.pop() if len(away) == len(shares) and len(takers) == 1 else None
    raise LedElsewhere.of(topic.name, queue_at[away[0].partition], taker)


def unserved(topic: HostedTopic, what: str) -> Unavailable:
    """Return the error for a send to `what` of the topic, whose mapping is not available."""
    return Unavailable(
        f"topic {topic.name}: the mapping of {what} is not available; check the topic", code="queue_unserved"
    )


def sealed_parts(queues: TopicQueues, stored: Mapping[str, Sequence[Part]]) -> dict[str, Sequence[Part]]:
    """Return the stored parts that lie in sealed segments: nothing is ever appended there, not even a repeat."""
    places = {name: queues.of_partition(name) for name in stored}
    return {name: stored[name] for name, place in places.items() if place is not None and place.segment.is_sealed}


def unsealed_before(queues: TopicQueues, shares: Sequence[PartitionShare]) -> set[str]:
    """Return the old leaders whose unknown ends decide the logical offsets of shares."""
    leaders = set()
    for share in shares:
        place = queues.of_partition(share.partition)
        if place is not None and not place.segment.is_decided and place.queue.second_leader is not None:
            leaders.add(place.queue.second_leader.partition)
    return leaders


def repeated(parts: Sequence[Part], wanted: RequestPart) -> Appended:
    """Return the place of a repeated part in a sealed segment."""
    indexes = None if wanted.stamp is None else wanted.stamp.indexes
    part = next(part for part in parts if part.overlaps(indexes))
    return Appended(
        base_offset=part.base_offset,
        count=part.count,
        duplicate=True,
        durable=True,
        version=0,
        message_ids=MessageIds(),
    )


def expected_offset(topic: HostedTopic, places: Placement, share: PartitionShare, expected: int | None) -> int | None:
    """Return the physical end offset that a share expects; raise `Unavailable` if the queue is undecided.

    It is negative, as no end offset is, if the client expects an offset before the segment.
    """
    if expected is None or places.queues is None:
        return expected
    place = places.queues.of_partition(share.partition)
    if place is None:
        return expected
    stay = _stay(topic, place.queue.index)
    if stay is None:
        return expected - place.segment.delta
    if not stay.is_decided:
        raise Unavailable(
            f"topic {topic.name}: the offsets of {global_queue_name(place.queue.index)} are not decided yet; ask again",
            code="logic_offset_undecided",
        )
    # An offset before the stay must not match its beginning.
    return -1 if expected < stay.logic_offset else stay.local(expected) - place.segment.delta


def _stay(topic: HostedTopic, queue: int) -> Stay | None:
    """Return the newest stay of a global topic's queue, which must be here for an append; None for another topic."""
    return None if topic.topic.world is None else topic.topic.world.queues[queue][-1]


def shown_error(topic: HostedTopic, places: Placement, share: PartitionShare, error: DeltaMQError) -> DeltaMQError:
    """Return an error of an append as the client of a static topic sees it: with logical offsets."""
    place = None if places.queues is None else places.queues.of_partition(share.partition)
    end_offset = error.extra.get("end_offset")
    if place is None or not isinstance(error, OffsetMismatch) or not isinstance(end_offset, int):
        return error
    end, name, stay = place.segment.logical(end_offset), place.queue.name, _stay(topic, place.queue.index)
    if stay is not None:
        end, name = stay.shown(end), global_queue_name(place.queue.index)
    return OffsetMismatch(
        f"expected_offset is not the end offset of {name}, which is {end}",
        field=error.field,
        extra={"end_offset": end},
    )


def shown_place(queues: TopicQueues | None, share: PartitionShare, base_offset: int) -> tuple[str, int]:
    """Return partition and offset of a stored share as clients see them."""
    if queues is None or share.delay_broker is not None:
        return share.partition, base_offset
    place = queues.of_partition(share.partition)
    if place is None:
        raise Unavailable("the messages are stored, and the mapping of their queue is gone", code="queue_unserved")
    return place.queue.name, place.shown(base_offset)
