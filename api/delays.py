"""Delayed messages of produce requests: they wait in the delay partition of their target's broker (SPEC RETRY-4).

    request --route--> shares by target --split--> due ones        -> target
                                                   delayed ones    -> delay partition, with their target as origin

The target is fixed now, and one request makes at most one part in each delay partition, whatever its targets there:
a partition remembers each request of a producer once. It is always synced, since marks name places in it: a place
that a power cut took back would be given to another message, which the marks call ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from api.decode_arrow import ArrowRows
from api.deliver_times import AT_ONCE, Times
from api.partition import Partition, Partitions
from api.route_batch import Share, check_same_request
from api.rows import Rows, to_record_batch
from mq.names import split_partition
from mq.producer import Part
from mq.topics import Topic
from tables.log import PartitionLog
from tables.queue_refs import DELAY, system_ref
from tables.schema import ORIGIN, TIME

__all__ = ["Delays", "producer_in_delay", "split_shares"]

#: About what target and time of a message add to it.
_WAITING_BYTES: Final = 64


class Delays:
    """The delay partitions of all brokers; made by the first message that waits there."""

    def __init__(self, partitions: Partitions, cluster: str, brokers: Iterable[str]) -> None:
        """`brokers` are those that may have some already."""
        self._partitions = partitions
        self._cluster = cluster
        self._found: dict[str, Partition] = {}
        self._unseen = [self.partition(broker) for broker in brokers]

    def partition(self, broker: str) -> Partition:
        """The delay partition of a broker."""
        found = self._found.get(broker)
        if found is None:
            found = self._found[broker] = self._partitions.of(system_ref(DELAY, self._cluster, broker))
        return found

    @property
    def names(self) -> set[str]:
        """The delay partitions' names."""
        return {one.name for one in self._found.values()}

    async def logs(self) -> dict[str, PartitionLog]:
        """Those that there are, by name."""
        while self._unseen:
            await self._unseen[-1].look()
            self._unseen.pop()
        return {one.name: one.log for one in self._found.values() if one.log is not None}


def producer_in_delay(topic_id: str, producer_id: str) -> str:
    """A producer's name in delay partitions, which all topics share: each topic counts its requests alone."""
    return f"{topic_id}/{producer_id}"


def split_shares(
    topic: Topic,
    messages: Rows | ArrowRows,
    shares: Sequence[Share],
    times: Times,
    *,
    now_ms: int,
    delays: Delays,
    stored: Mapping[str, Part] = {},
) -> list[Share]:
    """The shares of a request with those of its messages that must wait in shares of their own.

    `stored` is what topic and delay partitions hold of the request already. That stays as it is, and what is left goes
    where none of it is yet, since a partition would take a second part for a copy of the first: a message that has
    fallen due since may go through the delay partition all the same.

    Raises
    ------
    Conflict
        `producer_sequence_reused` when the stored request had another number of messages.
    """
    targets = _targets(messages.count, shares)
    waits = _waiting(targets, times, now_ms, delays, stored)
    found = [kept for share in shares if (kept := _without(share, waits, messages.count)) is not None]
    for broker in sorted({split_partition(partition)[1] for partition in waits[waits != ""].tolist()}):
        partition = delays.partition(broker).name
        indexes = np.flatnonzero(waits == partition)
        at_ms = np.maximum(times[indexes], 0)
        rows = _waiting_rows(topic, messages, indexes, targets, at_ms)
        whole = None if len(indexes) == messages.count else indexes
        found.append(Share(partition, rows, whole, delay_broker=broker))
    return found


def _targets(count: int, shares: Sequence[Share]) -> NDArray[np.object_]:
    """The partition that each message goes to."""
    targets = np.empty(count, dtype=object)
    for share in shares:
        targets[slice(None) if share.indexes is None else np.asarray(share.indexes)] = share.partition
    return targets


def _waiting(
    targets: NDArray[np.object_], times: Times, now_ms: int, delays: Delays, stored: Mapping[str, Part]
) -> NDArray[np.object_]:
    """The delay partition in which each message waits, empty for those that do not."""
    count = len(targets)
    waits = np.full(count, "", dtype=object)
    for target in set(targets.tolist()):
        delay = delays.partition(split_partition(target)[1]).name
        wanted = times != AT_ONCE if target in stored else times > now_ms
        if delay not in stored:
            waits[(targets == target) & wanted] = delay
    for name, part in stored.items():
        check_same_request(part, count)
        indexes = slice(None) if part.indexes is None else np.array(part.indexes, dtype=np.int64)
        waits[indexes] = name if name in delays.names else ""
    return waits


def _without(share: Share, waits: NDArray[np.object_], count: int) -> Share | None:
    """The messages of a share that go to its partition now; None if there are none."""
    indexes = np.arange(count) if share.indexes is None else np.asarray(share.indexes)
    now = waits[indexes] == ""
    if now.all():
        return share
    if not now.any():
        return None
    return Share(share.partition, share.messages.take(np.flatnonzero(now)), indexes[now])


def _waiting_rows(
    topic: Topic, messages: Rows | ArrowRows, indexes: NDArray[np.int64], targets: NDArray[np.object_], at_ms: Times
) -> ArrowRows:
    """The messages at `indexes` as rows of a delay partition: when, and where they shall go."""
    taken = messages.take(indexes)
    batch = taken.batch if isinstance(taken, ArrowRows) else to_record_batch([taken])
    count = len(indexes)
    origin = pa.StructArray.from_arrays(
        [
            pa.repeat(pa.scalar(f"{topic.id}/{topic.name}"), count),
            pa.array(targets[indexes].tolist(), pa.string()),
            pa.repeat(pa.scalar(-1, pa.int64()), count),
        ],
        fields=list(ORIGIN),
    )
    batch = batch.append_column(pa.field("deliver_time", TIME), pa.array(at_ms * 1000, pa.int64()).cast(TIME))
    batch = batch.append_column(pa.field("origin", ORIGIN), origin)
    return ArrowRows(count, taken.nbytes + _WAITING_BYTES * count, batch)
