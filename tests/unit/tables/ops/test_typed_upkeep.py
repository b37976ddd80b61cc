"""Compaction, verification, repair and backup of tables with typed columns: files of unlike versions (SPEC TYPE-40)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltamq.mq.errors import Corrupt
from deltamq.mq.schemas.setting import Format
from deltamq.tables.backup.backup import back_up
from deltamq.tables.backup.files import BackupFolder
from deltamq.tables.backup.restore import restore
from deltamq.tables.delta.snapshot import load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.compactor import Compactor
from deltamq.tables.ops.offset_counts import count_offsets, finding_of
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import verify
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.schema import MESSAGE_COLUMNS
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore, Store
from deltamq.tables.typed_row import TYPED, value_type
from tests.rows import REF, batch, rows
from tests.set_clock import SetClock
from tests.typed import codec
from tests.unit.tables.conftest import OpenLog
from tests.unit.tables.ops.damage import OpenWarehouse, commit_key, flip, wrong

VERSIONS = (
    "id STRING NOT NULL, amount BIGINT",
    "id STRING NOT NULL, amount BIGINT, place STRUCT<zip: STRING>",
    "id STRING NOT NULL, amount BIGINT, place STRUCT<zip: STRING, since: DATE>, tags ARRAY<STRING>",
)
VALUES: Sequence[dict[str, Any]] = (
    {"id": "a", "amount": 1},
    {"id": "b", "amount": 20, "place": {"zip": "1"}},
    {"id": "c", "amount": -3, "place": {"zip": "2", "since": "2026-01-01"}, "tags": ["x", "y"]},
)


def json_schema(ddl: str) -> str:
    """Return the JSON Schema whose columns a DDL has, as far as these tests need it."""
    place: dict[str, Any] = {"zip": {"type": "string"}}
    known: dict[str, Any] = {"id": {"type": "string"}, "amount": {"type": "integer"}}
    if "since" in ddl:
        place["since"] = {"type": "string", "format": "date"}
        known["tags"] = {"type": "array", "items": {"type": "string"}}
    if "place" in ddl:
        known["place"] = {"type": "object", "properties": place}
    return json.dumps({"type": "object", "properties": known, "required": ["id"]})


def typed(form: Format, number: int, *some: bytes) -> Batch:
    """Return messages that a service stores when it knows the first `number` versions of the schema."""
    texts = VERSIONS[:number] if form == "columns" else [json_schema(ddl) for ddl in VERSIONS[:number]]
    return Batch(codec(form, *texts).typed(rows(some)))


def fill(log: PartitionLog, form: Format) -> None:
    """Append rows of before the schema, and of its three versions; one in the middle does not fit."""
    log.append([batch(b"of before")])
    for number, value in enumerate(VALUES, 1):
        bodies = [json.dumps(value).encode()] * 3
        log.append([typed(form, number, *bodies)])
        log.append([typed(form, number, bodies[0], b"nonsense" if number == 2 else b"", bodies[1])])


def stored(log: PartitionLog) -> list[dict[str, Any]]:
    read = log.read(log.min_offset, max_messages=10_000, max_bytes=1 << 30, columns=(*MESSAGE_COLUMNS, *TYPED))
    rows: list[dict[str, Any]] = read.rows.to_pylist()
    return rows


def invalid_marks(log: PartitionLog) -> list[bool]:
    return [log.has_invalid(at, at + 1) for at in range(log.min_offset, log.end_offset)]


@pytest.mark.parametrize("form", ["json", "columns"])
def test_type_40_a_compaction_keeps_the_values_of_all_versions(
    open_log: OpenLog, files: MemoryStore, clock: SetClock, form: Format
) -> None:
    log = open_log()
    fill(log, form)
    before = stored(log)
    assert [row["value"] and row["value"]["id"] for row in before] == [
        None, "a", "a", "a", "a", None, "a", "b", "b", "b", "b", None, "b", "c", "c", "c", "c", None, "c",
    ]  # fmt: skip
    compactor = Compactor(log, files, settings=LogSettings(row_group_rows=8), clock=clock)
    assert compactor.compact(0, log.end_offset).rows == 19 and len(log.files) == 1
    for reader in (log, open_log(cache_bytes_max=1)):
        reader.refresh()
        assert stored(reader) == before
        assert reader.has_invalid(0, 19)
    stats = json.loads(log.files[0].stats)
    assert stats["minValues"]["offset"] == 0 and stats["nullCount"].get("invalid") == {"code": 18}


@pytest.mark.parametrize("invalid_first", [True, False])
def test_type_40_copied_row_groups_keep_values_and_the_mark_of_what_does_not_fit(
    open_log: OpenLog, files: MemoryStore, clock: SetClock, invalid_first: bool
) -> None:
    """Readers skip quarantined rows only in files that their statistics mark."""
    log = open_log()
    good = [json.dumps(VALUES[0]).encode()] * 8
    some = [*good[:7], b"nonsense"]
    for bodies in (some, good) if invalid_first else (good, some):
        for half in (bodies[:4], bodies[4:]):
            log.append([typed("json", 1, *half)])
    compactor = Compactor(log, files, settings=LogSettings(row_group_rows=8), clock=clock)
    before = stored(log)
    for start in (0, 8):
        assert compactor.compact(start, start + 8).rows == 8
    assert compactor.compact(0, 16).rows == 16 and len(log.files) == 1
    assert stored(open_log(cache_bytes_max=1)) == before
    assert log.has_invalid(0, 16)
    stats = json.loads(log.files[0].stats)
    assert stats["nullCount"]["invalid"] == {"code": 15} and stats["maxValues"]["value"] == {"id": "a", "amount": 1}


@pytest.mark.parametrize("form", ["json", "columns"])
def test_type_40_verification_passes_and_reads_every_column(
    open_warehouse: OpenWarehouse, files: MemoryStore, form: Format
) -> None:
    warehouse = open_warehouse()
    fill(warehouse.create(REF), form)
    assert wrong(verify(warehouse)) == []
    snapshot, counted = count_offsets(files, REF)
    assert finding_of(snapshot.min_offset, snapshot.end_offset, counted) == ""


@pytest.mark.parametrize("form", ["json", "columns"])
@pytest.mark.parametrize("gone", [[2], [4], [2, 4, 6], [1, 2, 3, 4, 5, 6], [5]], ids=str)
def test_type_40_a_repair_finds_the_columns_again_in_the_files(
    open_warehouse: OpenWarehouse, files: MemoryStore, form: Format, gone: list[int]
) -> None:
    """Version 1 is untyped; versions 2, 4 and 6 widen the table."""
    writer = open_warehouse().create(REF)
    fill(writer, form)
    before, schema, stats = stored(writer), writer.state.row_schema, [file.stats for file in writer.files]
    for version in gone:
        files.delete(commit_key(version))
    warehouse = open_warehouse()
    with pytest.raises(Corrupt):
        warehouse.open_partition(REF)
    found = find_repair(warehouse, REF)
    assert found is not None and (found.kind, found.loses) == (RepairKind.REFILL, False)
    repair(warehouse, found)
    assert wrong(verify(warehouse)) == []
    log = open_warehouse().open_partition(REF)
    assert (log.state.row_schema, log.state.is_rendered) == (schema, form == "columns")
    assert stored(log) == before and [file.stats for file in log.files] == stats
    log.append([typed(form, 3, json.dumps(VALUES[2]).encode())])
    assert stored(log)[-1]["value"] == before[-1]["value"]


def test_type_40_a_repair_finds_the_columns_of_the_newest_commit_again(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    writer = open_warehouse().create(REF)
    writer.append([typed("columns", 1, json.dumps(VALUES[0]).encode())])
    writer.append([typed("columns", 3, json.dumps(VALUES[2]).encode())])
    before, schema = stored(writer), writer.state.row_schema
    flip(files, commit_key(2))
    warehouse = open_warehouse()
    found = find_repair(warehouse, REF)
    assert found is not None and found.kind is RepairKind.REFILL
    repair(warehouse, found)
    log = open_warehouse().open_partition(REF)
    assert stored(log) == before and log.state.row_schema == schema


@pytest.mark.parametrize("form", ["json", "columns"])
def test_type_40_a_restored_backup_has_values_and_bodies(clock: SetClock, form: Format) -> None:
    store, kept, to = MemoryStore(), MemoryStore(), MemoryStore()
    warehouse = _warehouse(store, clock)
    MetaLog(warehouse)
    log = warehouse.create(REF)
    fill(log, form)
    backup = back_up(store, kept, now_ms=lambda: clock.wall_us() // 1_000)
    restore(BackupFolder(kept), backup, to)
    again = _warehouse(to, clock).open_partition(REF)
    assert stored(again) == stored(log) and invalid_marks(again) == invalid_marks(log)
    assert load(to, REF.folder).is_rendered == (form == "columns")


def _warehouse(store: Store, clock: SetClock) -> Warehouse:
    return Warehouse.open("", store=store, settings=LogSettings(), clock=clock)


def test_type_40_other_engines_read_a_compacted_table(tmp_path: Path, clock: SetClock) -> None:
    warehouse = Warehouse.open(str(tmp_path), settings=LogSettings(row_group_rows=8))
    log = warehouse.create(REF)
    fill(log, "json")
    before = stored(log)
    Compactor(log, warehouse.store, settings=LogSettings(), clock=clock).compact(0, log.end_offset)
    assert value_type(log.state.row_schema) is not None
    read: pa.Table = DeltaTable(str(tmp_path / REF.folder)).to_pyarrow_table().sort_by("offset")
    assert [row["value"] for row in read.to_pylist()] == [row["value"] for row in before]
    warehouse.close()


def test_type_40_large_files_of_unlike_versions_are_joined(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    """Their row groups cannot be copied into one file, as their columns differ."""
    drawn = random.Random(1)
    log = open_log()
    compactor = Compactor(log, files, settings=LogSettings(row_group_rows=8), clock=clock)
    for number in (1, 2, 3):
        for _ in (1, 2):
            values = [{**VALUES[number - 1], "amount": drawn.randrange(1_000)} for _ in range(8)]
            log.append([typed("columns", number, *(json.dumps(value).encode() for value in values))])
        compactor.compact(16 * (number - 1), 16 * number)
    before = stored(log)
    assert compactor.compact(0, 48).rows == 48
    assert stored(open_log(cache_bytes_max=1)) == before
