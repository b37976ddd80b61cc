"""Delayed messages of static topics follow their logical queue, and are stored once across remappings (STATIC-20)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.mq.meta.static_topics import RemapMode
from deltamq.mq.static.mappings import MappingPut, MappingRemoved
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables import failpoints
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.refs import DELAY, system_ref
from deltamq.tables.schema import INTERNAL_SCHEMA
from tests.queue_engines import ENGINES, QueueJob, delay_job
from tests.queue_tables import CLUSTER, QueueTables
from tests.rows import all_bodies
from tests.static_tables import StaticTables

pytestmark = pytest.mark.promise("JOB-18")

A, B = "broker-a", "broker-b"
MODES: tuple[RemapMode, ...] = ("strict", "available")
_TYPES = {field.name: field.type for field in INTERNAL_SCHEMA}


class Bench:
    """A static topic with two queues, and a job in a process of its own."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.engine = engine
        self.tables = QueueTables(folder)
        self.orders = StaticTables(self.tables.warehouse, 2, (A, B))
        self.orders.now_ms = int(time.time() * 1_000)
        self._warehouses: list[Warehouse] = []
        self.job = self.new_job()

    def new_job(self) -> QueueJob:
        """The job as it starts."""
        warehouse = Warehouse.open(self.tables.warehouse.uri)
        self._warehouses.append(warehouse)
        return delay_job(self.engine, warehouse, self.tables.conf)

    def delay(
        self, *bodies: str, at_ms: int = 1_000, partition: str = "orders@broker-a", key: str | None = None
    ) -> None:
        """Store messages in the delay log of broker A, for a partition or a logical queue."""
        count, topic = len(bodies), self.orders.topic
        origin = {"topic": f"{topic.id}/{topic.name}", "partition": partition, "offset": -1}
        arrays = {
            "body": pa.array([body.encode() for body in bodies], pa.binary()),
            "key": pa.array([key] * count, pa.string()),
            "deliver_time": pa.array([at_ms * 1_000] * count, _TYPES["deliver_time"]),
            "origin": pa.array([origin] * count, _TYPES["origin"]),
        }
        log = self.tables.warehouse.create(system_ref(DELAY, CLUSTER, A))
        log.append([Batch(pa.RecordBatch.from_pydict(arrays))])

    def delivered(self, queue: int = 0) -> list[list[str]]:
        """Return the bodies in each segment of a queue; nothing lies behind a seal."""
        found = []
        for segment in self.orders.queues[queue].segments:
            log = self.orders.log(segment.partition)
            log.refresh()
            bodies = [body.decode() for body in all_bodies(log)]
            assert not segment.is_sealed or segment.end_offset == len(bodies)
            found.append(bodies)
        return found

    def close(self) -> None:
        for warehouse in self._warehouses:
            warehouse.close()
        self.tables.close()


@pytest.fixture(params=ENGINES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path / "w", request.param)
    yield made
    failpoints.arm("")
    made.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sealed", [True, False])
def test_static_20_a_message_whose_segment_was_retired_goes_to_the_present_leader(
    bench: Bench, mode: RemapMode, *, sealed: bool
) -> None:
    bench.delay("a", "b")
    bench.orders.remap([B], mode, [0], seal=sealed)
    assert bench.job.run(1_000)["rows"] == 2
    bench.orders.seal()
    # a strict remapping sends messages to the old leader until the seal
    assert bench.delivered() == ([["a", "b"], []] if mode == "strict" and not sealed else [[], ["a", "b"]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", ["delay.after_append", "delay.after_mark"])
def test_static_20_a_remapping_between_two_tries_stores_a_message_once(
    bench: Bench, mode: RemapMode, step: str
) -> None:
    bench.delay("a", "b")
    failpoints.arm(f"{step}=raise")
    with suppress(FailpointHit):  # the Spark engine reports it as a trouble of the shard
        bench.job.run(1_000)
    failpoints.arm("")
    assert bench.delivered() == [["a", "b"]]
    bench.orders.remap([B], mode, [0], seal=False)
    bench.job = bench.new_job()
    bench.delay("c", at_ms=1_500)
    bench.job.run(2_000)
    bench.orders.seal()
    assert sorted(chain(*bench.delivered())) == ["a", "b", "c"]


def test_static_20_a_job_that_does_not_know_of_the_seal_appends_nothing_behind_it(bench: Bench) -> None:
    bench.job.run(1)
    bench.delay("a")
    source = "orders@broker-a"
    bench.orders.remap([B], "strict", [0], seal=False)
    epoch = bench.orders.meta.meta.moved_keys(bench.orders.topic.id).unsealed(source)[0]
    bench.orders.log(source).fence("route", epoch)
    facts = bench.job.run(1_000)
    assert facts["rows"] == 0 and "fence route" in str(facts["trouble"])
    bench.orders.seal()
    assert bench.job.run(60_000)["rows"] == 1
    assert bench.delivered() == [[], ["a"]]


def test_static_20_a_message_may_name_its_logical_queue(bench: Bench) -> None:
    bench.delay("a", partition=queue_name(1))
    bench.orders.remap([A], "strict", [1])
    bench.job.run(1_000)
    assert bench.delivered(1) == [[], ["a"]]


def test_static_17_a_message_for_a_dropped_segment_goes_by_its_key(bench: Bench) -> None:
    bench.delay("a", key="k")
    bench.delay("b")
    bench.orders.remap([B], "strict", [0])
    bench.orders.drop(["orders@broker-a"])
    assert bench.job.run(1_000)["rows"] == 2
    assert sorted(chain(*bench.delivered(0), *bench.delivered(1))) == ["a", "b"]


def test_static_22_a_message_of_a_queue_that_cannot_be_had_waits(bench: Bench) -> None:
    bench.delay("a")
    lost = MappingRemoved(topic_id=bench.orders.topic.id, holder=A)
    mapping = bench.orders.meta.meta.mappings(bench.orders.topic.id).by_broker[A]
    bench.orders.meta.submit_any(lambda _: (lost,))
    facts = bench.job.run(1_000)
    assert facts["rows"] == 0 and "is unavailable" in str(facts["trouble"])
    put = MappingPut(topic_id=bench.orders.topic.id, holder=A, mapping=mapping)
    bench.orders.meta.submit_any(lambda _: (put,))
    assert bench.job.run(60_000)["rows"] == 1
    assert bench.delivered() == [["a"]]
