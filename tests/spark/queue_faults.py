"""`revive` and `delay` in tasks whose Python workers are killed, in a Spark application of its own that repeats tasks.

    python -m tests.spark.queue_faults FOLDER point=kill@n ...      one JSON document a point on standard output

In the session of other tests a task has one try, as with `local[*]`; here each task has four, as on a cluster.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from deltamq.jobs.queue.delay_task import TaskForwarder
from deltamq.jobs.queue.revive_task import TaskReviver
from deltamq.jobs.spark.session import spark_session
from deltamq.jobs.tasks.items import runner_of
from deltamq.tables import failpoints
from deltamq.tables.log.warehouse import Warehouse
from tests.queue_tables import QueueTables

__all__ = ["Armed", "play", "tasks_of"]


class Armed(msgspec.Struct, frozen=True):
    """A task's item, with a failpoint that acts only in the first worker that reaches it."""

    item: Any
    work: Callable[[Any], Any]
    point: str
    folder: str


def armed_work(armed: Armed) -> Any:
    """Do the work of the item in a worker whose failpoint is armed."""
    os.environ["DELTAMQ_FAILPOINTS_ONCE"] = armed.folder
    failpoints.arm(armed.point)
    try:
        return armed.work(armed.item)
    finally:
        failpoints.arm("")


def tasks_of(spark: SparkSession, point: str, folder: Path) -> Any:
    """Return a function that runs items in tasks of Spark, with a failpoint."""

    def tasks(items: Sequence[Any], work: Callable[[Any], Any], unpack: Any) -> list[Any]:
        return runner_of(spark)([Armed(item, work, point, str(folder)) for item in items], armed_work, unpack)

    return tasks


def play(spark: SparkSession, folder: Path, point: str, *, drivers: int = 1) -> dict[str, object]:
    """Let `drivers` at once deliver messages that are due in several revive queues and two delay logs."""
    once = folder / "once"
    once.mkdir(parents=True)
    brokers = ("broker-a", "broker-b")
    with closing(QueueTables(folder / "w")) as tables:
        topic = tables.topic(partitions=2, brokers=brokers)
        late, group = tables.topic("late", partitions=2, brokers=brokers), tables.group(max_attempts=2)
        now_ms = time.time_ns() // 1_000_000
        expected: Counter[str] = Counter()
        tables.send(topic, "gone")
        tables.log(topic).delete_below(1)
        tables.pop(group, topic, [0], at_ms=now_ms - 60_000, queue=0)
        for at in range(16):
            bodies = [f"{at}-{number}" for number in range(5)]
            offsets = tables.send(topic, *bodies, partition=at % 2)
            popped = tables.pop(
                group,
                topic,
                offsets,
                partition=at % 2,
                at_ms=now_ms - 60_000 + at,
                queue=at % 4,
                attempts=1 + at // 8,
            )
            tables.ack(popped, offsets[0])
            expected.update(bodies[1:])
            tables.delay(
                late,
                *((f"late-{body}", now_ms - 1_000 - at) for body in bodies),
                partition=at % 2,
                broker=brokers[at % 2],
            )
        tasks = tasks_of(spark, point, once)
        failed: list[str] = []
        running = [threading.Thread(target=_drive, args=(tables, tasks, now_ms, failed)) for _ in range(drivers)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        hit = any(once.iterdir())
        again = [row for broker in brokers for row in tables.retried(group, topic, broker) + tables.dead(group, broker)]
        delivered = [row for partition in (0, 1) for row in tables.delivered(late, partition)]
        found = Counter(row["body"].decode() for row in again)
        found_late = Counter(row["body"].decode().removeprefix("late-") for row in delivered)
        wanted_late = Counter(f"{at}-{number}" for at in range(16) for number in range(5))
        return {
            "point": point,
            "hit": hit,
            "failed": failed,
            "revived": found == expected,
            "delivered": found_late == wanted_late,
            "lost": [list(one.ranges) for one in tables.lost()],
        }


def _drive(tables: QueueTables, tasks: Any, now_ms: int, failed: list[str]) -> None:
    """Run both jobs of one driver twice: the second run does what the first could not."""
    with closing(Warehouse.open(tables.warehouse.uri)) as warehouse:
        for made in (TaskReviver, TaskForwarder):
            job = made(warehouse, tables.conf)
            for later_ms in (0, 60_000):
                try:
                    job.run(tasks, now_ms + later_ms)
                except Exception as error:  # the test says whether that may be
                    failed.append(f"{type(error).__name__}: {error}")


def main(folder: Path, points: Sequence[str]) -> None:
    settings: dict[str, Any] = {"spark.master": "local[2,4]"}
    spark = spark_session("queue-faults", warehouse=folder, **settings)
    try:
        for number, point in enumerate(points):
            name, _, drivers = point.partition("*")
            print(json.dumps(play(spark, folder / str(number), name, drivers=int(drivers or 1))), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
