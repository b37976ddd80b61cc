"""Replay of dead letters: to their original partitions, for all groups, or to the retry partition of their own group.

    chosen offsets --some at a time--> rows --by target--> one part for each message --> commits --> marks --> counted

Each message is a request of its own (see `mq.queue.dead_letters`), so a replay that was cut short can be repeated.
Marks record afterwards what was sent back. A dead letter whose mark was not stored is still new: sending it again
stores nothing, as long as its target remembers the request, and marks it.

In a static topic a message goes where its logical queue's messages go now, unless an earlier segment of that queue has
it. If they go to another cluster, it stays a dead letter: the retry topic takes it, in its own cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.api.auth.caller import Caller
from deltamq.api.host.fences import Fencing, Sealer
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.log.partition import Partition, Partitions, fence_not_known
from deltamq.api.log.parts import PendingRequest, RequestPart
from deltamq.api.sending.letters import DeadLetterLogs, LetterFailures, Letters, some_letters
from deltamq.api.wire.rows import ArrowRows
from deltamq.mq.auth.principals import Verb
from deltamq.mq.errors import Conflict, Fenced, Forbidden, NotFound, Unavailable, Unknown
from deltamq.mq.limits import MIB, PRODUCER_WINDOW_MS
from deltamq.mq.meta.group import Group
from deltamq.mq.queue.dead_letters import Replay, SentBack, retry_broker
from deltamq.mq.wire.stored import Target
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.placement import FenceEpochs, Placement
from deltamq.tables.queue.redelivery_rows import sent_back
from deltamq.tables.queue.refs import retry_ref
from deltamq.tables.queue.waiting_rows import WAITING_COLUMNS, arrived
from deltamq.tables.settings import Flush
from deltamq.tables.typed_row import VALUE, untyped

Int64s = NDArray[np.int64]

#: Maximum number of bytes of messages under way at once.
_STEP_BYTES: Final = 32 * MIB
_UNSERVED: Final = "queue_unserved"


class Replayed(msgspec.Struct):
    """The outcome of a replay."""

    failed: LetterFailures
    replayed: int = 0
    #: Number of dead letters that had been sent back before.
    duplicates: int = 0


class Resendable(msgspec.Struct, frozen=True):
    """Messages of a log that are appended again, each once: the dead letters of a group, or a topic's quarantine."""

    #: The log's partition.
    partition: str
    #: Returns the request that appends the message at an offset again, the same at each repetition.
    name: Callable[[int], Replay]
    #: Returns the rows to append.
    again: Callable[[pa.RecordBatch], pa.RecordBatch]
    #: Where they go; the group whose retry partition gets them, if they go there.
    to: Target
    group: Group | None = None


