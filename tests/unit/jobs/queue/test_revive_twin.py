"""The job over tables and the core's own job over the in-memory twin revive the same, also when one breaks off."""

from __future__ import annotations

import contextlib
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamq.mq.limits import ACK_SETTLE_MS, BUCKET_MS
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import Checkpoint
from deltamq.mq.queue.retry import DEAD_REASON_HEADER, retry_lane
from deltamq.mq.testing.jobs import revive_steps
from deltamq.mq.testing.log import MemoryTopic, Row, StoredState
from deltamq.tables import failpoints
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.store.store import MemoryStore
from tests.queue_engines import COLD, ENGINES, QueueJob, revive_job
from tests.queue_tables import QueueTables

pytestmark = pytest.mark.promise("JOB-18")


_MESSAGES = 40

offsets = st.lists(st.integers(0, _MESSAGES - 1), min_size=1, max_size=32, unique=True).map(sorted)
pops = st.tuples(
    st.just("pop"),
    st.integers(0, 1),
    offsets,
    st.integers(1, 60).map(lambda n: n * BUCKET_MS),
    st.integers(1, 3),
    st.sampled_from([None, None, "bad"]),
)
acks = st.tuples(st.just("ack"), st.integers(0, 30), st.integers(1, 2**32 - 1))
changes = st.tuples(st.just("change"), st.integers(0, 30), st.integers(0, 31), st.integers(1, 30))
points = st.sampled_from([None, "revive.after_append", "revive.after_done", "commit.after_link"])
runs = st.tuples(st.just("run"), points, st.integers(1, 3), st.booleans())
waits = st.tuples(st.just("wait"), st.integers(0, 80).map(lambda n: n * BUCKET_MS))
#: Each round pops, answers, and runs the job some time later.
rounds = st.tuples(
    st.lists(pops, min_size=1, max_size=4), st.lists(acks | changes, max_size=4), waits, runs, st.none() | runs
).map(lambda one: [*one[0], *one[1], one[2], one[3], *([one[4]] if one[4] else [])])
games = st.lists(rounds, min_size=1, max_size=6).map(lambda found: [step for part in found for step in part])


class Game:
    """The same calls to both."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.store = MemoryStore()
        self._open = contextlib.ExitStack()
        self.real = self._open.enter_context(closing(QueueTables("twin", self.store)))
        self.topic: Topic = self.real.topic(partitions=2)
        self.group: Group = self.real.group(max_attempts=2)
        self.job = self._new_job()
        self.twin = StoredState()
        self.twin.topics[self.topic.name] = MemoryTopic(self.topic.name, self.topic.id, self.topic.route)
        self.twin.groups = self.real.meta.groups
        for partition in (0, 1):
            bodies = [f"{partition}-{offset}" for offset in range(_MESSAGES)]
            self.real.send(self.topic, *bodies, partition=partition)
            rows = [Row(body=body.encode(), message_id=body, headers={"h": body}) for body in bodies]
            self.twin.log("topic", self.topic.id, self.topic.route.partitions[partition]).append(rows, 0)
        self.now_ms = 0
        self.popped: list[Checkpoint] = []
        self.given: set[tuple[int, int]] = set()

    def _new_job(self) -> QueueJob:
        warehouse = self._open.enter_context(closing(Warehouse.open("twin", store=self.store)))
        return revive_job(self.engine, warehouse, self.real.conf)

    def close(self) -> None:
        """Let go of what the jobs have opened."""
        self._open.close()

    def _record(self, checkpoint: Checkpoint) -> None:
        self.popped.append(checkpoint)
        self.real.record(checkpoint)
        self.twin.record([checkpoint])

    def pop(self, partition: int, offsets: list[int], invisible_ms: int, attempts: int, reason: str | None) -> None:
        # In an epoch a message is popped once: what comes again comes from the retry topic, or by a change.
        offsets = [offset for offset in offsets if (partition, offset) not in self.given]
        if not offsets:
            return
        self.given.update((partition, offset) for offset in offsets)
        self.now_ms += BUCKET_MS
        self._record(
            self.real.checkpoint(
                self.group,
                self.topic,
                offsets,
                partition=partition,
                at_ms=self.now_ms,
                invisible_ms=invisible_ms,
                queue=len(self.popped) % 8,
                attempts=attempts,
                dead_reason=reason,
            )
        )

    def _in_time(self, number: int) -> Checkpoint | None:
        """A checkpoint about which the service still accepts something."""
        found = self.popped[number % len(self.popped)] if self.popped else None
        return found if found is not None and self.now_ms < found.revive_time_ms else None

    def ack(self, number: int, bits: int) -> None:
        found = self._in_time(number)
        if found is not None and bits & found.span.full:
            done = found.with_bits(bits)  # a checkpoint that is stored with what was acknowledged in memory
            self.real.record(done)
            self.twin.record([done])

    def change(self, number: int, index: int, later: int) -> None:
        self.now_ms += BUCKET_MS
        found = self._in_time(number)
        if found is not None:
            index %= found.span.num
            self._record(
                found.changed(
                    index,
                    now_ms=self.now_ms,
                    invisible_ms=later * BUCKET_MS,
                    revive_queue=found.pop.revive_queue,
                )
            )

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def run(self, point: str | None, hit: int, restart: bool) -> None:
        if restart:
            self.job = self._new_job()
        failpoints.arm(f"{point}=raise@{hit}" if point else "")
        with contextlib.suppress(FailpointHit):
            self.job.run(self.now_ms)
        failpoints.arm("")
        for _ in revive_steps(self.twin, self.now_ms, settle_ms=ACK_SETTLE_MS):
            pass

    def check(self) -> None:
        self.wait(100_000)
        self.run(None, 1, False)
        lane = self.real.checkpoint(self.group, self.topic, [0]).pop.lane
        retried = self.twin.lane_log(retry_lane(lane, self.topic.name)).read(0, 10_000)
        dead = self.twin.dead_letters(self.group.name).read(0, 10_000)
        assert self._real(self.real.retried(self.group, self.topic)) == Counter(map(_of_twin, retried))
        assert self._real(self.real.dead(self.group)) == Counter(map(_of_twin, dead))

    def _real(self, rows: list[dict[str, Any]]) -> Counter[tuple[object, ...]]:
        return Counter(
            (
                row["body"],
                row["reconsume_times"],
                tuple(row["origin"].values()),
                dict(row["headers"]).get(DEAD_REASON_HEADER),
            )
            for row in rows
        )


def _of_twin(row: Row) -> tuple[object, ...]:
    assert row.origin is not None
    origin = (row.origin.topic, row.origin.partition, row.origin.offset)
    return row.body, row.reconsume_times, origin, row.headers.get(DEAD_REASON_HEADER)


@pytest.mark.promise("JOB-18", "JOB-3")
@pytest.mark.parametrize("engine", [*ENGINES, COLD])
@settings(max_examples=settings.default.max_examples // 10)
@given(game=games)
def test_pop_11_the_job_over_tables_does_what_the_core_does(engine: str, game: list[tuple[Any, ...]]) -> None:
    with closing(Game(engine)) as both:
        for name, *arguments in game:
            getattr(both, name)(*arguments)
        both.check()
