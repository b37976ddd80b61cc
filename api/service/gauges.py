"""What the groups of this process have before them: lag, age, in flight, dead letters, delayed (SPEC LOOK-11).

    progress of lanes, ends of partitions --in memory--> `Gauges.now`, in slices, so that no request waits for it
                                  ^
    files, other processes' tables '-- `Looks`, every 15 s, on threads

Each process knows the brokers that it serves; whoever asks several processes adds up. Clients of broadcast groups have
progress each of their own, and are left out: one that is gone for ever would lag for ever.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.seen_clients import SeenClients
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds, StartKind, lag_messages
from deltamq.mq.static.logical_queue import TopicQueues
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import retry_ref

#: A group in a topic, both by name.
Reading = tuple[str, str]

#: Seconds for which callers get the same sample.
FRESH_S: Final = 2.0
#: Seconds of one slice on the event loop, and the steps between two looks at the clock.
_SLICE_S: Final = 0.001
_STEPS: Final = 32
#: A data file whose messages came within this time needs no look into it.
_EXACT_US: Final = 1_000_000


class LaneAt(msgspec.Struct, eq=False):
    """A lane with its partition."""

    key: LaneKey
    reading: Reading
    broker: str
    ref: PartitionRef
    partition: Partition | None = None
    #: An offset and the append time there, from the last look.
    seen: tuple[int, int] | None = None

    def log(self, partitions: Partitions) -> PartitionLog | None:
        """Return the partition's log; None if it is not open."""
        if self.partition is None or self.partition.log is None:
            self.partition = partitions.find(self.ref)
        return None if self.partition is None else self.partition.log


class _ReadingLanes(NamedTuple):
    """The lanes of a group in a topic, as long as these are the same, and progress is known in `begun` lanes."""

    group: Group
    topic: Topic
    queues: TopicQueues | None
    begun: int
    lanes: Sequence[LaneAt]


class Sample(msgspec.Struct):
    """The gauges at one moment; groups and topics by name."""

    time_ms: int
    #: Messages that are not committed, retries included.
    lag: dict[Reading, int] = msgspec.field(default_factory=dict)
    #: Seconds since the oldest of them was appended; without the groups for which that is not known yet.
    oldest_s: dict[Reading, float] = msgspec.field(default_factory=dict)
    in_flight: dict[Reading, int] = msgspec.field(default_factory=dict)
    #: Clients by group: of shared groups those that called here lately, of exclusive ones all, in the process with the
    #: meta role.
    clients: dict[str, int] = msgspec.field(default_factory=dict)
    #: Dead letters that are neither sent back nor deleted, by group, at the last look.
    dead_letters: dict[str, int] = msgspec.field(default_factory=dict)
    #: Messages that wait for their deliver time, and for how long the first of them is overdue, at the last look.
    delayed: int = 0
    delayed_late_s: float = 0.0
    #: Lanes whose lag is not known yet, because no call or look has opened their partitions.
    unknown_lanes: int = 0


class Seen:
    """What looks have found outside memory; `Looks` writes it, on the event loop."""

    def __init__(self) -> None:
        #: Dead letters by group, its epoch, and broker.
        self.dead_letters: dict[tuple[str, int, str], int] = {}
        #: Messages that wait by broker, and the seconds by which the first was overdue.
        self.delayed: dict[str, tuple[int, float]] = {}
        #: Lanes whose oldest message is in a file that needs a look, with the offset.
        self.wanted: list[tuple[LaneAt, int]] = []


