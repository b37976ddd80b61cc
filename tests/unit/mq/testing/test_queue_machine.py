"""The whole queue under any sequence of calls, crashes and job runs: the rules of tests/history/README.md.

A model beside the twin knows, for each group and message, what its clients were given and told. It decides nothing: it
only says what must never happen (`anomaly` names as there), and at the end that nothing is missing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltamq.mq.errors import Conflict
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.handle import HandleKeys, open_handle
from deltamq.mq.queue.lane import BufferSettings
from deltamq.mq.queue.progress import Start
from deltamq.mq.queue.retry import retry_lane
from deltamq.mq.queue.revive import stored_bits
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.mq.testing.broker import Popped
from deltamq.mq.testing.queue import MemoryQueue

GROUPS = {"free": False, "line": True, "keys": "key"}
TOPIC = "orders"
REJECTED = "rejected by its consumer"
KEYS = HandleKeys(current=3, secrets={3: b"k" * 32})


@dataclass
class Lease:
    """One delivery as its client knows it."""

    handle: str
    attempt: int
    until_ms: int
    #: Ended by its client, by a reset, or by a crash that forgot it, which no lease in order is.
    over: bool = False


@dataclass
class Life:
    """One message as one group sees it, since the group's last reset."""

    leases: list[Lease] = field(default_factory=list)
    acked: bool = False
    rejected: bool = False
    attempts: int = 0

    def current(self, now_ms: int) -> Lease | None:
        """The lease that keeps the message from everybody else."""
        last = self.leases[-1] if self.leases else None
        return last if last is not None and not last.over and now_ms < last.until_ms else None


