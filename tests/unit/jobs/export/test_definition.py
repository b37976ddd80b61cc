"""What an export is, before Spark is asked: names, schemas, ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.export.definition import definition_of, remove_definition, save, sharing, struct_of_json_schema
from deltamq.jobs.export.plan import ExportPlan, Plans, next_ranges
from deltamq.mq.errors import Conflict, NotFound, Refused
from deltamq.mq.static.reading import StoredOffsets, Stretch
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.ops.exports import ExportState, definitions, read_definition
from deltamq.tables.store.store import MemoryStore


def test_spark_09_a_json_schema_is_the_ddl_of_a_table() -> None:
    schema = {
        "type": "object",
        "required": ["id", "maybe"],
        "properties": {
            "id": {"type": "integer"},
            "maybe": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
            "odd`name": {"type": "boolean"},
        },
    }
    assert struct_of_json_schema(schema) == (
        "`id` BIGINT NOT NULL, `maybe` DOUBLE, `at` TIMESTAMP, `items` ARRAY<STRUCT<`sku`: STRING>>, "
        "`odd``name` BOOLEAN"
    )


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "array"}, "json_schema"),
        ({"type": "object", "properties": {}}, "json_schema"),
        ({"type": "object", "properties": {"a": {"type": "thing"}}}, "json_schema.a"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "json_schema.a.items"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, "json_schema.required"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "json_schema.a"),
    ],
)
def test_spark_09_a_json_schema_without_a_type_in_spark_is_refused_by_place(
    schema: dict[str, object], field: str
) -> None:
    with pytest.raises(Refused) as raised:
        struct_of_json_schema(schema)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema": None}, "schema"),
        ({"json_schema": {"type": "object"}}, "schema"),
        ({"columns": ("body",)}, "columns"),
        ({"name": "a/b"}, "name"),
        ({"to": " "}, "to"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"topic": "a b"}, "topic"),
    ],
)
def test_spark_09_a_definition_that_cannot_be_is_refused_by_field(changes: dict[str, object], field: str) -> None:
    given_: dict[str, object] = {"topic": "orders", "to": "/lake/orders", "schema": "id BIGINT", **changes}
    with pytest.raises(Refused) as raised:
        definition_of(**given_)  # type: ignore[arg-type]
    assert raised.value.field == field


def test_spark_09_a_definition_keeps_its_identity_when_its_schema_changes() -> None:
    store = MemoryStore()
    first = save(store, definition_of("orders", "lake.orders", schema="id BIGINT"))
    again = save(store, definition_of("orders", "lake.orders", schema="id BIGINT, amount DOUBLE"))
    assert first.id == again.id and read_definition(store, "orders").schema == "id BIGINT, amount DOUBLE"
    assert (again.is_path, again.quarantine) == (False, "lake.orders_quarantine")
    with pytest.raises(Refused, match="remove it"):
        save(store, definition_of("orders", "/elsewhere", schema="id BIGINT"))
    remove_definition(store, "orders")
    assert definitions(store) == []
    with pytest.raises(NotFound):
        read_definition(store, "orders")


def test_spark_21_an_export_that_is_removed_and_added_goes_on_unless_it_is_to_be_forgotten() -> None:
    store = MemoryStore()
    first = save(store, definition_of("orders", "lake.orders", schema="id BIGINT"))
    Plans(store, first.id).finish(ExportPlan(batch=0, schema="id BIGINT"), ExportState(), rows=4, quarantined=1)
    remove_definition(store, "orders")
    assert save(store, definition_of("orders", "lake.others", schema="id BIGINT")).id != first.id
    again = save(store, definition_of("orders", "lake.orders", schema="id BIGINT, a INT", name="other-name"))
    assert again.id == first.id and Plans(store, again.id).state().rows == 4

    remove_definition(store, "other-name")
    with pytest.raises(NotFound):
        remove_definition(store, "other-name")
    remove_definition(store, "other-name", forget=True)
    anew = save(store, definition_of("orders", "lake.orders", schema="id BIGINT", name="other-name"))
    assert anew.id != first.id and Plans(store, first.id).state() == ExportState()
    remove_definition(store, "other-name", forget=True)
    assert save(store, definition_of("orders", "lake.orders", schema="id BIGINT", name="a")).id != anew.id
    with pytest.raises(NotFound):
        remove_definition(store, "nothing", forget=True)


def test_spark_09_two_exports_do_not_share_a_table_whose_quarantine_they_would_share() -> None:
    store = MemoryStore()
    orders = save(store, definition_of("orders", "lake.all", schema="id BIGINT"))
    bills = definition_of("bills", "lake.all", schema="id BIGINT")
    with pytest.raises(Refused, match="export orders writes") as raised:
        save(store, bills)
    assert raised.value.field == "to"
    save(store, definition_of("bills", "lake.bills", schema="id BIGINT"))
    assert sharing(store, bills) == "orders"
    assert sharing(store, orders) is None


def test_spark_09_a_plan_is_carried_out_again_until_it_is_in_the_state() -> None:
    plans = Plans(MemoryStore(), "x")
    plan = ExportPlan(batch=0, schema="id BIGINT", ranges={"orders@a:0": (0, 5)})
    plans.put(plan)
    with pytest.raises(Conflict):
        plans.put(plan)
    assert plans.unfinished(plans.state()) == plan
    arm("export.before_state=raise")
    try:
        with pytest.raises(FailpointHit):
            plans.finish(plan, plans.state(), rows=4, quarantined=1)
    finally:
        arm("")
    assert plans.unfinished(plans.state()) == plan
    plans.finish(plan, plans.state(), rows=4, quarantined=1)
    assert plans.state() == ExportState(batch=0, ends={"orders@a:0": 5}, rows=4, quarantined=1)
    assert plans.unfinished(plans.state()) is None


_bounds = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda two: (min(two), max(two)))


@given(st.dictionaries(st.sampled_from("abcdef"), _bounds), st.integers(1, 500))
def test_spark_09_batches_cover_every_offset_once_in_order(stored: dict[str, tuple[int, int]], rows_max: int) -> None:
    ends: dict[str, int] = {}
    held = {name: StoredOffsets.of_plain(low, high) for name, (low, high) in stored.items()}
    covered: dict[str, list[tuple[int, int]]] = {name: [] for name, (low, high) in stored.items() if high > low}
    while True:
        ranges, lost = next_ranges(ends, held, rows_max)
        assert lost == 0
        if not ranges:
            break
        assert sum(high - low for low, high in ranges.values()) <= rows_max + len(ranges)
        for name, (low, high) in ranges.items():
            assert high > low
            covered[name].append((low, high))
            ends[name] = high
    for name, parts in covered.items():
        assert [parts[0][0], *(high for _, high in parts)] == [*(low for low, _ in parts), stored[name][1]]
        assert parts[0][0] == stored[name][0]


def test_spark_09_what_retention_took_before_it_was_exported_is_counted() -> None:
    stored = {"a": (5, 8), "b": (2, 9), "c": (4, 4)}
    held = {name: StoredOffsets.of_plain(low, high) for name, (low, high) in stored.items()}
    assert next_ranges({"a": 3, "b": 9}, held, 100) == ({"a": (5, 8)}, 2)


def test_static_15_an_export_counts_messages_and_passes_holes() -> None:
    queue = StoredOffsets((Stretch(0, 0, 120), Stretch(10_000, 0, 30)))
    assert next_ranges({"q": 0}, {"q": queue}, 100) == ({"q": (0, 100)}, 0)
    assert next_ranges({"q": 100}, {"q": queue}, 20) == ({"q": (100, 10_000)}, 0)
    assert next_ranges({"q": 120}, {"q": queue}, 100) == ({"q": (10_000, 10_030)}, 0)
    assert next_ranges({"q": 10_030}, {"q": queue}, 100) == ({}, 0)
