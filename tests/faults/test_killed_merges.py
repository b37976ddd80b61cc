"""The merge job killed with SIGKILL at its failpoints and run again (fault F12)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.tables.log.batch import Batch
from deltamq.tables.queue.merge_plan import merged_to
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.recovery import recover
from deltamq.tables.queue.refs import OFFSETS, revive_ref, system_ref
from deltamq.tables.state.rows import CHECKPOINT_COLUMNS, committed_of_rows, states_of_rows
from deltamq.tables.state.schema import (
    CONSUMER_OFFSETS,
    CONSUMER_OFFSETS_SCHEMA,
    POP_CHECKPOINTS,
    POP_CHECKPOINTS_SCHEMA,
)
from deltamq.tables.state.table import read_state
from tests.faults.job_process import JobRuns, job_runs
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()


@pytest.fixture(scope="module")
def runs() -> Iterator[JobRuns]:
    with job_runs() as found:
        yield found


def _check(tables: QueueTables, points: list[str], runs: JobRuns, warehouse: Path) -> None:
    """Store something, kill a run, and so on; then let one run be. Hit 1 is in the offsets, 2 in the checkpoints."""
    topic, group = tables.topic(), tables.group()
    lane = LaneKey(topic.id, group.name, False, f"orders@{BROKER}")
    offsets = tables.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER))
    popped = []
    for at, point in enumerate([*points, ""]):
        popped.append(tables.pop(group, topic, [2 * at, 2 * at + 1], at_ms=10**12, invisible_ms=10**12))
        tables.ack(popped[at // 2], popped[at // 2].span.offset_of(at % 2))
        record = OffsetRecord(lane=lane, topic="orders", committed=Committed(group.epoch, at))
        offsets.append([Batch(rows_of_offset_records([record]))])
        assert runs.once(warehouse, "merge", failpoints=point) == (-signal.SIGKILL if point else 0), point
    store = tables.warehouse.store
    checkpoints = read_state(store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA)
    progress = read_state(store, CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA)
    assert checkpoints is not None
    assert progress is not None
    found = list(states_of_rows(checkpoints.rows.select(CHECKPOINT_COLUMNS)))
    assert len(found) == len(popped)
    expected = {popped[at].key: 0 for at in range(len(popped))}
    for at in range(len(popped)):
        expected[popped[at // 2].key] |= 1 << (at % 2)
    assert {key: state.acked for key, state in found} == expected
    assert committed_of_rows(progress.rows) == {lane: ("orders", Committed(group.epoch, len(points)))}
    reached = merged_to(store)
    assert reached[revive_ref(CLUSTER, 0, BROKER)] == 2 * len(popped)
    assert reached[offsets.ref] == len(popped)
    recovered = recover(tables.warehouse, CLUSTER, [BROKER])
    assert {one.checkpoint.key for one in recovered.states[lane] if one.checkpoint} == set(expected)


@pytest.mark.promise("STATE-2")
@pytest.mark.long
def test_merge_killed_around_its_commit_merges_each_record_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables
) -> None:
    _check(tables, ["merge.after_plan=kill@2", "merge.after_merge=kill@1"], runs, tmp_path / "w")


@pytest.mark.promise("STATE-8")
@pytest.mark.long
def test_spark_07_tasks_of_a_merge_that_are_killed_are_repeated(
    tmp_path: Path, runs: JobRuns, tables: QueueTables
) -> None:
    """The process that decodes is killed in the first attempt of each task; without further attempts the run fails."""
    topic, group = tables.topic(), tables.group()
    popped = [tables.pop(group, topic, [at], at_ms=10**12, invisible_ms=10**12, queue=at % 8) for at in range(16)]
    for one in popped[:4]:
        tables.ack(one, one.span.offset_of(0))
    store, kill = tables.warehouse.store, "merge.in_task=kill"
    once = {"DELTAMQ_JOBS_MASTER": "local[2]"}
    assert runs.once(tmp_path / "w", "merge", failpoints=kill, environment=once) == 1
    state = read_state(store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA)
    assert state is not None
    assert state.rows.num_rows == 0
    repeated = {"DELTAMQ_JOBS_MASTER": "local[2,4]"}
    assert runs.once(tmp_path / "w", "merge", failpoints=kill, environment=repeated) == 0
    state = read_state(store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA)
    assert state is not None
    found = {key: one.acked for key, one in states_of_rows(state.rows.select(CHECKPOINT_COLUMNS))}
    assert found == {one.key: int(at < 4) for at, one in enumerate(popped)}
    assert state.rows.num_rows == len(popped)


@pytest.mark.long
def test_merge_killed_at_every_point_merges_each_record_once(
    tmp_path: Path, runs: JobRuns, tables: QueueTables
) -> None:
    names = ("merge.after_plan", "merge.before_merge", "merge.after_merge")
    _check(tables, [f"{name}=kill@{hit}" for name in names for hit in (1, 2)], runs, tmp_path / "w")
