"""Plans the next batch of a stream from a position in the checkpoint, the stored offsets, and the query's limits.

    latestOffset(start)          the position where the next batch ends; `start` itself if there is nothing to read
    partitions(start, end)       the same ranges in every call: a failed batch is planned again

A position that does not match the stored offsets means lost data: the query fails and names it, or, with
`failOnDataLoss=false`, logs it and goes on with the stored messages.

Limits are numbers of messages: holes in the offsets of a logical queue do not count. A position before a hole
moves on at once, in a batch without messages if need be. So the position stays valid when retention drops
the segment before the hole.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from deltamq.jobs.read.offset_range import check_named, check_queue_names, check_start_found, offset_of
from deltamq.jobs.read.options import ReadOptions
from deltamq.jobs.read.stored_partition import OffsetRange, TimeSearch
from deltamq.jobs.stream.followed import FollowedPartition, FollowedTopics
from deltamq.mq.errors import NotFound, Refused
from deltamq.mq.static.reading import StoredOffsets
from deltamq.mq.streams import StreamOffset, TopicOffset, admitted
from deltamq.tables.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger("deltamq.jobs.stream")

#: Milliseconds for which a query without news waits in the planner: a new call by Spark would cost more.
WAIT_MS: Final = 200

Key = tuple[str, str]
Holes = tuple[tuple[int, int], ...]
_NO_HOLES: Final[Mapping[Key, Holes]] = {}


class StreamDataLost(NotFound):
    """Messages that a stream has not read yet are gone."""

    code = "stream_data_lost"


class StreamPlanner:
    """Plans the batches of one query; for one thread. It writes nothing."""

    def __init__(self, options: ReadOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.followed = FollowedTopics(options, clock=clock)
        self._options = options
        self._clock = clock
        #: Under AvailableNow: the ends of the partitions when the query began.
        self._target: dict[Key, int] | None = None
        self._last_batch_ms: int | None = None

    # Positions.

    def initial(self) -> StreamOffset:
        """Return the position where a new query begins; raise `Refused` for a missing partition or offset."""
        options, followed = self._options, self.followed.partitions
        check_queue_names(self.followed.catalog(), options)
        check_named(options.start, "startingOffsets", [partition.partition for partition in followed.values()])
        search = TimeSearch(self.followed.store)
        return self._offset(
            {key: self._start_of(partition, search) for key, partition in followed.items()}, stream=uuid.uuid4().hex
        )

    def _start_of(self, partition: FollowedPartition, search: TimeSearch) -> int:
        stored = partition.stored
        offsets = stored.offsets
        start = offset_of(self._options.start, stored, search)
        check_start_found(self._options, stored, start)
        if not offsets.first <= start <= offsets.end and self._options.fail_on_data_loss:
            raise Refused(
                f"{stored.name}: cannot start at offset {start}, offsets [{offsets.first}, {offsets.end}] are stored; "
                "failOnDataLoss=false starts at the nearest offset",
                code="offset_out_of_range",
                field="startingOffsets",
                extra={"min_offset": offsets.first, "max_offset": offsets.end},
            )
        return offsets.forward(start)

    def latest(self) -> StreamOffset:
        """Return the end position as of the last look, with the holes before it."""
        offsets = {key: partition.stored.offsets for key, partition in self.followed.partitions.items()}
        holes = {key: stored.holes for key, stored in offsets.items() if stored.holes}
        return self._offset({key: stored.end for key, stored in offsets.items()}, holes=holes)

    def fix_target(self) -> None:
        """Make the current ends a limit for all further batches (AvailableNow)."""
        self.followed.refresh()
        self._target = {key: partition.end_offset for key, partition in self.followed.partitions.items()}

    def next_end(self, start: StreamOffset, *, messages_max: int | None, unlimited: bool) -> StreamOffset | None:
        """Return the position where the next batch ends; None if there is nothing to read yet.

        `unlimited`: the trigger overrides the limits of the query's options.

        Raises
        ------
        StreamDataLost
            Messages at `start` or later are gone.
        """
        if self.followed.is_due:
            self.followed.refresh()
        until_ms = self._clock.boot_ms() + WAIT_MS
        while (end := self._next_end(start, messages_max, unlimited)) is None:
            if self._target is not None or not self.followed.wait_for_news(until_ms):
                return None
        self._last_batch_ms = self._clock.boot_ms()
        return end

    def _next_end(self, start: StreamOffset, messages_max: int | None, unlimited: bool) -> StreamOffset | None:
        at = self.positions(start)
        stored = self._offsets()
        # The start of a new topic is in the checkpoint before its rows are read: a batch that is planned again after a
        # kill would silently begin behind the messages that retention has removed since.
        new = {key for key in at if self._is_new(start, key)}
        available = {
            key: 0 if key in new else stored[key].count(offset, max(offset, self._end_of(key)))
            for key, offset in at.items()
        }
        count = sum(available.values())
        moved = bool(new) or any(
            offset != self._stored(start, key) for key, offset in at.items() if self._stored(start, key) is not None
        )
        gone = any(self.followed.topic_id(topic) != stored_topic.id for topic, stored_topic in start.topics.items())
        if not count and not moved and not gone:
            return None
        since_ms = None if self._last_batch_ms is None else self._clock.boot_ms() - self._last_batch_ms
        held = not unlimited and self._target is None and self._options.limits.must_wait(count, since_last_ms=since_ms)
        if held:
            if not moved and not gone:
                return None
            available = dict.fromkeys(available, 0)
        taken = admitted(available, messages_max)
        end = {key: stored[key].after(at[key], taken[key]) for key in at}
        return self._offset(end, stream=start.stream or uuid.uuid4().hex)

    def _offsets(self) -> dict[Key, StoredOffsets]:
        return {key: partition.stored.offsets for key, partition in self.followed.partitions.items()}

    def _end_of(self, key: Key) -> int:
        end, readable_to = self.followed.partitions[key].end_offset, self.followed.readable_to(key)
        if readable_to is not None:
            end = min(end, readable_to)
        return end if self._target is None else min(end, self._target.get(key, 0))

    def _stored(self, start: StreamOffset, key: Key) -> int | None:
        return start.of(key[0], self.followed.partitions[key].topic_id, key[1])

    def _is_new(self, start: StreamOffset, key: Key) -> bool:
        """Whether the checkpoint does not have the partition's topic, or not its present life."""
        known = start.topics.get(key[0])
        return known is None or known.id != self.followed.partitions[key].topic_id

    def positions(self, start: StreamOffset) -> dict[Key, int]:
        """Return the next offset of each followed partition, within the stored offsets.

        Raises
        ------
        StreamDataLost
            Messages at `start` or later are gone (only with `failOnDataLoss`).
        Refused
            `start` is a position in another warehouse, or in topics that this query does not read.
        """
        self.check_ours(start)
        for topic, stored in start.topics.items():
            self._check_life(topic, stored)
        return {key: self._position(partition, start) for key, partition in self.followed.partitions.items()}

    def _position(self, partition: FollowedPartition, start: StreamOffset) -> int:
        (topic, name), offsets = partition.key, partition.stored.offsets
        at = start.of(topic, partition.topic_id, name)
        if at is None:
            # A new partition of a known topic begins at 0, a new topic at the first stored offset of each partition.
            at = offsets.first if self._is_new(start, partition.key) else 0
        if offsets.lost(at) > 0:
            self._lost(
                f"{name}: the stream is at offset {at}, but retention has removed offsets [{at}, {offsets.whole_from})"
            )
        elif at > offsets.end:
            self._lost(f"{name}: the stream is at offset {at}, but the partition ends at {offsets.end}")
        return offsets.forward(at)

    def check_ours(self, start: StreamOffset) -> None:
        """Refuse a position in another warehouse."""
        ours = self.followed.warehouse_id
        if start.warehouse != ours:
            raise Refused(
                f"the checkpoint is of another warehouse (id {start.warehouse or 'none'}) than "
                f"{self._options.warehouse} (id {ours or 'none'}): give the query a checkpointLocation of its own",
                code="checkpoint_of_another_warehouse",
                field="checkpointLocation",
            )

    def _check_life(self, topic: str, stored: TopicOffset) -> None:
        present = self.followed.topic_id(topic)
        if present is None:
            if topic in self.followed.topics():
                self._not_ours(topic, "")
            self._lost(f"topic {topic} was deleted")
        elif present != stored.id:
            self._lost(f"topic {topic} was deleted and created again: the messages are now another topic's")
        else:
            for name in stored.partitions:
                if (topic, name) not in self.followed.partitions:
                    self._not_ours(topic, f"partition {name} of ")

    def _not_ours(self, topic: str, part: str) -> None:
        raise Refused(
            f"the checkpoint has a position in {part}topic {topic}, which the options do not select: give the query "
            "a checkpointLocation of its own, or select all topics that it has read so far",
            code="checkpoint_of_another_topic",
            field="checkpointLocation",
        )

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise StreamDataLost(
                f"{what}. The query stops before it skips anything; failOnDataLoss=false skips the lost messages",
                field="failOnDataLoss",
            )
        log.warning("event=stream_data_lost detail=%r", what)

    def _offset(
        self, offsets: Mapping[Key, int], *, stream: str = "", holes: Mapping[Key, Holes] = _NO_HOLES
    ) -> StreamOffset:
        topics: dict[str, tuple[str, dict[str, int], dict[str, Holes]]] = {}
        for (topic, name), offset in offsets.items():
            entry = topics.setdefault(topic, (self.followed.partitions[topic, name].topic_id, {}, {}))
            entry[1][name] = offset
            if (topic, name) in holes:
                entry[2][name] = holes[topic, name]
        named = {topic: TopicOffset(*entry) for topic, entry in topics.items()}
        return StreamOffset(warehouse=self.followed.warehouse_id, stream=stream, topics=named)

    # Ranges.

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """Return the ranges that a batch reads, with the current files; raise as `positions` does."""
        if any(offset > self._known_end(topic, name) for topic, _, name, offset in end.places()):
            self.followed.refresh()  # the batch was planned before this process began
        at = self.positions(start)
        return list(self._ranges(at, end))

    def _known_end(self, topic: str, name: str) -> int:
        partition = self.followed.partitions.get((topic, name))
        return 0 if partition is None else partition.end_offset

    def _ranges(self, at: Mapping[Key, int], end: StreamOffset) -> Iterable[OffsetRange]:
        for topic, topic_id, name, stop in end.places():
            partition = self.followed.partitions.get((topic, name))
            if partition is None or partition.topic_id != topic_id:
                self._lost(f"topic {topic} was deleted before the batch that reads {name} up to offset {stop} was done")
                continue
            stored = partition.stored
            if stop > stored.offsets.end:
                self._lost(
                    f"{name}: the batch goes up to offset {stop}, but the partition ends at {stored.offsets.end}"
                )
            yield from stored.ranges(at[topic, name], stop)
