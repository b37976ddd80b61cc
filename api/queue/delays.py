"""Delayed messages of produce requests: they wait in the delay partition of their target's broker (SPEC RETRY-4).

    request --route--> shares by target --split--> due ones        -> target
                                                   delayed ones    -> delay partition, with their target as origin

The target is fixed at produce time; of a static topic it is the logical queue. A request makes at most one part in each
delay partition, however many targets it has there, because a partition remembers each request of a producer once.
Appends to delay partitions are always synced, since marks name offsets in them: after a power cut took an offset back,
another message would get it, and count as ended.

While they wait, they are found by their id, and marks cancel their delivery (`Waiting`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.log.record_log import RecordLog
from deltamq.api.wire.route_batch import PartitionShare, check_same_request
from deltamq.api.wire.rows import ArrowRows, Rows, to_record_batch
from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.producer import Part
from deltamq.mq.queue.delay import Cancelled, Delayed, DelayMark
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.deliver_times import AT_ONCE, Times
from deltamq.tables.queue.records import rows_of_delay_marks
from deltamq.tables.queue.redelivery_rows import with_destination
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, system_ref
from deltamq.tables.queue.waiting import WaitingIndex
from deltamq.tables.queue.waiting_rows import written_by

Codes: TypeAlias = NDArray[np.int32]

#: Approximate bytes that target and time add to a message.
_WAITING_BYTES: Final = 64


def brokers_of(topic: Topic) -> set[str]:
    """Return the brokers in whose delay partitions messages of the topic may wait.

    For a static topic they include the brokers of removed segments: a message may outlive its segment.
    """
    brokers = {broker_of(partition) for partition in topic.route.partitions}
    return brokers if topic.static is None else brokers.union(topic.static.brokers)


class Delays:
    """The delay partitions of all brokers, each made by the first message that waits there. Used on the event loop."""

    def __init__(self, partitions: Partitions, cluster: str, brokers: Iterable[str]) -> None:
        """`brokers` may have delay partitions already."""
        self._partitions = partitions
        self._cluster = cluster
        self._known: dict[str, Partition] = {}
        self._unseen: list[Partition] = []
        for broker in brokers:
            self.partition(broker)

    def partition(self, broker: str) -> Partition:
        """Return the delay partition of a broker."""
        delay = self._known.get(broker)
        if delay is None:
            delay = self._known[broker] = self._partitions.of(system_ref(DELAY, self._cluster, broker))
            self._unseen.append(delay)
        return delay

    def names(self, topic: Topic) -> dict[str, str]:
        """Return the names of the delay partitions of the topic's brokers, by broker."""
        brokers = brokers_of(topic)
        return {broker: self.partition(broker).name for broker in sorted(brokers)}

    async def logs(self, *, look: bool = False) -> dict[str, PartitionLog]:
        """Return the logs of existing delay partitions, by name; a damaged one is left out, so that the others serve.

        `look` first refreshes them: another process may have stored an earlier copy of a request.
        """
        if look:
            await asyncio.gather(*(delay.look() for delay in self._known.values()), return_exceptions=True)
        while self._unseen:
            delay = self._unseen[-1]
            with contextlib.suppress(Corrupt):
                await delay.look()
            if delay in self._unseen:
                self._unseen.remove(delay)
        return {delay.name: delay.log for delay in self._known.values() if delay.log is not None}


def split_shares(
    topic: Topic,
    messages: Rows | ArrowRows,
    shares: Sequence[PartitionShare],
    times: Times,
    *,
    now_ms: int,
    delays: Mapping[str, str],
    stored: Mapping[str, Sequence[Part]] = {},
    queues: TopicQueues | None = None,
    schema_id: int | None = None,
) -> list[PartitionShare]:
    """Move the messages of a request that must wait into shares of their own, and return all shares.

    `delays` are the delay partitions by broker (see `Delays.names`); `stored` are the parts of the request that topic
    and delay partitions hold already. With `queues`, a message waits for its logical queue, wherever that will be led
    then. `schema_id` is the schema of bodies that do not say it (SPEC TYPE-51). Stored parts stay where they are. The
    remaining messages go to partitions without a part yet, since a partition would take a second part for a copy of the
    first. So a message that has fallen due meanwhile may still go through the delay partition.

    Raises
    ------
    Conflict
        `producer_sequence_reused`: the stored request had another number of messages.
    """
    count = messages.count
    targets = _targets(count, shares)
    brokers = list(delays)
    waits = _waiting(targets, times, now_ms, delays, stored)
    aims = targets if queues is None else _Targets([_aim(queues, name) for name in targets.names], targets.codes)
    split = [kept for share in shares if (kept := _without(share, waits, count)) is not None]
    for code in np.unique(waits[waits >= 0]).tolist():
        indexes = np.flatnonzero(waits == code)
        rows = _waiting_rows(topic, messages, indexes, aims, np.maximum(times[indexes], 0), schema_id)
        whole = None if len(indexes) == count else indexes
        split.append(PartitionShare(delays[brokers[code]], rows, whole, delay_broker=brokers[code]))
    return split


