"""Jobs killed at every failpoint and at random moments, and two drivers at once (fault F12).

Judged by what lies in the tables: every message is in exactly one place once.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.run.locks import holder_of, known_shards
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.limits import ACK_SETTLE_MS
from tests.faults.job_process import JobProcess, JobRuns, job_runs
from tests.faults.test_shared_shards import until
from tests.queue_tables import QueueTables


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()


@pytest.fixture(scope="module")
def runs() -> Iterator[JobRuns]:
    with job_runs() as found:
        yield found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


#: Where a run of revive passes: which hits of each point it makes in the test below.
REVIVE_POINTS = [
    ("revive.after_append", 1),
    ("revive.after_append", 2),
    ("revive.after_lost", 1),
    ("revive.after_done", 1),
    ("revive.after_done", 2),
    *((f"commit.{step}", hit) for step in ("after_data_write", "before_log_tmp", "after_link") for hit in (1, 2, 4)),
]


def _seldom(points: list[tuple[str, int]]) -> list[object]:
    """Leave the later commits to `make faults`: they are killed as the first ones are."""
    later = [point.startswith("commit.") and hit > 1 for point, hit in points]
    return [
        pytest.param(*one, marks=pytest.mark.long if seldom else ()) for one, seldom in zip(points, later, strict=True)
    ]


@pytest.mark.promise("JOB-1")
@pytest.mark.parametrize(("point", "hit"), _seldom(REVIVE_POINTS))
def test_pop_11_revive_killed_at_a_point_revives_each_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables, point: str, hit: int
) -> None:
    """Two queues, both destinations and a loss: every step of a run has something to store."""
    topic, group = tables.topic(), tables.group(max_attempts=2)
    tables.send(topic, "gone")
    kept = tables.send(topic, *(f"m{i}" for i in range(9)))
    tables.log(topic).delete_below(1)
    popped_ms = _now_ms() - 60_000
    tables.pop(group, topic, [0, *kept[:5]], at_ms=popped_ms, queue=1)
    condemned = tables.pop(group, topic, kept[5:], at_ms=popped_ms, queue=2, attempts=2)
    tables.ack(condemned, kept[8])
    warehouse = tmp_path / "w"
    assert runs.once(warehouse, "revive", failpoints=f"{point}=kill@{hit}") == -signal.SIGKILL
    tables.group(max_attempts=9)
    assert runs.once(warehouse, "revive") == 0
    assert runs.once(warehouse, "revive") == 0
    retried = [row["body"].decode() for row in tables.retried(group, topic)]
    dead = [row["body"].decode() for row in tables.dead(group)]
    assert Counter(retried + dead) == Counter(f"m{i}" for i in range(8))
    assert [one.ranges for one in tables.lost()] == [((0, 1),)]
    assert {(one.key, one.bits) for queue in (1, 2) for one in tables.done(queue)} >= {(condemned.key, 0b0111)}


DELAY_POINTS = [
    ("delay.after_append", 1),
    ("delay.after_append", 2),
    ("delay.after_mark", 1),
    *((f"commit.{step}", hit) for step in ("after_data_write", "before_log_tmp", "after_link") for hit in (1, 2, 3)),
]


@pytest.mark.promise("JOB-4")
@pytest.mark.parametrize(("point", "hit"), _seldom(DELAY_POINTS))
def test_retry_05_delay_killed_at_a_point_delivers_each_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables, point: str, hit: int
) -> None:
    topic = tables.topic(partitions=2)
    due_ms = _now_ms() - 1_000
    for partition in (0, 1):
        tables.delay(topic, *((f"p{partition}-m{i}", due_ms - i) for i in range(40)), partition=partition)
    tables.cancel(3)
    warehouse = tmp_path / "w"
    assert runs.once(warehouse, "delay", failpoints=f"{point}=kill@{hit}") == -signal.SIGKILL
    assert runs.once(warehouse, "delay") == 0
    assert runs.once(warehouse, "delay") == 0
    for partition in (0, 1):
        found = [row["body"].decode() for row in tables.delivered(topic, partition)]
        assert found == [f"p{partition}-m{i}" for i in reversed(range(40)) if (partition, i) != (0, 3)]


def _storm(
    tmp_path: Path, runs: JobRuns, tables: QueueTables, *, rounds: int, seed: int, engine: str = "local"
) -> None:
    """A driver of both jobs is killed at random moments while pops, acks and delayed messages keep coming."""
    drawn = random.Random(seed)
    warehouse = tmp_path / "w"
    topic, group = tables.topic(partitions=2), tables.group()
    late = tables.topic("late")
    expected: Counter[str] = Counter()
    delayed: Counter[str] = Counter()
    for turn in range(rounds):
        driver = JobProcess(warehouse, "revive", "delay", every_s=0.05, engine=engine)
        for step in range(drawn.randint(1, 12)):
            partition = drawn.randint(0, 1)
            bodies = [f"{turn}-{step}-{i}" for i in range(drawn.randint(1, 32))]
            offsets = tables.send(topic, *bodies, partition=partition)
            popped = tables.checkpoint(
                group,
                topic,
                offsets,
                partition=partition,
                at_ms=_now_ms() - 1,
                invisible_ms=drawn.randint(20, 200),
                queue=drawn.randint(0, 7),
            )
            acked = {offset for offset in offsets if drawn.random() < 0.5}
            # An ack may be stored before its checkpoint, never after its time.
            tables.ack(popped, *acked) if acked else None
            tables.record(popped)
            expected.update(body for body, offset in zip(bodies, offsets, strict=True) if offset not in acked)
            more = [f"late-{body}" for body in bodies]
            tables.delay(late, *((body, _now_ms() + drawn.randint(1, 200)) for body in more))
            delayed.update(more)
        time.sleep(drawn.uniform(0, 0.1))
        driver.kill()
    time.sleep((200 + ACK_SETTLE_MS + 200) / 1_000)  # until the last of them is due
    assert runs.once(warehouse, "revive", "delay") == 0
    assert Counter(row["body"].decode() for row in tables.retried(group, topic)) == expected
    assert Counter(row["body"].decode() for row in tables.delivered(late)) == delayed
    assert runs.once(warehouse, "revive", "delay") == 0
    assert sum(expected.values()) == len(tables.retried(group, topic))


@pytest.mark.promise("JOB-1")
@pytest.mark.long
def test_f12_jobs_killed_at_random_moments_deliver_each_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables
) -> None:
    _storm(tmp_path, runs, tables, rounds=5, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(4))
def test_f12_jobs_killed_many_times_deliver_each_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables, seed: int
) -> None:
    _storm(tmp_path, runs, tables, rounds=60, seed=100 + seed)


@pytest.mark.promise("JOB-23")
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_spark_07_drivers_of_the_spark_engine_killed_at_random_moments_deliver_each_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables
) -> None:
    """In the end the local engine takes over what they left: it finds what they stored."""
    _storm(tmp_path, runs, tables, rounds=4, seed=7, engine="spark")


@pytest.mark.promise("JOB-12")
@pytest.mark.parametrize("by", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
@pytest.mark.usefixtures("tables")
def test_a_second_driver_refuses_and_the_first_stops_cleanly(tmp_path: Path, runs: JobRuns, by: signal.Signals) -> None:
    warehouse = tmp_path / "w"
    first = JobProcess(warehouse, "revive", "delay")
    assert first.first_line.startswith("job=")
    second = JobProcess(warehouse, "delay", waits=False)
    status, said = second.wait()
    assert (status, second.first_line) == (1, "")
    assert re.search("job delay.* is running in another process", said)
    assert f"pid {first.pid}" in said
    assert said.count("\n") == 1
    assert runs.once(warehouse, "revive") == 1
    assert first.stop(by) == 0
    assert runs.once(warehouse, "revive") == 0


@pytest.mark.promise("JOB-13")
@pytest.mark.usefixtures("tables")
def test_spark_07_a_standby_takes_over_what_a_killed_driver_had(tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    first = JobProcess(warehouse, "revive", "delay")
    assert first.first_line.startswith("job=")
    second = JobProcess(warehouse, "revive", "delay")
    assert second.first_line.startswith("stands by for ")
    assert second.first_line.endswith(f"pid {first.pid}\n")
    store = storage(str(warehouse))

    def owners() -> set[tuple[str, int | None]]:
        held = {
            (job, shard): holder_of(store, job, shard)
            for job in ("revive", "delay")
            for shard in known_shards(store, job)
        }
        return {(job, holder and holder.pid) for (job, _), holder in held.items()}

    first.kill()
    until(lambda: owners() == {("revive", second.pid), ("delay", second.pid)}, owners)
    assert second.stop() == 0


@pytest.mark.long
@pytest.mark.promise("JOB-12")
@pytest.mark.usefixtures("tables")
def test_a_killed_driver_leaves_no_lock(tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    first = JobProcess(warehouse, "revive")
    first.kill()
    second = JobProcess(warehouse, "revive")
    assert second.first_line.startswith("job=revive ok")
    assert second.stop() == 0
