"""Rows for topics with a schema: their columns are made in the tasks, and what does not fit is said (SPEC TYPE-43)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from deltamq.jobs.sink.columns import check_schema
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.mq.schemas.setting import Format, OnInvalid
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import DELAY, system_ref
from deltamq.tables.schema import MESSAGE_COLUMNS
from deltamq.tables.typed_row import TYPED
from tests.typed import make_typed, record
from tests.unit.jobs.sink.sinks import KEYED, Sink, keyed

STRUCT = T.StructType(
    [
        T.StructField("key", T.StringType()),
        T.StructField(
            "value",
            T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())]),
        ),
    ]
)
_ARROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
TEXTS = {
    "json": json.dumps(
        {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]},
    ),
    "columns": "id BIGINT NOT NULL, name STRING",
    "avro": record(("id", "long"), ("name", ["null", "string"], {"default": None})),
}
VALUES = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3, "name": "c"}]


def structs(*values: Any) -> pa.RecordBatch:
    keys = pa.array([f"k{at}" for at in range(len(values))], pa.string())
    return pa.RecordBatch.from_pydict({"key": keys, "value": pa.array(values, _ARROW)})


def sink(form: Format = "json", on_invalid: OnInvalid = "reject", schema: T.StructType = STRUCT, **more: Any) -> Sink:
    made = Sink(schema=schema, **more)
    made.put_topic(partitions=1)
    make_typed(made.place.meta, "orders", form, TEXTS[form], on_invalid=on_invalid)
    return made


def rows_of(made: Sink, ref: PartitionRef | None = None) -> list[dict[str, Any]]:
    place = made.opened()
    topic = place.meta.state.topics["orders"]
    [name] = topic.route.partitions
    where = ref or PartitionRef(Space.TOPICS, "orders", name, topic.generation)
    if not place.warehouse.exists(where):
        return []
    log = place.warehouse.open_partition(where)
    read = log.read(0, max_messages=1_000, max_bytes=1 << 30, columns=(*MESSAGE_COLUMNS, *TYPED)).rows
    rows: list[dict[str, Any]] = read.to_pylist()
    return rows


@pytest.mark.parametrize("form", ["json", "columns", "avro"])
def test_type_43_structs_become_values_and_bodies(form: Format) -> None:
    made = sink(form)
    made.write(0, structs(VALUES[0], VALUES[1]), structs(VALUES[2]))
    rows = rows_of(made)
    assert [row["value"] for row in rows] == VALUES
    if form != "avro":
        bodies = [b'{"id":1,"name":"a"}', b'{"id":2}', b'{"id":3,"name":"c"}']
        assert [row["body"] for row in rows] == bodies
    made.write(0, structs(VALUES[2]), structs(VALUES[0], VALUES[1]))
    assert len(rows_of(made)) == 3, "a repeat of the batch stores nothing"


@pytest.mark.parametrize("form", ["json", "columns"])
def test_type_43_bodies_become_values(form: Format) -> None:
    made = sink(form, schema=KEYED)
    made.write(0, keyed(json.dumps(value) for value in VALUES))
    assert [row["value"] for row in rows_of(made)] == VALUES


def test_type_43_a_batch_with_rows_that_do_not_fit_fails_and_says_which() -> None:
    made = sink(schema=KEYED)
    with pytest.raises(Unprocessable) as refused:
        made.write(0, keyed(['{"id": 1}', '{"id": "x"}', "nonsense"]))
    assert refused.value.code == "invalid_value" and refused.value.extra["count"] == 2
    assert "2 rows do not fit the schema of topic orders" in refused.value.detail
    assert "value.id" in refused.value.detail and rows_of(made) == []


@pytest.mark.parametrize("on_invalid", ["quarantine", "rescue"])
def test_type_43_what_does_not_fit_is_stored_as_the_topic_says(on_invalid: OnInvalid) -> None:
    made = sink(on_invalid=on_invalid, schema=KEYED)
    made.write(0, keyed(['{"id": 1}', '{"id": 2, "name": 5}']))
    first, second = rows_of(made)
    assert first["value"] == {"id": 1, "name": None} and first["invalid"] is None
    if on_invalid == "quarantine":
        assert second["value"] is None and second["invalid"]["field"] == "name"
    else:
        assert second["value"] == {"id": 2, "name": None} and second["rescued"]


def test_type_43_a_struct_that_does_not_fit_is_refused_in_any_mode() -> None:
    made = sink("columns", "quarantine")
    with pytest.raises(Unprocessable, match="'k1'"):
        made.write(0, structs(VALUES[0], {"id": None, "name": "no id"}))
    assert rows_of(made) == []


def test_type_43_structs_for_a_topic_of_bytes_are_refused() -> None:
    made = Sink(schema=STRUCT)
    made.put_topic(partitions=1)
    with pytest.raises(Refused) as refused:
        made.write(0, structs(VALUES[0]))
    assert refused.value.code == "no_schema" and "to_json" in refused.value.detail


def test_type_43_a_version_that_comes_between_staging_and_append_takes_the_rows() -> None:
    made = sink("columns")
    first = made.stage(0, structs(VALUES[0]))
    make_typed(made.place.meta, "orders", "columns", TEXTS["columns"] + ", note STRING")
    [second] = made.stage(0, structs(VALUES[2]))
    made.commit(0, [*first, second])
    assert [row["value"] and row["value"]["id"] for row in rows_of(made)] == [1, 3]


def test_type_43_rows_that_name_partitions_may_have_columns_of_two_versions() -> None:
    schema = T.StructType([*STRUCT, T.StructField("partition", T.IntegerType())])
    made = sink("columns", schema=schema)

    def named(*values: Any) -> pa.RecordBatch:
        return structs(*values).append_column("partition", pa.array([0] * len(values), pa.int32()))

    first = made.stage(0, named(VALUES[0]))
    make_typed(made.place.meta, "orders", "columns", TEXTS["columns"] + ", note STRING")
    made.commit(0, [*first, *made.stage(0, named(VALUES[2]))])
    assert [row["value"]["id"] for row in rows_of(made)] == [1, 3]


@pytest.mark.parametrize("form", ["json", "columns", "avro"])
def test_type_43_delayed_structs_wait_with_their_bodies(form: Format) -> None:
    made = sink(form, schema=T.StructType([*STRUCT, T.StructField("delay_ms", T.LongType())]))
    made.write(0, structs(*VALUES).append_column("delay_ms", pa.array([60_000] * 3, pa.int64())))
    [name] = made.opened().meta.state.topics["orders"].route.partitions
    waiting = rows_of(made, system_ref(DELAY, "deltamq", name.rpartition("@")[2]))
    assert len(waiting) == 3 and all(row["body"] for row in waiting) and rows_of(made) == []


def columns_written(*names: str) -> Sequence[str]:
    kinds: dict[str, T.DataType] = {"value": STRUCT["value"].dataType, "body": T.BinaryType()}
    return check_schema(
        T.StructType([T.StructField(name, kinds.get(name, T.StringType())) for name in names]), topic="orders"
    ).names


def test_type_43_rows_that_were_read_with_values_are_written_with_their_bodies() -> None:
    assert columns_written("key", "body", "value", "invalid", "rescued") == ("key", "body")
