"""The job `revive` by the Spark engine: a storm, lateness with a million messages in flight, a cold start, memory.

What is in flight is merged, as it is where the jobs run. Lateness and the cold start are those of the real command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from deltamq.jobs.queue.revive_task import TaskReviver
from deltamq.jobs.tasks.items import runner_of
from deltamq.jobs.tasks.warehouses import close_warehouses, warehouse_of
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.mq.queue.checkpoint import Checkpoint, Span
from tests.bench.figure import Figure
from tests.bench.jobs.revive import PARTITIONS, Queue, driver, fill_due, lateness, now_ms, open_queue, retried
from tests.bench.registry import bench
from tests.bench.session import Session, Window
from tests.bench.spark import SparkCounter

_PER_CHECKPOINT: Final = 32
_INVISIBLE_H: Final = 6
_COLD_DUE: Final = 1_000
_RUNS: Final = 10
#: Records that are encoded at once.
_CHUNK: Final = 5_000
_SPARK_ENGINE: Final = {"DELTAMQ_JOBS_ENGINE": "spark"}


@bench("revive.spark")
def revive_spark(session: Session) -> Iterator[Figure]:
    """The Spark engine of `revive`, with Spark; nothing where there is none."""
    if not session.effort.spark:
        return
    messages = session.effort.storm_messages
    with SparkCounter(session) as counter:
        spark = counter.started()
        if spark is None:
            return
        said = f"{messages:,} unacknowledged messages of {PARTITIONS} partitions revived by tasks"
        yield session.figure_of(
            "revive.spark.storm.took", said, "s", "took", session.windows(_storm(session, spark, messages))
        )
    yield from _late(session, messages)
    yield from _cold(session, messages)
    yield from _memory(session, messages)


def _storm(session: Session, spark: Any, messages: int) -> Callable[[float], Window]:
    def once(_: float) -> Window:
        with open_queue(session.fresh("storm-spark")) as queue:
            fill_due(queue, messages, _PER_CHECKPOINT)
            try:
                job = TaskReviver(warehouse_of(queue.conf), queue.conf)
                began = time.perf_counter()
                facts = job.run(runner_of(spark), now_ms())
                took = time.perf_counter() - began
            finally:
                close_warehouses()
            wanted = messages // PARTITIONS * PARTITIONS
            assert facts["rows"] == wanted == retried(queue), f"{facts} of {wanted}"
        session.make_room()
        return {"took": took, "rate": wanted / took}

    return once


def _in_flight(queue: Queue, messages: int) -> None:
    """Checkpoints that fall due in hours, merged; their messages need not be there."""
    each = messages // PARTITIONS
    for partition in queue.topic.route.partitions:
        spans = [Span(at, _PER_CHECKPOINT) for at in range(0, each, _PER_CHECKPOINT)]
        for number in range(REVIVE_QUEUES):
            pop = queue.pop(partition, at_ms=now_ms() + _INVISIBLE_H * 3_600_000, queue=number)
            mine = spans[number::REVIVE_QUEUES]
            for at in range(0, len(mine), _CHUNK):
                queue.store(partition, number, [Checkpoint(pop=pop, span=span) for span in mine[at : at + _CHUNK]])
    _run_once(queue, "merge")


def _run_once(queue: Queue, job: str) -> None:
    command = [sys.executable, "-m", "deltamq.mq.client.cli", "jobs", "run", job, "--once", "--warehouse"]
    command.append(queue.conf.warehouse.uri)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | _SPARK_ENGINE)


def _late(session: Session, messages: int) -> Iterator[Figure]:
    folder = session.fresh("late-spark")
    with open_queue(folder) as queue:
        _in_flight(queue, messages)
        with driver(folder, "revive", "delay", "merge", **_SPARK_ENGINE):
            windows = session.windows(lateness(queue))
    for name, what in (("revive", "a message whose invisible time has ended"), ("delay", "a delayed message")):
        for part in ("p50", "p99"):
            said = f"{what} is appended by a task so much after it was due, 100 a second, {messages:,} in flight"
            yield session.figure_of(f"revive.spark.late.{name}.{part}", said, "ms", f"{name}_{part}", windows)


def _cold(session: Session, messages: int) -> Iterator[Figure]:
    """`deltamq jobs run revive --once`, from nothing to the end of its process."""

    def once(_: float) -> Window:
        with open_queue(session.fresh("cold-spark")) as queue:
            _in_flight(queue, messages)
            fill_due(queue, _COLD_DUE, _PER_CHECKPOINT)
            began = time.perf_counter()
            _run_once(queue, "revive")
            took = time.perf_counter() - began
            assert retried(queue) == _COLD_DUE // PARTITIONS * PARTITIONS
        return {"took": took}

    said = f"jobs run revive --once with {messages:,} messages in flight and {_COLD_DUE:,} due, with Spark's start"
    yield session.figure_of("revive.spark.cold.took", said, "s", "took", session.windows(once, warmups=0))


def _memory(session: Session, messages: int) -> Iterator[Figure]:
    """Ten times as many messages in flight as in the storm, against a tenth of them."""
    few, many = messages // 10, 10 * messages
    found = {}
    for count in (few, many):
        folder = session.fresh("memory-spark")
        with open_queue(folder) as queue:
            _in_flight(queue, count)
        found[count] = _driver_mib(folder)
    more = sum(found[many].values()) - sum(found[few].values())
    said = f"memory of the driver of revive: {many:,} messages in flight against {few:,}"
    shown = {
        f"{kind}_{name}": value
        for name, count in (("few", few), ("many", many))
        for kind, value in found[count].items()
    }
    yield session.figure("revive.spark.driver.growth", said, "MiB", [more], **shown)


def _driver_mib(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.jobs.driver_memory", str(folder), str(_RUNS)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
