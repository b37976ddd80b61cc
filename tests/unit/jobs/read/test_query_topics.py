"""Shares of a read hold for all queries: whatever was appended since, each message belongs to one (SPARK-13)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from deltamq.jobs.read import query_topics
from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.query_topics import SharePartition, plan_shares, ranges_of_share
from deltamq.jobs.read.range_reader import read_range
from deltamq.mq.errors import Corrupt, Refused
from tests.unit.jobs.warehouses import Filled

A, B, C = "orders@broker-a", "orders@broker-b", "orders@broker-c"
TOPIC = {"topic": "orders"}
_queries = count()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Filled]:
    filled = Filled(tmp_path)
    filled.append("orders", A, *[b"a"] * 10)
    filled.append("orders", B, *[b"b"] * 3)
    yield filled
    filled.close()


def _plan(orders: Filled, rows_max: int = 4, **options: str) -> list[SharePartition]:
    return plan_shares(parse_options(options or TOPIC, warehouse=orders.uri), rows_max=rows_max)


def _read(orders: Filled, shares: Sequence[SharePartition], **options: str) -> list[tuple[str, int]]:
    """Return what a query reads, in any order: outside of Spark, a plan's name is that of a query."""
    parsed, query = parse_options(options or TOPIC, warehouse=orders.uri), f"query {next(_queries)}"
    found = []
    for share in pickle.loads(pickle.dumps(shares)):
        for one in ranges_of_share(parsed, replace(share, plan=query)):
            found += [(one.partition.name, at) for at in range(one.start, one.stop)]
    return sorted(found)


def _places(a: int, b: int) -> list[tuple[str, int]]:
    return [(A, i) for i in range(a)] + [(B, i) for i in range(b)]


def test_spark_13_shares_are_as_large_as_was_asked_when_they_were_planned(orders: Filled) -> None:
    shares = _plan(orders)
    assert [len(_read(orders, [share])) for share in shares] == [3, 3, 4, 3]
    assert _read(orders, shares) == _places(10, 3)


@pytest.mark.parametrize("rows_max", [1, 3, 4, 100])
def test_spark_13_parts_that_are_read_by_different_queries_miss_nothing_and_have_nothing_twice(
    orders: Filled, rows_max: int
) -> None:
    shares = _plan(orders, rows_max)
    before = _read(orders, shares[:1])
    orders.append("orders", A, *[b"a"] * 7)
    orders.append("orders", B, *[b"b"] * 20)
    orders.append("orders", C, *[b"c"] * 5)
    found = sorted(before + [place for share in shares[1:] for place in _read(orders, [share])])
    assert len(set(found)) == len(found)
    assert set(_places(10, 3)) <= set(found)
    assert _read(orders, shares) == _places(17, 23) + [(C, i) for i in range(5)]


def test_spark_13_a_read_of_nothing_is_a_read_of_what_comes(orders: Filled) -> None:
    options = {"subscribePattern": "new.*"}
    shares = _plan(orders, **options)
    assert (len(shares), _read(orders, shares, **options)) == (1, [])
    for topic in ("new1", "new2"):
        orders.append(topic, f"{topic}@broker-a", b"x", b"y")
    assert _read(orders, shares, **options) == [(f"{t}@broker-a", i) for t in ("new1", "new2") for i in (0, 1)]


def test_spark_13_bounds_are_looked_at_in_each_query(orders: Filled) -> None:
    options = {**TOPIC, "startingOffsets": json.dumps({"orders": {A: 2, B: 0}})}
    shares = _plan(orders, **options)
    assert len(_read(orders, shares, **options)) == 11
    orders.append("orders", A, b"later").delete_below(10)
    with pytest.raises(Refused, match=r"offsets \[2, 11\) were requested"):
        _read(orders, shares, **options)


def test_spark_13_what_retention_takes_after_the_first_look_is_said(orders: Filled) -> None:
    parsed = parse_options(TOPIC, warehouse=orders.uri)
    shares = [replace(share, plan="retained") for share in _plan(orders)]
    assert [one.rows for one in ranges_of_share(parsed, shares[0])] == [3]
    orders.append("orders", A, b"later").delete_below(10)
    query_topics._opened.cache_clear()  # another worker runs the next task
    (gone,) = ranges_of_share(parsed, shares[1])
    with pytest.raises(Corrupt, match=r"offsets \[3, 6\) were removed by retention"):
        list(read_range(orders.uri, gone, ["offset", "key"]))