class Replayer:
    """Sends dead letters of any group back, and what was in quarantine; used on the event loop."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        meta: HostedMeta,
        fencing: Fencing,
        sealer: Sealer,
        letters: DeadLetterLogs,
    ) -> None:
        self._letters = letters
        self._sealer = sealer
        self._topics = topics
        self._partitions = partitions
        self._meta = meta
        self._fencing = fencing

    async def replay(
        self, group: Group, chosen: Sequence[tuple[Letters, Int64s]], to: Target, caller: Caller, failed: LetterFailures
    ) -> Replayed:
        """Send back the dead letters at the `chosen` offsets, which are ascending, and mark them; durable then.

        Dead letters whose topic `caller` may not publish to (for the retry topic: not read) fail as `forbidden`.

        Raises
        ------
        Unknown, Unavailable
            Some messages may be stored; repeating the call stores none of them twice.
        """
        done = Replayed(failed)
        now_ms = self._letters.now_ms()

        def mark(ranges: tuple[tuple[int, int], ...]) -> SentBack:
            return SentBack(ranges, to, now_ms, caller.name)

        for letters, left in chosen:
            log = letters.log
            source = Resendable(
                log.ref.name,
                partial(Replay, group.name, group.epoch, log.ref.name),
                partial(sent_back, to_retry=to == "retry"),
                to,
                group,
            )
            while len(left):
                read = partial(some_letters, log, left, _STEP_BYTES, WAITING_COLUMNS)
                picked, taken = await self._partitions.run(read)
                left = left[taken:]
                failed.add(log.ref.name, sorted(picked.gone), "offset_out_of_range")
                failed.add(log.ref.name, picked.unreadable, "corrupt")
                sent, before = await self.send(source, picked.rows, done, caller)
                done.replayed += len(sent)
                done.duplicates += len(before)
                # A message that was sent before has a mark, unless its replay was cut off.
                sent += [offset for offset in before if letters.marks.sent(offset) is None]
                if sent:
                    failpoint("replay.before_mark")
                    await self._letters.mark(group, log.ref.name, np.sort(np.array(sent, dtype=np.int64)), mark)
        return done

    async def send(
        self, source: Resendable, rows: pa.RecordBatch, done: Replayed, caller: Caller
    ) -> tuple[list[int], list[int]]:
        """Append messages to their targets; return the offsets of new ones, and of ones stored before.

        Rows name where they came from in `origin`; failures are added to those of `done`.
        """
        unsent, before = await self._unsent(source, rows, done, caller)
        if not unsent:
            return [], before
        back = source.again(rows)
        pending = PendingRequest(len(unsent), self._partitions.loop)
        parts = []
        for at, offset, target in unsent:
            name = source.name(offset)
            stamp = ProducerStamp(name.producer_id, name.producer_seq, None, 1)
            row = back.slice(at, 1) if source.to == "retry" else _arrived(back.slice(at, 1), target.partition)
            part = RequestPart(
                ArrowRows(1, row.nbytes, row), pending, Flush.SYNC, stamp=stamp, fence_epochs=target.fence_epochs
            )
            parts.append((part, offset))
            target.partition.queue.put(part)
        await pending.wait()
        for target, error in [(target, part.error) for (_, _, target), (part, _) in zip(unsent, parts, strict=True)]:
            if isinstance(error, Fenced):
                # A repeated request finds this process with the new metadata.
                await self._meta.refresh()
                raise fence_not_known(target.partition.name, error)
        sent = []
        for part, offset in parts:
            if part.error is not None:
                if isinstance(part.error, (Unknown, Unavailable)):
                    raise part.error
                done.failed.add(source.partition, [offset], part.error.code)
            elif part.appended is not None and part.appended.duplicate:
                before.append(offset)
            else:
                sent.append(offset)
        return sent, before

    async def _unsent(
        self, source: Resendable, rows: pa.RecordBatch, done: Replayed, caller: Caller
    ) -> tuple[list[tuple[int, int, _Target]], list[int]]:
        """Return the row number, offset and target of each message to send, and the offsets of messages sent before.

        The other messages fail.
        """
        targets = _Targets(self._topics, self._partitions, self._fencing, self._sealer, source)
        unsent: list[tuple[int, int, _Target]] = []
        before: list[int] = []
        columns = [rows.column(name).to_pylist() for name in ("offset", "origin", "key")]
        verb: Verb = "subscribe" if source.to == "retry" else "publish"
        for at, (offset, origin, key) in enumerate(zip(*columns, strict=True)):
            if not caller.allows("topic", origin["topic"], verb):
                done.failed.add(source.partition, [offset], Forbidden.code)
                continue
            try:
                target = await targets.of(offset, origin, key)
            except Unavailable as error:
                if error.code != _UNSERVED:
                    raise
                done.failed.add(source.partition, [offset], error.code)
                continue
            if target is None:
                done.failed.add(source.partition, [offset], "topic_not_found")
            elif target.has(source.name(offset)):
                before.append(offset)
            else:
                unsent.append((at, offset, target))
        return unsent, before


def _arrived(row: pa.RecordBatch, partition: Partition) -> pa.RecordBatch:
    """Return a message as its topic stores it, by the schema that wrote it if the row says that."""
    if row.schema.get_field_index(VALUE) < 0:
        return row
    try:
        return arrived(row, partition.codec())
    except Conflict:
        return untyped(row)  # its commit says why there is no codec


class _Target(NamedTuple):
    partition: Partition
    fence_epochs: FenceEpochs
    #: The earlier segments of the logical queue that may have the message already.
    earlier: Sequence[PartitionLog] = ()

    def has(self, name: Replay) -> bool:
        """Whether an earlier segment has the message from an earlier copy of the request."""
        return any(log.remembers(name.producer_id, name.producer_seq) for log in self.earlier)


class _Targets:
    """The targets of the messages of one partition."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        fencing: Fencing,
        sealer: Sealer,
        source: Resendable,
    ) -> None:
        self._sealer = sealer
        self._hosted = topics
        self._partitions = partitions
        self._fencing = fencing
        self._source = source
        self._topics: dict[str, HostedTopic | None] = {}
        #: The earlier segments by the partition that gets a queue's messages, for one placement.
        self._earlier: dict[str, tuple[Placement, Sequence[PartitionLog]]] = {}

    async def of(self, offset: int, origin: Mapping[str, str], key: str | None) -> _Target | None:
        """Return the target of the message at `offset`; None if its topic is gone.

        Raises
        ------
        Unavailable
            `queue_unserved`: its logical queue is not available; `remap_in_progress`: ask again.
        """
        topic = await self._topic(origin["topic"])
        if topic is None:
            return None
        if self._source.group is not None and self._source.to == "retry":
            retry = self._retry(topic, self._source.group)
            return _Target(retry, self._fencing.epochs(retry.name))
        places = self._hosted.placement(topic)
        name = places.home_of(topic.name, origin["partition"], key, offset)
        # A closed queue of a global topic must get no more messages here: its next stay has these offsets.
        if any(places.partitions[number] == name for number in places.away):
            detail = (
                f"topic {topic.name}: the queue takes its messages in another cluster; send back to the retry topic"
            )
            raise Unavailable(detail, code=_UNSERVED)
        earlier = () if places.queues is None else await self._segments_before(name, topic, places)
        return _Target(topic.partition(name), places.fence_epochs[name], earlier)

    async def _segments_before(self, name: str, topic: HostedTopic, places: Placement) -> Sequence[PartitionLog]:
        """Return the logs of the segments before one that may remember requests, each read to its end."""
        known = self._earlier.get(name)
        if known is not None and known[0] is places:
            return known[1]
        if name in places.ahead:
            # Copies of the request may still be stored in the old leader.
            raise Unavailable(f"topic {topic.name} is being remapped; ask again", code="remap_in_progress")
        place = None if places.queues is None else places.queues.of_partition(name)
        assert place is not None, "messages go to segments"
        now_ms = self._partitions.warehouse.clock.wall_us() // 1_000
        logs = []
        for segment in place.queue.segments[: place.queue.segments.index(place.segment)]:
            if 0 < segment.end_ms < now_ms - PRODUCER_WINDOW_MS:
                continue
            partition = topic.partition(segment.partition)
            log = await partition.opened()
            if log.end_offset < segment.end_offset:
                await partition.look()
            logs.append(log)
        self._earlier[name] = places, logs
        return logs

    async def _topic(self, name: str) -> HostedTopic | None:
        if name not in self._topics:
            try:
                topic = await self._hosted.require(name)
                if self._source.to == "origin" and self._hosted.placement(topic).ahead:
                    await self._sealer.seal(topic)
                self._topics[name] = topic
            except NotFound:
                self._topics[name] = None
        return self._topics[name]

    def _retry(self, topic: HostedTopic, group: Group) -> Partition:
        """Return the retry partition, on the broker of the dead letters if the topic has a partition there."""
        broker = retry_broker(self._source.partition, topic.route.partitions)
        ref = retry_ref(group.name, group.epoch, topic.name, topic.topic.generation, broker)
        return self._partitions.of(ref)
