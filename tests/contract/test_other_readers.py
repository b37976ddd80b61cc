"""A partition is a Delta table that other engines read: `deltalake`, an implementation of its own (SPEC SPARK-1).

What it reads must be what we serve, row for row and type for type, at every stage of a table's life: young, rolled up,
opened from a checkpoint, its old commits cleaned away, after retention, and with the leftovers of killed and sleeping
writers beside it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltamq.mq.errors import Unknown
from deltamq.tables.delta.actions import commit_name
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.schema import INTERNAL_SCHEMA
from deltamq.tables.settings import LogSettings
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_rows, batch
from tests.set_clock import SetClock

SETTINGS = LogSettings(rollup_files=4, checkpoint_commits=8, log_keep_ms=1_000, file_keep_ms=1_000, row_group_rows=16)
BORN = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=datetime.UTC)


def full_rows(count: int) -> pa.RecordBatch:
    """Rows in which every column has values and nulls, long and short, text of all kinds."""
    return pa.RecordBatch.from_pydict(
        {
            "message_id": [f"id-{i}" if i % 3 else None for i in range(count)],
            "key": [None if i % 4 == 0 else f"schlüssel-{i % 5}" for i in range(count)],
            "tag": ["TagA" if i % 2 else None for i in range(count)],
            "headers": [None if i % 3 == 0 else [("a", "1"), ("ü", None if i % 2 else "x" * i)] for i in range(count)],
            "body": [bytes([i % 256]) * (i * 7) for i in range(count)],
            "born_time": [BORN + datetime.timedelta(microseconds=i) if i % 2 else None for i in range(count)],
            "deliver_time": [BORN + datetime.timedelta(days=i) if i % 5 == 0 else None for i in range(count)],
            "reconsume_times": [i if i % 2 else None for i in range(count)],
            "origin": [
                {"topic": "t", "partition": "t@a", "offset": 2**40 + i} if i % 3 == 1 else None for i in range(count)
            ],
        },
        schema=INTERNAL_SCHEMA,
    )


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def warehouse(tmp_path: Path, clock: SetClock) -> Iterator[Warehouse]:
    found = Warehouse.open(str(tmp_path), settings=SETTINGS, clock=clock)
    yield found
    found.close()


@pytest.fixture
def log(warehouse: Warehouse) -> PartitionLog:
    return warehouse.create(REF)


def read_by_deltalake(log: PartitionLog, columns: list[str] | None = None) -> pa.Table:
    return deltalake.DeltaTable(log.location).to_pyarrow_table(columns=columns).sort_by("offset")


def comparable(rows: pa.Table) -> list[dict[str, object]]:
    """Rows as Python values: engines differ in large or small string types, not in what they say."""
    return rows.to_pylist()


def live(log: PartitionLog, clock: SetClock, commits: int) -> None:
    for i in range(commits):
        log.append([Batch(full_rows(1 + i % 7), ProducerStamp("p", i, None, 1 + i % 7))])
        log.maintain()
        clock.advance_ms(100)


@pytest.mark.parametrize("commits", [0, 1, 3, 4, 9, 40, 120])
def test_spark_1_deltalake_reads_what_we_serve_at_every_age(log: PartitionLog, clock: SetClock, commits: int) -> None:
    live(log, clock, commits)
    found = read_by_deltalake(log)
    assert comparable(found) == comparable(all_rows(log))
    if commits == 120:
        assert not (Path(log.location) / "_delta_log" / commit_name(50)).exists(), "the old log is cleaned away"


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1_000])
def test_spark_1_both_ways_of_encoding_say_the_same(warehouse: Warehouse, log: PartitionLog, count: int) -> None:
    """Few rows and many are encoded differently: plain, or compressed with dictionaries and delta-packed offsets."""
    log.append([Batch(full_rows(count))])
    reopened = Warehouse.open("", store=warehouse.store, settings=SETTINGS).open_partition(REF)
    assert comparable(read_by_deltalake(log)) == comparable(all_rows(reopened)) == comparable(all_rows(log))


def test_spark_1_deltalake_reads_row_groups_that_were_copied(warehouse: Warehouse, log: PartitionLog) -> None:
    for _ in range(4):
        log.append([Batch(full_rows(40))])
    before = read_by_deltalake(log)
    assert log.maintain() and [file.crc.count(",") for file in log.files] == [12], "three groups of each file"
    assert comparable(read_by_deltalake(log)) == comparable(before) == comparable(all_rows(log))
    dataset = deltalake.DeltaTable(log.location).to_pyarrow_dataset()
    found = dataset.to_table(filter=(pc.field("offset") >= 95) & (pc.field("offset") < 130))
    assert sorted(found.column("offset").to_pylist()) == list(range(95, 130)), "by the statistics of the groups"


def test_spark_1_types_are_those_of_the_message_row(log: PartitionLog) -> None:
    log.append([Batch(full_rows(3))])
    fields = {f.name: f for f in deltalake.DeltaTable(log.location).schema().fields}
    assert [str(fields[n].type.type) for n in ("offset", "key", "body", "born_time", "reconsume_times")] == [
        "long",
        "string",
        "binary",
        "timestamp",
        "integer",
    ]
    assert not fields["offset"].nullable
    assert fields["headers"].type.type == "map"
    assert [f.name for f in fields["origin"].type.fields] == ["topic", "partition", "offset"]


def test_spark_1_files_are_skipped_by_offset_and_time(log: PartitionLog, clock: SetClock) -> None:
    for _ in range(3):
        log.append([Batch(full_rows(10))])
        clock.advance_ms(60_000)
    table = deltalake.DeltaTable(log.location)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted((a["min.offset"], a["max.offset"]) for a in actions) == [(0, 9), (10, 19), (20, 29)]
    dataset = table.to_pyarrow_dataset()
    chosen = [f.path for f in dataset.get_fragments(filter=(pc.field("offset") >= 10) & (pc.field("offset") < 20))]
    assert len(chosen) == 1
    times = all_rows(log).column("append_time")
    second = dataset.to_table(filter=pc.field("append_time") >= times[10]).sort_by("offset")
    assert second.column("offset").to_pylist() == list(range(10, 30))


def test_spark_1_a_table_after_retention(log: PartitionLog, clock: SetClock) -> None:
    live(log, clock, 30)
    log.rewrite([], list(log.files[:1]), operation="DELETE")
    assert log.min_offset > 0
    assert comparable(read_by_deltalake(log)) == comparable(all_rows(log))


def test_every_version_that_is_kept_can_be_travelled_to(log: PartitionLog) -> None:
    ends = {}
    for i in range(6):
        log.append([batch(*[b"x"] * (i + 1))])
        ends[log.version] = log.end_offset
    for version, end in ends.items():
        table = deltalake.DeltaTable(log.location, version=version)
        assert table.to_pyarrow_table(columns=["offset"]).num_rows == end


def test_leftovers_of_killed_and_sleeping_writers_mislead_no_reader(
    warehouse: Warehouse, log: PartitionLog, clock: SetClock
) -> None:
    live(log, clock, 60)
    folder = Path(log.location)
    (folder / "_delta_log" / ".tmp-killed").write_bytes(b"half a comm")
    (folder / f"{10**6:020d}-killed.parquet").write_bytes(b"half a file")
    # A writer that slept put its commit below the log.
    sleeper_store = FaultyStore(warehouse.store)
    sleeper = Warehouse.open("", store=sleeper_store, settings=SETTINGS, clock=clock).open_partition(REF)
    known = sleeper.version
    sleeper_store.once("before", "put_if_absent", lambda _: live(log, clock, 60), key="/orders@")
    with pytest.raises(Unknown):
        sleeper.append([batch(b"bogus")])
    assert (folder / "_delta_log" / commit_name(known + 1)).exists()
    assert comparable(read_by_deltalake(log)) == comparable(all_rows(log))


def test_a_table_that_another_engine_vacuumed_is_still_whole(log: PartitionLog, clock: SetClock) -> None:
    """Its own rule for what is old keeps replaced files a day; a dry run must not name a live one."""
    live(log, clock, 40)
    doomed = deltalake.DeltaTable(log.location).vacuum(retention_hours=0, enforce_retention_duration=False)
    assert not {f.path for f in log.files} & set(doomed)
