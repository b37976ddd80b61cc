"""The queue in memory, for users' tests; DeltaMQ's tests use it as a model.

    queue = MemoryQueue()
    queue.create_topic("orders")
    queue.put_group("billing", max_attempts=3)
    queue.send("orders", b"...", key="customer-7")
    popped = queue.pop("billing", "orders")
    queue.ack("billing", [message.handle for message in popped])
    queue.advance(61_000)
    queue.run_jobs()

It has the rules of the service, from the same modules. But time passes only in `advance`, jobs run only on request, and
nothing is random, so a test always sees the same. `crash` forgets what a crash of the service would lose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import msgspec

from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.limits import ACK_SETTLE_MS, POP_MESSAGES_MAX
from deltamq.mq.meta.group import decide_delete_group, decide_put_group, decide_reset_offsets
from deltamq.mq.meta.group_settings import GroupRequest, InvisibleBounds, Ordering
from deltamq.mq.names import check_client_topic
from deltamq.mq.partitioners import Partitioner
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.delay import check_cancel, deliver_time, is_due
from deltamq.mq.queue.handle import Handle, HandleKeys, Lease, check_live, open_handle, open_handles
from deltamq.mq.queue.lane import BufferSettings, visits
from deltamq.mq.queue.ordered_pop import check_attempt_id
from deltamq.mq.queue.progress import Start, lag_messages, reset_position
from deltamq.mq.queue.retry import Dead, after_failure, check_reason, retry_lane
from deltamq.mq.routing import new_route
from deltamq.mq.testing.broker import LanePop, MemoryBroker, Popped
from deltamq.mq.testing.jobs import delay_steps, delayed_of, revive_steps
from deltamq.mq.testing.log import MemoryTopic, Origin, Row, StoredState

_KEYS = HandleKeys(current=0, secrets={0: b"the secret of the in-memory twin"})
_BROKER = "memory"


class AckAnswer(msgspec.Struct, frozen=True):
    """The results of the handles of one call."""

    acked: int
    #: The code of each handle that failed, by position: `handle_invalid` or `handle_expired`.
    failed: Mapping[int, str]


class MemoryQueue:
    """Topics, groups, POP, retries, delays and dead letters in memory. Not safe for threads."""

    def __init__(
        self,
        *,
        now_ms: int = 0,
        keys: HandleKeys = _KEYS,
        buffer: BufferSettings | None = None,
        invisible: InvisibleBounds | None = None,
    ) -> None:
        self.now_ms = now_ms
        self.tables = StoredState()
        self._keys = keys
        self._buffer_settings = buffer or BufferSettings()
        self._invisible = invisible or InvisibleBounds()
        self._draw = 0
        self._sent = 0
        self._broker = MemoryBroker(self.tables, keys, self._buffer_settings)

    # Topics and groups.

    def create_topic(self, name: str, partitions: int = 1, partitioner: Partitioner = "lp") -> None:
        """Create a topic; an existing one is not changed. `partitioner` is the hash by which keys go to partitions."""
        check_client_topic(name)
        if name not in self.tables.topics:
            self.tables.lives += 1
            route = new_route(name, partitions, [_BROKER])
            self.tables.topics[name] = MemoryTopic(name, f"{name}-{self.tables.lives}", route, partitioner)

    def delete_topic(self, name: str) -> None:
        """Delete a topic: its handles, checkpoints and retried messages are void (SPEC POP-12)."""
        topic = self._topic(name)
        del self.tables.topics[name]
        self.tables.groups = self.tables.groups.without_topic(topic.id)

    def put_group(self, name: str, **settings: object) -> None:
        """Create or change a group; `settings` are the fields of `PUT /v1/groups/{group}`."""
        request = GroupRequest.from_json(settings, self._invisible)
        groups = self.tables.groups
        self.tables.groups = groups.apply_all(decide_put_group(groups, name, request, self.now_ms))

    def delete_group(self, name: str) -> None:
        """Delete a group: its progress, handles, retried and dead messages are void (SPEC POP-12)."""
        groups = self.tables.groups
        self.tables.groups = groups.apply_all(decide_delete_group(groups, name))

    def reset_offsets(self, group: str, topic: str, to: Start | int, *, keep_retries: bool = True) -> None:
        """Reset a group's offsets in every partition of a topic, in a new epoch (SPEC POP-18)."""
        offsets = {}
        for lane in self.lanes(group, topic):
            log = self.tables.lane_log(lane)
            if not lane.retry:
                time_ms = to.time_ms if isinstance(to, Start) else None
                offsets[lane] = reset_position(to, log.bounds_at(time_ms))
            elif not keep_retries:
                offsets[lane] = log.end_offset
        groups = self.tables.groups
        self.tables.groups = groups.apply_all(decide_reset_offsets(groups, group, topic, offsets))
        for lane in offsets:
            self._broker.forget(lane)

    def lanes(self, group: str, topic: str) -> list[LaneKey]:
        """Return the group's lanes in a topic, its retry partition last."""
        target = self._topic(topic)
        lanes = [LaneKey(target.id, group, False, partition) for partition in target.route.partitions]
        return [*lanes, retry_lane(lanes[0], topic)]

    def _topic(self, name: str) -> MemoryTopic:
        topic = self.tables.topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name}", code="topic_not_found", field="topic")
        return topic

    # Send.

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        delay_ms: int | None = None,
        deliver_time_ms: int | None = None,
    ) -> Origin:
        """Send one message; returns its place, or the place where it waits if it is delayed (SPEC RETRY-4)."""
        target = self._topic(topic)
        at_ms = deliver_time(self.now_ms, delay_ms=delay_ms, deliver_time_ms=deliver_time_ms)
        index = self._sent % len(target.route.partitions) if key is None else target.index_of(key)
        partition = target.route.partitions[index]
        self._sent += 1
        row = Row(
            body=body,
            message_id=message_id or f"message-{self._sent}",
            key=key,
            tag=tag,
            headers=dict(headers or {}),
            deliver_time_ms=at_ms,
            origin=None if at_ms is None else Origin(f"{target.id}/{topic}", partition, -1),
        )
        log = self.tables.log("topic", target.id, partition) if at_ms is None else self.tables.log("delay")
        return Origin(topic, partition, log.append([row], self.now_ms))

    def cancel(self, topic: str, message_id: str) -> None:
        """Cancel a delayed message before it is due; raises `NotFound` (`message_not_found`) when none waits."""
        target = self._topic(topic)
        log = self.tables.log("delay")
        waiting = [delayed_of(row) for row in log.read(0, log.end_offset) if row.message_id == message_id]
        waiting = [message for message in waiting if message.topic_id == target.id]
        if not waiting:
            raise NotFound(f"no message {message_id} waits", code="message_not_found", field="message_id")
        for message in [delayed for delayed in waiting if not is_due(delayed, self.now_ms)] or waiting:
            check_cancel(message, self.now_ms)
            self.tables.cancelled.add((message.delay_partition, message.offset))

    # Pop, acknowledge, change.

    def pop(
        self,
        group: str,
        topic: str,
        max_messages: int = 32,
        *,
        invisible_ms: int | None = None,
        order: Ordering | None = None,
        tags: Collection[str] | None = None,
        filter: str | None = None,
        attempt_id: str | None = None,
    ) -> list[Popped]:
        """Pop messages from all partitions (SPEC POP-1); retried ones come first every fifth time, else last.

        Messages that have none of the `tags`, or that `filter` (SPEC CONS-9) is not true for, count as consumed. A pop
        in order that is repeated with its `attempt_id` gets the same messages, while they are leased (SPEC POP-20).
        """
        assert 0 < max_messages <= POP_MESSAGES_MAX
        condition = None if filter is None else parse_filter(filter)
        settings = self.tables.groups.group(group).settings
        how = settings.order if order is None else order
        invisible = settings.invisible_ms if invisible_ms is None else self._invisible.check(invisible_ms)
        if attempt_id is not None:
            check_attempt_id(attempt_id, in_order=how is not False)
        *normal, retry = self.lanes(group, topic)
        held = [lane for lane in normal if attempt_id and self._broker.has_attempt(lane, attempt_id, self.now_ms)]
        self._draw += 1
        popped: list[Popped] = []
        for lane in held or visits(normal, [retry], draw=self._draw):
            if len(popped) == max_messages and not held:
                break
            request = LanePop(
                topic=topic,
                lane=lane,
                settings=settings,
                # Retried messages have lost their place in the order already.
                order=False if lane.retry else how,
                max_messages=max_messages - len(popped),
                invisible_ms=invisible,
                tags=tags,
                condition=condition,
                attempt_id=attempt_id,
            )
            popped += (self._broker.repeat if held else self._broker.pop)(request, self.now_ms)
        return popped

    def ack(self, group: str, handles: Sequence[str]) -> AckAnswer:
        """Acknowledge messages (SPEC POP-8); each handle has its own result."""
        self.tables.groups.group(group)
        opened, invalid = open_handles(self._keys, group, handles)
        failed = dict.fromkeys(invalid, "handle_invalid")
        for part in opened:
            try:
                refused = self._broker.ack(part, self._live(part.lease, group), self.now_ms)
            except DeltaMQError as error:
                failed |= dict.fromkeys(part.positions, error.code)
                continue
            if refused:
                for position in part.positions:
                    index = open_handle(self._keys, group, handles[position]).index
                    if refused >> index & 1:
                        failed[position] = "handle_expired"
        return AckAnswer(len(handles) - len(failed), failed)

    def _live(self, lease: Lease, group: str) -> LaneKey:
        """Return the lane of a lease; raises `Conflict` when the lease has ended."""
        topic = self.tables.topics.get(lease.topic)
        topic_id = topic.id if topic else None
        lane = LaneKey(topic_id or "", group, lease.retry, lease.partition)
        check_live(lease, topic_id=topic_id, epoch=self.tables.groups.epoch_of(lane), now_ms=self.now_ms)
        return lane

    def change(self, group: str, handle: str, invisible_ms: int) -> str:
        """Change the invisible time of a message (SPEC POP-9); returns its new handle. 0 makes it visible at once."""
        self._invisible.check(invisible_ms, zero=True)
        return self._change(group, open_handle(self._keys, group, handle), invisible_ms)

    def nack(self, group: str, handle: str, *, delay_ms: int | None = None, draw: float = 0.5) -> str:
        """Report a failure: the message is retried by policy, or dead after the last attempt (SPEC POP-10, RETRY-3)."""
        opened = open_handle(self._keys, group, handle)
        settings = self.tables.groups.group(group).settings
        after = after_failure(
            settings.retry_policy, attempt=opened.attempt, max_attempts=settings.max_attempts, draw=draw
        )
        if isinstance(after, Dead):
            return self._change(group, opened, 0, after.reason)
        if delay_ms is not None:
            self._invisible.check(delay_ms, field="delay_ms", zero=True)
        return self._change(group, opened, after.wait_ms if delay_ms is None else delay_ms)

    def dead(self, group: str, handle: str, reason: str) -> None:
        """Dead-letter a message: at once in an ordered lane, else with the next run of revive."""
        self._change(group, open_handle(self._keys, group, handle), 0, check_reason(reason))

    def _change(self, group: str, handle: Handle, invisible_ms: int, dead_reason: str | None = None) -> str:
        lane = self._live(handle.lease, group)
        request = LanePop(
            topic=handle.lease.topic,
            lane=lane,
            settings=self.tables.groups.group(group).settings,
            order=False,
            max_messages=1,
            invisible_ms=invisible_ms,
            tags=None,
        )
        return self._broker.change(handle, request, self.now_ms, invisible_ms, dead_reason)

    # Time, jobs, faults.

    def advance(self, ms: int) -> None:
        """Let time pass; the service stores the checkpoints that must leave its memory."""
        assert ms >= 0, "time does not go back"
        self.now_ms += ms
        self._broker.tick(self.now_ms)

    def run_revive(
        self, *, steps: int | None = None, unreadable: Collection[tuple[str, int]] = (), ahead_ms: int = 0
    ) -> None:
        """Run the revive job (SPEC POP-11), or only its first `steps` steps, as if it was killed then.

        Its clock is ahead of the service's by `ahead_ms`; a negative value means behind.
        """
        run = revive_steps(self.tables, self.now_ms + ahead_ms, settle_ms=ACK_SETTLE_MS, unreadable=unreadable)
        for _ in islice(run, steps):
            pass

    def run_delay(self, *, steps: int | None = None) -> None:
        """Run the delay job (SPEC RETRY-4), or only its first `steps` steps, as if it was killed then."""
        for _ in islice(delay_steps(self.tables, self.now_ms), steps):
            pass

    def run_jobs(self) -> None:
        """Run every job once."""
        self.run_delay()
        self.run_revive()

    def crash(self) -> None:
        """Kill the service and start it again 1 ms later: the state that was only in its memory is lost (POP-14)."""
        self.now_ms += 1
        self._broker = MemoryBroker(self.tables, self._keys, self._buffer_settings)

    def restart(self) -> None:
        """Stop the service in order and start it again: nothing is lost (SPEC POP-13)."""
        self._broker.stop()
        self.crash()

    def expire(self, topic: str, partition: str, min_offset: int) -> None:
        """Remove the messages below `min_offset`, as retention does."""
        log = self.tables.log("topic", self._topic(topic).id, partition)
        log.min_offset = min(max(log.min_offset, min_offset), log.end_offset)

    # Look.

    def dead_letters(self, group: str) -> list[Row]:
        """Return the group's dead letters, in the order in which they came."""
        log = self.tables.dead_letters(group)
        return log.read(0, log.end_offset)

    def lag(self, group: str, topic: str) -> int:
        """Return how many messages the group has not committed, retried ones included."""
        return sum(self._lag(lane) for lane in self.lanes(group, topic))

    def _lag(self, lane: LaneKey) -> int:
        committed = self.tables.groups.committed_in(lane, self.tables.committed.get(lane))
        return lag_messages(committed.offset if committed else None, self.tables.lane_log(lane).bounds)

    def in_flight(self, group: str, topic: str) -> int:
        """Return how many messages clients of the group hold."""
        return sum(self._broker.in_flight(lane) for lane in self.lanes(group, topic))
