"""What a task finds due in its queue is what the core finds in all records, wherever the merge has come to (POP-11)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from deltamq.jobs.queue.due_in_tasks import DueShard
from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, Pop, Span
from deltamq.mq.queue.revive import due
from deltamq.mq.queue.revive_log import Ack, Done, Record, fold
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.open_checkpoints import OpenCheckpoints
from deltamq.tables.queue.records import records_of, rows_of_records
from deltamq.tables.queue.recovery import LogCursor
from deltamq.tables.queue.refs import revive_ref
from deltamq.tables.state.rows import states_of_rows
from deltamq.tables.state.schema import POP_CHECKPOINTS
from deltamq.tables.store.store import MemoryStore
from tests.merged_checkpoints import MergedCheckpoints

BROKERS = ("a", "b")
QUEUES = (1, 2)


class World:
    """Revive logs that fill up, a table that follows them, and who looks for what is due."""

    def __init__(self, seed: int, *, cache_bytes: int) -> None:
        self.drawn = random.Random(seed)
        self.warehouse = Warehouse.open("due", store=MemoryStore())
        self.merged = MergedCheckpoints(self.warehouse, "c", BROKERS)
        self.cache_bytes = cache_bytes
        self.shard = self.fresh()
        self.now_ms = 1_000_000

    def close(self) -> None:
        self.warehouse.close()

    def fresh(self) -> DueShard:
        """One that has not looked yet."""
        cache = RowCache(self.cache_bytes)
        return DueShard(self.warehouse, OpenCheckpoints(self.warehouse.store, cache), cache)

    def work(self) -> None:
        """Some pops and what becomes of them, in any order."""
        for _ in range(self.drawn.randint(1, 6)):
            queue, broker = self.drawn.choice(QUEUES), self.drawn.choice(BROKERS)
            records = self._records(queue, broker)
            self.drawn.shuffle(records)
            kept = [one for one in records for _ in range(self.drawn.choice((0, 1, 1, 1, 2)))]
            if kept:
                log = self.warehouse.create(revive_ref("c", queue, broker))
                log.append([Batch(rows_of_records(kept))])
        self.now_ms += self.drawn.randint(0, 4_000)

    def _records(self, queue: int, broker: str) -> list[Record]:
        drawn = self.drawn
        pop = Pop(
            topic="orders",
            topic_id="id",
            # A checkpoint has one queue: no two queues have one of the same name.
            group=f"{drawn.choice(('billing', 'audit'))}-{queue}",
            epoch=1,
            partition=f"orders@{broker}",
            pop_time_ms=self.now_ms + drawn.randint(-2, 2),
            invisible_ms=drawn.randint(0, 20_000),
            revive_queue=queue,
        )
        popped = Checkpoint(pop=pop, span=Span(drawn.randint(0, 5), drawn.randint(1, 3)))
        found: list[Record] = [popped]
        for bits in range(1, popped.span.full + 1):
            if drawn.random() < 0.2:
                kind = drawn.choice((Ack, Done))
                found.append(kind(popped.key, bits, popped.revive_time_ms))
        if drawn.random() < 0.3:
            changed = popped.changed(
                0, now_ms=self.now_ms + 1, invisible_ms=drawn.randint(0, 9_000), revive_queue=queue
            )
            found.append(changed)
        return found

    def expected(self, broker: str, queue: int, now_ms: int | None = None) -> dict[CheckpointKey, int]:
        now_ms = self.now_ms if now_ms is None else now_ms
        cursor = LogCursor(self.warehouse, revive_ref("c", queue, broker))
        records = [one for rows in cursor.new_rows() for one in records_of(rows)]
        return {one.checkpoint.key: one.bits for one in due(fold({}, records).values(), now_ms)}

    def found(self, shard: DueShard, broker: str, queue: int) -> dict[CheckpointKey, int]:
        rows = shard.due("c", broker, queue, self.now_ms).rows
        return {key: state.open for key, state in states_of_rows(rows)}


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    # The cache is for speed: with none of it, and with one that holds a part, the same is found.
    with closing(World(request.param, cache_bytes=(0, 3_000, 1 << 20)[request.param])) as made:
        yield made


@pytest.mark.promise("JOB-19")
def test_pop_11_what_is_due_in_a_queue_does_not_depend_on_how_far_the_merge_is(world: World) -> None:
    drawn = world.drawn
    seen = 0
    for _ in range(8):
        world.work()
        if drawn.random() < 0.5:
            world.merged.run(files=drawn.randint(1, 3), statistics=drawn.random() < 0.7)
        for broker in BROKERS:
            for queue in QUEUES:
                expected = world.expected(broker, queue)
                assert world.found(world.shard, broker, queue) == expected
                assert world.found(world.fresh(), broker, queue) == expected
                seen += len(expected)
    assert seen > 20, "something was due"


def test_spark_07_until_something_is_appended_nothing_falls_due_before_the_time_that_a_look_tells(world: World) -> None:
    quiet = 0
    for _ in range(6):
        world.work()
        if world.drawn.random() < 0.5:
            world.merged.run(statistics=world.drawn.random() < 0.7)
        for broker in BROKERS:
            for queue in QUEUES:
                look = world.shard.due("c", broker, queue, world.now_ms)
                ref = revive_ref("c", queue, broker)
                if world.warehouse.exists(ref):
                    assert look.log_end == world.warehouse.open_partition(ref).end_offset
                if look.rows.num_rows or look.next_ms == 0:
                    continue
                quiet += 1
                last_ms = world.now_ms + 1_000_000 if look.next_ms is None else look.next_ms - 1
                assert look.next_ms is None or look.next_ms > world.now_ms
                assert world.expected(broker, queue, last_ms) == {}
    assert quiet > 5


@pytest.mark.promise("JOB-19")
def test_pop_11_a_log_that_was_cut_behind_the_watermark_is_no_loss(world: World) -> None:
    """Retention cuts what is merged, also while a reader knows an older table."""
    for _ in range(4):
        world.work()
        for broker in BROKERS:
            for queue in QUEUES:
                world.found(world.shard, broker, queue)
        expected = {(b, q): world.expected(b, q) for b in BROKERS for q in QUEUES}
        world.merged.run()
    for (broker, queue), due_there in expected.items():
        log = world.warehouse.create(revive_ref("c", queue, broker))
        log.delete_below(log.end_offset)
        assert world.found(world.shard, broker, queue) == due_there


def test_pop_11_files_in_which_nothing_is_due_are_not_opened(world: World) -> None:
    world.work()
    world.merged.run()
    opened = [key for key in world.warehouse.store.names(POP_CHECKPOINTS) if key.endswith(".parquet")]
    for key in opened:
        world.warehouse.store.delete(f"{POP_CHECKPOINTS}/{key}")
    world.now_ms -= 100_000
    assert all(not world.found(world.fresh(), broker, queue) for broker in BROKERS for queue in QUEUES)
    assert ACK_SETTLE_MS < 100_000