class QueueMachine(RuleBasedStateMachine):
    """Rules are what clients, clocks, crashes and jobs do; `check` and `teardown` say what must hold."""

    @initialize(partitions=st.integers(1, 2), max_attempts=st.integers(1, 3))
    def start(self, partitions: int, max_attempts: int) -> None:
        self.queue = MemoryQueue(
            now_ms=1_000,
            keys=KEYS,
            buffer=BufferSettings(checkpoints_max=5, partition_checkpoints_max=4),
            invisible=InvisibleBounds(min_ms=100),
        )
        self.queue.create_topic(TOPIC, partitions)
        self.sent: dict[bytes, str | None] = {}
        self.due: dict[bytes, int] = {}
        self.cancelled: set[bytes] = set()
        self.expired: set[bytes] = set()
        self.max_attempts = max_attempts
        self.lives: dict[str, dict[bytes, Life]] = {group: {} for group in GROUPS}
        #: Dead letters of earlier epochs do not count.
        self.dead_before = dict.fromkeys(GROUPS, 0)
        self.given: list[tuple[str, bytes, Lease]] = []
        for group, order in GROUPS.items():
            policy = {"exponential": {"initial_ms": 200, "max_ms": 4_000, "jitter": 0.5}}
            self.queue.put_group(group, order=order, max_attempts=max_attempts, retry_policy=policy)

    def life(self, group: str, body: bytes) -> Life:
        return self.lives[group].setdefault(body, Life())

    # What producers do.

    @rule(key=st.sampled_from([None, "a", "b"]), count=st.integers(1, 4))
    def send(self, key: str | None, count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.sent)
            self.sent[body] = key
            self.queue.send(TOPIC, body, key=key, message_id=body.decode())

    @rule(delay_ms=st.sampled_from([1, 900, 5_000]))
    def send_later(self, delay_ms: int) -> None:
        body = b"%d" % len(self.sent)
        self.sent[body] = None
        self.due[body] = self.queue.now_ms + delay_ms
        self.queue.send(TOPIC, body, message_id=body.decode(), delay_ms=delay_ms)

    @precondition(lambda self: self.due)
    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        body = sorted(self.due)[which % len(self.due)]
        try:
            self.queue.cancel(TOPIC, body.decode())
        except Conflict:
            assert self.queue.now_ms >= self.due[body]
        else:
            assert self.queue.now_ms < self.due[body]
            self.cancelled.add(body)

    # What consumers do.

    @rule(count=st.sampled_from([1, 1, 2, 5, 40]), invisible_ms=st.sampled_from([300, 6_000, 60_000]))
    def pop(self, count: int, invisible_ms: int) -> None:
        self.pop_as("free", count, invisible_ms)

    @rule(
        group=st.sampled_from(["line", "keys"]),
        count=st.sampled_from([1, 2, 40]),
        invisible_ms=st.sampled_from([300, 6_000]),
    )
    def pop_in_order(self, group: str, count: int, invisible_ms: int) -> None:
        self.pop_as(group, count, invisible_ms)

    def pop_as(self, group: str, count: int, invisible_ms: int) -> None:
        for message in self.queue.pop(group, TOPIC, count, invisible_ms=invisible_ms):
            self.delivered(group, message, invisible_ms)

    def delivered(self, group: str, message: Popped, invisible_ms: int) -> None:
        now_ms, body = self.queue.now_ms, message.row.body
        life = self.life(group, body)
        assert not life.acked, "redelivered-after-ack"
        assert not life.rejected, "redelivered after it was condemned"
        assert life.current(now_ms) is None, "double-lease"
        assert now_ms >= self.due.get(body, 0), "early-delivery"
        assert body not in self.cancelled, "delivered after it was cancelled"
        assert body not in self.dead_bodies(group), "delivered after it was dead"
        assert life.attempts < message.delivery_attempt, "attempt-not-increasing"
        assert message.delivery_attempt <= self.max_attempts, "too-many-attempts"
        self.in_order(group, message)
        life.attempts = message.delivery_attempt
        lease = Lease(message.handle, message.delivery_attempt, message.pop_time_ms + invisible_ms)
        life.leases.append(lease)
        self.given.append((group, body, lease))

    def in_order(self, group: str, message: Popped) -> None:
        """No message overtakes one that it must follow: of its partition, or of its key."""
        order = GROUPS[group]
        if order is False:
            return
        key = message.row.key
        log = self.queue.tables.lane_log(self.queue.lanes(group, TOPIC)[0]._replace(partition=message.partition))
        dead = self.dead_bodies(group)
        for row in log.read(0, message.row.offset):
            if order == "key" and (key is None or row.key != key):
                continue
            before = self.life(group, row.body)
            waits = before.current(self.queue.now_ms)
            fine = before.acked or row.body in dead or (order is True and waits is not None)
            assert fine, "order-break"

    @precondition(lambda self: self.given)
    @rule(which=st.integers(0, 30), span=st.sampled_from([1, 1, 2, 40]))
    def ack(self, which: int, span: int) -> None:
        """A run of handles, perhaps old ones, of one group, as one call."""
        at = len(self.given) - 1 - which % len(self.given)
        group = self.given[at][0]
        chosen = [one for one in self.given[at : at + span] if one[0] == group]
        answer = self.queue.ack(group, [lease.handle for _, _, lease in chosen])
        live = [self.life(group, body).current(self.queue.now_ms) is lease for _, body, lease in chosen]
        for position, (_, body, lease) in enumerate(chosen):
            if live[position] and position not in answer.failed:
                self.life(group, body).acked = lease.over = True
        for position, (_, body, _) in enumerate(chosen):
            if position in answer.failed:
                assert not live[position] or body in self.expired, "a live handle was refused"
            else:
                done = self.life(group, body).acked or body in self.dead_bodies(group)
                assert done or body in self.expired, "stale-ack-accepted"

    @precondition(lambda self: self.given)
    @rule(which=st.integers(0, 30), invisible_ms=st.sampled_from([0, 300, 5_000]))
    def change(self, which: int, invisible_ms: int) -> None:
        group, body, lease = self.given[-1 - which % len(self.given)]
        life = self.life(group, body)
        mine = life.current(self.queue.now_ms) is lease
        try:
            handle = self.queue.change(group, lease.handle, invisible_ms)
        except Conflict:
            assert not mine or body in self.expired, "a live handle was refused"
            return
        assert mine, "a dead handle was changed"
        if invisible_ms:
            self.renewed(group, body, lease, handle)
        lease.over = True

    def renewed(self, group: str, body: bytes, lease: Lease, handle: str) -> None:
        lease.over = True
        until_ms = open_handle(KEYS, group, handle).lease.revive_time_ms
        new = Lease(handle, lease.attempt, until_ms)
        self.life(group, body).leases.append(new)
        self.given.append((group, body, new))

    @precondition(lambda self: self.given)
    @rule(which=st.integers(0, 30), draw=st.floats(0, 1))
    def nack(self, which: int, draw: float) -> None:
        group, body, lease = self.given[-1 - which % len(self.given)]
        mine = self.life(group, body).current(self.queue.now_ms) is lease
        try:
            handle = self.queue.nack(group, lease.handle, draw=draw)
        except Conflict:
            assert not mine or body in self.expired, "a live handle was refused"
            return
        assert mine, "a dead handle was nacked"
        lease.over = True
        if handle:
            self.renewed(group, body, lease, handle)
            self.given.pop()

    @precondition(lambda self: self.given)
    @rule(which=st.integers(0, 30))
    def condemn(self, which: int) -> None:
        group, body, lease = self.given[-1 - which % len(self.given)]
        mine = self.life(group, body).current(self.queue.now_ms) is lease
        try:
            self.queue.dead(group, lease.handle, REJECTED)
        except Conflict:
            assert not mine or body in self.expired, "a live handle was refused"
            return
        assert mine, "a dead handle was condemned"
        lease.over = True
        self.life(group, body).rejected = True

    # What time, faults and jobs do.

    @rule(ms=st.sampled_from([1, 150, 700, 3_100, 11_000]))
    def wait(self, ms: int) -> None:
        self.queue.advance(ms)

    @rule(in_order=st.booleans())
    def crash(self, in_order: bool) -> None:
        """What was stored stays with its clients; what only memory knew is anybody's again.

        Which is which cannot be seen from outside: here alone the model looks into the tables.
        """
        if in_order:
            self.queue.restart()
        else:
            self.queue.crash()
        for group, lives in self.lives.items():
            for life in lives.values():
                if life.leases:
                    self.forget(group, life)

    def forget(self, group: str, life: Life) -> None:
        lease = life.leases[-1]
        handle = open_handle(KEYS, group, lease.handle)
        lane = self.queue.lanes(group, TOPIC)[0]
        lane = lane._replace(retry=handle.lease.retry, partition=handle.lease.partition)
        tables = self.queue.tables
        committed = tables.groups.committed_in(lane, tables.committed.get(lane))
        assert committed is not None, "it was popped"
        done = OffsetRanges([(0, committed.offset), *committed.done])
        if GROUPS[group] is not False:
            # Leases in order go on: each is stored with its answer, and so is its end.
            assert not life.acked or handle.offset in done, "an ack of an ordered lane is stored with its answer"
            return
        state = tables.states.get(handle.lease.key(lane.topic_id, group), CheckpointState())
        bit = 1 << handle.index
        if state.checkpoint is not None:
            assert not (life.acked and state.open & bit), "a stored ack was lost"
        elif not state.replaced & bit and handle.offset not in done:
            # Never stored: the delivery, and its ack if there was one, have not happened.
            life.acked = False
            life.attempts = lease.attempt - 1
            lease.over = True

    @rule(
        wait_ms=st.sampled_from([0, 700, 61_000]), steps=st.sampled_from([None, None, 0, 1, 2]), bad=st.integers(0, 3)
    )
    def revive(self, wait_ms: int, steps: int | None, bad: int) -> None:
        """A run of the job, perhaps killed; every second message may be unreadable."""
        self.queue.advance(wait_ms)
        partitions = self.queue.tables.topics[TOPIC].route.partitions
        offsets = range(bad, 200, 2) if bad < 2 else ()
        self.queue.run_revive(steps=steps, unreadable={(name, offset) for name in partitions for offset in offsets})

    @rule(ahead_ms=st.sampled_from([-5_000, 250, 400, 6_500, 100_000]), steps=st.sampled_from([None, None, 0, 1, 2]))
    def revive_by_another_clock(self, ahead_ms: int, steps: int | None) -> None:
        """The job's clock is not the service's: what it gives away early has one lease less, and nothing else."""
        self.queue.run_revive(steps=steps, ahead_ms=ahead_ms)
        for body, life in self.lives["free"].items():
            lease = life.current(self.queue.now_ms)
            if lease is not None and self.given_again("free", lease):
                assert lease.until_ms <= self.queue.now_ms + ahead_ms, f"{body!r} came earlier than any clock says"
                lease.over = True

    def given_again(self, group: str, lease: Lease) -> bool:
        handle = open_handle(KEYS, group, lease.handle)
        lane = self.queue.lanes(group, TOPIC)[0]
        key = handle.lease.key(lane.topic_id, group)
        logs = (
            self.queue.tables.lane_log(retry_lane(key.lane, TOPIC)),
            self.queue.tables.dead_letters(group),
        )
        span, bit = handle.lease.span, 1 << handle.index
        return any(stored_bits(key, span, bit, log.stored_seqs) for log in logs)

    @rule(steps=st.none() | st.integers(0, 3))
    def forward(self, steps: int | None) -> None:
        self.queue.run_delay(steps=steps)

    @precondition(lambda self: len(self.sent) > 8)
    @rule(group=st.sampled_from(sorted(GROUPS)))
    def reset(self, group: str) -> None:
        """A new epoch: the group sees every message anew, as if it had never had one."""
        self.queue.reset_offsets(group, TOPIC, Start(), keep_retries=False)
        self.lives[group] = {}
        self.given = [one for one in self.given if one[0] != group]
        self.dead_before[group] = len(self.queue.dead_letters(group))

    @precondition(lambda self: len(self.sent) > 8)
    @rule(count=st.integers(1, 3), which=st.integers(0, 1))
    def expire(self, count: int, which: int) -> None:
        """Retention takes the first messages of a partition."""
        topic = self.queue.tables.topics[TOPIC]
        partition = topic.route.partitions[which % len(topic.route.partitions)]
        log = self.queue.tables.log("topic", topic.id, partition)
        low = log.min_offset
        self.expired |= {row.body for row in log.read(low, low + count)}
        self.queue.expire(TOPIC, partition, low + count)

    # What must hold.

    def dead_bodies(self, group: str) -> set[bytes]:
        return {row.body for row in self.queue.dead_letters(group)[self.dead_before[group] :]}

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "queue"):
            return
        for group in GROUPS:
            letters = self.queue.dead_letters(group)[self.dead_before[group] :]
            assert len({row.body for row in letters}) == len(letters), "dead twice"
            for row in letters:
                life = self.life(group, row.body)
                assert not life.acked, "acked-and-dead"
                reason = row.headers["mq-dead-reason"]
                assert life.rejected if reason == REJECTED else life.attempts >= self.max_attempts, "dead-too-soon"
                assert row.reconsume_times == life.attempts

    def teardown(self) -> None:
        """Heal, and let one good consumer of each group take all: then everything is acked or dead."""
        if not hasattr(self, "queue") or sys.exc_info()[0] is not None:
            return
        for _ in range(400):
            self.queue.advance(1_000)
            self.queue.run_jobs()
            for group in GROUPS:
                for message in self.queue.pop(group, TOPIC, 1_000, invisible_ms=60_000):
                    self.delivered(group, message, 60_000)
                    assert self.queue.ack(group, [message.handle]).acked == 1
                    self.life(group, message.row.body).acked = True
            self.check()
            if not self.missing():
                break
        assert not self.missing(), "queue-lost or stuck"
        assert all(self.queue.lag(group, TOPIC) == 0 for group in GROUPS) or self.settled()

    def settled(self) -> bool:
        """The last offsets are committed with the next pops."""
        self.queue.advance(61_000)
        for group in GROUPS:
            assert self.queue.pop(group, TOPIC) == []
        self.queue.advance(1)
        return all(self.queue.lag(group, TOPIC) == 0 for group in GROUPS)

    def missing(self) -> set[tuple[str, bytes]]:
        wanted = set(self.sent) - self.cancelled - self.expired
        return {
            (group, body)
            for group in GROUPS
            for body in wanted
            if not self.life(group, body).acked and body not in self.dead_bodies(group)
        }


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=settings.default.max_examples, stateful_step_count=50, report_multiple_bugs=False
)


class LongQueueMachine(QueueMachine):
    """The same, for as long as a night allows."""


TestQueueMachineLong = pytest.mark.long(LongQueueMachine.TestCase)
TestQueueMachineLong.settings = settings(max_examples=3_000, stateful_step_count=100)
