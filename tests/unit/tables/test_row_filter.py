"""Filters over columns: the same answer as for each message by itself, whatever the layout of the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.filters.evaluation import Fields, evaluate
from deltamq.mq.filters.parser import parse_filter
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.schema import MESSAGE_SCHEMA
from tests.filters import conditions, messages, texts

#: Texts that Arrow takes for numbers, or for other numbers or letters than SQL does.
ODD = [
    "inf",
    "-Infinity",
    "NaN",
    "nan(1)",
    " 5",
    "5 ",
    "0x1",
    "1_0",
    "٥",
    "1e-999",
    "+-5",
    "5\n",
    "ſ",
    "TRUE\0",
    "a\0b",
]


def table(found: list[Fields]) -> pa.Table:
    rows = [
        {
            "offset": at,
            "key": one.key,
            "tag": one.tag,
            "headers": None if one.headers is None else list(one.headers.items()),
        }
        for at, one in enumerate(found)
    ]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def passing(condition: object, rows: pa.Table) -> list[int]:
    return MessageFilter(condition=condition).matching(rows).column("offset").to_pylist()


@given(
    conditions(),
    st.lists(messages(texts() | st.sampled_from(ODD)), max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_cons_09_columns_pass_the_messages_that_pass_one_by_one(
    condition: object, found: list[Fields], start: int, middle: int
) -> None:
    whole = table(found)
    expected = [at for at, message in enumerate(found) if at >= start and evaluate(condition, message)]
    assert passing(condition, whole.slice(start)) == expected
    parts = pa.concat_tables([whole.slice(start, middle), whole.slice(start + middle)])
    assert passing(condition, parts) == expected, "rows in two chunks"


@given(st.lists(texts() | st.sampled_from(ODD), min_size=1, max_size=8))
def test_cons_09_texts_without_a_number_among_them_change_nothing_for_the_others(values: list[str]) -> None:
    condition = parse_filter("a > 0")
    found = [Fields(headers={"a": text}) for text in values]
    assert passing(condition, table(found)) == [at for at, one in enumerate(found) if evaluate(condition, one)]


def test_cons_09_tags_and_a_condition_must_both_hold() -> None:
    rows = table([Fields(tag=tag, headers={"a": a}) for tag, a in ("x1", "x2", "y1", "y2")] + [Fields()])
    both = MessageFilter(tags=pa.array(["x"]), condition=parse_filter("a = 1"))
    assert both.matching(rows).column("offset").to_pylist() == [0]
    assert MessageFilter(tags=pa.array(["x"])).matching(rows).column("offset").to_pylist() == [0, 1]
    assert MessageFilter().matching(rows).num_rows == 5


@pytest.mark.parametrize(("text", "count"), [("TRUE", 3), ("FALSE", 0), ("NULL", 0), ("1 = 1", 3), ("1 = '2'", 0)])
def test_cons_09_a_condition_without_fields_holds_for_all_messages_or_for_none(text: str, count: int) -> None:
    assert MessageFilter(condition=parse_filter(text)).matching(table([Fields()] * 3)).num_rows == count


def test_cons_09_a_header_that_stands_twice_has_its_last_value() -> None:
    rows = pa.table({"offset": [0], "headers": pa.array([[("a", "1"), ("a", "2")]], pa.map_(pa.string(), pa.string()))})
    assert passing(parse_filter("a = 2"), rows) == [0]


@pytest.mark.parametrize("pattern", ["_" * 4000, "%_" * 1000, "%a" * 1000])
def test_cons_09_the_largest_patterns_are_matched(pattern: str) -> None:
    found = [Fields(headers={"a": text}) for text in ("a" * 1000, "é" * 500, "")]
    condition = parse_filter(f"a LIKE '{pattern}'")
    assert passing(condition, table(found)) == [at for at, one in enumerate(found) if evaluate(condition, one)]
