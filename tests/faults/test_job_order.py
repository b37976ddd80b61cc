"""The jobs in any order, twice, late, or left out: in the end the tables say the same (fault F13)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.mq.queue.checkpoint import Checkpoint
from deltamq.tables.store.store import MemoryStore
from tests.queue_engines import COLD, ENGINES, delay_job, revive_job
from tests.queue_tables import QueueTables

_MS = 1_000
_LATE_MS = 60 * _MS
#: What the tables say in the end: bodies that were retried, dead, and delivered late, with how often.
Said = tuple[Counter[str], Counter[str], Counter[str]]


class _World:
    """A warehouse that fills up with time, and the jobs that look at it."""

    def __init__(self, seed: int, engines: Sequence[str]) -> None:
        self._engines = engines
        self._chosen = random.Random(seed)
        self.tables = QueueTables("orders", MemoryStore())
        self.topic, self.late = self.tables.topic(partitions=2), self.tables.topic("late")
        self.group = self.tables.group(max_attempts=2)
        self._drawn = random.Random(seed)
        self.now_ms = 1_000 * _MS
        self._jobs: dict[str, Callable[[int], object]] = {}
        self.fresh("revive")
        self.fresh("delay")

    def fresh(self, job: str) -> None:
        """Another process takes the job up: it knows what the tables say."""
        made = revive_job if job == "revive" else delay_job
        self._jobs[job] = made(self._chosen.choice(self._engines), self.tables.warehouse, self.tables.conf).run

    def work(self) -> None:
        """What the service stores in a second; the same for the same seed, whatever the jobs did."""
        drawn, tables = self._drawn, self.tables
        for _ in range(drawn.randint(0, 3)):
            partition = drawn.randint(0, 1)
            bodies = [f"{self.now_ms}-{drawn.random()}" for _ in range(drawn.randint(1, 8))]
            offsets = tables.send(self.topic, *bodies, partition=partition)
            popped = tables.checkpoint(
                self.group,
                self.topic,
                offsets,
                partition=partition,
                at_ms=self.now_ms,
                invisible_ms=drawn.randint(1, 5) * _MS,
                queue=drawn.randint(0, 7),
                attempts=drawn.randint(1, 2),
            )
            self._store(popped, [offset for offset in offsets if drawn.random() < 0.5])
            tables.delay(self.late, *((f"late-{body}", self.now_ms + drawn.randint(1, 5 * _MS)) for body in bodies))
        self.now_ms += _MS

    def _store(self, popped: Checkpoint, acked: list[int]) -> None:
        """The checkpoint and its acknowledgement, in any order."""
        if acked and self._drawn.random() < 0.5:
            self.tables.ack(popped, *acked)
            acked = []
        self.tables.record(popped)
        if acked:
            self.tables.ack(popped, *acked)

    def run(self, job: str) -> None:
        self._jobs[job](self.now_ms)

    def said(self) -> Said:
        tables = self.tables
        return (
            Counter(row["body"].decode() for row in tables.retried(self.group, self.topic)),
            Counter(row["body"].decode() for row in tables.dead(self.group)),
            Counter(row["body"].decode() for row in tables.delivered(self.late)),
        )


def _in_turn(world: _World) -> None:
    world.run("revive")
    world.run("delay")


def _at_random(drawn: random.Random) -> Callable[[_World], None]:
    def runs(world: _World) -> None:
        for _ in range(drawn.choice((0, 0, 1, 2, 4))):
            job = drawn.choice(("revive", "delay"))
            if drawn.random() < 0.2:
                world.fresh(job)
            world.run(job)

    return runs


def _played(seed: int, runs: Callable[[_World], None], engines: Sequence[str] = ENGINES[:1], seconds: int = 15) -> Said:
    """The work of so many seconds with some runs in between, and what is due when all is over."""
    world = _World(seed, engines)
    for _ in range(seconds):
        world.work()
        runs(world)
    world.now_ms += _LATE_MS + ACK_SETTLE_MS
    for job in ("delay", "revive", "revive", "delay"):
        world.run(job)
    found = world.said()
    world.tables.close()
    return found


def _check(seed: int, orders: int) -> None:
    expected = _played(seed, _in_turn)
    assert all(expected), "each kind of outcome is there"
    assert max(max(found.values()) for found in expected) == 1, "each message came out once"
    for order in range(orders):
        # Of another order other engines, too, in turn and each going on where the one before it ended.
        engines = (ENGINES[:1], ENGINES[1:], (*ENGINES, COLD))[order % 3]
        found = _played(seed, _at_random(random.Random(order)), engines)
        assert found == expected, f"seed {seed}, order {order}, engines {engines}"


@pytest.mark.promise("JOB-18")
def test_f13_the_order_of_the_jobs_means_nothing() -> None:
    _check(seed=1, orders=3)


@pytest.mark.promise("LOAD-5")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_f13_fifty_orders_of_the_jobs_mean_nothing(seed: int, record_property: Callable[[str, object], None]) -> None:
    _check(seed=100 + seed, orders=10)
    record_property("runs", 10)
    record_property("seed", 100 + seed)