class _Targets(NamedTuple):
    """The target of each message, as the index of its partition in `names`."""

    names: list[str]
    codes: Codes


def _targets(count: int, shares: Sequence[PartitionShare]) -> _Targets:
    names = list(dict.fromkeys(share.partition for share in shares))
    codes = np.empty(count, dtype=np.int32)
    for share in shares:
        codes[slice(None) if share.indexes is None else np.asarray(share.indexes)] = names.index(share.partition)
    return _Targets(names, codes)


def _aim(queues: TopicQueues, partition: str) -> str:
    """Return the logical queue for which a message for this partition waits."""
    place = queues.of_partition(partition)
    return partition if place is None else place.queue.name


def _waiting(
    targets: _Targets, times: Times, now_ms: int, delays: Mapping[str, str], stored: Mapping[str, Sequence[Part]]
) -> Codes:
    """Return for each message the index in `delays` of the broker where it waits; -1 if it does not wait."""
    count = len(times)
    codes = {name: code for code, name in enumerate(delays.values())}
    waits = np.full(count, -1, dtype=np.int32)
    for code, target in enumerate(targets.names):
        delay = delays[broker_of(target)]
        if delay not in stored:
            wanted = times != AT_ONCE if target in stored else times > now_ms
            waits[(targets.codes == code) & wanted] = codes[delay]
    for name, part in ((name, part) for name, parts in stored.items() for part in parts):
        check_same_request(part, count)
        indexes = slice(None) if part.indexes is None else np.array(part.indexes, dtype=np.int64)
        waits[indexes] = codes.get(name, -1)
    return waits


def _without(share: PartitionShare, waits: Codes, count: int) -> PartitionShare | None:
    """Return the messages of a share that go to its partition now; None if there are none."""
    indexes = np.arange(count) if share.indexes is None else np.asarray(share.indexes)
    now = waits[indexes] < 0
    if now.all():
        return share
    if not now.any():
        return None
    return PartitionShare(share.partition, share.messages.take(np.flatnonzero(now)), indexes[now])


def _waiting_rows(
    topic: Topic,
    messages: Rows | ArrowRows,
    indexes: NDArray[np.int64],
    targets: _Targets,
    at_ms: Times,
    schema_id: int | None,
) -> ArrowRows:
    taken = messages.take(indexes)
    batch = taken.batch if isinstance(taken, ArrowRows) else to_record_batch([taken])
    count = len(indexes)
    partitions = pa.array(targets.names, pa.string()).take(pa.array(targets.codes[indexes]))
    batch = with_destination(written_by(batch, schema_id), topic, partitions, pa.array(at_ms))
    return ArrowRows(count, taken.nbytes + _WAITING_BYTES * count, batch)


_CANCELLED_KEPT: Final = 100_000


class Waiting:
    """Delayed messages of all brokers; used on the event loop. Threads build and search the indexes."""

    def __init__(self, partitions: Partitions, delays: Delays, cluster: str) -> None:
        self._partitions = partitions
        self._delays = delays
        self._cluster = cluster
        self._indexes: dict[str, tuple[WaitingIndex, asyncio.Lock]] = {}
        self._marks: dict[str, RecordLog[DelayMark]] = {}
        self._cancelled: OrderedDict[tuple[str, int], None] = OrderedDict()

    async def find(self, topic: Topic, message_id: str, now_ms: int) -> list[Delayed]:
        """Return the messages with this id that wait for `topic`, or fell due lately."""
        waiting = []
        for broker in sorted(brokers_of(topic)):
            log = await self._delays.partition(broker).look()
            if log is not None:
                waiting += await self._find(log, topic, message_id, now_ms)
        return waiting

    async def _find(self, log: PartitionLog, topic: Topic, message_id: str, now_ms: int) -> list[Delayed]:
        index, lock = self._indexes.setdefault(log.ref.name, (WaitingIndex(), asyncio.Lock()))
        # A request that waits for another's long search holds no thread.
        async with lock:
            return await self._partitions.run(partial(index.find, log, topic.name, topic.id, message_id, now_ms))

    async def cancel(self, message: Delayed) -> None:
        """Mark a message as cancelled; the mark is durable when this returns."""
        broker = broker_of(message.delay_partition)
        log = self._marks.get(broker)
        if log is None:
            marks = self._partitions.of(system_ref(DELAY_MARKS, self._cluster, broker))
            log = self._marks[broker] = RecordLog(marks, rows_of_delay_marks)
        mark = Cancelled(message.delay_partition, message.offset, message.message_id)
        await log.append([mark])

    def note(self, message: Delayed) -> None:
        """Remember that a message is certainly cancelled, for copies of the request that come after it fell due."""
        self._cancelled[message.delay_partition, message.offset] = None
        if len(self._cancelled) > _CANCELLED_KEPT:
            self._cancelled.popitem(last=False)

    def is_cancelled(self, message: Delayed) -> bool:
        """Whether this process remembers that the message is cancelled."""
        return (message.delay_partition, message.offset) in self._cancelled