class Gauges:
    """Reads the gauges; used on the event loop."""

    def __init__(
        self,
        meta: HostedMeta,
        lanes: Lanes,
        partitions: Partitions,
        seen_clients: SeenClients,
        *,
        queues_of: Callable[[Topic], TopicQueues | None],
        serving: Callable[[], frozenset[str]],
        now_ms: Callable[[], int],
    ) -> None:
        """`queues_of` returns a static topic's logical queues, `serving` the roles of this process."""
        self.seen = Seen()
        self.meta = meta
        self._lanes = lanes
        self._partitions = partitions
        self._seen_clients = seen_clients
        self._queues_of = queues_of
        self.serving = serving
        self.now_ms = now_ms
        #: The lanes of each group name and topic id at the last look.
        self._known: dict[tuple[str, str], _ReadingLanes] = {}
        self._turn = asyncio.Lock()
        self._last = Sample(0)
        self._read_at = float("-inf")

    async def now(self, *, fresh_s: float = FRESH_S) -> Sample:
        """Return the gauges, `fresh_s` seconds old at most. Callers must not change the sample."""
        async with self._turn:
            if time.monotonic() - self._read_at >= fresh_s:
                self._last = await self._read()
                self._read_at = time.monotonic()
            return self._last

    async def lanes(self) -> AsyncIterator[LaneAt]:
        """Yield the lanes of groups that have begun in topics, as far as this process serves them, in slices.

        As in REST, the lag of a group counts all messages of partitions in which it has no progress yet, if it begins
        at the first message.
        """
        slices, roles, groups = Slices(), self.serving(), self.meta.now.groups.groups
        topics = {topic.id: topic for topic in self.meta.now.topics.topics.values()}
        begun: dict[tuple[str, str], set[LaneKey]] = {}
        for key in list(self._lanes.begun()):
            await slices.step()
            if key.group in groups and key.topic_id in topics:
                begun.setdefault((key.group, key.topic_id), set()).add(key)
        before, self._known = self._known, {}
        for name, known in begun.items():
            group, topic, kept = groups[name[0]], topics[name[1]], before.get(name)
            if group.is_broadcast:
                continue
            queues = self._queues_of(topic)
            if kept is None or kept[:3] != (group, topic, queues) or kept.begun != len(known):
                lanes = _lanes(group, topic, queues, known, () if kept is None else kept.lanes)
                kept = _ReadingLanes(group, topic, queues, len(known), lanes)
            self._known[name] = kept
            for lane in kept.lanes:
                await slices.step()
                if lane.broker in roles:
                    yield lane

    async def _read(self) -> Sample:
        sample = Sample(self.now_ms())
        wanted: list[tuple[LaneAt, int]] = []
        oldest_us: dict[Reading, int | None] = {}
        async for lane in self.lanes():
            opened = lane.log(self._partitions)
            if opened is None:
                if not lane.key.retry:
                    sample.unknown_lanes += 1
                continue
            progress = self._lanes.progress(lane.key)
            bounds = Bounds(opened.min_offset, opened.end_offset)
            lag = lag_messages(None if progress is None else progress.offset, bounds)
            sample.lag[lane.reading] = sample.lag.get(lane.reading, 0) + lag
            if not lag:
                continue
            offset = bounds.end_offset - lag
            append_us, is_exact = _append_us(opened, offset, lane.seen)
            if not is_exact:
                wanted.append((lane, offset))
            before = oldest_us.get(lane.reading, append_us)
            # One lane that is not known hides the age of all: the oldest could be there.
            oldest_us[lane.reading] = None if append_us is None or before is None else min(before, append_us)
        for reading, append_us in oldest_us.items():
            if append_us is not None:
                sample.oldest_s[reading] = max(0.0, sample.time_ms / 1_000 - append_us / 1_000_000)
        self.seen.wanted = wanted
        await self._count_flights(sample)
        self._add_seen(sample, self.meta.now)
        return sample

    async def _count_flights(self, sample: Sample) -> None:
        slices = Slices()
        names = {topic.id: topic.name for topic in self.meta.now.topics.topics.values()}
        for lane in self._lanes.buffer.lanes:
            await slices.step()
            _add(sample.in_flight, names, lane.key, lane.in_flight + lane.waiting)
        for key, ordered in self._lanes.ordered:
            _add(sample.in_flight, names, key, len(ordered.flights))

    def _add_seen(self, sample: Sample, meta: Meta) -> None:
        roles = self.serving()
        clients = Counter(self._seen_clients.counts())
        if META_ROLE in roles:
            clients.update({name: len(group.clients) for name, group in meta.online.groups.items()})
        sample.clients = {name: count for name, count in clients.items() if count and name in meta.groups.groups}
        for (name, epoch, broker), count in self.seen.dead_letters.items():
            group = meta.groups.groups.get(name)
            if group is not None and group.epoch == epoch and broker in roles:
                sample.dead_letters[name] = sample.dead_letters.get(name, 0) + count
        delayed = [found for broker, found in self.seen.delayed.items() if broker in roles]
        sample.delayed = sum(count for count, _ in delayed)
        sample.delayed_late_s = max((late_s for _, late_s in delayed), default=0.0)


