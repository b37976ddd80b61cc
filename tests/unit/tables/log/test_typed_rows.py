"""Rows with the columns of a schema: stored by the commit that acknowledges them, in a table that widens (TYPE-1)."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.typed_row import (
    INVALID_TYPE,
    conformed,
    delta_json_of,
    joined,
    row_schema,
    schema_of,
)
from tests.rows import REF, batch
from tests.unit.tables.conftest import OpenLog

FIRST = pa.struct([("amount", pa.int64()), ("name", pa.string())])
SECOND = pa.struct([("amount", pa.int64()), ("place", pa.struct([("zip", pa.string()), ("since", pa.date32())]))])
BOTH = joined(FIRST, SECOND)


def typed(kind: pa.StructType, *values: Any, **columns: pa.Array) -> Batch:
    bodies = pa.array([json.dumps(value, default=str).encode() for value in values], pa.binary())
    return Batch(pa.RecordBatch.from_pydict({"body": bodies, "value": pa.array(values, kind), **columns}))


def values_of(log: PartitionLog, start: int = 0) -> list[Any]:
    wanted = ("offset", "key", "body", "value")
    rows = log.read(start, max_messages=10_000, max_bytes=1 << 30, columns=wanted).rows
    return rows.column("value").to_pylist() if "value" in rows.column_names else [None] * rows.num_rows


def test_type_1_the_commit_of_a_message_stores_its_fields_as_columns(open_log: OpenLog) -> None:
    log = open_log()
    log.append([typed(FIRST, {"amount": 1, "name": "a"}, None)])
    assert values_of(log) == [{"amount": 1, "name": "a"}, None]
    assert values_of(open_log()) == [{"amount": 1, "name": "a"}, None]
    assert log.state.version == 1, "one commit, the widening of the table included"


def test_rows_without_typed_columns_are_read_as_before(open_log: OpenLog) -> None:
    log = open_log()
    log.append([typed(FIRST, {"amount": 1, "name": "a"})])
    for reader in (log, open_log()):
        rows = reader.read(0, max_messages=10, max_bytes=1 << 20).rows
        assert rows.column_names == row_schema(None).names


def test_type_1_a_table_that_was_untyped_gets_columns_and_old_rows_are_null(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"old")])
    log.append([typed(FIRST, {"amount": 1, "name": "a"}), batch(b"plain")])
    for reader in (log, open_log()):
        assert values_of(reader) == [None, {"amount": 1, "name": "a"}, None]


def test_type_1_new_fields_are_added_by_the_commit_that_first_has_them(open_log: OpenLog) -> None:
    log, other = open_log(), open_log()
    log.append([typed(FIRST, {"amount": 1, "name": "a"})])
    other.append([typed(SECOND, {"amount": 2, "place": {"zip": "1", "since": date(2026, 1, 1)}})])
    log.append([typed(FIRST, {"amount": 3, "name": "c"})])
    wanted = [
        {"amount": 1, "name": "a", "place": None},
        {"amount": 2, "name": None, "place": {"zip": "1", "since": date(2026, 1, 1)}},
        {"amount": 3, "name": "c", "place": None},
    ]
    for reader in (log, open_log()):
        assert values_of(reader) == wanted
    assert log.state.row_schema.field("value").type == BOTH


def test_two_versions_in_one_commit(open_log: OpenLog) -> None:
    log = open_log()
    log.append([typed(FIRST, {"amount": 1, "name": "a"}), batch(b"x"), typed(SECOND, {"amount": 2, "place": None})])
    assert [value and value["amount"] for value in values_of(open_log())] == [1, None, 2]


def test_a_field_keeps_its_type(open_log: OpenLog) -> None:
    log = open_log()
    log.append([typed(FIRST, {"amount": 1, "name": "a"})])
    with pytest.raises(Conflict) as refused:
        log.append([typed(pa.struct([("amount", pa.string())]), {"amount": "1"})])
    assert refused.value.code == "schema_conflict" and "value.amount is int64" in refused.value.detail
    log.append([typed(FIRST, {"amount": 2, "name": "b"})])
    assert [value["amount"] for value in values_of(open_log())] == [1, 2]


@pytest.mark.parametrize("row_group_rows", [4, 32_768])
def test_a_roll_up_joins_files_of_unlike_versions(open_log: OpenLog, row_group_rows: int) -> None:
    log = open_log(rollup_files=2, row_group_rows=row_group_rows)
    expected: list[Any] = []
    for number in range(24):
        kind = (FIRST, SECOND)[number // 8 % 2]
        value = {"amount": number} | ({"name": "n"} if kind is FIRST else {"place": {"zip": "z", "since": None}})
        log.append([typed(kind, *[value] * 5)])
        expected += [{"amount": number, "name": value.get("name"), "place": value.get("place")}] * 5
        log.maintain()
    log.append([batch(b"plain")])
    assert len(log.files) < 12
    for reader in (log, open_log(row_group_rows=row_group_rows)):
        assert values_of(reader) == [*expected, None]
        reader.verify()


def test_what_did_not_fit_is_a_column_too(open_log: OpenLog) -> None:
    log = open_log()
    why = {"code": "wrong_type", "field": "amount", "reason": "text", "schema_id": 7}
    log.append(
        [typed(FIRST, None, {"amount": 1, "name": "a"}, invalid=pa.array([why, None], INVALID_TYPE)), batch(b"x")]
    )
    for reader in (log, open_log()):
        rows = reader.read(0, max_messages=9, max_bytes=1 << 20, columns=("offset", "key", "body", "invalid")).rows
        assert rows.column("invalid").to_pylist() == [why, None, None]


def test_type_2_statistics_show_which_files_have_a_value(tmp_path: Path) -> None:
    kind = pa.struct(
        [
            ("n", pa.int64()),
            ("d", pa.decimal128(20, 2)),
            ("t", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("x", pa.float64()),
            ("text", pa.string()),
            ("born_time", pa.string()),
            ("deep", pa.struct([("n", pa.int32()), ("ok", pa.bool_())])),
            ("many", pa.list_(pa.int64())),
        ]
    )
    values = [
        {
            "n": number,
            "d": Decimal(f"{number}.10"),
            "t": datetime(2026, 1, 1, number, microsecond=1_500, tzinfo=UTC),
            "day": date(2026, 1, 1 + number),
            "x": float("nan") if number == 1 else number / 2,
            "text": "a" * (number * 40),
            "born_time": "z",
            "deep": {"n": number, "ok": True} if number != 2 else None,
            "many": [number],
        }
        for number in range(4)
    ]
    warehouse = Warehouse.open(str(tmp_path), settings=LogSettings())
    log = warehouse.create(REF)
    log.append([typed(kind, *values)])
    stats = json.loads(log.files[0].stats)
    least, greatest, nulls = (stats[name]["value"] for name in ("minValues", "maxValues", "nullCount"))
    assert least == {
        "n": 0,
        "d": 0.1,
        "t": "2026-01-01T00:00:00.001Z",
        "day": "2026-01-01",
        "text": "",
        "born_time": "z",
        "deep": {"n": 0},
    }
    assert greatest == {
        "n": 3,
        "d": 3.1,
        "t": "2026-01-01T03:00:00.002Z",
        "day": "2026-01-04",
        "born_time": "z",
        "deep": {"n": 3},
    }
    assert nulls == {"n": 0, "d": 0, "t": 0, "day": 0, "x": 0, "text": 0, "born_time": 0, "deep": {"n": 1, "ok": 1}}
    assert log.born_at(0) is not None, "a field of the same name does not hide the births"
    log.append([typed(kind, {**values[0], "n": 100})])
    table = DeltaTable(log.location)
    read = table.to_pyarrow_table(filters=[("offset", "=", 4)])
    assert read.column("value").to_pylist()[0]["n"] == 100
    assert table.schema().to_arrow()  # other engines know the type
    warehouse.close()


def test_type_1_other_engines_read_rows_of_all_versions(tmp_path: Path) -> None:
    warehouse = Warehouse.open(str(tmp_path), settings=LogSettings())
    log = warehouse.create(REF)
    log.append([batch(b"plain")])
    log.append([typed(FIRST, {"amount": 1, "name": "a"})])
    log.append([typed(SECOND, {"amount": 2, "place": {"zip": "1", "since": None}})])
    values = DeltaTable(log.location).to_pyarrow_table().sort_by("offset").column("value").to_pylist()
    assert values == [
        None,
        {"amount": 1, "name": "a", "place": None},
        {"amount": 2, "name": None, "place": {"zip": "1", "since": None}},
    ]
    warehouse.close()


SIMPLE = st.sampled_from([pa.int64(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(9, 2), pa.binary()])


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.StructType]:
    return st.dictionaries(st.sampled_from("abcd"), inner, min_size=1).map(
        lambda fields: pa.struct(list(fields.items()))
    )


KINDS: st.SearchStrategy[pa.DataType] = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(structs(inner), inner.map(pa.list_), inner.map(lambda kind: pa.map_(pa.string(), kind))),
    max_leaves=6,
)


@given(structs(KINDS), structs(KINDS))
def test_a_joined_type_has_room_for_both_and_is_stored_as_it_is(first: pa.StructType, second: pa.StructType) -> None:
    assert schema_of(delta_json_of(row_schema(first))) == row_schema(first)
    try:
        both = joined(first, second)
    except Conflict:
        return
    assert joined(both, first) == both and joined(both, second) == both
    rows = pa.array([None, {}, None], first).slice(1)
    wide = conformed(rows, both)
    wide.validate(full=True)
    assert [value is None for value in wide.to_pylist()] == [False, True]
