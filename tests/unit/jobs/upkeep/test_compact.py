"""The job `compact`, its tasks called directly: what they leave, and what one damaged partition spoils (SPARK-8)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from deltamq.jobs.tasks.items import chunks_of
from deltamq.jobs.tasks.warehouses import close_warehouses, warehouse_of
from deltamq.jobs.upkeep.compact import CompactItem, Done, PlanItem, compact, compact_ranges, plan_partitions
from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import KIB
from deltamq.tables.config import Config, load
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.paths import PartitionRef, Space
from tests.rows import all_bodies, batch, next_millisecond
from tests.unit.jobs.warehouses import Filled

A, B = (PartitionRef(Space.TOPICS, "orders", f"orders@broker-{x}") for x in "ab")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEEP_MS = 1_000_000_000


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    made = Filled(tmp_path / "warehouse")
    yield made
    close_warehouses()
    made.close()


def conf_of(filled: Filled, **overrides: object) -> Config:
    """Files of 64 KiB are the aim, and those of 2 KiB are not left to roll-ups."""
    values = {"jobs.compact_target_bytes": 64 * KIB, "log.rollup_bytes_max": 4 * KIB, **overrides}
    return load(overrides={"warehouse.uri": filled.uri, **values}, environ={})


def fill(filled: Filled, ref: PartitionRef, requests: int, *, apart: bool = False) -> list[bytes]:
    """Requests of 12 KiB as files that no encoding makes smaller; with `apart`, each in a millisecond of its own."""
    log = filled.warehouse.create(ref)
    drawn = random.Random(ref.name)
    sent = [drawn.randbytes(3 * KIB) for _ in range(3 * requests)]
    for seq in range(requests):
        log.append([batch(*sent[3 * seq : 3 * seq + 3], producer="p", seq=seq)])
        if apart:
            next_millisecond()
    return sent


def sound(filled: Filled) -> bool:
    return [one for one in verify(filled.warehouse) if one.gravity is not Gravity.NOTE] == []


def test_spark_08_files_become_few_and_the_second_run_finds_nothing_to_do(filled: Filled) -> None:
    sent = {ref: fill(filled, ref, 30) for ref in (A, B)}
    facts = compact(None, conf_of(filled), NOW)
    assert (facts["partitions"], facts["files"], facts["made"], facts["rows"]) == (2, 50, 10, 150)
    for ref in (A, B):
        log = filled.warehouse.open_partition(ref)
        log.refresh()
        assert [file.count for file in log.files] == [15] * 5 + [3] * 5
        assert all_bodies(log) == sent[ref]
    assert sound(filled)
    again = compact(None, conf_of(filled), NOW)
    assert (again["files"], again["made"]) == (0, 0)


def test_spark_08_a_task_that_runs_twice_does_nothing_the_second_time(filled: Filled) -> None:
    sent = fill(filled, A, 16)
    conf = conf_of(filled)
    (planned,) = plan_partitions(PlanItem(conf, ((A, KEEP_MS),)))
    assert planned.ranges == [(0, 15), (15, 30), (30, 45)]
    item = CompactItem(conf, A, tuple(planned.ranges))
    done = [compact_ranges(item).results for _ in range(2)]
    assert [sum(result.rows for result in results) for results in done] == [45, 0]
    assert [[len(result.removed) for result in results] for results in done] == [[5, 5, 5], [0, 0, 0]]
    log = filled.warehouse.open_partition(A)
    log.refresh()
    assert all_bodies(log) == sent and sound(filled)


def test_spark_08_a_damaged_partition_spoils_no_other_and_is_named(filled: Filled) -> None:
    for ref in (A, B):
        fill(filled, ref, 10)
    victim = sorted(Path(filled.uri, A.folder).glob("*.parquet"))[2]
    raw = bytearray(victim.read_bytes())
    raw[40] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(Corrupt, match=r"1 partitions failed.*orders@broker-a") as caught:
        compact(None, conf_of(filled), NOW)
    assert victim.name in caught.value.detail
    log = filled.warehouse.open_partition(B)
    log.refresh()
    assert len(log.files) == 6


def test_spark_08_a_partition_that_is_deleted_meanwhile_is_no_error(filled: Filled) -> None:
    fill(filled, A, 10)
    conf = conf_of(filled)
    items = PlanItem(conf, ((A, KEEP_MS), (B, KEEP_MS)))
    assert [plan.error for plan in plan_partitions(items)] == [None]
    filled.warehouse.drop_topic(Space.TOPICS, "orders", 0)
    close_warehouses()
    assert plan_partitions(items) == []
    assert compact_ranges(CompactItem(conf, A, ((0, 21),))) == Done(A, [])


def test_spark_08_what_tasks_let_go_is_deleted_by_a_later_run(filled: Filled) -> None:
    fill(filled, A, 8)
    before = {path.name for path in Path(filled.uri, A.folder).glob("*.parquet")}
    conf = conf_of(filled, **{"log.file_keep_ms": 1})
    assert compact(None, conf, NOW)["files"] == 5
    assert before <= {path.name for path in Path(filled.uri, A.folder).glob("*.parquet")}
    clock = warehouse_of(conf).clock
    seen = clock.boot_ms()
    while clock.boot_ms() <= seen + 1:
        pass
    compact(None, conf, NOW)
    assert len(list(Path(filled.uri, A.folder).glob("*.parquet"))) == 4


def test_retry_6_files_of_a_topic_that_is_kept_shortly_stay_apart(filled: Filled) -> None:
    fill(filled, A, 8, apart=True)
    conf = conf_of(filled)
    plans = plan_partitions(PlanItem(conf, ((A, 0),)))
    assert all(end - start < 15 for plan in plans for start, end in plan.ranges)


def test_spark_08_a_worker_keeps_only_so_many_partitions_open(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = conf_of(filled)
    many = [msgspec.structs.replace(A, topic=f"t{at}", name=f"t{at}@broker-a") for at in range(70)]
    for ref in many:
        filled.warehouse.create(ref)
        compact_ranges(CompactItem(conf, ref, ((0, 1),)))
    assert len(warehouse_of(conf).open_logs) <= 64


@pytest.mark.parametrize(
    ("count", "chunks", "largest"), [(0, 0, 0), (1, 1, 1), (16, 16, 1), (401, 16, 26), (12_001, 94, 128)]
)
def test_spark_07_chunks_hold_every_partition_once(count: int, chunks: int, largest: int) -> None:
    found = chunks_of(range(count))
    assert sorted(one for chunk in found for one in chunk) == list(range(count))
    assert (len(found), max((len(chunk) for chunk in found), default=0)) == (chunks, largest)