class Slices:
    """Gives the event loop to others after each slice of work."""

    def __init__(self) -> None:
        self._steps = 0
        self._until_s = time.monotonic() + _SLICE_S

    async def step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS == 0 and time.monotonic() > self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.monotonic() + _SLICE_S


def _lanes(
    group: Group, topic: Topic, queues: TopicQueues | None, begun: set[LaneKey], before: Sequence[LaneAt]
) -> list[LaneAt]:
    """Return the lanes that have begun, and those that lag all the same; those of `before` that are the same stay.

    Lanes of segments that retention has dropped are left out.
    """
    route = frozenset(topic.route.partitions)
    there = (key for key in sorted(begun) if key.retry or key.partition in route)
    keys = dict.fromkeys((*there, *_behind(group, topic, queues, begun)))
    known = {lane.ref: lane for lane in before}
    made = (_at(group, topic, key) for key in keys)
    return [known.get(lane.ref, lane) for lane in made]


def _behind(group: Group, topic: Topic, queues: TopicQueues | None, begun: set[LaneKey]) -> Iterator[LaneKey]:
    """Yield the retries, and the partitions without progress that the group has yet to read.

    A group that begins at the first message has them all before it. Another one has the segments of a logical queue
    behind the one where it is.
    """
    is_from_first = group.settings.consume_from.kind is StartKind.FIRST
    yield from (lane for lane in lanes_of(group.name, topic) if lane.retry or (is_from_first and queues is None))
    for queue in () if queues is None else queues.served.values():
        is_before_it = is_from_first
        for segment in queue.readable:
            lane = LaneKey(topic.id, group.name, False, segment.partition)
            is_before_it |= lane in begun
            if is_before_it:
                yield lane


def _at(group: Group, topic: Topic, key: LaneKey) -> LaneAt:
    broker = broker_of(key.partition)
    if key.retry:
        ref = retry_ref(group.name, group.epoch, topic.name, topic.generation, broker)
    else:
        ref = PartitionRef(Space.TOPICS, topic.name, key.partition, topic.generation)
    return LaneAt(key, (group.name, topic.name), broker, ref)


def _append_us(log: PartitionLog, offset: int, known: tuple[int, int] | None) -> tuple[int | None, bool]:
    """Return when the message at an offset was appended, and whether that is exact, without a look at its file.

    A file says when its first and last messages came. `known` are an offset and its time: a message behind it is not
    older.
    """
    if known is not None and known[0] == offset:
        return known[1], True
    if known is not None and known[0] > offset:
        known = None  # the group was reset
    files = log.files
    at = bisect_left(files, offset + 1, key=lambda file: file.end)
    if at == len(files):
        return None, True  # removed meanwhile
    file = files[at]
    if file.append_max_us - file.append_min_us < _EXACT_US or file.start == offset:
        return file.append_min_us, True
    return (None if known is None else max(known[1], file.append_min_us)), False


def _add(counts: dict[Reading, int], names: Mapping[str, str], key: LaneKey, count: int) -> None:
    topic = names.get(key.topic_id)
    if count and topic is not None:
        reading = (key.group, topic)
        counts[reading] = counts.get(reading, 0) + count
